//! Cards that break and heal, and processes that take what they were not given.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use model::{Health, Inventory};

use crate::bed::{Agent, Bed, SMALL, simple};

async fn health_is(bed: &Bed, card: usize, health: Health) -> Result<Inventory> {
    let started = Instant::now();
    loop {
        let inventory = bed.inventory(SMALL).await?;
        if inventory.devices[card].health == health {
            return Ok(inventory);
        }
        ensure!(started.elapsed() < Duration::from_secs(60), "card {card} never was {health:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_card_that_falls_off_the_bus_leaves_service_and_returns() -> Result<()> {
    let bed = Bed::new().await?;
    let _agent = bed.agent(SMALL).await?;
    let ns = bed.session.namespace("story-lost").await?;
    let inventory = bed.inventory(SMALL).await?;
    let id = inventory.devices[2].id.clone();
    let other = &inventory.devices[0].id;
    bed.place(
        &ns,
        &simple("lives", 10),
        SMALL,
        Some(&format!("v1;{SMALL};main={other}:10%+1000Mi")),
    )
    .await?;
    let before = bed.session.running(&ns, "lives").await?;

    bed.simgpu(SMALL, &["fault", "lost", "2"])?;
    health_is(&bed, 2, Health::Sick).await?;
    bed.offered(SMALL, "nano-gpu/gpu-percent", 300).await?;
    bed.told("default", SMALL, &format!("device {id} takes no new work")).await?;
    bed.place(&ns, &simple("new", 10), SMALL, Some(&format!("v1;{SMALL};main={id}:10%+1000Mi")))
        .await?;
    bed.told(&ns, "new", "is out of service").await?;

    // A kubelet that starts now must not reject running pods of the other cards. One that waits to
    // start it may reject, if it asks before the plugin is back.
    bed.delete(&ns, "new").await?;
    bed.cluster.restart(&testbed::Component::kubelet(SMALL))?;
    bed.offered(SMALL, "nano-gpu/gpu-percent", 300).await?;
    let after = bed.session.running(&ns, "lives").await?;
    let container = |pod: &k8s_openapi::api::core::v1::Pod| {
        let status = pod.status.as_ref().and_then(|s| s.container_statuses.as_ref());
        status.and_then(|all| all[0].container_id.clone())
    };
    ensure!(container(&before) == container(&after), "its container was touched");

    bed.simgpu(SMALL, &["fault", "return", "2"])?;
    health_is(&bed, 2, Health::Healthy).await?;
    bed.offered(SMALL, "nano-gpu/gpu-percent", 400).await?;
    let placement = format!("v1;{SMALL};main={id}:10%+1000Mi");
    bed.place(&ns, &simple("newer", 10), SMALL, Some(&placement)).await?;
    bed.session.running(&ns, "newer").await?;
    bed.got_its_own(&ns, "newer", "main", &inventory).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_s_own_fault_takes_nothing_out() -> Result<()> {
    let bed = Bed::new().await?;
    let agent = bed.agent(SMALL).await?;
    bed.simgpu(SMALL, &["fault", "xid", "1", "31"])?;
    bed.simgpu(SMALL, &["fault", "xid", "3", "48"])?;
    let inventory = health_is(&bed, 3, Health::Sick).await?;
    ensure!(inventory.devices[1].health == Health::Healthy);
    health_is(&bed, 3, Health::Healthy).await?;
    drop(agent);
    Ok(())
}

fn value(text: &str, name: &str, uuid: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(name) && line.contains(uuid))?;
    line.rsplit(' ').next()?.parse().ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_s_memory_is_measured_and_told() -> Result<()> {
    let bed = Bed::new().await?;
    let agent: Agent = bed.agent(SMALL).await?;
    let inventory = bed.inventory(SMALL).await?;
    let uuid = inventory.devices[1].id.to_string();
    let mut load = bed
        .simgpu_command(SMALL)?
        .args(["load", "--device", "1", "--memory", "3GiB", "--seconds", "120", "--rogue"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let told = bed.told("default", SMALL, &format!("of no pod that was given device {uuid}")).await;
    let text = agent.get("/metrics");
    let _ = load.kill();
    let _ = load.wait();
    told?;
    let text = text?;
    let used = value(&text, "nanogpu_device_memory_used_bytes{", &uuid);
    let strange = value(&text, "nanogpu_device_unexplained_memory_bytes{", &uuid);
    ensure!(used == strange && used >= Some(3 << 30), "{used:?} {strange:?}");
    Ok(())
}
