//! The service as a whole: everything made, joined, started, and stopped in the right order.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use axum::Router;
use futures::StreamExt as _;
use kubeapi::{
    Alone, Client, Clock, Elected, Election, Kube, Leadership, Outside, QuotaSource, Recorder,
    Reviews, Source, Told, TouchOutcome, Watching,
};
use telemetry::{Health, Numbers, Shutdown, Stopping};
use time::OffsetDateTime;
use tokio::sync::{mpsc, watch};

use crate::admission::{Admission, AdmissionOptions};
use crate::decisions::Decisions;
use crate::http::{
    Beside, Doors, Gate, Limits, Listener, Live, Mode, Reading, admission_routes, health_routes,
    profile_routes, read_routes, serve, verb_routes, wait_until_free,
};
use crate::metrics::{Capacity, Metrics, Outcome};
use crate::options::Options;
use crate::peers::Peers;
use crate::preempting::{Looked, Preempting};
use crate::service::{LastRead, Service};
use crate::state::{Writer, WriterOptions};
use crate::taking_over::{HeldBack, TakingOver};
use crate::tls::Tls;
use crate::verbs::bind::{BindOptions, Binder};
use crate::verbs::memo::Memo;
use crate::verbs::offer::{MANY, Offer};
use crate::verbs::predicates::Predicates;
use crate::waking::Waiting;

/// How long a promised room is kept for a pod that does not come, in milliseconds.
const PROMISE: u64 = 300_000;
/// How long a reservation lives without a Binding, in milliseconds.
const HOLD: u64 = 15_000;
/// How long an address of ours may be another's: less than the minute in which a probe of the shipped
/// manifests must have an answer.
const OTHERS: Duration = Duration::from_secs(45);
/// How long requests under way may take once we are asked to stop.
const DRAIN: Duration = Duration::from_secs(20);
/// How many pods are touched at once.
const TOUCHES: usize = 16;

/// Runs until a signal says stop. What may take long is done on the threads `beside`.
pub async fn run(options: Options, beside: Beside) -> anyhow::Result<()> {
    let (shutdown, stopping) = Shutdown::new();
    tokio::spawn(shutdown.ask_on_signal());
    let client = kubeapi::connect(options.kubeconfig.as_deref(), options.master.as_deref()).await?;
    Running::start(options, client, beside, stopping).await?.finish().await
}

struct Running {
    parts: Arc<Parts>,
    stopping: Stopping,
    servers: Vec<tokio::task::JoinHandle<std::io::Result<()>>>,
    election: Option<tokio::task::JoinHandle<()>>,
    end_election: watch::Sender<bool>,
}

/// What the loops share.
struct Parts {
    service: Arc<Service>,
    outside: Arc<dyn Outside>,
    leadership: Arc<dyn Leadership>,
    peers: Arc<Peers>,
    clock: Clock,
}

impl Running {
    #[expect(clippy::too_many_lines, reason = "one thing after another, each made once")]
    async fn start(
        options: Options,
        client: Client,
        beside: Beside,
        stopping: Stopping,
    ) -> anyhow::Result<Self> {
        // Whoever cannot be reached must not lead.
        let mut asked = stopping.clone();
        tokio::select! {
            free = wait_until_free(options.addresses(), OTHERS) => free?,
            () = asked.asked() => bail!("asked to stop before it started"),
        }
        let clock = Clock::new();
        let settings = Arc::new(options.settings());
        let sources = [
            Source::Pods,
            Source::Nodes,
            Source::Agents,
            Source::Budgets,
            Source::Quota(QuotaSource::GpuAdmission),
            Source::Quota(QuotaSource::Ours),
        ];
        let health = Arc::new(Health::waiting_for(&sources.map(Source::as_str)));
        let numbers = Arc::new(Numbers::new());
        let metrics = Arc::new(Metrics::new(&numbers));

        let policy = options.policy();
        let writer_options = WriterOptions { settings: settings.clone(), policy, promise: PROMISE };
        let (writer, handle) = Writer::new(writer_options, clock, health.clone());
        Capacity::register(handle.clone(), &numbers);
        let (events, seen) = mpsc::channel(4096);
        tokio::spawn(writer.run(seen));
        tokio::spawn(kubeapi::watch(client.clone(), watching(&options)?, clock, events));

        let host = std::fs::read_to_string("/etc/hostname").unwrap_or_default();
        let identity = options.identity.clone().unwrap_or_else(|| host.trim().to_owned());
        let recorder = Recorder::new(client.clone(), "nanogpu-scheduler", &identity);
        let (end_election, ended) = watch::channel(false);
        let (leadership, election) = lead(&options, &client, &identity, ended);
        let outside: Arc<dyn Outside> = Arc::new(Kube::new(
            client.clone(),
            Duration::from_secs(options.bind_seconds).mul_f32(0.6),
        ));

        let (prepared, is_prepared) = watch::channel(0);
        let held_back = Arc::new(HeldBack::default());
        let taking_over = TakingOver {
            handle: handle.clone(),
            outside: outside.clone(),
            leadership: leadership.clone(),
            settings: settings.clone(),
            schedulers: options.scheduler_names.clone(),
            clock,
            held_back: held_back.clone(),
        };
        let ready = health.clone();
        tokio::spawn(async move {
            // What is bound is known only after the first full sync.
            while ready.check().is_err() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            taking_over.run(prepared).await;
        });
        let bind_options = BindOptions {
            settings: settings.clone(),
            schedulers: options.scheduler_names.clone(),
            hold: HOLD,
            margin: Duration::from_secs(1),
            answer_within: Duration::from_secs(options.bind_seconds),
            conflicts: metrics.conflicts.clone(),
        };
        let binder = Binder::new(
            handle.clone(),
            outside.clone(),
            leadership.clone(),
            bind_options,
            clock,
            is_prepared,
            held_back,
        );
        let preempting = Arc::new(Preempting::new(handle.clone(), outside.clone(), policy));
        let predicates = Predicates::new(
            handle.clone(),
            outside.clone(),
            clock,
            options.predicate_seconds.saturating_mul(1000),
        );
        let service = Arc::new(Service {
            handle,
            settings: settings.clone(),
            policy,
            waiting: Arc::new(Waiting::default()),
            preempting,
            binder,
            predicates,
            decisions: Arc::new(Decisions::default()),
            metrics: metrics.clone(),
            memo: Memo::default(),
            last: LastRead::default(),
            clock,
            offer: Offer { many: MANY, few: options.offer },
            strict_bind_status: options.strict_bind_status,
        });

        let tls = if options.secure_address.is_some() || options.api_address.is_some() {
            Some(Tls::start(&options, client.clone()).await?)
        } else {
            None
        };
        let calling = tls.as_ref().map(|tls| tls.calling.clone());
        let patience = Duration::from_secs(options.bind_seconds);
        let peers = Arc::new(Peers::new(leadership.clone(), calling, Some(recorder), patience));
        let limits = Limits {
            body: usize::try_from(options.body_mib << 20).unwrap_or(usize::MAX),
            arrive: Duration::from_secs(options.body_seconds),
            at_once: usize::try_from(options.at_once).unwrap_or(64),
            turn: Duration::from_secs(5),
        };
        let read_limits = Limits { body: 4 << 20, at_once: 8, ..limits };
        // The API server waits for five seconds.
        let few_seconds = Duration::from_secs(2);
        let webhook_limits =
            Limits { body: 4 << 20, arrive: few_seconds, at_once: 32, turn: few_seconds };
        let doors = Arc::new(Doors {
            service: service.clone(),
            peers: peers.clone(),
            gate: Gate::new(limits, metrics.clone()),
            webhook: Gate::new(webhook_limits, metrics.clone()),
            scrapes: Gate::new(Limits { at_once: 2, ..read_limits }, metrics.clone()),
            health,
            numbers,
            beside: beside.clone(),
        });
        let reading = Arc::new(Reading {
            service: service.clone(),
            reviews: (!options.anonymous_read).then(|| Reviews::new(client.clone())),
            gate: Gate::new(read_limits, metrics.clone()),
            live: Live::new(stopping.clone()),
            beside: beside.clone(),
        });
        beside.start(crate::api::keep(reading.clone()));
        let admission = Arc::new(Admission {
            settings,
            options: AdmissionOptions {
                scheduler_name: options.set_scheduler_name.clone(),
                allow_privileged: options.allow_privileged,
            },
            metrics,
        });
        let listeners = listeners(&options, &doors, &reading, &admission, tls.as_ref(), &stopping);
        let mut servers = Vec::new();
        for listener in listeners {
            let bound = listener.bind()?;
            tracing::info!(address = %bound.address, "listening");
            servers.push(tokio::spawn(serve(bound, stopping.clone(), DRAIN)));
        }
        if options.anonymous_read {
            tracing::warn!("everyone who reaches the read API may use it (--anonymous-read)");
        }
        let parts = Arc::new(Parts { service, outside, leadership, peers, clock });
        beside.start(wake(parts.clone()));
        beside.start(make_room(parts.clone()));
        Ok(Self { parts, stopping, servers, election, end_election })
    }

    /// Waits for the signal, finishes what has begun, and gives the lead back last.
    async fn finish(mut self) -> anyhow::Result<()> {
        self.stopping.asked().await;
        tracing::info!("stopping");
        for server in self.servers {
            server.await.context("a server ended badly")??;
        }
        let drained = async {
            while self.parts.service.binder.under_way() > 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let _ = tokio::time::timeout(DRAIN, drained).await;
        self.end_election.send_replace(true);
        if let Some(election) = self.election {
            let _ = tokio::time::timeout(Duration::from_secs(5), election).await;
        }
        tracing::info!("stopped");
        Ok(())
    }
}

fn watching(options: &Options) -> anyhow::Result<Watching> {
    let enabled = options.settings().enabled;
    let identities = enabled.iter().flat_map(|dialect| dialect.identity_resources()).copied();
    let (namespace, name) = options
        .gpu_admission_quota
        .split_once('/')
        .context("--gpu-admission-quota is written namespace/configmap")?;
    let quota = |source, namespace: &str, name: &str, key: &str| {
        (source, namespace.to_owned(), name.to_owned(), key.to_owned())
    };
    Ok(Watching {
        namespace: options.namespace.clone(),
        identities: identities.collect(),
        pool_label: Some(options.pool_label.clone()),
        quotas: vec![
            quota(QuotaSource::GpuAdmission, namespace, name, "gpu_quota"),
            quota(QuotaSource::Ours, &options.namespace, &options.quota, "quota.json"),
        ],
    })
}

fn lead(
    options: &Options,
    client: &Client,
    identity: &str,
    mut ended: watch::Receiver<bool>,
) -> (Arc<dyn Leadership>, Option<tokio::task::JoinHandle<()>>) {
    if options.no_leader_election {
        return (Arc::new(Alone), None);
    }
    let start = OffsetDateTime::now_utc().unix_timestamp_nanos();
    let election = Election {
        namespace: options.namespace.clone(),
        name: "nanogpu-scheduler".to_owned(),
        // Another start of the same replica is another leader: it knows nothing of the first.
        identity: format!("{identity}_{start:x}"),
        address: options.peer_address.clone(),
        duration: Duration::from_secs(options.lease_seconds),
        renew: Duration::from_secs(options.lease_seconds).div_f32(5.0),
    };
    let stop = async move {
        let _ = ended.wait_for(|ended| *ended).await;
    };
    let (elected, run): (Elected, _) = election.run(client.clone(), stop);
    (Arc::new(elected), Some(tokio::spawn(run)))
}

fn listeners(
    options: &Options,
    doors: &Arc<Doors>,
    reading: &Arc<Reading>,
    admission: &Arc<Admission>,
    tls: Option<&Tls>,
    stopping: &Stopping,
) -> Vec<Listener> {
    let everything =
        || -> Router { verb_routes(doors).merge(health_routes(doors)).merge(read_routes(reading)) };
    let mut listeners: Vec<Listener> = Vec::new();
    for &address in &options.address {
        let mode = if options.insecure { Mode::Plain } else { Mode::Loopback };
        if options.insecure && !address.ip().is_loopback() {
            tracing::warn!(%address, "whoever reaches this address may bind pods (--insecure)");
        }
        let router = everything().merge(profile_routes(options.pprof, address, stopping));
        listeners.push(Listener { address, mode, router });
    }
    if options.pprof && !options.address.iter().any(|address| address.ip().is_loopback()) {
        tracing::warn!("no profile is served (--pprof): none of --address is loopback");
    }
    let mut add = |address: Option<SocketAddr>, mode: Option<Mode>, router: Router| {
        if let (Some(address), Some(mode)) = (address, mode) {
            listeners.push(Listener { address, mode, router });
        }
    };
    let mutual = tls.map(|tls| Mode::Mutual(tls.mutual.clone()));
    let one_sided = tls.map(|tls| Mode::Tls(tls.one_sided.clone()));
    add(options.secure_address, mutual, everything());
    let api = admission_routes(doors, admission.clone()).merge(read_routes(reading));
    let api = crate::http::finish(api.merge(health_routes(doors)));
    add(options.api_address, one_sided, api);
    add(options.health_address, Some(Mode::Plain), crate::http::finish(health_routes(doors)));
    listeners
}

/// Wakes pods that fit now.
async fn wake(parts: Arc<Parts>) {
    let service = &parts.service;
    let mut changes = service.handle.changes();
    loop {
        let pause = tokio::time::sleep(Duration::from_millis(500));
        tokio::select! {
            told = changes.changed() => if told.is_err() { return },
            () = pause => {}
        }
        // Several changes come together: one look is enough for them.
        tokio::time::sleep(Duration::from_millis(50)).await;
        changes.mark_unchanged();
        service.waiting.tidy(&service.handle.pods, parts.clock.now());
        service.metrics.waiting.set(i64::try_from(service.waiting.len()).unwrap_or(i64::MAX));
        let leads = parts.leadership.leads_for(Duration::ZERO).is_some();
        service.metrics.leader.set(i64::from(leads));
        let picture = service.handle.picture();
        let woken = service.waiting.wakes(&picture, service.policy, parts.clock.now());
        let touches = woken.into_iter().map(|pod| {
            let parts = parts.clone();
            async move {
                let at = parts.clock.wall().0.to_string();
                match parts.outside.touch(&pod, at).await {
                    TouchOutcome::Changed(_) => {
                        parts.service.metrics.wakes.inc();
                        tracing::info!(pod = %pod, "woken");
                    }
                    TouchOutcome::Gone => parts.service.waiting.forget(&pod.uid),
                    TouchOutcome::Conflict | TouchOutcome::Failed(_) | TouchOutcome::Refused(_) => {
                        parts.service.waiting.not_woken(&pod.uid);
                    }
                }
            }
        });
        futures::stream::iter(touches).buffer_unordered(TOUCHES).collect::<()>().await;
    }
}

/// Evicts for pods that wait, while we lead.
async fn make_room(parts: Arc<Parts>) {
    let preempting = &parts.service.preempting;
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let now = parts.clock.now();
        preempting.tidy(now);
        if parts.leadership.leads_for(Duration::from_secs(1)).is_none() {
            continue;
        }
        for waits in preempting.due(parts.service.waiting.all(), now) {
            let pod = waits.asked.request.pod.clone();
            let looked = preempting.look(&waits, now).await;
            let outcome = match &looked {
                Looked::Nobody(_) => "nobody",
                Looked::Evicted(_) => "evicted",
                Looked::Stopped(_) => "stopped",
            };
            parts.service.metrics.preemptions.get_or_create(&Outcome { outcome }).inc();
            match looked {
                Looked::Nobody(why) => tracing::debug!(pod = %pod, %why, "nobody evicted"),
                Looked::Stopped(why) => tracing::info!(pod = %pod, why, "eviction stopped"),
                Looked::Evicted(found) => {
                    tracing::info!(pod = %pod, victims = %found, "evicted");
                    parts.service.metrics.evictions.inc_by(found.victims.len() as u64);
                    let note = found.to_string();
                    parts
                        .peers
                        .tell(Told { pod: pod.clone(), reason: "MadeRoom", note, warning: false })
                        .await;
                    for victim in &found.victims {
                        let note = format!(
                            "evicted so that pod {pod} of priority {} fits on {}",
                            waits.asked.request.priority, found.node
                        );
                        parts
                            .peers
                            .tell(Told {
                                pod: victim.pod.clone(),
                                reason: "Preempted",
                                note,
                                warning: false,
                            })
                            .await;
                    }
                    // One at a time: the next look must see what this one left.
                    break;
                }
            }
        }
    }
}
