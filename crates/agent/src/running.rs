//! Everything put together, and kept running.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::http::{StatusCode, header};
use axum::routing::get;
use axum::{Json, Router};
use dialect::ServedError;
use gpu::{Driver, Gpus, nvml::Nvml};
use kubeapi::{Kube, Outside as _, OwnNode, Recorder, connect};
use kubelet::cdi::{Kind, Specs};
use kubelet::devices::DeviceList;
use kubelet::plugin::{self, Config, RegisterError, Running};
use kubelet::pods::PodResources;
use model::codec::decode_inventory;
use model::{Inventory, PodId, names};
use telemetry::{Health, Numbers, Shutdown, Stopping};
use tokio::sync::{mpsc, watch};

use crate::args::Args;
use crate::beating::{Heart, Load, Said, listed};
use crate::collecting::collect;
use crate::display;
use crate::laying;
use crate::library;
use crate::living::Processes;
use crate::locking::Lock;
use crate::metrics::Metrics;
use crate::plugin::Tickets;
use crate::pods::Pods;
use crate::probing::Prober;
use crate::publishing::Publisher;
use crate::records::Records;
use crate::refereeing::{Spoiled, referee};
use crate::rungs::Rung;
use crate::settings::Settings;
use crate::starting::{KIND, STEM, Starter, chain};
use crate::vcuda::Vcuda;
use crate::watching::{NodeWord, Watcher};

/// How long the driver may take to answer.
const DRIVER: Duration = Duration::from_secs(10);
/// How long the API server and the kubelet may take.
const ANSWER: Duration = Duration::from_secs(10);
/// After how many looks at the cards leftovers are looked for: every half minute by default.
const COLLECT: u32 = 10;
/// How long to wait before trying again what failed.
const AGAIN: Duration = Duration::from_secs(5);

/// The mark of a runtime that ignores CDI, in the folder of pages.
const NO_CDI: &str = ".no-cdi";

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Runs until a signal asks to stop.
pub async fn run(args: &Args) -> anyhow::Result<()> {
    let settings = Arc::new(args.settings()?);
    let (shutdown, stopping) = Shutdown::new();
    tokio::spawn(shutdown.ask_on_signal());
    let records = Records::open(&settings.pages.here)?;
    let metrics = Arc::new(Metrics::new(settings.node.as_str(), settings.originals));
    let health = Arc::new(Health::waiting_for(&["lock", "pods", "gpus", "kubelet"]));
    let (pods_here, pods) = watch::channel(None);
    serve(&settings, metrics.clone(), health.clone(), pods).await?;
    let mut asked = stopping.clone();
    let _lock = tokio::select! {
        lock = Lock::take(&settings.pages.here) => lock.context("take the lock of this node")?,
        () = asked.asked() => return Ok(()),
    };
    health.ready("lock");
    records.tidy();
    if let Some(source) = args.limiter_source.as_deref().filter(|_| settings.rung == Rung::Limiter)
    {
        let put = library::put(source, &settings.limiter.here)?;
        tracing::info!(source = %source.display(), %put, "the limiter is in place");
    }
    let client = connect(args.kubeconfig.as_deref(), None).await?;
    let gpus: Arc<dyn Gpus> = Arc::new(
        Nvml::new(Driver::below(&settings.driver.here), DRIVER).watching(&settings.dev.here),
    );
    let pods = Pods::watch(client.clone(), settings.node.clone());
    pods_here.send_replace(Some(pods.clone()));
    work(settings, client, gpus, records, pods, metrics, health, stopping).await
}

#[expect(clippy::too_many_arguments, reason = "everything is joined here")]
async fn work(
    settings: Arc<Settings>,
    client: kubeapi::Client,
    gpus: Arc<dyn Gpus>,
    records: Records,
    pods: Pods,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    mut stopping: Stopping,
) -> anyhow::Result<()> {
    let specs = specs(&settings, &mut stopping).await;
    let Some(specs) = specs else { return Ok(()) };
    let kind = Kind::parse(KIND)?;
    let node = OwnNode::new(client.clone(), settings.node.clone(), ANSWER);
    let holdings = PodResources::new(&settings.pod_resources, ANSWER)?;
    let Some(known) = known(&node, &settings, &mut stopping).await else { return Ok(()) };
    let (inventory, seen) = watch::channel(Arc::new(known.inventory));
    let (said, of_people) = watch::channel(known.said);
    let vcuda = serve_vcuda(&settings, &records, &pods, &seen);
    let prober = Arc::new(prober(&settings, &specs, &pods));
    let starter = Arc::new(Starter::new(
        settings.clone(),
        kind.clone(),
        specs.clone(),
        records.clone(),
        pods.clone(),
        Some(holdings.clone()),
        seen.clone(),
        vcuda.clone(),
        prober.clone(),
    ));
    let (tell, told) = mpsc::channel(256);
    let recorder = Recorder::new(client.clone(), "nanogpu-agent", settings.node.as_str());
    tokio::spawn(pass_on(told, recorder));
    let plugins = plugins(&settings, &starter, &holdings, &tell, &metrics)?;
    let (count, registrations) = watch::channel(0);
    let (looked, has_looked) = watch::channel(false);
    tokio::spawn(ready_without_cards(has_looked, seen.clone(), health.clone()));
    let (tell_node, told_of_node) = mpsc::channel(256);
    tokio::spawn(pass_on_of_node(told_of_node, node.clone()));
    let probing = prober.clone().run(
        settings.look,
        metrics.clone(),
        tell.clone(),
        tell_node.clone(),
        stopping.clone(),
    );
    tokio::spawn(probing);
    let (evict, evicted) = mpsc::channel(4);
    tokio::spawn(evicting(evicted, Kube::new(client, ANSWER)));
    let (load, measured) = watch::channel(Load::default());
    let heart =
        Heart { settings: settings.clone(), node: node.clone(), load: measured, said, prober };
    tokio::spawn(heart.run(stopping.clone()));
    let writer = Publisher {
        settings: settings.clone(),
        node,
        published: known.published,
        inventory: seen.clone(),
        looked: looked.subscribe(),
        registrations,
    };
    tokio::spawn(writer.run(stopping.clone()));
    let spoiled = Spoiled::default();
    let refereeing =
        referee(records.clone(), pods.clone(), spoiled.clone(), tell.clone(), stopping.clone());
    tokio::spawn(refereeing);
    let watcher = Watcher {
        settings: settings.clone(),
        gpus,
        inventory,
        looked,
        said: of_people,
        load,
        plugins: plugins.clone(),
        pods: pods.clone(),
        records: records.clone(),
        spoiled,
        metrics: metrics.clone(),
        tell,
        tell_node,
        evict,
    };
    let watching = tokio::spawn(watcher.run(stopping.clone()));
    tokio::spawn(collecting(
        settings.clone(),
        specs,
        records,
        kind,
        pods.clone(),
        metrics,
        vcuda,
        stopping.clone(),
    ));
    tokio::spawn(ready_with_pods(pods, health.clone()));
    let running = serve_plugins(&settings, &plugins, seen, &health, count, &mut stopping).await;
    stopping.asked().await;
    for one in running {
        one.stop().await;
    }
    let _ = watching.await;
    Ok(())
}

fn prober(settings: &Settings, specs: &Specs, pods: &Pods) -> Prober {
    let may_make_nodes = laying::may_make_nodes(&settings.pages.here);
    let (proc, mark) = (settings.proc.clone(), settings.pages.here.join(NO_CDI));
    Prober::new(settings.handing, may_make_nodes, specs.clone(), pods.clone(), proc, mark)
}

/// A plugin for each resource that is served.
fn plugins(
    settings: &Settings,
    starter: &Arc<Starter>,
    holdings: &PodResources,
    tell: &mpsc::Sender<kubeapi::Told>,
    metrics: &Arc<Metrics>,
) -> anyhow::Result<Vec<Arc<Tickets>>> {
    let kind = Kind::parse(KIND)?;
    let plugin = |served| {
        Arc::new(Tickets {
            served,
            list: watch::Sender::new(DeviceList::default()),
            starter: starter.clone(),
            kind: kind.clone(),
            mode: settings.mode,
            holdings: Some(holdings.clone()),
            tell: tell.clone(),
            metrics: metrics.clone(),
        })
    };
    Ok(dialect::served(&settings.dialects).into_iter().map(plugin).collect())
}

/// What is known of a node before its cards are looked at.
struct Known {
    /// The annotation as it stands.
    published: Option<String>,
    /// What it says: a card lost while nobody looked is still a card pods hold.
    inventory: Inventory,
    /// What people say, before anything is published that they do not want.
    said: Said,
}

/// What stands at the node, however long it takes to be read: before that nothing is said of it.
async fn known(node: &OwnNode, settings: &Settings, stopping: &mut Stopping) -> Option<Known> {
    let mut annotations = loop {
        match node.annotations().await {
            Ok(annotations) => break annotations,
            Err(error) => tracing::warn!(error = chain(&error), "the node is not known yet"),
        }
        tokio::select! {
            () = stopping.asked() => return None,
            () = tokio::time::sleep(AGAIN) => {}
        }
    };
    let published = annotations.remove(names::INVENTORY);
    let inventory = published.as_ref().and_then(|text| decode_inventory(text).ok());
    let cordon = annotations.remove(names::CORDON).unwrap_or_default();
    let listed = listed(node, settings).await.unwrap_or_default();
    let said = Said { cordon, listed };
    Some(Known { published, inventory: inventory.unwrap_or_default(), said })
}

fn serve_vcuda(
    settings: &Settings,
    records: &Records,
    pods: &Pods,
    inventory: &watch::Receiver<Arc<Inventory>>,
) -> Option<Arc<Vcuda>> {
    let folder = settings.vcuda.clone()?;
    let (processes, driver) =
        (Processes::below(&settings.proc), Driver::below(&settings.driver.here));
    let (records, pods) = (records.clone(), pods.clone());
    Some(Arc::new(Vcuda::new(folder, records, pods, processes, inventory.clone(), driver)))
}

/// The folder of specs, however long it takes to be there.
async fn specs(settings: &Settings, stopping: &mut Stopping) -> Option<Specs> {
    loop {
        match Specs::open(&settings.cdi) {
            Ok(specs) => {
                match specs.remove_leftovers(STEM) {
                    Ok(0) => {}
                    Ok(count) => tracing::info!(count, "unfinished specs removed"),
                    Err(error) => tracing::warn!(error = chain(&error), "unfinished specs stay"),
                }
                return Some(specs);
            }
            Err(error) => tracing::warn!(error = chain(&error), "no folder for CDI specs yet"),
        }
        tokio::select! {
            () = stopping.asked() => return None,
            () = tokio::time::sleep(AGAIN) => {}
        }
    }
}

async fn ready_with_pods(pods: Pods, health: Arc<Health>) {
    pods.synced().await;
    health.ready("pods");
}

/// A node without a card is as it should be: an update of all agents must not wait for it.
async fn ready_without_cards(
    mut looked: watch::Receiver<bool>,
    inventory: watch::Receiver<Arc<Inventory>>,
    health: Arc<Health>,
) {
    if looked.wait_for(|looked| *looked).await.is_ok() && inventory.borrow().devices.is_empty() {
        health.ready("gpus");
        health.ready("kubelet");
    }
}

/// Registers the plugins as soon as there is a card. A node without one is left alone.
async fn serve_plugins(
    settings: &Settings,
    plugins: &[Arc<Tickets>],
    mut inventory: watch::Receiver<Arc<Inventory>>,
    health: &Arc<Health>,
    count: watch::Sender<u64>,
    stopping: &mut Stopping,
) -> Vec<Running> {
    let first = tokio::select! {
        first = inventory.wait_for(|inventory| !inventory.devices.is_empty()) => match first {
            Ok(first) => first.clone(),
            Err(_) => return Vec::new(),
        },
        () = stopping.asked() => return Vec::new(),
    };
    health.unready("kubelet");
    health.ready("gpus");
    let count = Arc::new(count);
    let mut running = Vec::new();
    for plugin in plugins {
        match plugin.served.ids(&first) {
            Ok(_) => {}
            Err(error @ ServedError::Measured { .. }) => {
                tracing::info!(%error, "resource measured");
                continue;
            }
            Err(error @ ServedError::TooMany { .. }) => {
                tracing::warn!(%error, "resource not served");
                continue;
            }
        }
        let mut list = plugin.list.subscribe();
        // A card that came since the first look may make them too many: then no list comes.
        let too_many = inventory.wait_for(|now| plugin.served.ids(now).is_err());
        tokio::select! {
            biased;
            _ = list.wait_for(|list| !list.is_empty()) => {}
            _ = too_many => {
                tracing::warn!(resource = plugin.served.resource, "resource not served any more");
                continue;
            }
            () = stopping.asked() => return running,
        }
        let served = &plugin.served;
        let config = match Config::new(&settings.plugins, &served.socket, served.resource) {
            Ok(config) => config,
            Err(error) => {
                tracing::error!(%error, "resource not served");
                continue;
            }
        };
        let one = plugin::start(config, plugin.clone());
        let mut standing = one.standing();
        let (resource, count, metrics) = (served.resource, count.clone(), plugin.metrics.clone());
        tokio::spawn(async move {
            while standing.changed().await.is_ok() {
                let now = standing.borrow_and_update().clone();
                let watched = matches!(now.state, plugin::State::Watched);
                metrics.plugin(resource, watched, now.registrations);
                tracing::info!(resource, state = ?now.state, registrations = now.registrations, "plugin");
                if matches!(now.state, plugin::State::Registered) {
                    count.send_modify(|count| *count += 1);
                }
            }
        });
        running.push(one);
    }
    let standings: Vec<_> = running.iter().map(Running::standing).collect();
    let health = health.clone();
    tokio::spawn(async move {
        for mut standing in standings {
            let _ = standing.wait_for(|now| is_settled(&now.state)).await;
        }
        health.ready("kubelet");
    });
    running
}

/// Whether the kubelet reads the plugin's list, or will not for a reason that is no fault of ours.
fn is_settled(state: &plugin::State) -> bool {
    match state {
        plugin::State::Watched | plugin::State::Stopped => true,
        plugin::State::Waiting(why) => matches!(**why, RegisterError::Declined { .. }),
        plugin::State::Starting | plugin::State::Registered => false,
    }
}

async fn pass_on(mut told: mpsc::Receiver<kubeapi::Told>, recorder: Recorder) {
    while let Some(told) = told.recv().await {
        recorder.tell(told).await;
    }
}

async fn pass_on_of_node(mut told: mpsc::Receiver<NodeWord>, node: OwnNode) {
    while let Some(NodeWord { reason, note, warning }) = told.recv().await {
        node.tell(reason, note, warning).await;
    }
}

async fn evicting(mut pods: mpsc::Receiver<PodId>, kube: Kube) {
    while let Some(pod) = pods.recv().await {
        let outcome = kube.evict(&pod).await;
        tracing::warn!(%pod, ?outcome, "evicted for what it takes");
    }
}

#[expect(clippy::too_many_arguments, reason = "everything is joined here")]
async fn collecting(
    settings: Arc<Settings>,
    specs: Specs,
    records: Records,
    kind: Kind,
    pods: Pods,
    metrics: Arc<Metrics>,
    vcuda: Option<Arc<Vcuda>>,
    mut stopping: Stopping,
) {
    pods.synced().await;
    let every = settings.look * COLLECT;
    loop {
        if let Some(vcuda) = &vcuda {
            // Without the records everyone would be gone.
            match records.list() {
                Ok(all) => vcuda.keep(&all.iter().map(|record| record.pod.clone()).collect()).await,
                Err(error) => tracing::warn!(error = chain(&error), "vcuda folders stay"),
            }
        }
        let (settings, specs, records) = (settings.clone(), specs.clone(), records.clone());
        let (kind, pods) = (kind.clone(), pods.clone());
        let done = tokio::task::spawn_blocking(move || {
            let processes = Processes::below(&settings.proc);
            collect(&specs, &records, &settings.plugins, &kind, &pods, &processes)
        });
        metrics.collected(done.await.unwrap_or(0));
        tokio::select! {
            () = stopping.asked() => return,
            () = tokio::time::sleep(every) => {}
        }
    }
}

/// Metrics, health, and gpu-manager's questions over HTTP.
async fn serve(
    settings: &Settings,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    pods: watch::Receiver<Option<Pods>>,
) -> anyhow::Result<()> {
    let (numbers, pictures, drawn) = (metrics.clone(), metrics.clone(), metrics);
    let text = move || async move {
        let text = tokio::task::spawn_blocking(move || numbers.text()).await;
        let text = text.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
        Ok::<_, StatusCode>(([(header::CONTENT_TYPE, Numbers::CONTENT_TYPE)], text))
    };
    let ready = move || async move {
        match health.check() {
            Ok(()) => (StatusCode::OK, "ok".to_owned()),
            Err(not) => (StatusCode::SERVICE_UNAVAILABLE, not.to_string()),
        }
    };
    let usage = move || async move {
        let pods = pods.borrow().as_ref().map(Pods::all).unwrap_or_default();
        Json(display::usage(&pictures.latest(), &|uid| pods.get(uid).cloned()))
    };
    let graph =
        move || async move { Json(serde_json::json!({"graph": display::graph(&drawn.latest())})) };
    let routes = Router::new()
        .route("/metrics", get(text.clone()))
        // As gpu-manager calls it.
        .route("/metric", get(text))
        .route("/usage", get(usage))
        .route("/graph", get(graph))
        .route("/version", get(|| async { Json(serde_json::json!({"version": VERSION})) }))
        .route("/healthz", get(|| async { "ok" }))
        .route("/readyz", get(ready));
    let listener = tokio::net::TcpListener::bind(settings.listen).await;
    let listener = listener.with_context(|| format!("listen on {}", settings.listen))?;
    tracing::info!(address = %listener.local_addr()?, "serving metrics");
    tokio::spawn(async move { axum::serve(listener, routes).await });
    Ok(())
}
