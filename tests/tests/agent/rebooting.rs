//! Restarts of what the agent stands on: the runtime, the kubelet, the whole node.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use testbed::Component;

use crate::bed::{Bed, SMALL, containers};
use crate::pods::simple;
use crate::processes::Agent;
use crate::recovery::{end, phase, restart, settled};

const RESOURCE: &str = "nano-gpu/gpu-percent";

async fn four(bed: &Bed, ns: &str, inventory: &model::Inventory) -> Result<()> {
    for (n, device) in inventory.devices.iter().enumerate() {
        let placement = format!("v1;{SMALL};main={}:10%+1000Mi", device.id);
        bed.place(ns, &simple(&format!("pod-{n}"), 10), SMALL, Some(&placement)).await?;
    }
    for n in 0..inventory.devices.len() {
        bed.session.running(ns, &format!("pod-{n}")).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_that_starts_anew_disturbs_nobody() -> Result<()> {
    let bed = Bed::new().await?;
    let _agent = bed.agent(SMALL).await?;
    let ns = bed.session.namespace("story-runtime").await?;
    let inventory = bed.inventory(SMALL).await?;
    four(&bed, &ns, &inventory).await?;
    let before = containers(&bed.pods(&ns).get("pod-0").await?);
    bed.cluster.restart(&Component::Containerd(SMALL.into()))?;
    // One restarts, one is new; specs that were there before are read by the new runtime.
    restart(&bed, &ns, "pod-1", &inventory).await?;
    let placement = format!("v1;{SMALL};main={}:10%+1000Mi", inventory.devices[3].id);
    bed.place(&ns, &simple("new", 10), SMALL, Some(&placement)).await?;
    bed.session.running(&ns, "new").await?;
    bed.got_its_own(&ns, "new", "main", &inventory).await?;
    let pod = bed.session.running(&ns, "pod-0").await?;
    ensure!(containers(&pod) == before, "its container was touched");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_that_starts_twice_in_a_second_gets_every_plugin() -> Result<()> {
    let bed = Bed::new().await?;
    let mut agent = bed.agent(SMALL).await?;
    let ns = bed.session.namespace("story-twice").await?;
    let inventory = bed.inventory(SMALL).await?;
    four(&bed, &ns, &inventory).await?;
    let before = containers(&bed.pods(&ns).get("pod-0").await?);
    let kubelet = Component::kubelet(SMALL);
    for _ in 0..2 {
        bed.cluster.kill(&kubelet)?;
        bed.cluster.revive(&kubelet)?;
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
    for resource in [RESOURCE, "tencent.com/vcuda-core", "elasticgpu.io/gpu-core"] {
        bed.taken_in(&agent, resource).await?;
        bed.offered(SMALL, resource, 400).await?;
    }
    ensure!(!agent.has_ended(), "the agent ended");
    let placement = format!("v1;{SMALL};main={}:10%+1000Mi", inventory.devices[2].id);
    bed.place(&ns, &simple("new", 10), SMALL, Some(&placement)).await?;
    bed.session.running(&ns, "new").await?;
    bed.got_its_own(&ns, "new", "main", &inventory).await?;
    let pod = bed.session.running(&ns, "pod-0").await?;
    ensure!(containers(&pod) == before, "its container was touched");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_restarts_before_the_kubelet_knows_the_agent() -> Result<()> {
    let bed = Bed::new().await?;
    let agent = bed.agent(SMALL).await?;
    let ns = bed.session.namespace("story-before").await?;
    let inventory = bed.inventory(SMALL).await?;
    four(&bed, &ns, &inventory).await?;
    signal(&agent, "-STOP")?;
    bed.cluster.restart(&Component::kubelet(SMALL))?;
    end(&bed, &ns, "pod-0").await?;
    // The kubelet sees that it ended, and can ask nobody for its start.
    tokio::time::sleep(Duration::from_secs(3)).await;
    signal(&agent, "-CONT")?;
    right_or_rejected(&bed, &agent, &ns, "pod-0", 0, &inventory).await?;
    for n in 1..4 {
        let name = format!("pod-{n}");
        let pod = bed.session.running(&ns, &name).await?;
        ensure!(pod.status.is_some());
        bed.got_its_own(&ns, &name, "main", &inventory).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_reboots_gives_every_pod_its_own_again_or_says_why_not() -> Result<()> {
    let bed = Bed::new().await?;
    let agent = bed.agent(SMALL).await?;
    let ns = bed.session.namespace("story-reboot").await?;
    let inventory = bed.inventory(SMALL).await?;
    four(&bed, &ns, &inventory).await?;
    // The power goes.
    agent.kill();
    let (kubelet, runtime) = (Component::kubelet(SMALL), Component::Containerd(SMALL.into()));
    bed.cluster.kill(&kubelet)?;
    for n in 0..4 {
        let pod = bed.pods(&ns).get(&format!("pod-{n}")).await?;
        for process in bed.cluster.processes_of(&pod.metadata.uid.unwrap_or_default())? {
            let _ = bed.cluster.kill_process(process);
        }
    }
    bed.cluster.kill(&runtime)?;
    let specs = bed.cluster.layout().on_node(SMALL, "/run/cdi");
    for entry in std::fs::read_dir(&specs)? {
        std::fs::remove_file(entry?.path())?;
    }
    // It comes back.
    bed.cluster.revive(&runtime)?;
    bed.cluster.revive(&kubelet)?;
    let agent = bed.agent(SMALL).await?;
    for n in 0..4 {
        right_or_rejected(&bed, &agent, &ns, &format!("pod-{n}"), n, &inventory).await?;
    }
    Ok(())
}

fn signal(agent: &Agent, signal: &str) -> Result<()> {
    let done = Command::new("kill").args([signal, &agent.pid().to_string()]).status()?;
    ensure!(done.success(), "kill {signal}");
    Ok(())
}

/// The pod runs again with its own card; or the kubelet, which knew no plugin, has rejected it for
/// good, and all it had is free at once.
pub(crate) async fn right_or_rejected(
    bed: &Bed,
    agent: &Agent,
    ns: &str,
    name: &str,
    card: usize,
    inventory: &model::Inventory,
) -> Result<()> {
    let pod = bed.session.wait::<Pod>(ns, name, "started again or rejected", settled).await?;
    if phase(&pod) != "Failed" {
        return bed.got_its_own(ns, name, "main", inventory).await;
    }
    let reason = pod.status.and_then(|status| status.reason).unwrap_or_default();
    ensure!(reason == "UnexpectedAdmissionError", "{reason}");
    bed.taken_in(agent, RESOURCE).await?;
    bed.offered(SMALL, RESOURCE, 400).await?;
    let successor = format!("{name}-successor");
    let placement = format!("v1;{SMALL};main={}:whole", inventory.devices[card].id);
    bed.place(ns, &simple(&successor, 100), SMALL, Some(&placement)).await?;
    bed.session.running(ns, &successor).await?;
    bed.got_its_own(ns, &successor, "main", inventory).await
}
