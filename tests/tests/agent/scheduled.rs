//! The whole way of a pod: kube-scheduler, nanogpu-scheduler, the kubelet, the agent, the container.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::PostParams;
use serde_json::{Value, json};
use stories::shipped::{self, SECOND};

use crate::bed::{BIG, Bed, SMALL, as_ours};
use crate::pods::{container, pod, user, using};
use crate::processes::{Agent, Scheduler};
use crate::recovery::phase;

const OURS: &str = "system:serviceaccount:nanogpu-system:nanogpu-scheduler";
/// Where kube-scheduler finds the extender, inside the cluster.
const EXTENDER: &str = "127.0.0.1:39999";

/// What is asked, and a variable that the container finds.
fn cases() -> Vec<(&'static str, Value, &'static str)> {
    vec![
        ("nano", json!({"nano-gpu/gpu-percent": 30}), "ku=30"),
        ("two-cards", json!({"nano-gpu/gpu-percent": 200}), "ku=200"),
        (
            "tencent",
            json!({"tencent.com/vcuda-core": 20, "tencent.com/vcuda-memory": 8}),
            "LD_LIBRARY_PATH=/usr/local/nvidia/lib64",
        ),
        (
            "inspur",
            json!({"inspur.com/vcuda-core": 100, "inspur.com/vcuda-memory": 8}),
            "LD_LIBRARY_PATH=/usr/local/nvidia/lib64",
        ),
        (
            "vcuda",
            json!({"nvidia.com/vcuda-core": 20, "nvidia.com/vcuda-memory": 2000}),
            "NVIDIA_VISIBLE_DEVICES=void",
        ),
        ("aliyun", json!({"aliyun.com/gpu-mem": 3}), "ALIYUN_COM_GPU_MEM_CONTAINER=3"),
        ("elastic", json!({"elasticgpu.io/gpu-core": 40}), "GPU="),
        ("first", json!({"nano-gpu.io/gpu-core": 50}), "NVIDIA_VISIBLE_DEVICES=void"),
    ]
}

/// Our scheduler, with its own rights, where kube-scheduler asks it.
pub(crate) async fn scheduler(bed: &Bed) -> Result<Scheduler> {
    let rights = shipped::parts(SECOND, &["scheduler/rbac.yaml"]);
    bed.session.apply("default", &rights).await?;
    let rights = as_ours(bed.cluster, OURS, "scheduler")?;
    let scheduler = Scheduler::start(bed.cluster, &rights).await?;
    scheduler.behind(bed.cluster.listen(EXTENDER)?)?;
    Ok(scheduler)
}

/// All cards of a node, for as many pods as there are: one.
fn deployment() -> Value {
    let all = json!({"nano-gpu/gpu-percent": 400});
    let mut pod = pod("all", &[], &[container("main", &all, "sleep 100000")]);
    pod["spec"]["schedulerName"] = json!("nanogpu");
    pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": SMALL});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "all"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "all"}},
            "template": {"metadata": {"labels": {"app": "all"}}, "spec": pod["spec"]},
        },
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_the_kubelet_rejects_is_replaced_and_its_share_is_free() -> Result<()> {
    let bed = Bed::new().await?;
    let folder = tempfile::tempdir()?;
    let at = format!("allocate@{}", folder.path().join("once").display());
    let mut agent = Agent::start(bed.cluster, SMALL, &[], &[("NANOGPU_AGENT_DIES_AT", &at)])?;
    agent.ready().await?;
    bed.offered(SMALL, "nano-gpu/gpu-percent", 400).await?;
    let inventory = bed.inventory(SMALL).await?;
    let _scheduler = scheduler(&bed).await?;
    let ns = bed.session.namespace("story-rejected").await?;
    bed.session.apply(&ns, &deployment().to_string()).await?;
    let started = Instant::now();
    while !agent.has_ended() {
        ensure!(started.elapsed() < Duration::from_secs(90), "no pod came to it");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let _agent = bed.agent(SMALL).await?;
    let shown = replaced(&bed, &ns, &inventory).await;
    // Its controller would go on through the stories that follow.
    let sets: kube::Api<k8s_openapi::api::apps::v1::Deployment> =
        kube::Api::namespaced(bed.session.client(), &ns);
    sets.delete("all", &kube::api::DeleteParams::background()).await?;
    shown
}

/// One pod was rejected and told so; another has all cards.
async fn replaced(bed: &Bed, ns: &str, inventory: &model::Inventory) -> Result<()> {
    let started = Instant::now();
    let (rejected, running) = loop {
        let pods = bed.pods(ns).list(&kube::api::ListParams::default()).await?;
        let of = |wanted: &str| pods.iter().find(|pod| phase(pod) == wanted).map(Pod::name_any);
        if let (Some(rejected), Some(running)) = (of("Failed"), of("Running")) {
            break (rejected, running);
        }
        let phases: Vec<&str> = pods.iter().map(phase).collect();
        ensure!(started.elapsed() < Duration::from_mins(2), "not replaced: {phases:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    bed.told(ns, &rejected, "Allocate failed").await?;
    bed.got_its_own(ns, &running, "main", inventory).await
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_every_dialect_get_what_the_scheduler_chose() -> Result<()> {
    let bed = Bed::new().await?;
    let _agents = (bed.agent(BIG).await?, bed.agent(SMALL).await?);
    let _scheduler = scheduler(&bed).await?;
    let ns = bed.session.namespace("story-scheduled").await?;
    for (name, limits, _) in cases() {
        let loads: &[&str] = match name {
            "two-cards" => &["--device 0 --memory 256MiB", "--device 1 --memory 256MiB"],
            _ => &["--device 0 --memory 256MiB"],
        };
        let mut pod = using(name, &user("debian", &limits, loads));
        pod["spec"]["schedulerName"] = json!("nanogpu");
        let pod: Pod = serde_json::from_value(pod)?;
        bed.pods(&ns).create(&PostParams::default(), &pod).await?;
    }
    for (name, _, variable) in cases() {
        let pod = bed.session.running(&ns, name).await?;
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).context("bound")?;
        let inventory = bed.inventory(&node).await?;
        // Device nodes by number, from inside.
        bed.got_its_own(&ns, name, "main", &inventory).await?;
        let said = bed.said(&ns, name, "main").await?;
        let told = said.lines().any(|line| line.starts_with(variable));
        ensure!(told, "{name}: no {variable} in {said}");
        let text = pod.annotations().get(model::names::PLACEMENT).context("placed")?;
        let placement = model::codec::decode_placement(text)?;
        // The directory of its libraries, and what the driver itself sees.
        ensure!(said.contains(" /usr/lib/x86_64-linux-gnu/libcuda.so.1 ro"), "{name}: {said}");
        ensure!(placement.node().as_str() == node, "{name}: {text} on {node}");
        bed.uses_its_own(&ns, name).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_that_is_too_much_for_tickets_is_shared_all_the_same() -> Result<()> {
    let bed = Bed::new().await?;
    let _agent = bed.agent(BIG).await?;
    let inventory = bed.inventory(BIG).await?;
    let all: u64 = inventory.devices.iter().map(|device| device.memory.0).sum();
    ensure!(all > dialect::MOST_TICKETS, "{all} MiB could be counted");
    bed.offered(BIG, "elasticgpu.io/gpu-memory", all).await?;
    let _scheduler = scheduler(&bed).await?;
    let ns = bed.session.namespace("story-measured").await?;
    let both = json!({"elasticgpu.io/gpu-core": 40, "elasticgpu.io/gpu-memory": 20480});
    let alone = json!({"elasticgpu.io/gpu-memory": 20480});
    for (name, limits) in [("both", &both), ("alone", &alone)] {
        let mut pod = using(name, &user("debian", limits, &["--device 0 --memory 256MiB"]));
        pod["spec"]["schedulerName"] = json!("nanogpu");
        pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": BIG});
        let pod: Pod = serde_json::from_value(pod)?;
        bed.pods(&ns).create(&PostParams::default(), &pod).await?;
    }
    let pod = bed.session.running(&ns, "both").await?;
    bed.got_its_own(&ns, "both", "main", &inventory).await?;
    bed.uses_its_own(&ns, "both").await?;
    let text = pod.annotations().get(model::names::PLACEMENT).context("placed")?;
    ensure!(text.contains(":40%+20480Mi"), "{text}");
    // Nobody would make it ready, so it never comes here, and its author is told what to add.
    let told = "does not offer 20480 elasticgpu.io/gpu-memory without elasticgpu.io/gpu-core";
    bed.told(&ns, "alone", told).await
}
