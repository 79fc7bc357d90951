//! A driver that was updated, while its old kernel module is still loaded.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use model::Health;
use serde_json::json;

use crate::bed::{Bed, SIM, SMALL, containers};
use crate::pods::{user, using};
use crate::scheduled::scheduler;
use crate::watching::health_is;

const RESOURCE: &str = "nano-gpu/gpu-percent";

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_was_updated_and_not_reloaded_takes_no_new_work_until_it_is() -> Result<()> {
    let bed = Bed::new().await?;
    let mut agent = bed.agent(SMALL).await?;
    let _scheduler = scheduler(&bed).await?;
    let ns = bed.session.namespace("story-mismatch").await?;
    let inventory = bed.inventory(SMALL).await?;
    let limits = json!({RESOURCE: 10});
    let placement = format!("v1;{SMALL};main={}:10%+1000Mi", inventory.devices[0].id);
    let lives = using("lives", &user("debian", &limits, &["--device 0 --memory 256MiB"]));
    bed.place(&ns, &lives, SMALL, Some(&placement)).await?;
    let before = containers(&bed.session.running(&ns, "lives").await?);
    bed.uses_its_own(&ns, "lives").await?;

    // As a package manager leaves it: another file in the library's place, and the module of before.
    bed.simgpu(SMALL, &["fault", "mismatch"])?;
    update(&bed)?;
    let out = takes_nothing_new(&bed, &ns).await;
    // First of all, so that a failure here is no other story's.
    bed.simgpu(SMALL, &["fault", "mismatch", "--off"])?;
    out?;
    ensure!(!agent.has_ended(), "the agent ended");
    ensure!(containers(&bed.session.running(&ns, "lives").await?) == before, "it was touched");
    bed.uses_its_own(&ns, "lives").await?;

    // The module is loaded anew.
    for card in 0..4 {
        health_is(&bed, card, Health::Healthy).await?;
    }
    bed.told("default", SMALL, "the driver answers again").await?;
    bed.session.running(&ns, "new").await?;
    bed.got_its_own(&ns, "new", "main", &inventory).await?;
    bed.uses_its_own(&ns, "new").await
}

/// Puts a copy of NVML's library in its place.
fn update(bed: &Bed) -> Result<()> {
    let driver = bed.cluster.layout().on_node(SMALL, &format!("{SIM}/driver"));
    let library = driver.join("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1").canonicalize()?;
    let new = library.with_file_name("new");
    std::fs::copy(&library, &new)?;
    std::fs::rename(new, library).context("exchange the library")
}

/// All cards are out, which is told, and who comes waits and knows why.
async fn takes_nothing_new(bed: &Bed, ns: &str) -> Result<()> {
    for card in 0..4 {
        health_is(bed, card, Health::Sick).await?;
    }
    let why = "no device of this node takes new work: the driver's library and kernel module are of \
               different versions; reload the module or reboot";
    bed.told("default", SMALL, why).await?;
    // What the pod holds stays.
    bed.offered(SMALL, RESOURCE, 10).await?;
    let limits = json!({RESOURCE: 10});
    let mut new = using("new", &user("debian", &limits, &["--device 0 --memory 256MiB"]));
    new["spec"]["schedulerName"] = json!("nanogpu");
    new["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": SMALL});
    let new: Pod = serde_json::from_value(new)?;
    bed.pods(ns).create(&PostParams::default(), &new).await?;
    bed.told(ns, "new", &format!("Insufficient {RESOURCE}")).await
}
