//! Many pods at once while things are killed: no share is sold twice, no pod is stuck.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use kube::api::{DeleteParams, ListParams};
use testbed::Component;

use crate::bed::{Bed, Scheduler, node_of, percent};

/// Pods a round. They fill all cards, sixteen with four each, to the last percent: a share that an
/// earlier round left reserved would be one too few.
const PODS: usize = 64;

/// How many rounds: few in CI, many by hand (`NANOGPU_ROUNDS=200`).
fn rounds() -> usize {
    std::env::var("NANOGPU_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(10)
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_for_every_card_at_once_while_everything_is_killed() -> Result<()> {
    let bed = Bed::new().await?;
    let namespace = bed.session.namespace("rounds").await?;
    let mut scheduler = bed.scheduler().await?;
    let mut chance = fastrand::Rng::with_seed(7);
    for round in 0..rounds() {
        let pods: Vec<_> = (0..PODS).map(|n| percent(&format!("r{round}-{n}"), 25)).collect();
        try_join_all(pods.iter().map(|pod| bed.create(&namespace, pod))).await?;
        let blows = chance.usize(1..=3);
        for _ in 0..blows {
            tokio::time::sleep(Duration::from_millis(chance.u64(50..1500))).await;
            if chance.bool() {
                scheduler.kill();
                tokio::time::sleep(Duration::from_millis(chance.u64(0..500))).await;
                scheduler = Scheduler::start(bed.cluster, &[])?;
                bed.point_at(&scheduler);
            } else {
                bed.cluster.pause(&Component::ApiServer)?;
                tokio::time::sleep(Duration::from_millis(chance.u64(100..3000))).await;
                bed.cluster.resume(&Component::ApiServer)?;
            }
        }
        all_bound(&bed, &namespace).await.with_context(|| format!("round {round}"))?;
        ensure!(bed.nothing_sold_twice().await? == PODS, "round {round}");
        let now = DeleteParams::default().grace_period(0);
        bed.pods(&namespace).delete_collection(&now, &ListParams::default()).await?;
        none_left(&bed, &namespace).await?;
        if (round + 1) % 10 == 0 {
            eprintln!("{} rounds, nothing sold twice, no pod stuck", round + 1);
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_answers_and_hands_binds_to_the_leader_and_takes_over() -> Result<()> {
    let bed = Bed::new().await?;
    let namespace = bed.session.namespace("replicas").await?;
    let replica = |port: u16| {
        let address = format!("127.0.0.1:{port}");
        let more = ["--secure-address", &address, "--peer-address", &address].map(str::to_owned);
        let more: Vec<&str> = more.iter().map(String::as_str).collect();
        Scheduler::start(bed.cluster, &more)
    };
    let leader = replica(free_port()?)?;
    leader.ready().await?;
    leads(&leader).await?;
    let standby = replica(free_port()?)?;
    standby.ready().await?;
    bed.point_at(&standby);
    let some =
        |from: usize| (from..from + 10).map(|n| percent(&format!("p{n}"), 25)).collect::<Vec<_>>();
    try_join_all(some(0).iter().map(|pod| bed.create(&namespace, pod))).await?;
    all_bound(&bed, &namespace).await.context("through the standby")?;
    let (_, metrics) = standby.get("/metrics").await?;
    ensure!(metrics.contains("nanogpu_scheduler_leader 0"), "the standby leads");
    try_join_all(some(10).iter().map(|pod| bed.create(&namespace, pod))).await?;
    leader.kill();
    all_bound(&bed, &namespace).await.context("after the leader was killed")?;
    ensure!(bed.nothing_sold_twice().await? == 20);
    Ok(())
}

fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

async fn leads(scheduler: &Scheduler) -> Result<()> {
    let hang = Instant::now();
    while !scheduler.get("/metrics").await?.1.contains("nanogpu_scheduler_leader 1") {
        ensure!(hang.elapsed() < Duration::from_secs(30), "nobody leads");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

async fn all_bound(bed: &Bed, namespace: &str) -> Result<()> {
    let hang = Instant::now();
    loop {
        let pods = match bed.pods(namespace).list(&ListParams::default()).await {
            Ok(pods) => pods,
            Err(error) => {
                ensure!(hang.elapsed() < Duration::from_mins(2), "{error}");
                continue;
            }
        };
        let waiting: Vec<_> = pods.iter().filter(|pod| node_of(pod).is_none()).collect();
        if waiting.is_empty() {
            return Ok(());
        }
        if hang.elapsed() > Duration::from_mins(2) {
            let name = waiting[0].metadata.name.clone().unwrap_or_default();
            let story = bed.session.story(namespace, &name).await;
            anyhow::bail!("{} pods are stuck, {name} among them:\n{story}", waiting.len());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn none_left(bed: &Bed, namespace: &str) -> Result<()> {
    let hang = Instant::now();
    while !bed.pods(namespace).list(&ListParams::default()).await?.items.is_empty() {
        ensure!(hang.elapsed() < Duration::from_mins(1), "pods do not go away");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}
