//! Everything put together, and kept running.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::http::{StatusCode, header};
use axum::routing::get;
use gpu::{Driver, Gpus, nvml::Nvml};
use kubeapi::{Kube, OwnNode, Recorder, connect};
use kubelet::cdi::{Kind, Specs};
use kubelet::checkpoint::Checkpoint;
use kubelet::devices::DeviceList;
use kubelet::plugin::{self, Config, RegisterError, Running};
use kubelet::pods::PodResources;
use model::Inventory;
use telemetry::{Health, Numbers, Shutdown, Stopping};
use tokio::sync::{mpsc, watch};

use crate::args::Args;
use crate::collecting::collect;
use crate::living::Processes;
use crate::locking::Lock;
use crate::metrics::Metrics;
use crate::plugin::Tickets;
use crate::pods::Pods;
use crate::records::Records;
use crate::settings::Settings;
use crate::starting::{KIND, STEM, Starter, chain};
use crate::watching::Watcher;

/// How long the driver may take to answer.
const DRIVER: Duration = Duration::from_secs(10);
/// How long the API server and the kubelet may take.
const ANSWER: Duration = Duration::from_secs(10);
/// How often leftovers are looked for.
const COLLECT: Duration = Duration::from_secs(30);
/// How long to wait before trying again what failed.
const AGAIN: Duration = Duration::from_secs(5);

/// Runs until a signal asks to stop.
pub async fn run(args: &Args) -> anyhow::Result<()> {
    let settings = Arc::new(args.settings()?);
    let (shutdown, stopping) = Shutdown::new();
    tokio::spawn(shutdown.ask_on_signal());
    let records = Records::open(&settings.pages.here)?;
    let metrics = Arc::new(Metrics::new(settings.node.as_str()));
    let health = Arc::new(Health::waiting_for(&["lock", "pods", "gpus", "kubelet"]));
    serve(&settings, metrics.clone(), health.clone()).await?;
    let mut asked = stopping.clone();
    let _lock = tokio::select! {
        lock = Lock::take(&settings.pages.here) => lock.context("take the lock of this node")?,
        () = asked.asked() => return Ok(()),
    };
    health.ready("lock");
    let client = connect(args.kubeconfig.as_deref(), None).await?;
    let gpus: Arc<dyn Gpus> = Arc::new(Nvml::new(Driver::below(&settings.driver.here), DRIVER));
    work(settings, client, gpus, records, metrics, health, stopping).await
}

async fn work(
    settings: Arc<Settings>,
    client: kubeapi::Client,
    gpus: Arc<dyn Gpus>,
    records: Records,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    mut stopping: Stopping,
) -> anyhow::Result<()> {
    let specs = specs(&settings, &mut stopping).await;
    let Some(specs) = specs else { return Ok(()) };
    let kind = Kind::parse(KIND)?;
    let pods = Pods::watch(client.clone(), settings.node.clone());
    let node = OwnNode::new(client.clone(), settings.node.clone(), ANSWER);
    let holdings = PodResources::new(&settings.pod_resources, ANSWER)?;
    // What was known before: a card lost while nobody looked is still a card pods hold.
    let before = Watcher::remembered(&node).await.unwrap_or_default();
    let (inventory, seen) = watch::channel(Arc::new(before));
    let starter = Arc::new(Starter::new(
        settings.clone(),
        kind.clone(),
        specs.clone(),
        records.clone(),
        pods.clone(),
        Some(holdings.clone()),
        seen.clone(),
    ));
    let (tell, told) = mpsc::channel(256);
    let recorder = Recorder::new(client.clone(), "nanogpu-agent", settings.node.as_str());
    tokio::spawn(pass_on(told, recorder));
    let plugins: Vec<Arc<Tickets>> = dialect::served(&settings.dialects)
        .into_iter()
        .map(|served| {
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
        })
        .collect();
    let (count, registrations) = watch::channel(0);
    let watcher = Watcher {
        settings: settings.clone(),
        gpus,
        node,
        kube: Kube::new(client, ANSWER),
        inventory,
        plugins: plugins.clone(),
        pods: pods.clone(),
        records: records.clone(),
        metrics: metrics.clone(),
        tell,
        registrations,
    };
    let watching = tokio::spawn(watcher.run(stopping.clone()));
    tokio::spawn(collecting(
        settings.clone(),
        specs,
        records,
        kind,
        pods.clone(),
        metrics,
        stopping.clone(),
    ));
    let ready = health.clone();
    tokio::spawn(async move {
        pods.synced().await;
        ready.ready("pods");
    });
    let running = serve_plugins(&settings, &plugins, seen, &health, count, &mut stopping).await;
    stopping.asked().await;
    for one in running {
        one.stop().await;
    }
    let _ = watching.await;
    Ok(())
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
    health.ready("gpus");
    let count = Arc::new(count);
    let mut running = Vec::new();
    for plugin in plugins {
        if let Err(error) = plugin.served.ids(&first) {
            tracing::warn!(%error, "resource not served");
            continue;
        }
        let mut list = plugin.list.subscribe();
        tokio::select! {
            _ = list.wait_for(|list| !list.is_empty()) => {}
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
        let (resource, count) = (served.resource, count.clone());
        tokio::spawn(async move {
            while standing.changed().await.is_ok() {
                let now = standing.borrow_and_update().clone();
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

async fn collecting(
    settings: Arc<Settings>,
    specs: Specs,
    records: Records,
    kind: Kind,
    pods: Pods,
    metrics: Arc<Metrics>,
    mut stopping: Stopping,
) {
    pods.synced().await;
    loop {
        let (settings, specs, records) = (settings.clone(), specs.clone(), records.clone());
        let (kind, pods) = (kind.clone(), pods.clone());
        let done = tokio::task::spawn_blocking(move || {
            let processes = Processes::below(&settings.proc);
            let checkpoint = Checkpoint::read(&settings.plugins);
            collect(&specs, &records, checkpoint, &kind, &pods, &processes)
        });
        metrics.collected(done.await.unwrap_or(0));
        tokio::select! {
            () = stopping.asked() => return,
            () = tokio::time::sleep(COLLECT) => {}
        }
    }
}

/// Metrics and health over HTTP.
async fn serve(
    settings: &Settings,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
) -> anyhow::Result<()> {
    let text =
        move || async move { ([(header::CONTENT_TYPE, Numbers::CONTENT_TYPE)], metrics.text()) };
    let ready = move || async move {
        match health.check() {
            Ok(()) => (StatusCode::OK, "ok".to_owned()),
            Err(not) => (StatusCode::SERVICE_UNAVAILABLE, not.to_string()),
        }
    };
    let routes = Router::new()
        .route("/metrics", get(text))
        .route("/healthz", get(|| async { "ok" }))
        .route("/readyz", get(ready));
    let listener = tokio::net::TcpListener::bind(settings.listen).await;
    let listener = listener.with_context(|| format!("listen on {}", settings.listen))?;
    tracing::info!(address = %listener.local_addr()?, "serving metrics");
    tokio::spawn(async move { axum::serve(listener, routes).await });
    Ok(())
}
