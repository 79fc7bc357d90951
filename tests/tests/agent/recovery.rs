//! Crashes and restarts of everything around a container.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use testbed::Component;

use crate::bed::{Bed, SMALL};
use crate::pods::{container, pod, simple};
use crate::processes::Agent;
use crate::rebooting::right_or_rejected;

/// Leftovers are looked for after every ten looks.
const COLLECTS: [&str; 2] = ["--look", "300"];

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_dies_at_any_step_leaves_no_wrong_device() -> Result<()> {
    let bed = Bed::new().await?;
    drop(bed.agent(SMALL).await?);
    let ns = bed.session.namespace("story-dies").await?;
    let inventory = bed.inventory(SMALL).await?;
    let folder = tempfile::tempdir()?;
    let steps =
        ["allocate", "allocate-answer", "prestart", "identified", "checked", "recorded", "written"];
    for (n, step) in steps.into_iter().enumerate() {
        let once = folder.path().join(step);
        let at = format!("{step}@{}", once.display());
        let mut agent = Agent::start(bed.cluster, SMALL, &[], &[("NANOGPU_AGENT_DIES_AT", &at)])?;
        agent.ready().await?;
        bed.offered(SMALL, "nano-gpu/gpu-percent", 400).await?;
        let name = format!("dies-{step}");
        let id = &inventory.devices[n % 4].id;
        let placement = format!("v1;{SMALL};main={id}:10%+1000Mi");
        bed.place(&ns, &simple(&name, 10), SMALL, Some(&placement)).await?;
        let started = Instant::now();
        while !agent.has_ended() {
            ensure!(started.elapsed() < Duration::from_mins(1), "it never came to {step}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let again = bed.agent(SMALL).await?;
        if step.starts_with("allocate") {
            // The kubelet rejects a pod whose Allocate failed, for good; a controller makes another.
            bed.session.wait::<Pod>(&ns, &name, "rejected", |pod| phase(pod) == "Failed").await?;
            bed.delete(&ns, &name).await?;
        } else {
            bed.nudge(&ns, &name).await?;
            bed.session.running(&ns, &name).await?;
            bed.got_its_own(&ns, &name, "main", &inventory).await?;
        }
        drop(again);
    }
    // What pods left goes with them. The kubelet forgets those that are gone when it admits another.
    for step in &steps[2..] {
        bed.delete(&ns, &format!("dies-{step}")).await?;
        bed.session.gone::<Pod>(&ns, &format!("dies-{step}")).await?;
    }
    let agent = bed.agent(SMALL).await?;
    let placement = format!("v1;{SMALL};main={}:10%+1000Mi", inventory.devices[0].id);
    bed.place(&ns, &simple("last", 10), SMALL, Some(&placement)).await?;
    bed.session.running(&ns, "last").await?;
    drop(agent);
    let _agent = bed.agent_with(SMALL, &COLLECTS).await?;
    let started = Instant::now();
    loop {
        let left = (files(&bed, "/var/lib/nanogpu/pages")?, files(&bed, "/run/cdi")?);
        let hidden = |name: &String| name.starts_with(".new-") || name.starts_with(".gone-");
        let one =
            |names: &[String]| names.iter().filter(|name| !name.starts_with('.')).count() == 1;
        if one(&left.0) && one(&left.1) && !left.0.iter().any(hidden) {
            return Ok(());
        }
        ensure!(started.elapsed() < Duration::from_mins(1), "more than of one pod: {left:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// The names in a folder of the node.
fn files(bed: &Bed, folder: &str) -> Result<Vec<String>> {
    let folder = bed.cluster.layout().on_node(SMALL, folder);
    let names = std::fs::read_dir(folder)?;
    names.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_restart_with_the_same_cards_over_restarts_of_everything() -> Result<()> {
    let bed = Bed::new().await?;
    let agent = bed.agent(SMALL).await?;
    let ns = bed.session.namespace("story-restarts").await?;
    let inventory = bed.inventory(SMALL).await?;
    for n in 0..4 {
        let id = &inventory.devices[n].id;
        let placement = format!("v1;{SMALL};main={id}:10%+1000Mi");
        bed.place(&ns, &simple(&format!("pod-{n}"), 10), SMALL, Some(&placement)).await?;
    }
    for n in 0..4 {
        bed.session.running(&ns, &format!("pod-{n}")).await?;
    }
    // The container of pod 0 ends while the agent lives, of pod 1 while it is down, of pod 2 while
    // the kubelet starts anew.
    restart(&bed, &ns, "pod-0", &inventory).await?;
    agent.kill();
    end(&bed, &ns, "pod-1").await?;
    let agent = bed.agent(SMALL).await?;
    again(&bed, &ns, "pod-1", &inventory).await?;
    bed.cluster.restart(&Component::kubelet(SMALL))?;
    end(&bed, &ns, "pod-2").await?;
    right_or_rejected(&bed, &agent, &ns, "pod-2", 2, &inventory).await?;
    bed.offered(SMALL, "nano-gpu/gpu-percent", 400).await?;
    // Specs on a file system that a reboot empties.
    let cdi = bed.cluster.layout().on_node(SMALL, "/run/cdi");
    for entry in std::fs::read_dir(&cdi)? {
        std::fs::remove_file(entry?.path())?;
    }
    restart(&bed, &ns, "pod-3", &inventory).await?;
    drop(agent);
    Ok(())
}

/// Ends the container, and waits until it runs again with what it had.
pub(crate) async fn restart(
    bed: &Bed,
    ns: &str,
    name: &str,
    inventory: &model::Inventory,
) -> Result<()> {
    end(bed, ns, name).await?;
    again(bed, ns, name, inventory).await
}

pub(crate) async fn end(bed: &Bed, ns: &str, name: &str) -> Result<()> {
    let pod = bed.pods(ns).get(name).await?;
    let status = pod.status.and_then(|status| status.container_statuses).unwrap_or_default();
    let Some(id) = status.first().and_then(|status| status.container_id.clone()) else {
        bail!("{name} has no container")
    };
    for process in bed.cluster.processes_of(&id.replace("containerd://", ""))? {
        // One may have ended by itself since. Whether all did is seen by who waits for the next start.
        let _ = bed.cluster.kill_process(process);
    }
    Ok(())
}

async fn again(bed: &Bed, ns: &str, name: &str, inventory: &model::Inventory) -> Result<()> {
    bed.session.wait::<Pod>(ns, name, "started again", has_restarted).await?;
    bed.got_its_own(ns, name, "main", inventory).await
}

/// Whether the pod's container runs again, or never will.
pub(crate) fn settled(pod: &Pod) -> bool {
    phase(pod) == "Failed" || has_restarted(pod)
}

fn has_restarted(pod: &Pod) -> bool {
    let status = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    status.is_some_and(|all| all[0].restart_count >= 1 && all[0].ready)
}

#[tokio::test(flavor = "multi_thread")]
async fn leftovers_are_collected_and_living_pods_keep_theirs() -> Result<()> {
    let bed = Bed::new().await?;
    let agent = bed.agent(SMALL).await?;
    let ns = bed.session.namespace("story-left").await?;
    let inventory = bed.inventory(SMALL).await?;
    let id = &inventory.devices[0].id;
    for name in ["stays", "goes"] {
        let placement = format!("v1;{SMALL};main={id}:10%+1000Mi");
        bed.place(&ns, &simple(name, 10), SMALL, Some(&placement)).await?;
        bed.session.running(&ns, name).await?;
    }
    agent.kill();
    bed.delete(&ns, "goes").await?;
    bed.session.gone::<Pod>(&ns, "goes").await?;
    let pages = bed.cluster.layout().on_node(SMALL, "/var/lib/nanogpu/pages");
    let left = |name: &str| -> Result<usize> {
        let mut count = 0;
        for entry in std::fs::read_dir(&pages)? {
            let text =
                std::fs::read_to_string(entry?.path().join("holder.json")).unwrap_or_default();
            count += usize::from(text.contains(&format!("\"{ns}/{name}\"")));
        }
        Ok(count)
    };
    ensure!(left("stays")? == 1 && left("goes")? == 1);
    let _agent = bed.agent_with(SMALL, &COLLECTS).await?;
    // The kubelet forgets what a pod held when it gives out devices the next time.
    let placement = format!("v1;{SMALL};main={id}:10%+1000Mi");
    bed.place(&ns, &simple("next", 10), SMALL, Some(&placement)).await?;
    bed.session.running(&ns, "next").await?;
    let started = Instant::now();
    while left("goes")? > 0 {
        ensure!(started.elapsed() < Duration::from_secs(90), "never collected");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    ensure!(left("stays")? == 1 && left("next")? == 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_agent_waits_for_the_first_to_end() -> Result<()> {
    let bed = Bed::new().await?;
    let first = bed.agent(SMALL).await?;
    let second = Agent::start(bed.cluster, SMALL, &[], &[])?;
    let started = Instant::now();
    loop {
        let said = second.get("/readyz").unwrap_or_default();
        if said.contains("waiting for") {
            ensure!(said.contains("lock"), "{said}");
            break;
        }
        ensure!(started.elapsed() < Duration::from_secs(30), "it never said: {said}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    first.kill();
    second.ready().await?;
    let ns = bed.session.namespace("story-second").await?;
    let inventory = bed.inventory(SMALL).await?;
    let placement = format!("v1;{SMALL};main={}:10%+1000Mi", inventory.devices[3].id);
    bed.place(&ns, &simple("pod", 10), SMALL, Some(&placement)).await?;
    bed.session.running(&ns, "pod").await?;
    bed.got_its_own(&ns, "pod", "main", &inventory).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_deleted_by_force_holds_its_card_until_its_processes_are_gone() -> Result<()> {
    let bed = Bed::new().await?;
    let _agent = bed.agent(SMALL).await?;
    let ns = bed.session.namespace("story-force").await?;
    let inventory = bed.inventory(SMALL).await?;
    let placement = format!("v1;{SMALL};main={}:whole", inventory.devices[1].id);
    let deaf = "trap '' TERM; while true; do sleep 1; done";
    let limits = serde_json::json!({"nano-gpu/gpu-percent": 100});
    let mut stubborn = pod("stubborn", &[], &[container("main", &limits, deaf)]);
    stubborn["spec"]["terminationGracePeriodSeconds"] = serde_json::json!(600);
    bed.place(&ns, &stubborn, SMALL, Some(&placement)).await?;
    let running = bed.session.running(&ns, "stubborn").await?;
    let status = running.status.and_then(|status| status.container_statuses).unwrap_or_default();
    let id = status.first().and_then(|status| status.container_id.clone()).unwrap_or_default();
    let id = id.replace("containerd://", "");
    ensure!(!bed.cluster.processes_of(&id)?.is_empty());

    bed.delete(&ns, "stubborn").await?;
    bed.place(&ns, &simple("successor", 100), SMALL, Some(&placement)).await?;
    bed.session.running(&ns, "successor").await?;
    ensure!(bed.cluster.processes_of(&id)?.is_empty(), "both run on one card");
    bed.got_its_own(&ns, "successor", "main", &inventory).await
}
