//! Machines that change while an agent watches them: cards cut into slices, cards plugged in.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use model::{Inventory, Mig};
use serde_json::json;

use crate::bed::{BIG, Bed, SIM, SMALL, containers};
use crate::pods::simple;
use crate::processes::Agent;
use crate::scheduled::scheduler;

const RESOURCE: &str = "nano-gpu/gpu-percent";

/// Waits until the published inventory is so.
async fn inventory_is(
    bed: &Bed,
    node: &str,
    what: &str,
    is_so: impl Fn(&Inventory) -> bool,
) -> Result<Inventory> {
    let started = Instant::now();
    loop {
        let inventory = bed.inventory(node).await?;
        if is_so(&inventory) {
            return Ok(inventory);
        }
        ensure!(started.elapsed() < Duration::from_mins(1), "never {what}: {inventory:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mig_mode_is_switched_live_and_what_is_held_is_not_disturbed() -> Result<()> {
    let bed = Bed::new().await?;
    let _agent = bed.agent(BIG).await?;
    let ns = bed.session.namespace("story-mig").await?;
    let before = bed.inventory(BIG).await?;
    let stays = format!("v1;{BIG};main={}:10%+1000Mi", before.devices[0].id);
    bed.place(&ns, &simple("stays", 10), BIG, Some(&stays)).await?;
    let container = containers(&bed.session.running(&ns, "stays").await?);

    let switched = cut(&bed, &ns, &before).await;
    // First of all, so that a failure here is no other story's.
    let _ = bed.simgpu(BIG, &["mig", "5", "clear"]);
    let _ = bed.simgpu(BIG, &["mig", "5", "off"]);
    let slice = switched?;
    inventory_is(&bed, BIG, "as before", |now| *now == before).await?;
    bed.offered(BIG, RESOURCE, 800).await?;
    let pod = bed.session.running(&ns, "stays").await?;
    ensure!(containers(&pod) == container, "its container was touched");
    // Nobody misses a slice that was taken away on purpose.
    let events = bed.session.events("default", BIG).await?;
    let missed = events.iter().find(|event| event.contains(&slice));
    ensure!(missed.is_none(), "{missed:?}");
    let next = format!("v1;{BIG};main={}:whole", before.devices[5].id);
    bed.place(&ns, &simple("next", 100), BIG, Some(&next)).await?;
    bed.session.running(&ns, "next").await?;
    bed.got_its_own(&ns, "next", "main", &before).await
}

/// Switches the sixth card to MIG and cuts a slice, of which it says the name.
async fn cut(bed: &Bed, ns: &str, before: &Inventory) -> Result<String> {
    let card = before.devices[5].id.clone();
    bed.simgpu(BIG, &["mig", "5", "on"])?;
    let is_parent = |now: &Inventory| now.devices[5].mig == Mig::Parent;
    let now = inventory_is(bed, BIG, "in MIG mode", is_parent).await?;
    ensure!(now.devices[5].id == card && now.devices.len() == 8, "{now:?}");
    // Tickets that the pod holds stay, whatever card they are named after.
    bed.node_is(BIG, "700 tickets and what is held", |node| {
        let status = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
        let tickets = status.and_then(|all| all.get(RESOURCE)?.0.parse::<u64>().ok());
        tickets.is_some_and(|tickets| (700..=710).contains(&tickets))
    })
    .await?;
    // Somebody chose it while it was whole.
    let late = format!("v1;{BIG};main={card}:10%+1000Mi");
    bed.place(ns, &simple("late", 10), BIG, Some(&late)).await?;
    bed.told(ns, "late", "is in MIG mode").await?;
    bed.delete(ns, "late").await?;
    bed.simgpu(BIG, &["mig", "5", "cut", "3g.20gb"])?;
    let now = inventory_is(bed, BIG, "cut", |now| now.devices.len() == 9).await?;
    let slice = now.devices.last().context("a slice")?;
    let expected = Mig::Slice { parent: card, profile: "3g.20gb".into() };
    ensure!(slice.mig == expected && slice.memory.0 == 19968, "{slice:?}");
    Ok(slice.id.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_card_that_is_plugged_in_is_sold() -> Result<()> {
    let bed = Bed::new().await?;
    // As if the node had never had it.
    let nodes: Api<Node> = Api::all(bed.session.client());
    let nothing = json!({"metadata": {"annotations": {model::names::INVENTORY: null}}});
    nodes.patch(SMALL, &PatchParams::default(), &Patch::Merge(nothing)).await?;
    let dev = bed.cluster.layout().on_node(SMALL, &format!("{SIM}/dev"));
    let (node, away) = (dev.join("nvidia3"), dev.with_file_name("nvidia3-away"));
    std::fs::rename(&node, &away)?;
    bed.simgpu(SMALL, &["fault", "absent", "3"])?;
    let three = three_cards(&bed).await;
    bed.simgpu(SMALL, &["fault", "absent", "3", "--off"])?;
    std::fs::rename(&away, &node)?;
    let (_agent, ns) = three?;

    let four = |now: &Inventory| now.devices.len() == 4;
    let inventory = inventory_is(&bed, SMALL, "four cards", four).await?;
    bed.offered(SMALL, RESOURCE, 400).await?;
    // The others are full, so a pod that a scheduler places has to come here.
    let _scheduler = scheduler(&bed).await?;
    let mut pod = simple("comes", 100);
    pod["spec"]["schedulerName"] = json!("nanogpu");
    pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": SMALL});
    let pod: Pod = serde_json::from_value(pod)?;
    bed.pods(&ns).create(&PostParams::default(), &pod).await?;
    let pod = bed.session.running(&ns, "comes").await?;
    let text = pod.annotations().get(model::names::PLACEMENT).context("no placement")?;
    ensure!(text.contains(inventory.devices[3].id.as_str()), "{text}");
    bed.got_its_own(&ns, "comes", "main", &inventory).await
}

/// An agent on a node of three cards, all of them held, and the namespace of who holds them.
async fn three_cards(bed: &Bed) -> Result<(Agent, String)> {
    let agent = Agent::start(bed.cluster, SMALL, &[], &[])?;
    agent.ready().await?;
    bed.offered(SMALL, RESOURCE, 300).await?;
    let inventory = bed.inventory(SMALL).await?;
    ensure!(inventory.devices.len() == 3, "{inventory:?}");
    let ns = bed.session.namespace("story-plugged").await?;
    for (n, device) in inventory.devices.iter().enumerate() {
        let placement = format!("v1;{SMALL};main={}:whole", device.id);
        bed.place(&ns, &simple(&format!("holds-{n}"), 100), SMALL, Some(&placement)).await?;
    }
    for n in 0..3 {
        bed.session.running(&ns, &format!("holds-{n}")).await?;
    }
    Ok((agent, ns))
}
