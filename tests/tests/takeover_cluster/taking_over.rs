//! The story.

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, PostParams};
use model::Portion;
use model::codec::{decode_inventory, decode_placement};
use serde_json::json;
use std::time::Duration;

use crate::bed::{Bed, NODE, Scheduler};
use crate::before::{self, Plugins, bind, traits};
use crate::pods::simple;
use crate::processes::Agent;

/// A T4 in MiB.
const CARD: u64 = 15_360;

/// A new pod, by our own scheduler.
async fn submit(bed: &Bed, namespace: &str, name: &str, percent: u32) -> Result<()> {
    let mut pod = simple(name, percent);
    pod["spec"]["schedulerName"] = json!("nanogpu");
    let pod: Pod = serde_json::from_value(pod)?;
    bed.pods(namespace).create(&PostParams::default(), &pod).await?;
    Ok(())
}

/// The device node of the one card that a pod was given.
async fn sits_on(bed: &Bed, namespace: &str, name: &str) -> Result<u32> {
    let pod = bed.session.running(namespace, name).await?;
    let text = pod.annotations().get(model::names::PLACEMENT).context("no placement")?;
    let placement = decode_placement(text)?;
    let [grant] = placement.grants("main") else { anyhow::bail!("{name}: {text}") };
    ensure!(matches!(grant.portion, Portion::Share(_)), "{name}: {text}");
    let nodes: kube::Api<k8s_openapi::api::core::v1::Node> = kube::Api::all(bed.session.client());
    let node = nodes.get(NODE).await?;
    let text = node.annotations().get(model::names::INVENTORY).context("no inventory")?;
    let inventory = decode_inventory(text)?;
    let device = inventory.devices.iter().find(|device| device.id == grant.device);
    Ok(device.context("the card is not in the inventory")?.minor)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_three_systems_is_taken_over_under_running_pods() -> Result<()> {
    let bed = Bed::new().await?;
    let ns = bed.session.namespace("team").await?;

    // Before us: their plugins, their pods, running.
    let plugins = Plugins::start(&bed).await?;
    for (name, limits, said) in before::pods() {
        bind(&bed, &ns, name, &limits, &said).await?;
    }
    let mut were = Vec::new();
    for (name, _, _) in before::pods() {
        bed.session.running(&ns, name).await?;
        bed.session.says(&ns, name, "main", |said| said.contains("step 2")).await?;
    }
    for (name, _, _) in before::pods() {
        were.push((name, traits(&bed, &ns, name).await?));
    }

    // Theirs goes, ours comes.
    plugins.stop().await;
    let now = Timestamp::now();
    let took_over_at = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    bed.rights().await?;
    let agent = Agent::start(bed.cluster, NODE, &[], &[])?;
    agent.ready().await?;
    bed.offered("nano-gpu/gpu-percent", 400).await?;
    let scheduler = Scheduler::start(&bed, &took_over_at).await?;

    // They are counted where they are: a share of compute, two whole cards, memory only.
    let beside = [(100, CARD - 3072), (0, 0), (0, 0), (70, CARD - CARD * 30 / 100)];
    scheduler.until_free(&beside).await?;
    let seen = scheduler.asked(&bed, &["inspect"])?;
    for (name, _, _) in before::pods() {
        ensure!(seen.contains(&format!("{ns}/{name}")), "no {name} in\n{seen}");
    }

    // Whoever writes such annotations now gets nothing by it, and takes nothing from others.
    while Timestamp::now().duration_since(now) < SignedDuration::from_secs(2) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let (_, limits, said) = &before::pods()[0];
    bind(&bed, &ns, "forged", limits, said).await?;
    bed.session
        .wait(&ns, "forged", "seen by the kubelet", |pod: &Pod| {
            let status = pod.status.as_ref();
            status.is_some_and(|status| status.start_time.is_some())
        })
        .await?;
    scheduler.until_free(&beside).await?;
    let told = scheduler.asked(&bed, &["why", "forged", "-n", &ns])?;
    ensure!(told.contains("It has no placement of nanogpu"), "{told}");
    bed.pods(&ns).delete("forged", &DeleteParams::default().grace_period(0)).await?;
    bed.session.gone::<Pod>(&ns, "forged").await?;

    // New pods fit around them: each of these two has one card it can go to.
    submit(&bed, &ns, "most", 80).await?;
    ensure!(sits_on(&bed, &ns, "most").await? == 0, "80 % fit beside gpushare's pod only");
    submit(&bed, &ns, "more", 60).await?;
    ensure!(sits_on(&bed, &ns, "more").await? == 3, "60 % fit beside nano-gpu's pod only");
    scheduler.until_free(&[(20, 0), (0, 0), (0, 0), (10, CARD - CARD * 90 / 100)]).await?;

    // What does not fit waits, and is told so; when a pod of theirs ends, its cards are free.
    submit(&bed, &ns, "late", 50).await?;
    let told = scheduler.asked(&bed, &["why", "late", "-n", &ns])?;
    ensure!(told.contains("waits:"), "{told}");

    // Nothing of theirs was touched, by now.
    for (name, was) in &were {
        let is = traits(&bed, &ns, name).await?;
        ensure!(is == *was, "{name} was {was}, and is {is}");
        let steps = bed.session.logs(&ns, name, "main").await?;
        ensure!(steps.lines().count() > 4, "{name} stopped: {steps}");
    }
    bed.pods(&ns).delete("gpu-manager", &DeleteParams::default().grace_period(0)).await?;
    let freed = sits_on(&bed, &ns, "late").await?;
    ensure!(matches!(freed, 1 | 2), "late sits on {freed}");
    Ok(())
}
