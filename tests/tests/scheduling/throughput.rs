//! Pods bound a second through the real kube-scheduler: without an extender, with one that does
//! nothing, with ours, with ours naming as many nodes as to pods of a `ReplicaSet`, and with ours over mutual TLS; and the processor
//! time each process took for it. `NANOGPU_LOAD_ARMS` names those wanted (`nothing,ours,offer=100,mutual`, where `offer=100` is ours
//! with an option, as might be any other), and `NANOGPU_LOAD_BEFORE` another nanogpu-scheduler to take turns with ours.
//!
//! Everything is where the shipped manifests put it: nanogpu-scheduler, built for speed, beside
//! kube-scheduler and on loopback. Reported, not judged: `cargo xtask soak throughput`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::Value;
use testbed::{Cluster, Component, FakeNodes, Options, Session};

use crate::bed::{self, CONFIG, percent};
use crate::{mutual, nothing};

/// Where the extender that does nothing listens, inside the cluster.
const NOTHING: &str = "127.0.0.1:39998";
/// Where ours listens that has another option, and the next port for the next.
const WITH_OPTION: u16 = 39_900;
/// Where ours listens that is called with mutual TLS, and where the story asks it.
const MUTUAL: [&str; 2] = ["127.0.0.1:39443", "127.0.0.1:39995"];
/// Where the one of before listens.
const BEFORE: &str = "127.0.0.1:39996";
/// How often each arm has its turn, unless `NANOGPU_LOAD_TURNS` says otherwise.
const TURNS: usize = 2;

/// The arms that are compared with the one without an extender.
fn wanted() -> String {
    let usual = || "nothing,ours,offer=100,mutual".to_owned();
    std::env::var("NANOGPU_LOAD_ARMS").unwrap_or_else(|_| usual())
}

fn number(name: &str) -> Option<usize> {
    std::env::var(name).ok()?.parse().ok()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes on a machine of its own: cargo xtask soak throughput"]
async fn pods_bound_a_second_with_and_without_an_extender() -> Result<()> {
    let nodes = number("NANOGPU_LOAD_NODES").unwrap_or(1000);
    // Gates are flags of a process: a cluster for each.
    let gates: &[bool] = match std::env::var("NANOGPU_LOAD_BATCHING").as_deref() {
        Ok("off") => &[false],
        _ => &[false, true],
    };
    for &batching in gates {
        let name = if batching { "batched" } else { "single" };
        compare(name, nodes, batching).await?;
        let name = format!("t{}-{name}", std::process::id());
        tokio::task::spawn_blocking(move || testbed::down(&name)).await??;
    }
    Ok(())
}

/// What is compared.
struct Arm {
    name: String,
    /// kube-scheduler's.
    config: String,
    /// What runs beside it, and not while others have their turn.
    ours: Option<Ours>,
}

impl Arm {
    fn new(name: &str, config: String, ours: Option<Ours>) -> Self {
        Self { name: name.to_owned(), config, ours }
    }
}

/// What a turn of an arm gave.
struct Turn {
    /// Pods a second.
    rate: f64,
    /// Processor time a pod, in milliseconds, by process.
    spent: BTreeMap<String, f64>,
}

async fn compare(name: &str, nodes: usize, batching: bool) -> Result<()> {
    let pods = number("NANOGPU_LOAD_PODS").unwrap_or(600);
    let fake = FakeNodes::new(nodes)
        .prefix("gpu-")
        .capacity("nano-gpu/gpu-percent", &(100 * bed::CARDS).to_string())
        .annotation("nano-gpu/inventory", &bed::inventory("healthy"));
    let mut options = Options::new(name).nodes(0).fake(fake).scheduler(&*without_extender()?);
    options.feature_gates.insert("OpportunisticBatching".to_owned(), batching);
    let cluster = tokio::task::spawn_blocking(move || Cluster::for_tests(options)).await??;
    let session = cluster.session()?;
    bed::rights(cluster, &session).await?;
    let silenced: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    bed::agents(session.clone(), silenced.clone(), bed::names_of(nodes), Duration::from_secs(10));
    let program = bed::fast_program().await?;
    let admin = cluster.layout().kubeconfig_inside("admin");
    let kubeconfig = bed::with_our_token(&admin, &session).await?;
    let put = |name: &str, program: &Path, address: &str, options: &[&str]| {
        Ours::put(cluster, &kubeconfig, name, program, address, options)
    };
    let at = |address: &str| CONFIG.replace(bed::EXTENDER, address);
    let files = tempfile::tempdir()?;
    // Those not wanted are not even put there: they would watch, and lead.
    let mut arms = vec![Arm::new("without", without_extender()?, None)];
    for (name, port) in wanted().split(',').zip(WITH_OPTION..) {
        arms.push(if name == "nothing" {
            nothing::serve(cluster.listen(NOTHING)?);
            Arm::new(name, with_nothing()?, None)
        } else if name == "ours" {
            let ours = put("nanogpu-scheduler", &program, bed::EXTENDER, &[])?;
            Arm::new(name, CONFIG.to_owned(), Some(ours))
        } else if let Some((option, value)) = name.split_once('=') {
            let address = format!("127.0.0.1:{port}");
            let options = [&*format!("--{option}"), value];
            let ours = put(&format!("{option}-{value}"), &program, &address, &options)?;
            Arm::new(name, at(&address), Some(ours))
        } else if name == "mutual" {
            let ours = put(name, &program, MUTUAL[1], &["--secure-address", MUTUAL[0]])?;
            // It makes its certificates when it first starts.
            ours.start_again(nodes).await?;
            let config = mutual::config(&session, files.path(), MUTUAL[0]).await?;
            ours.stop()?;
            Arm::new(name, config, Some(ours))
        } else {
            bail!("there is no arm `{name}`");
        });
    }
    if let Some(program) = std::env::var_os("NANOGPU_LOAD_BEFORE") {
        let before = put("before", Path::new(&program), BEFORE, &[])?;
        arms.push(Arm::new("before", at(BEFORE), Some(before)));
    }
    for shapes in number("NANOGPU_LOAD_SHAPES").map_or(vec![1, 20], |shapes| vec![shapes]) {
        let mut turns: BTreeMap<&str, Vec<Turn>> = BTreeMap::new();
        // In turns: what else the machine does changes over minutes. And not always in the same order: what
        // one turn leaves behind is the next one's load.
        for first in 0..number("NANOGPU_LOAD_TURNS").unwrap_or(TURNS) {
            for arm in arms.iter().cycle().skip(first % arms.len()).take(arms.len()) {
                // Nobody pays for another arm's nanogpu-scheduler.
                arms.iter().filter_map(|arm| arm.ours.as_ref()).try_for_each(Ours::stop)?;
                if let Some(ours) = &arm.ours {
                    ours.start_again(nodes).await?;
                }
                cluster.configure_scheduler("kube-scheduler", &arm.config)?;
                let turn = turn(cluster, &session, shapes, pods)
                    .await
                    .with_context(|| arm.name.clone())?;
                eprintln!(
                    "batching {batching}, {nodes} nodes, {pods} pods of {shapes} shapes, {}: {:.1} pods/s; ms a pod: {}",
                    arm.name,
                    turn.rate,
                    shown(&turn.spent)
                );
                if let Some(ours) = &arm.ours {
                    eprintln!("{}", ours.numbers().await?);
                }
                turns.entry(&arm.name).or_default().push(turn);
            }
        }
        for arm in &arms {
            let mean = |arm: &str| turns[arm].iter().map(|turn| turn.rate).sum::<f64>();
            let spent =
                |arm: &str| -> f64 { turns[arm].iter().flat_map(|turn| turn.spent.values()).sum() };
            eprintln!(
                "batching {batching}, {shapes} shapes, {}: {:.2} of the rate without, {:.2} of its processor time",
                arm.name,
                mean(&arm.name) / mean("without"),
                spent(&arm.name) / spent("without"),
            );
        }
    }
    // The next cluster pays for no agent of this one.
    silenced.lock().map_err(|_| anyhow!("the agents ended badly"))?.extend(bed::names_of(nodes));
    Ok(())
}

/// nanogpu-scheduler where kube-scheduler calls it.
struct Ours {
    cluster: &'static Cluster,
    /// Where we reach it.
    address: SocketAddr,
    process: Component,
}

impl Ours {
    /// Puts it there, stopped.
    fn put(
        cluster: &'static Cluster,
        kubeconfig: &Path,
        name: &str,
        program: &Path,
        address: &str,
        options: &[&str],
    ) -> Result<Self> {
        let kubeconfig = kubeconfig.to_str().context("a path that is text")?;
        let args = ["--kubeconfig", kubeconfig, "--address", address, "--anonymous-read"];
        let more = ["--namespace", bed::NAMESPACE, "--log-form", "plain", "--log-level", "warn"];
        cluster.inside(name, program, &[&args[..], &more, options].concat())?;
        let address = SocketAddr::from(([127, 0, 0, 1], cluster.forward(address.parse()?)?));
        let process = Component::Scheduler(name.to_owned());
        let ours = Self { cluster, address, process };
        ours.stop()?;
        Ok(ours)
    }

    fn stop(&self) -> Result<()> {
        self.cluster.stop(&self.process)
    }

    /// Starts it and waits until it leads and has heard all agents.
    async fn start_again(&self, nodes: usize) -> Result<()> {
        self.cluster.revive(&self.process)?;
        let hang = Instant::now();
        loop {
            let fresh = self.told("/api/v1/nodes").await.matches("\"fresh\"").count();
            let leads = self.told("/metrics").await.contains("nanogpu_scheduler_leader 1");
            if fresh == nodes && leads {
                return Ok(());
            }
            ensure!(
                hang.elapsed() < Duration::from_mins(3),
                "{}: {fresh} of {nodes} agents heard, leads: {leads}; it said: {}",
                self.process,
                self.said()
            );
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// The end of what it wrote.
    fn said(&self) -> String {
        let log = self.cluster.layout().log(&self.process.to_string());
        let text = std::fs::read_to_string(log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().rev().take(10).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    /// What it answers; nothing while it does not.
    async fn told(&self, path: &str) -> String {
        bed::get(self.address, path, None).await.map(|(_, text)| text).unwrap_or_default()
    }

    /// How long verbs took and how binds ended, since it was started.
    async fn numbers(&self) -> Result<String> {
        let (_, metrics) = bed::get(self.address, "/metrics", None).await?;
        let wanted = |line: &&str| {
            let verbs = line.contains("verb_duration_seconds_sum")
                || line.contains("verb_duration_seconds_count");
            verbs || line.contains("conflicts_total ") || line.contains("binds_total{")
        };
        Ok(metrics.lines().filter(wanted).collect::<Vec<_>>().join("\n"))
    }
}

/// The shipped configuration, but for the extender.
fn without_extender() -> Result<String> {
    let mut config: Value = serde_saphyr::from_str(CONFIG)?;
    config.as_object_mut().context("a map")?.remove("extenders");
    Ok(config.to_string())
}

/// The shipped configuration with an extender that does nothing: it fits everywhere, no node is
/// better than another, and kube-scheduler binds by itself.
fn with_nothing() -> Result<String> {
    let mut config: Value = serde_saphyr::from_str(CONFIG)?;
    let extender = config["extenders"][0].as_object_mut().context("an extender")?;
    extender.insert("urlPrefix".to_owned(), format!("http://{NOTHING}").into());
    extender.insert("filterVerb".to_owned(), "filter".into());
    extender.insert("prioritizeVerb".to_owned(), "prioritize".into());
    extender.remove("bindVerb");
    extender.remove("preemptVerb");
    Ok(config.to_string())
}

async fn turn(cluster: &Cluster, session: &Session, shapes: usize, count: usize) -> Result<Turn> {
    let namespace = session.namespace("load").await?;
    let pods: Api<Pod> = Api::namespaced(session.client(), &namespace);
    let scheduler = Component::scheduler();
    tokio::time::sleep(Duration::from_secs(3)).await;
    cluster.pause(&scheduler)?;
    stream::iter(0..count)
        .map(|n| {
            let pods = pods.clone();
            let share = 10 + u32::try_from(n % shapes).unwrap_or(0);
            async move {
                let pod: Pod = serde_json::from_value(percent(&format!("p{n}"), share))?;
                pods.create(&PostParams::default(), &pod).await?;
                anyhow::Ok(())
            }
        })
        .buffer_unordered(16)
        .try_collect::<()>()
        .await?;
    let before = processors(cluster)?;
    cluster.resume(&scheduler)?;
    let started = Instant::now();
    // One of them is enough to know: all of them, ten times a second, would be a load of its own, and more
    // of it the longer an arm takes.
    let unbound = ListParams::default().fields("spec.nodeName=").limit(1);
    while let Some(left) = pods.list_metadata(&unbound).await?.items.pop() {
        let name = left.metadata.name.unwrap_or_default();
        ensure!(started.elapsed() < Duration::from_mins(5), "pod {name} is left");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let took = started.elapsed();
    let count = f64::from(u32::try_from(count).context("few")?);
    let mut spent = processors(cluster)?;
    for (name, seconds) in &mut spent {
        *seconds = (*seconds - before.get(name).copied().unwrap_or(0.0)) * 1000.0 / count;
    }
    let now = DeleteParams::default().grace_period(0);
    pods.delete_collection(&now, &ListParams::default()).await?;
    Ok(Turn { rate: count / took.as_secs_f64(), spent })
}

/// Processor time that each process has used until now, in seconds. What the story does itself,
/// agents, pods, and asking whether all are bound, is `story`.
fn processors(cluster: &Cluster) -> Result<BTreeMap<String, f64>> {
    let status = testbed::status(cluster.layout().name())?.context("a cluster")?;
    let own = i32::try_from(std::process::id())?;
    let all = status.components.into_iter().map(|component| (component.name, component.pid));
    let all = all.chain([("story".to_owned(), own)]);
    Ok(all.filter_map(|(name, pid)| Some((name, testbed::processor_seconds(pid)?))).collect())
}

fn shown(spent: &BTreeMap<String, f64>) -> String {
    let mut spent: Vec<_> = spent.iter().filter(|(_, ms)| **ms >= 0.05).collect();
    spent.sort_by(|a, b| b.1.total_cmp(a.1));
    let sum: f64 = spent.iter().map(|(_, ms)| **ms).sum();
    let each = spent.iter().map(|(name, ms)| format!("{name} {ms:.1}"));
    format!("{sum:.1}: {}", each.collect::<Vec<_>>().join(", "))
}
