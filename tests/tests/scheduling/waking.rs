//! Waiting pods are woken by every kind of release, in a cluster where nothing else happens.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use serde_json::json;

use crate::bed::{Bed, CARDS, Scheduler, annotation, names, percent};

/// Waits until our scheduler has refused the pod everywhere.
async fn refused(bed: &Bed, namespace: &str, pod: &str, text: &str) -> Result<()> {
    bed.told(namespace, pod, text).await
}

/// How long a pod may wait after a release. kube-scheduler itself would try again after five minutes.
const WITHIN: Duration = Duration::from_secs(5);

/// Waits until it is bound, and says how long that took since now.
async fn woken(bed: &Bed, namespace: &str, pod: &str) -> Result<Duration> {
    let started = Instant::now();
    let session = bed.session.clone().patience(Duration::from_mins(1));
    let bound = |pod: &Pod| crate::bed::node_of(pod).is_some();
    session.wait(namespace, pod, "bound", bound).await?;
    Ok(started.elapsed())
}

/// How many pods were woken so far.
async fn wakes(scheduler: &Scheduler) -> Result<u64> {
    let (_, metrics) = scheduler.get("/metrics").await?;
    let of = "nanogpu_scheduler_wakes_total ";
    let line = metrics.lines().find_map(|line| line.strip_prefix(of)).context("no count")?;
    Ok(line.trim().parse()?)
}

/// Fills every card but for `left` percent.
async fn fill(bed: &Bed, namespace: &str, left: u32) -> Result<()> {
    for n in 0..names().len() * CARDS {
        bed.create(namespace, &percent(&format!("full-{n}"), 100 - left)).await?;
    }
    for n in 0..names().len() * CARDS {
        bed.bound(namespace, &format!("full-{n}")).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_kind_of_release_wakes_a_waiting_pod() -> Result<()> {
    let bed = Bed::new().await?;
    let scheduler = bed.scheduler().await?;
    let mut took = Vec::new();

    // A pod ends.
    let namespace = bed.session.namespace("deleted").await?;
    fill(&bed, &namespace, 40).await?;
    bed.create(&namespace, &percent("waits", 50)).await?;
    refused(&bed, &namespace, "waits", "no card with 50 percent of its compute free").await?;
    bed.delete(&namespace, "full-3").await?;
    took.push(("deletion", woken(&bed, &namespace, "waits").await?));
    let now = kube::api::DeleteParams::default().grace_period(0);
    bed.pods(&namespace).delete_collection(&now, &ListParams::default()).await?;

    // Cards come back into service.
    for node in names() {
        bed.inventory(&node, "sick").await?;
    }
    let namespace = bed.session.namespace("health").await?;
    bed.create(&namespace, &percent("waits", 50)).await?;
    refused(&bed, &namespace, "waits", "no card in service").await?;
    bed.inventory(&names()[1], "healthy").await?;
    took.push(("health", woken(&bed, &namespace, "waits").await?));
    bed.delete(&namespace, "waits").await?;

    // A person lifts a cordon of cards.
    for node in names() {
        bed.inventory(&node, "cordoned").await?;
    }
    let namespace = bed.session.namespace("cordon").await?;
    bed.create(&namespace, &percent("waits", 50)).await?;
    refused(&bed, &namespace, "waits", "no card in service").await?;
    bed.inventory(&names()[2], "healthy").await?;
    took.push(("cordon", woken(&bed, &namespace, "waits").await?));
    bed.delete(&namespace, "waits").await?;
    for node in names() {
        bed.inventory(&node, "healthy").await?;
    }

    // A quota grows.
    let namespace = bed.session.namespace("quota").await?;
    let quota = |cards: u32| {
        let text =
            json!({"version": 1, "namespaces": {&namespace: {"models": {"*": {"cards": cards}}}}});
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "nanogpu-quota"},
            "data": {"quota.json": text.to_string()},
        })
    };
    bed.session.apply("nanogpu-system", &quota(0).to_string()).await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    bed.create(&namespace, &percent("waits", 50)).await?;
    refused(&bed, &namespace, "waits", "has no quota left for the node's cards").await?;
    bed.session.apply("nanogpu-system", &quota(1).to_string()).await?;
    took.push(("quota", woken(&bed, &namespace, "waits").await?));

    // A person lifts a cordon of nodes.
    for node in names() {
        bed.cordon(&node, true).await?;
    }
    let namespace = bed.session.namespace("nodes").await?;
    bed.create(&namespace, &percent("waits", 50)).await?;
    refused(&bed, &namespace, "waits", "were unschedulable").await?;
    bed.cordon(&names()[3], false).await?;
    took.push(("a node's cordon", woken(&bed, &namespace, "waits").await?));
    for node in names() {
        bed.cordon(&node, false).await?;
    }

    for (kind, took) in &took {
        eprintln!("woken after {took:?} by {kind}");
        ensure!(*took < WITHIN, "{kind} woke the pod after {took:?}");
    }
    // Health, the cards' cordon and the quota are no events to kube-scheduler: those pods were woken
    // by us. A deletion and a node's cordon are, and either may have been first.
    let wakes = wakes(&scheduler).await?;
    ensure!(wakes >= 3, "woken {wakes} times");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_that_expires_wakes_a_waiting_pod() -> Result<()> {
    let bed = Bed::new().await?;
    let scheduler = Scheduler::start(bed.cluster, &["--predicate-seconds", "6"])?;
    bed.point_at(&scheduler);
    scheduler.ready().await?;
    let namespace = bed.session.namespace("expired").await?;
    // All cards but one are full. That one is decided to be for a pod that then never comes.
    fill(&bed, &namespace, 1).await?;
    bed.delete(&namespace, "full-7").await?;
    bed.session.gone::<Pod>(&namespace, "full-7").await?;
    let mut never = percent("never-comes", 90);
    never["spec"]["schedulerName"] = json!("nobody");
    bed.create(&namespace, &never).await?;
    let pod = bed.pods(&namespace).get("never-comes").await?;
    let body = json!({"Pod": pod, "NodeNames": names()}).to_string();
    // As kube-scheduler does: again, until our watch has shown what it shows.
    let hang = Instant::now();
    while !scheduler.post("/scheduler/predicates", &body).await?.1.contains("\"NodeNames\":[\"gpu-")
    {
        ensure!(hang.elapsed() < Duration::from_secs(30), "nothing was decided");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    bed.create(&namespace, &percent("waits", 50)).await?;
    refused(&bed, &namespace, "waits", "no card with 50 percent of its compute free").await?;
    let took = woken(&bed, &namespace, "waits").await?;
    eprintln!("woken {took:?} after it was told, by a reservation whose time was over");
    ensure!(took < Duration::from_secs(6) + WITHIN, "woken after {took:?}");
    ensure!(wakes(&scheduler).await? >= 1, "by us");
    let never = bed.pods(&namespace).get("never-comes").await?;
    ensure!(annotation(&never, "nano-gpu/placement").is_none(), "the decision was withdrawn");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_speaks_again_wakes_a_waiting_pod() -> Result<()> {
    let bed = Bed::new().await?;
    let scheduler = bed.scheduler().await?;
    for node in names() {
        bed.silence(&node, true);
    }
    // Silence is told after 40 seconds of our own clock.
    stale(&scheduler).await?;
    let namespace = bed.session.namespace("agents").await?;
    bed.create(&namespace, &percent("waits", 50)).await?;
    refused(&bed, &namespace, "waits", "the node's agent has stopped reporting").await?;
    bed.silence(&names()[0], false);
    let took = woken(&bed, &namespace, "waits").await?;
    eprintln!("woken after {took:?} by a heartbeat, of which two seconds are the agent's own");
    ensure!(took < Duration::from_secs(2) + WITHIN, "woken after {took:?}");
    ensure!(wakes(&scheduler).await? >= 1, "by us");
    Ok(())
}

async fn stale(scheduler: &Scheduler) -> Result<()> {
    let hang = Instant::now();
    while scheduler.get("/api/v1/nodes").await?.1.contains("\"fresh\"") {
        ensure!(hang.elapsed() < Duration::from_secs(90), "agents stay fresh");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_pods_and_no_release_cause_no_write() -> Result<()> {
    let bed = Bed::new().await?;
    let scheduler = bed.scheduler().await?;
    let namespace = bed.session.namespace("quiet").await?;
    fill(&bed, &namespace, 40).await?;
    for n in 0..100 {
        bed.create(&namespace, &percent(&format!("waits-{n}"), 50)).await?;
    }
    let sentence = "no card with 50 percent of its compute free";
    refused(&bed, &namespace, "waits-99", sentence).await?;
    refused(&bed, &namespace, "waits-0", sentence).await?;
    // What earlier events made kube-scheduler try again is over soon; then nothing may change.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let before = versions(&bed, &namespace).await?;
    let asked_before = asked(&scheduler).await?;
    tokio::time::sleep(Duration::from_secs(12)).await;
    let after = versions(&bed, &namespace).await?;
    let changed =
        before.iter().filter(|(name, version)| after.get(*name) != Some(*version)).count();
    ensure!(changed == 0, "{changed} waiting pods were written");
    let (_, metrics) = scheduler.get("/metrics").await?;
    ensure!(metrics.contains("nanogpu_scheduler_wakes_total 0"), "pods were woken");
    let asked = asked(&scheduler).await? - asked_before;
    ensure!(asked == 0, "kube-scheduler tried waiting pods {asked} times");
    Ok(())
}

/// How often filter was called.
async fn asked(scheduler: &Scheduler) -> Result<u64> {
    let (_, metrics) = scheduler.get("/metrics").await?;
    let of = "nanogpu_scheduler_verb_duration_seconds_count{verb=\"filter\"} ";
    let line = metrics.lines().find_map(|line| line.strip_prefix(of)).context("no count")?;
    Ok(line.trim().parse()?)
}

async fn versions(
    bed: &Bed,
    namespace: &str,
) -> Result<std::collections::BTreeMap<String, String>> {
    let pods = bed.pods(namespace).list(&ListParams::default()).await?;
    let waiting = pods.into_iter().filter(|pod| crate::bed::node_of(pod).is_none());
    waiting
        .map(|pod| {
            Ok((
                pod.metadata.name.context("name")?,
                pod.metadata.resource_version.context("version")?,
            ))
        })
        .collect()
}
