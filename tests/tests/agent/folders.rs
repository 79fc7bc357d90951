//! A node whose container runtime ignores CDI: it is noticed, and devices come by folders.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::bed::{Bed, NAMESPACE, OLD, SMALL};
use crate::limiting::limiter;
use crate::pods::{container, pod, simple, user, using};
use crate::processes::Agent;
use crate::recovery::{end, restart};

const BY_FOLDERS: [&str; 2] = ["--devices-by", "folders"];

/// Forgets what an agent of an earlier story found out.
fn forget(bed: &Bed) -> Result<()> {
    let mark = bed.cluster.layout().on_node(OLD, "/var/lib/nanogpu/pages/.no-cdi");
    match std::fs::remove_file(mark) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// Waits until the agent's metrics say so.
async fn tells(agent: &Agent, metric: &str, expected: &str) -> Result<()> {
    let started = Instant::now();
    loop {
        let text = agent.get("/metrics")?;
        let now = text.lines().find_map(|line| line.strip_prefix(metric)?.strip_prefix(' '));
        if now == Some(expected) {
            return Ok(());
        }
        ensure!(started.elapsed() < Duration::from_mins(1), "{metric} is {now:?}, not {expected}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// What the agent's Lease says of how devices come into containers.
async fn way(bed: &Bed, node: &str, expected: &str) -> Result<()> {
    let leases: Api<Lease> = Api::namespaced(bed.session.client(), NAMESPACE);
    let started = Instant::now();
    loop {
        let lease = leases.get(node).await?;
        let now = lease.annotations().get(model::names::DEVICES_BY).cloned();
        if now.as_deref() == Some(expected) {
            return Ok(());
        }
        ensure!(started.elapsed() < Duration::from_mins(1), "the Lease says {now:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_that_ignores_cdi_is_noticed_and_devices_come_by_folders() -> Result<()> {
    let bed = Bed::new().await?;
    forget(&bed)?;
    let library = limiter(&bed, OLD)?;
    let limited = ["--isolation", "limiter", "--limiter", &library];
    let agent = bed.agent_with(OLD, &limited).await?;
    let ns = bed.session.namespace("story-ignored").await?;
    let inventory = bed.inventory(OLD).await?;
    let id = |card: usize| inventory.devices[card].id.to_string();
    tells(&agent, "nanogpu_agent_cdi", "-1").await?;

    // Nobody can know before the first container: it has no card, and is told so.
    let placement = format!("v1;{OLD};main={}:30%+4096Mi", id(1));
    bed.place(&ns, &simple("first", 30), OLD, Some(&placement)).await?;
    bed.told(&ns, "first", "runs without its GPU").await?;
    let said = bed.said(&ns, "first", "main").await?;
    ensure!(!said.lines().any(|line| line.starts_with("/dev/nvidia")), "{said}");
    bed.told("default", OLD, "devices come into containers by folders").await?;
    tells(&agent, "nanogpu_agent_cdi", "0").await?;
    tells(&agent, "nanogpu_agent_by_folders", "1").await?;
    way(&bed, OLD, "folders").await?;
    // It is not started like that again.
    end(&bed, &ns, "first").await?;
    bed.told(&ns, "first", "the container would run without its GPU; delete the pod").await?;
    bed.delete(&ns, "first").await?;

    // From now on exactly its card, and the limiter.
    let share = json!({"nano-gpu/gpu-percent": 30});
    let fits = using("share", &user("debian", &share, &["--device 0 --memory 1GiB"]));
    bed.place(&ns, &fits, OLD, Some(&placement)).await?;
    let greedy = using("greedy", &user("debian", &share, &["--device 0 --memory 6GiB"]));
    bed.place(&ns, &greedy, OLD, Some(&format!("v1;{OLD};main={}:30%+4096Mi", id(1)))).await?;
    let two = json!({"nano-gpu/gpu-percent": 200});
    let loads = ["--device 0 --memory 1GiB", "--device 1 --memory 1GiB"];
    let placed = format!("v1;{OLD};main={}:whole,{}:whole", id(0), id(3));
    bed.place(&ns, &using("whole", &user("debian", &two, &loads)), OLD, Some(&placed)).await?;
    for name in ["share", "whole"] {
        bed.session.running(&ns, name).await?;
        bed.got_its_own(&ns, name, "main", &inventory).await?;
        bed.uses_its_own(&ns, name).await?;
    }
    let denied = |said: &str| said.contains("out of memory (CUDA error 2)");
    bed.session.says(&ns, "greedy", "main", denied).await?;
    let said = bed.said(&ns, "share", "main").await?;
    for line in ["ku=30", "NVIDIA_VISIBLE_DEVICES=void"] {
        ensure!(said.lines().any(|it| it == line), "no {line} in {said}");
    }
    ensure!(said.contains("libnanogpu.so /usr/lib64/libcuda.so.1 ro"), "{said}");

    // Where folders are not wanted nothing starts, and what to change is said.
    drop(agent);
    let agent = bed.agent_with(OLD, &["--devices-by", "cdi"]).await?;
    bed.place(&ns, &simple("by-cdi", 10), OLD, Some(&format!("v1;{OLD};main={}:10%+1Mi", id(2))))
        .await?;
    bed.told(&ns, "by-cdi", "set enable_cdi = true").await?;
    bed.told("default", OLD, "set enable_cdi = true").await?;
    way(&bed, OLD, "cdi-ignored").await?;
    drop(agent);
    forget(&bed)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_that_looks_for_specs_elsewhere_is_noticed_and_pods_wait() -> Result<()> {
    let bed = Bed::new().await?;
    let elsewhere = bed.cluster.layout().on_node(SMALL, "/run/elsewhere");
    let elsewhere = elsewhere.display().to_string();
    // It is noticed after ten looks.
    let agent = bed.agent_with(SMALL, &["--cdi", &elsewhere, "--look", "300"]).await?;
    let ns = bed.session.namespace("story-missed").await?;
    let inventory = bed.inventory(SMALL).await?;
    let placement = format!("v1;{SMALL};main={}:10%+1000Mi", inventory.devices[1].id);
    bed.place(&ns, &simple("pod", 10), SMALL, Some(&placement)).await?;
    bed.told("default", SMALL, "must be one of its cdi_spec_dirs").await?;
    tells(&agent, "nanogpu_agent_cdi", "0").await?;
    way(&bed, SMALL, "cdi-missed").await?;
    let seen = bed.pods(&ns).get("pod").await?;
    ensure!(crate::bed::containers(&seen).is_empty(), "it started without its card");

    // Told where the runtime looks, the same pod starts.
    drop(agent);
    let agent = bed.agent(SMALL).await?;
    bed.nudge(&ns, "pod").await?;
    bed.session.running(&ns, "pod").await?;
    bed.got_its_own(&ns, "pod", "main", &inventory).await?;
    tells(&agent, "nanogpu_agent_cdi", "1").await?;
    way(&bed, SMALL, "cdi").await
}

#[tokio::test(flavor = "multi_thread")]
async fn by_folders_an_agent_that_dies_at_any_step_leaves_no_wrong_device() -> Result<()> {
    let bed = Bed::new().await?;
    drop(bed.agent_with(OLD, &BY_FOLDERS).await?);
    let ns = bed.session.namespace("story-folders").await?;
    let inventory = bed.inventory(OLD).await?;
    let folder = tempfile::tempdir()?;
    for (n, step) in
        ["prestart", "identified", "checked", "recorded", "written"].into_iter().enumerate()
    {
        let at = format!("{step}@{}", folder.path().join(step).display());
        let env = [("NANOGPU_AGENT_DIES_AT", at.as_str())];
        let mut agent = Agent::start(bed.cluster, OLD, &BY_FOLDERS, &env)?;
        agent.ready().await?;
        bed.offered(OLD, "nano-gpu/gpu-percent", 400).await?;
        let name = format!("dies-{step}");
        let placement = format!("v1;{OLD};main={}:10%+1000Mi", inventory.devices[n % 4].id);
        bed.place(&ns, &simple(&name, 10), OLD, Some(&placement)).await?;
        let started = Instant::now();
        while !agent.has_ended() {
            ensure!(started.elapsed() < Duration::from_mins(1), "it never came to {step}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // Admitted, and nobody has filled its folder: it has no container.
        let seen = bed.pods(&ns).get(&name).await?;
        ensure!(crate::bed::containers(&seen).is_empty(), "{name} started without an agent");
        let again = bed.agent_with(OLD, &BY_FOLDERS).await?;
        bed.nudge(&ns, &name).await?;
        bed.session.running(&ns, &name).await?;
        bed.got_its_own(&ns, &name, "main", &inventory).await?;
        drop(again);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn by_folders_every_container_has_its_own_cards_over_restarts() -> Result<()> {
    let bed = Bed::new().await?;
    let agent = bed.agent_with(OLD, &BY_FOLDERS).await?;
    let ns = bed.session.namespace("story-own").await?;
    let inventory = bed.inventory(OLD).await?;
    let id = |card: usize| inventory.devices[card].id.to_string();

    // The kubelet gives the app container the tickets of the init container: one set, two folders.
    let limits = json!({"nano-gpu/gpu-percent": 20});
    let init = container("init", &limits, "true");
    let main = container("main", &limits, "sleep 100000");
    let side = container("side", &json!({"nano-gpu/gpu-percent": 10}), "sleep 100000");
    let placement = format!(
        "v1;{OLD};init={}:20%+1000Mi;main={}:20%+1000Mi;side={}:10%+1000Mi",
        id(0),
        id(1),
        id(2)
    );
    bed.place(&ns, &pod("three", &[init], &[main, side]), OLD, Some(&placement)).await?;
    bed.session.running(&ns, "three").await?;
    for container in ["init", "main", "side"] {
        bed.got_its_own(&ns, "three", container, &inventory).await?;
    }

    // Ten at once, of one size.
    for n in 0..10 {
        let placement = format!("v1;{OLD};main={}:5%+500Mi", id(n % 4));
        bed.place(&ns, &simple(&format!("ten-{n}"), 5), OLD, Some(&placement)).await?;
    }
    for n in 0..10 {
        bed.session.running(&ns, &format!("ten-{n}")).await?;
        bed.got_its_own(&ns, &format!("ten-{n}"), "main", &inventory).await?;
    }

    // Who may not start sees no card.
    bed.place(&ns, &simple("none", 10), OLD, None).await?;
    bed.told(&ns, "none", "so no GPU was chosen for it").await?;
    let seen = bed.pods(&ns).get("none").await?;
    ensure!(crate::bed::containers(&seen).is_empty(), "it started");

    // The numbers of device nodes can be others after a reboot: what was laid down before is no more.
    let uid = bed.pods(&ns).get("ten-3").await?.uid().context("a UID")?;
    let pages = bed.cluster.layout().on_node(OLD, "/var/lib/nanogpu/pages");
    for entry in std::fs::read_dir(&pages)? {
        let folder = entry?.path();
        let text = std::fs::read_to_string(folder.join("holder.json")).unwrap_or_default();
        if text.contains(&uid) {
            std::fs::rename(folder.join("dev/nvidia3"), folder.join("dev/nvidia2"))?;
        }
    }
    restart(&bed, &ns, "ten-3", &inventory).await?;
    agent.kill();
    let _agent = bed.agent_with(OLD, &BY_FOLDERS).await?;
    restart(&bed, &ns, "ten-4", &inventory).await?;

    // What pods leave goes with them.
    for n in 0..10 {
        bed.delete(&ns, &format!("ten-{n}")).await?;
        bed.session.gone::<Pod>(&ns, &format!("ten-{n}")).await?;
    }
    Ok(())
}
