//! Pods bound a second through the real kube-scheduler, with our extender and without any.
//!
//! Reported, not judged: `cargo xtask soak throughput`.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::Value;
use testbed::{Cluster, Component, FakeNodes, Options, Session};

use crate::bed::{self, CONFIG, Scheduler, percent};

fn number(name: &str) -> Option<usize> {
    std::env::var(name).ok()?.parse().ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_bound_a_second_with_and_without_an_extender() -> Result<()> {
    // Minutes on a machine of its own: asked for by name only.
    let Some(nodes) = number("NANOGPU_LOAD_NODES") else {
        eprintln!("not asked for: set NANOGPU_LOAD_NODES");
        return Ok(());
    };
    // Gates are flags of a process: a cluster for each.
    for batching in [false, true] {
        let name = if batching { "batched" } else { "single" };
        compare(name, nodes, batching).await?;
        let name = format!("t{}-{name}", std::process::id());
        tokio::task::spawn_blocking(move || testbed::down(&name)).await??;
    }
    Ok(())
}

async fn compare(name: &str, nodes: usize, batching: bool) -> Result<()> {
    let pods = number("NANOGPU_LOAD_PODS").unwrap_or(600);
    let bare = without_extender()?;
    let fake = FakeNodes::new(nodes)
        .prefix("gpu-")
        .capacity("nano-gpu/gpu-percent", &(100 * bed::CARDS).to_string())
        .annotation("nano-gpu/inventory", &bed::inventory("healthy"));
    let mut options = Options::new(name).nodes(0).fake(fake).scheduler(&*bare);
    options.feature_gates.insert("OpportunisticBatching".to_owned(), batching);
    let cluster = tokio::task::spawn_blocking(move || Cluster::for_tests(options)).await??;
    let session = cluster.session()?;
    bed::rights(cluster, &session).await?;
    let target = Arc::new(Mutex::new(SocketAddr::from(([127, 0, 0, 1], 9))));
    bed::relay(cluster.listen(bed::EXTENDER)?, target.clone());
    let silenced: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    bed::agents(session.clone(), silenced, bed::names_of(nodes), Duration::from_secs(10));
    let scheduler = Scheduler::start(cluster, &["--log-level", "warn"])?;
    *target.lock().unwrap() = scheduler.address;
    scheduler.ready().await?;
    heard(&scheduler, nodes).await?;
    for shapes in [1, 20] {
        let mut rates = Vec::new();
        // Twice, in turns: what else the machine does changes over minutes.
        for (what, config) in
            [("without", bare.as_str()), ("with", CONFIG), ("without", &bare), ("with", CONFIG)]
        {
            cluster.configure_scheduler("kube-scheduler", config)?;
            let rate = rate(cluster, &session, shapes, pods).await.context(what)?;
            eprintln!(
                "batching {batching}, {nodes} nodes, {pods} pods of {shapes} shapes, {what} extender: {rate:.1} pods/s"
            );
            rates.push(rate);
        }
        let ratio = (rates[1] + rates[3]) / (rates[0] + rates[2]);
        eprintln!("batching {batching}, {shapes} shapes: {ratio:.2} of the rate without");
    }
    let (_, metrics) = scheduler.get("/metrics").await?;
    for line in metrics.lines().filter(|line| line.contains("verb_duration_seconds")) {
        if line.contains("_sum") || line.contains("_count") {
            eprintln!("{line}");
        }
    }
    Ok(())
}

/// Waits until all agents were heard.
async fn heard(scheduler: &Scheduler, nodes: usize) -> Result<()> {
    let hang = Instant::now();
    loop {
        let fresh = scheduler.get("/api/v1/nodes").await?.1.matches("\"fresh\"").count();
        if fresh == nodes {
            return Ok(());
        }
        ensure!(hang.elapsed() < Duration::from_mins(3), "{fresh} of {nodes} agents were heard");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// The shipped configuration, but for the extender.
fn without_extender() -> Result<String> {
    let mut config: Value = serde_saphyr::from_str(CONFIG)?;
    config.as_object_mut().context("a map")?.remove("extenders");
    Ok(config.to_string())
}

async fn rate(cluster: &Cluster, session: &Session, shapes: usize, count: usize) -> Result<f64> {
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
    cluster.resume(&scheduler)?;
    let started = Instant::now();
    let unbound = ListParams::default().fields("spec.nodeName=");
    loop {
        let left = pods.list_metadata(&unbound).await?.items.len();
        if left == 0 {
            break;
        }
        ensure!(started.elapsed() < Duration::from_mins(5), "{left} pods are left");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let took = started.elapsed();
    let now = DeleteParams::default().grace_period(0);
    pods.delete_collection(&now, &ListParams::default()).await?;
    Ok(f64::from(u32::try_from(count).context("few")?) / took.as_secs_f64())
}
