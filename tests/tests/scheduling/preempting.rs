//! Pods of higher priority get their room, also where kube-scheduler never asks.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use serde_json::{Value, json};
use testbed::Component;

use crate::bed::{Bed, CARDS, Scheduler, asks, names, node_of, percent};

/// Priorities; made once, kept for all stories.
async fn priorities(bed: &Bed) -> Result<()> {
    for (name, value) in [("low", 10), ("middle", 100), ("high", 1000)] {
        let class = json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
            "metadata": {"name": name}, "value": value,
        });
        bed.session.apply("default", &class.to_string()).await?;
    }
    Ok(())
}

fn of(class: &str, mut pod: Value) -> Value {
    pod["spec"]["priorityClassName"] = json!(class);
    pod
}

/// Every card of the cluster has one pod of this many percent.
async fn fill(bed: &Bed, namespace: &str, class: &str, share: u32) -> Result<()> {
    for n in 0..names().len() * CARDS {
        bed.create(namespace, &of(class, percent(&format!("full-{n}"), share))).await?;
    }
    for n in 0..names().len() * CARDS {
        bed.bound(namespace, &format!("full-{n}")).await?;
    }
    Ok(())
}

/// How often kube-scheduler asked whom to evict.
async fn asked(scheduler: &Scheduler) -> Result<u64> {
    let (_, metrics) = scheduler.get("/metrics").await?;
    let of = "nanogpu_scheduler_verb_duration_seconds_count{verb=\"preempt\"} ";
    let count = metrics.lines().find_map(|line| line.strip_prefix(of));
    Ok(count.map_or(Ok(0), |count| count.trim().parse())?)
}

async fn living(bed: &Bed, namespace: &str) -> Result<Vec<String>> {
    let pods = bed.pods(namespace).list(&ListParams::default()).await?;
    let lives = |pod: &Pod| pod.metadata.deletion_timestamp.is_none();
    Ok(pods.into_iter().filter(lives).filter_map(|pod| pod.metadata.name).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn fragments_are_cleared_by_one_victim_although_kube_scheduler_never_asks() -> Result<()> {
    let bed = Bed::new().await?;
    priorities(&bed).await?;
    let scheduler = bed.scheduler().await?;
    let namespace = bed.session.namespace("fragments").await?;
    fill(&bed, &namespace, "middle", 60).await?;
    // One pod of all is worth least: it is the one that has to go.
    bed.delete(&namespace, "full-5").await?;
    bed.session.gone::<Pod>(&namespace, "full-5").await?;
    bed.create(&namespace, &of("low", percent("least", 60))).await?;
    bed.bound(&namespace, "least").await?;
    bed.create(&namespace, &of("high", percent("important", 50))).await?;
    bed.bound(&namespace, "important").await?;
    let left = living(&bed, &namespace).await?;
    ensure!(!left.contains(&"least".to_owned()), "{left:?}");
    ensure!(left.len() == names().len() * CARDS, "one victim only: {left:?}");
    ensure!(asked(&scheduler).await? == 0, "kube-scheduler asked");
    bed.nothing_sold_twice().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_cluster_is_cleared_through_the_verb() -> Result<()> {
    let bed = Bed::new().await?;
    priorities(&bed).await?;
    let scheduler = bed.scheduler().await?;
    let namespace = bed.session.namespace("full").await?;
    fill(&bed, &namespace, "low", 100).await?;
    // Its own sums fall short here, so kube-scheduler asks.
    bed.create(&namespace, &of("high", percent("important", 100))).await?;
    bed.bound(&namespace, "important").await?;
    ensure!(living(&bed, &namespace).await?.len() == names().len() * CARDS);
    ensure!(asked(&scheduler).await? >= 1, "kube-scheduler never asked");
    bed.nothing_sold_twice().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_card_held_through_another_dialect_is_cleared_too() -> Result<()> {
    let bed = Bed::new().await?;
    priorities(&bed).await?;
    let _scheduler = bed.scheduler().await?;
    let namespace = bed.session.namespace("dialects").await?;
    for n in 0..names().len() * CARDS {
        let pod = asks(&format!("full-{n}"), &json!({"aliyun.com/gpu-mem": "16"}));
        bed.create(&namespace, &of("low", pod)).await?;
    }
    for n in 0..names().len() * CARDS {
        bed.bound(&namespace, &format!("full-{n}")).await?;
    }
    bed.create(&namespace, &of("high", percent("important", 50))).await?;
    bed.bound(&namespace, "important").await?;
    ensure!(living(&bed, &namespace).await?.len() == names().len() * CARDS);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_protects_and_why_says_so() -> Result<()> {
    let bed = Bed::new().await?;
    priorities(&bed).await?;
    let scheduler = bed.scheduler().await?;
    let namespace = bed.session.namespace("budget").await?;
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "all"},
        "spec": {"maxUnavailable": 0, "selector": {}},
    });
    bed.session.apply(&namespace, &budget.to_string()).await?;
    fill(&bed, &namespace, "low", 60).await?;
    bed.create(&namespace, &of("high", percent("important", 50))).await?;
    bed.told(&namespace, "important", "no card with 50 percent of its compute free").await?;
    let hang = Instant::now();
    loop {
        let why = scheduler.why(&namespace, "important").await?;
        let last = why["preemption"]["last"].as_str().unwrap_or_default();
        if last.contains("a disruption budget forbids every way") {
            break;
        }
        ensure!(hang.elapsed() < Duration::from_secs(30), "{why}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    ensure!(living(&bed, &namespace).await?.len() == names().len() * CARDS + 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_low_pod_that_arrives_meanwhile_does_not_take_the_freed_share() -> Result<()> {
    let bed = Bed::new().await?;
    priorities(&bed).await?;
    let _scheduler = bed.scheduler().await?;
    let namespace = bed.session.namespace("promise").await?;
    fill(&bed, &namespace, "low", 60).await?;
    bed.create(&namespace, &of("high", percent("important", 50))).await?;
    // Many who would fit into the gap, but not beside it, all the while.
    for n in 0..30 {
        bed.create(&namespace, &of("low", percent(&format!("sneaks-{n}"), 60))).await?;
    }
    let important = bed.bound(&namespace, "important").await?;
    let sneaked = bound_among(&bed, &namespace, "sneaks").await?;
    ensure!(sneaked == 0, "a low pod took the freed share");
    node_of(&important).context("bound")?;
    bed.nothing_sold_twice().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_victim_that_ends_slowly_is_waited_for_and_stays_the_only_one() -> Result<()> {
    let bed = Bed::new().await?;
    priorities(&bed).await?;
    let _scheduler = bed.scheduler().await?;
    let namespace = bed.session.namespace("slowly").await?;
    let all = names().len() * CARDS;
    for n in 0..all {
        let mut pod = of("low", percent(&format!("full-{n}"), 60));
        pod["spec"]["terminationGracePeriodSeconds"] = json!(60);
        bed.create(&namespace, &pod).await?;
    }
    for n in 0..all {
        bed.bound(&namespace, &format!("full-{n}")).await?;
    }
    // From now on no container ends.
    bed.cluster.pause(&Component::Kwok)?;
    let outcome = slowly(&bed, &namespace, all).await;
    bed.cluster.resume(&Component::Kwok)?;
    outcome?;
    bed.bound(&namespace, "important").await?;
    ensure!(living(&bed, &namespace).await?.len() == all + 5, "one victim");
    ensure!(bound_among(&bed, &namespace, "sneaks").await? == 0, "the share was promised");
    bed.nothing_sold_twice().await?;
    Ok(())
}

async fn slowly(bed: &Bed, namespace: &str, all: usize) -> Result<()> {
    bed.create(namespace, &of("high", percent("important", 50))).await?;
    let hang = Instant::now();
    while living(bed, namespace).await?.len() > all {
        ensure!(hang.elapsed() < Duration::from_secs(30), "nobody was evicted");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for n in 0..5 {
        bed.create(namespace, &of("low", percent(&format!("sneaks-{n}"), 60))).await?;
    }
    // Longer than the leader rests between two looks for victims.
    tokio::time::sleep(Duration::from_secs(14)).await;
    let left = living(bed, namespace).await?;
    ensure!(left.len() == all + 5, "a second victim: {left:?}");
    ensure!(bound_among(bed, namespace, "important").await? == 0, "before there was room");
    Ok(())
}

/// How many pods whose name begins so are bound.
async fn bound_among(bed: &Bed, namespace: &str, prefix: &str) -> Result<usize> {
    let pods = bed.pods(namespace).list(&ListParams::default()).await?;
    let bound = |pod: &&Pod| {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        name.starts_with(prefix) && node_of(pod).is_some()
    };
    Ok(pods.iter().filter(bound).count())
}
