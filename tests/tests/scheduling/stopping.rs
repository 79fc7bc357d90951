//! What has begun is finished when the kubelet asks us to stop.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use testbed::Component;

use crate::bed::{Bed, Scheduler, names, node_of, percent};

#[tokio::test(flavor = "multi_thread")]
async fn a_bind_under_way_is_finished_after_sigterm() -> Result<()> {
    let bed = Bed::new().await?;
    // Without an election: a lead of two seconds would be over before the API server is back.
    let mut scheduler = Scheduler::start(bed.cluster, &["--no-leader-election"])?;
    scheduler.ready().await?;
    let namespace = bed.session.namespace("stopping").await?;
    // One of our names, but no kube-scheduler here serves it: we are the only ones to bind it.
    let mut late = percent("late", 30);
    late["spec"]["schedulerName"] = json!("default-scheduler");
    bed.create(&namespace, &late).await?;
    let pod = bed.pods(&namespace).get("late").await?;
    let body = json!({
        "PodName": "late", "PodNamespace": namespace,
        "PodUID": pod.metadata.uid.context("a UID")?, "Node": names()[0],
    })
    .to_string();
    // Until our watch has shown it: what it does not know it would have to read first.
    let hang = Instant::now();
    while !scheduler.get(&format!("/api/v1/why/{namespace}/late")).await?.1.contains("pending") {
        ensure!(hang.elapsed() < Duration::from_secs(20), "the pod is not seen");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    bed.cluster.pause(&Component::ApiServer)?;
    let outcome = stopped_meanwhile(&bed, &mut scheduler, &body).await;
    bed.cluster.resume(&Component::ApiServer)?;
    outcome?;
    let bound = bed.bound(&namespace, "late").await?;
    ensure!(node_of(&bound) == Some(names()[0].as_str()));
    bed.nothing_sold_twice().await?;
    Ok(())
}

/// A bind that begins while the API server is away, and a signal in the middle of it.
async fn stopped_meanwhile(bed: &Bed, scheduler: &mut Scheduler, body: &str) -> Result<()> {
    let asked = scheduler.asking("/scheduler/bind", body);
    tokio::time::sleep(Duration::from_millis(300)).await;
    let back = async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        bed.cluster.resume(&Component::ApiServer)
    };
    let (ended_well, resumed) = tokio::join!(scheduler.terminate(), back);
    resumed?;
    let (status, answer) = asked.await??;
    ensure!(status == 200 && answer.contains("\"Error\":\"\""), "{status} {answer}");
    ensure!(ended_well?, "it ended with an error");
    Ok(())
}
