//! Waiting pods are woken by every kind of release, in a cluster where nothing else happens.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;

use crate::bed::{Bed, CARDS, Scheduler, annotation, names, percent};

/// Waits until our scheduler has refused the pod everywhere.
async fn refused(bed: &Bed, namespace: &str, pod: &str, text: &str) -> Result<()> {
    bed.told(namespace, pod, text).await
}

/// Waits until it is bound, and says how long that took. A bound on a hang, not a measurement:
/// kube-scheduler itself would try again after five minutes.
async fn woken(bed: &Bed, namespace: &str, pod: &str) -> Result<Duration> {
    let started = Instant::now();
    let session = bed.session.clone().patience(Duration::from_mins(1));
    let bound = |pod: &k8s_openapi::api::core::v1::Pod| crate::bed::node_of(pod).is_some();
    session.wait(namespace, pod, "bound", bound).await?;
    Ok(started.elapsed())
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
    let _scheduler = bed.scheduler().await?;
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

    for (kind, took) in &took {
        eprintln!("woken after {took:?} by {kind}");
    }
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
    tokio::time::sleep(Duration::from_secs(12)).await;
    let after = versions(&bed, &namespace).await?;
    let changed =
        before.iter().filter(|(name, version)| after.get(*name) != Some(*version)).count();
    ensure!(changed == 0, "{changed} waiting pods were written");
    let (_, metrics) = scheduler.get("/metrics").await?;
    ensure!(metrics.contains("nanogpu_scheduler_wakes_total 0"), "pods were woken");
    Ok(())
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

#[tokio::test(flavor = "multi_thread")]
async fn strangers_on_one_node_send_new_pods_to_the_other() -> Result<()> {
    let bed = Bed::new().await?;
    let _scheduler = bed.scheduler().await?;
    let namespace = bed.session.namespace("load").await?;
    // Where the first pod goes, the next goes too, unless the cards there are busy.
    bed.create(&namespace, &percent("first", 10)).await?;
    let first = bed.bound(&namespace, "first").await?;
    let node = crate::bed::node_of(&first).context("bound")?.to_owned();
    bed.create(&namespace, &percent("second", 10)).await?;
    let second = bed.bound(&namespace, "second").await?;
    ensure!(crate::bed::node_of(&second) == Some(&node), "pods are packed");
    let devices: serde_json::Map<_, _> =
        (0..CARDS).map(|card| (format!("GPU-{node}-{card}"), json!({"busy": 90}))).collect();
    let leases: kube::Api<k8s_openapi::api::coordination::v1::Lease> =
        kube::Api::namespaced(bed.session.client(), "nanogpu-system");
    let load = json!({"v": 1, "devices": devices}).to_string();
    let patch = json!({"metadata": {"annotations": {"nano-gpu/load": load}}});
    leases.patch(&node, &PatchParams::default(), &Patch::Merge(patch)).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    bed.create(&namespace, &percent("third", 10)).await?;
    let third = bed.bound(&namespace, "third").await?;
    ensure!(crate::bed::node_of(&third) != Some(&node), "the busy node was chosen");
    ensure!(annotation(&third, "nano-gpu/placement").is_some());
    let patch = json!({"metadata": {"annotations": {"nano-gpu/load": null}}});
    leases.patch(&node, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}
