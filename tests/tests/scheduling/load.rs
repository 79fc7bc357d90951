//! Cards that strangers keep busy are left alone, and pods do not swing between nodes.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::bed::{Bed, CARDS, names, node_of, percent};

/// What the agent of `node` measures on each of its cards.
async fn busy(bed: &Bed, node: &str, percent: u32) -> Result<()> {
    let devices: serde_json::Map<_, _> =
        (0..CARDS).map(|card| (format!("GPU-{node}-{card}"), json!({"busy": percent}))).collect();
    let load = (percent > 0).then(|| json!({"v": 1, "devices": devices}).to_string());
    let leases: Api<Lease> = Api::namespaced(bed.session.client(), "nanogpu-system");
    let patch = json!({"metadata": {"annotations": {"nano-gpu/load": load}}});
    leases.patch(node, &PatchParams::default(), &Patch::Merge(patch)).await?;
    // Until it is known to us; nothing else says so.
    tokio::time::sleep(Duration::from_secs(1)).await;
    Ok(())
}

/// Creates `count` pods one after another, and says where they went.
async fn placed(bed: &Bed, namespace: &str, from: usize, count: usize) -> Result<Vec<String>> {
    let mut nodes = Vec::new();
    for n in from..from + count {
        let name = format!("p{n}");
        bed.create(namespace, &percent(&name, 10)).await?;
        let bound = bed.bound(namespace, &name).await?;
        nodes.push(node_of(&bound).context("bound")?.to_owned());
    }
    Ok(nodes)
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_on_one_node_send_new_pods_to_the_other_without_flapping() -> Result<()> {
    let bed = Bed::new().await?;
    // Two equal nodes.
    for node in &names()[2..] {
        bed.inventory(node, "cordoned").await?;
    }
    let _scheduler = bed.scheduler().await?;
    let namespace = bed.session.namespace("load").await?;
    let first = placed(&bed, &namespace, 0, 2).await?;
    ensure!(first[0] == first[1], "pods are packed: {first:?}");
    let (loaded, idle) = if first[0] == names()[0] { (0, 1) } else { (1, 0) };
    let (loaded, idle) = (&names()[loaded], &names()[idle]);

    busy(&bed, loaded, 90).await?;
    let next = placed(&bed, &namespace, 2, 3).await?;
    ensure!(next.iter().all(|node| node == idle), "{loaded} is busy, but: {next:?}");
    // A little less is no reason to go back.
    busy(&bed, loaded, 40).await?;
    let next = placed(&bed, &namespace, 5, 2).await?;
    ensure!(next.iter().all(|node| node == idle), "{loaded} has not cooled down, but: {next:?}");

    // The load is gone, and then comes and goes a little: pods stay together.
    busy(&bed, loaded, 0).await?;
    let mut after = placed(&bed, &namespace, 7, 2).await?;
    for (turn, percent) in [25, 5, 25, 0].into_iter().enumerate() {
        busy(&bed, loaded, percent).await?;
        after.extend(placed(&bed, &namespace, 9 + turn, 1).await?);
    }
    ensure!(after.iter().all(|node| *node == after[0]), "pods swing: {after:?}");
    Ok(())
}
