//! Cards that break and heal, and processes that take what they were not given.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use model::{Health, Inventory};

use crate::bed::{Bed, SIM, SMALL, containers};
use crate::measuring::{float, value};
use crate::pods::simple;
use crate::processes::Agent;

pub(crate) async fn health_is(bed: &Bed, card: usize, health: Health) -> Result<Inventory> {
    let started = Instant::now();
    loop {
        let inventory = bed.inventory(SMALL).await?;
        if inventory.devices[card].health == health {
            return Ok(inventory);
        }
        ensure!(started.elapsed() < Duration::from_mins(1), "card {card} never was {health:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// How often an agent looks if nobody says otherwise.
pub(crate) const USUAL: [&str; 2] = ["--look", "3000"];
/// What is wrong is known within this time.
pub(crate) const KNOWN: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread")]
async fn a_card_that_falls_off_the_bus_leaves_service_and_returns() -> Result<()> {
    let bed = Bed::new().await?;
    let agent = bed.agent_with(SMALL, &USUAL).await?;
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

    // As a driver tells it: an Xid 79, and then silence.
    bed.simgpu(SMALL, &["fault", "xid", "2", "79"])?;
    bed.simgpu(SMALL, &["fault", "lost", "2"])?;
    let lost = Instant::now();
    health_is(&bed, 2, Health::Sick).await?;
    ensure!(lost.elapsed() < KNOWN, "the inventory after {:?}", lost.elapsed());
    bed.offered(SMALL, "nano-gpu/gpu-percent", 300).await?;
    bed.told("default", SMALL, &format!("device {id} takes no new work")).await?;
    bed.place(&ns, &simple("new", 10), SMALL, Some(&format!("v1;{SMALL};main={id}:10%+1000Mi")))
        .await?;
    bed.told(&ns, "new", "is out of service").await?;

    // A kubelet that starts now must not reject running pods of the other cards. One that waits to
    // start it may reject, if it asks before the plugin is back.
    bed.delete(&ns, "new").await?;
    bed.cluster.restart(&testbed::Component::kubelet(SMALL))?;
    bed.taken_in(&agent, "nano-gpu/gpu-percent").await?;
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
async fn a_driver_that_hangs_disturbs_no_pod() -> Result<()> {
    let bed = Bed::new().await?;
    let mut agent = bed.agent(SMALL).await?;
    let ns = bed.session.namespace("story-driver").await?;
    let inventory = bed.inventory(SMALL).await?;
    let placement = format!("v1;{SMALL};main={}:10%+1000Mi", inventory.devices[0].id);
    bed.place(&ns, &simple("lives", 10), SMALL, Some(&placement)).await?;
    let before = containers(&bed.session.running(&ns, "lives").await?);
    bed.simgpu(SMALL, &["fault", "hang"])?;
    let sick = health_is(&bed, 0, Health::Sick).await;
    let answers = agent.get("/metrics").is_ok_and(|text| text.contains("200 OK"));
    // First of all, so that a failure here is no other story's.
    bed.simgpu(SMALL, &["fault", "hang", "--off"])?;
    sick?;
    ensure!(answers && !agent.has_ended(), "it does not answer");
    health_is(&bed, 0, Health::Healthy).await?;
    ensure!(containers(&bed.session.running(&ns, "lives").await?) == before);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_a_driver_is_waited_for_and_its_cards_are_there_when_it_comes() -> Result<()>
{
    let bed = Bed::new().await?;
    let nodes: kube::Api<k8s_openapi::api::core::v1::Node> = kube::Api::all(bed.session.client());
    let nothing = serde_json::json!({"metadata": {"annotations": {model::names::INVENTORY: null}}});
    let patch = kube::api::Patch::Merge(nothing);
    nodes.patch(SMALL, &kube::api::PatchParams::default(), &patch).await?;
    let driver = bed.cluster.layout().on_node(SMALL, &format!("{SIM}/driver"));
    let away = driver.with_extension("away");
    std::fs::rename(&driver, &away)?;
    let waits = waits_without_cards(&bed).await;
    // First of all, so that a failure here is no other story's.
    std::fs::rename(&away, &driver)?;
    let agent = waits?;
    bed.offered(SMALL, "nano-gpu/gpu-percent", 400).await?;
    ensure!(health_is(&bed, 0, Health::Healthy).await?.devices.len() == 4);
    ensure!(agent.get("/metrics")?.contains("\nnanogpu_agent_gpus 4\n"));
    Ok(())
}

/// An agent that is ready, and says that there are no cards.
async fn waits_without_cards(bed: &Bed) -> Result<Agent> {
    let agent = Agent::start(bed.cluster, SMALL, &[], &[])?;
    agent.ready().await?;
    let text = agent.get("/metrics")?;
    ensure!(text.contains("\nnanogpu_agent_gpus 0\n"), "{text}");
    tokio::time::sleep(Duration::from_secs(2)).await;
    agent.ready().await?;
    ensure!(bed.inventory(SMALL).await.is_err(), "nothing is said of a node without cards");
    Ok(agent)
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

#[tokio::test(flavor = "multi_thread")]
async fn memory_errors_that_ecc_cannot_correct_take_a_card_out_until_it_is_well() -> Result<()> {
    let bed = Bed::new().await?;
    let agent = bed.agent(SMALL).await?;
    let id = bed.inventory(SMALL).await?.devices[1].id.clone();
    bed.simgpu(SMALL, &["fault", "ecc", "2", "--corrected", "9"])?;
    bed.simgpu(SMALL, &["fault", "ecc", "1", "--uncorrected", "1"])?;
    let inventory = health_is(&bed, 1, Health::Sick).await?;
    ensure!(inventory.devices[2].health == Health::Healthy, "corrected errors are no trouble");
    let told = format!("device {id} takes no new work: 1 memory errors that ECC could not correct");
    bed.told("default", SMALL, &told).await?;
    health_is(&bed, 1, Health::Healthy).await?;

    // Errors that come while no agent looks are no less errors, even if the driver was loaded anew
    // since, which sets its own count back.
    remembers(&bed, "\"uncorrected\":1").await?;
    agent.kill();
    bed.simgpu(SMALL, &["fault", "ecc", "1", "--uncorrected", "3"])?;
    bed.simgpu(SMALL, &["fault", "reset", "1"])?;
    let _agent = Agent::start(bed.cluster, SMALL, &[], &[])?;
    health_is(&bed, 1, Health::Sick).await?;
    bed.told("default", SMALL, &told.replace(": 1 memory", ": 3 memory")).await?;
    health_is(&bed, 1, Health::Healthy).await?;

    // A page that stays bad until a reset keeps it out until then, longer than any probation here.
    bed.simgpu(SMALL, &["fault", "remap", "1", "--pending"])?;
    let out = until_reset(&bed).await;
    // First of all, so that a failure here is no other story's.
    bed.simgpu(SMALL, &["fault", "reset", "1"])?;
    out?;
    health_is(&bed, 1, Health::Healthy).await?;
    bed.offered(SMALL, "nano-gpu/gpu-percent", 400).await
}

/// Waits until the agent has this in the file for the next one.
async fn remembers(bed: &Bed, text: &str) -> Result<()> {
    let file = bed.cluster.layout().on_node(SMALL, "/var/lib/nanogpu/pages/.memory-errors");
    let started = Instant::now();
    loop {
        let now = std::fs::read_to_string(&file).unwrap_or_default();
        if now.contains(text) {
            return Ok(());
        }
        ensure!(started.elapsed() < Duration::from_secs(30), "no {text} in {now}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn until_reset(bed: &Bed) -> Result<()> {
    health_is(bed, 1, Health::Sick).await?;
    bed.offered(SMALL, "nano-gpu/gpu-percent", 300).await?;
    bed.told("default", SMALL, "a bad page of its memory is in use until it is reset").await
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
    let unsold = unsold(&bed, &uuid).await;
    let _ = load.kill();
    let _ = load.wait();
    told?;
    unsold?;
    let text = text?;
    let used = value(&text, "nanogpu_device_memory_used_bytes", &[&uuid]);
    let strange = value(&text, "nanogpu_device_unexplained_memory_bytes", &[&uuid]);
    ensure!(used == strange && used >= Some(float(3 << 30)), "{used:?} {strange:?}");
    Ok(())
}

/// Waits until the Lease, by which schedulers know what not to sell, has the stranger's memory.
async fn unsold(bed: &Bed, uuid: &str) -> Result<()> {
    let leases: kube::Api<k8s_openapi::api::coordination::v1::Lease> =
        kube::Api::namespaced(bed.session.client(), crate::bed::NAMESPACE);
    let started = Instant::now();
    loop {
        let annotations = leases.get(SMALL).await?.metadata.annotations.unwrap_or_default();
        let text = annotations.get("nano-gpu/load").cloned().unwrap_or_default();
        let load: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        if load["devices"][uuid]["strangersMiB"].as_u64() >= Some(3 << 10) {
            return Ok(());
        }
        ensure!(started.elapsed() < Duration::from_secs(30), "the Lease says {text}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn people_take_cards_out_by_annotation_and_by_gpushares_config_map() -> Result<()> {
    let bed = Bed::new().await?;
    let _agent = bed.agent(SMALL).await?;
    let listed = serde_json::json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": format!("unhealthy-gpu-{SMALL}")}, "data": {"gpus": "0,2"},
    });
    bed.session.apply("kube-system", &listed.to_string()).await?;
    health_is(&bed, 0, Health::Cordoned).await?;
    let inventory = health_is(&bed, 2, Health::Cordoned).await?;
    ensure!(inventory.devices[1].health == Health::Healthy);
    bed.offered(SMALL, "aliyun.com/gpu-mem", 30).await?;
    let maps: kube::Api<k8s_openapi::api::core::v1::ConfigMap> =
        kube::Api::namespaced(bed.session.client(), "kube-system");
    maps.delete(&format!("unhealthy-gpu-{SMALL}"), &kube::api::DeleteParams::default()).await?;
    health_is(&bed, 2, Health::Healthy).await?;
    health_is(&bed, 0, Health::Healthy).await?;

    let node = |text: Option<&str>| {
        let patch = serde_json::json!({"metadata": {"annotations": {model::names::CORDON: text}}});
        let nodes: kube::Api<k8s_openapi::api::core::v1::Node> =
            kube::Api::all(bed.session.client());
        async move {
            let params = kube::api::PatchParams::default();
            nodes.patch(SMALL, &params, &kube::api::Patch::Merge(patch)).await
        }
    };
    node(Some("3")).await?;
    health_is(&bed, 3, Health::Cordoned).await?;
    node(None).await?;
    health_is(&bed, 3, Health::Healthy).await?;
    Ok(())
}
