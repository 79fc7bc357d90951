//! Pods bound a second through the real kube-scheduler, with our extender and without any.
//!
//! Reported, not judged: `NANOGPU_LOAD_NODES=1000 cargo test -p stories --test scheduling throughput`.

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

const PODS: usize = 600;

#[tokio::test(flavor = "multi_thread")]
async fn pods_bound_a_second_with_and_without_an_extender() -> Result<()> {
    // Minutes on a machine of its own: asked for by name only.
    let Some(nodes) = std::env::var("NANOGPU_LOAD_NODES").ok().and_then(|n| n.parse().ok()) else {
        eprintln!("not asked for: set NANOGPU_LOAD_NODES");
        return Ok(());
    };
    let bare = without_extender()?;
    let fake = FakeNodes::new(nodes)
        .prefix("gpu-")
        .capacity("nano-gpu/gpu-percent", &(100 * bed::CARDS).to_string())
        .annotation("nano-gpu/inventory", &bed::inventory("healthy"));
    let options = Options::new("load").nodes(0).fake(fake).scheduler(&*bare);
    let cluster = tokio::task::spawn_blocking(move || Cluster::for_tests(options)).await??;
    let session = cluster.session()?;
    bed::rights(cluster, &session).await?;
    let target = Arc::new(Mutex::new(SocketAddr::from(([127, 0, 0, 1], 9))));
    bed::relay(cluster.listen(bed::EXTENDER)?, target.clone());
    let silenced: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    bed::agents(session.clone(), silenced, nodes, Duration::from_secs(10));
    let scheduler = Scheduler::start(cluster, &["--log-level", "warn"])?;
    *target.lock().unwrap() = scheduler.address;
    scheduler.ready().await?;
    for shapes in [1, 20] {
        for (what, config) in [("no extender", bare.as_str()), ("nanogpu", CONFIG)] {
            cluster.configure_scheduler("kube-scheduler", config)?;
            let rate = rate(cluster, &session, shapes).await.context(what)?;
            eprintln!("{nodes} nodes, {PODS} pods of {shapes} shapes, {what}: {rate:.1} pods/s");
        }
    }
    let (_, metrics) = scheduler.get("/metrics").await?;
    for line in metrics.lines().filter(|line| line.contains("verb_duration_seconds")) {
        if line.contains("_sum") || line.contains("_count") {
            eprintln!("{line}");
        }
    }
    Ok(())
}

/// The shipped configuration, but for the extender.
fn without_extender() -> Result<String> {
    let mut config: Value = serde_saphyr::from_str(CONFIG)?;
    config.as_object_mut().context("a map")?.remove("extenders");
    Ok(config.to_string())
}

async fn rate(cluster: &Cluster, session: &Session, shapes: usize) -> Result<f64> {
    let namespace = session.namespace("load").await?;
    let pods: Api<Pod> = Api::namespaced(session.client(), &namespace);
    let scheduler = Component::scheduler();
    tokio::time::sleep(Duration::from_secs(3)).await;
    cluster.pause(&scheduler)?;
    stream::iter(0..PODS)
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
    let pods = u32::try_from(PODS).context("few")?;
    Ok(f64::from(pods) / took.as_secs_f64())
}
