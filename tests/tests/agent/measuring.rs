//! What is measured, against what the simulated driver knows to be true.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::bed::{Bed, SMALL, containers};
use crate::limiting::limiter;
use crate::pods::{user, using};
use crate::watching::{KNOWN, USUAL};

/// The value of a metric whose labels have all of `with`.
pub(crate) fn value(text: &str, name: &str, with: &[&str]) -> Option<f64> {
    let of = |line: &&str| {
        line.starts_with(&format!("{name}{{")) && with.iter().all(|label| line.contains(label))
    };
    text.lines().find(of)?.rsplit(' ').next()?.parse().ok()
}

#[expect(clippy::cast_precision_loss, reason = "bytes and nanoseconds here are below 2^53")]
pub(crate) fn float(number: u64) -> f64 {
    number as f64
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_what_the_driver_knows() -> Result<()> {
    let bed = Bed::new().await?;
    let agent = bed.agent_with(SMALL, &["--original-metrics"]).await?;
    let ns = bed.session.namespace("story-measured").await?;
    let inventory = bed.inventory(SMALL).await?;
    let id = inventory.devices[1].id.to_string();
    let limits = json!({"nano-gpu/gpu-percent": 60});
    let pod = using("busy", &user("debian", &limits, &["--memory 1GiB --busy 50%"]));
    bed.place(&ns, &pod, SMALL, Some(&format!("v1;{SMALL};main={id}:60%+9216Mi"))).await?;
    let idle = using("idle", &user("rhel", &json!({"nano-gpu/gpu-percent": 20}), &[]));
    bed.place(&ns, &idle, SMALL, Some(&format!("v1;{SMALL};main={id}:20%+2000Mi"))).await?;
    let busy = bed.session.running(&ns, "busy").await?;
    bed.session.running(&ns, "idle").await?;
    bed.uses_its_own(&ns, "busy").await?;

    // The truth: memory as the machine accounts it, and busy time over a window of some seconds.
    let own = bed.cluster.processes_of(&containers(&busy)[0])?;
    let truth = || -> Result<(u64, u64, u64)> {
        for line in bed.simgpu(SMALL, &["usage", "--json"])?.lines() {
            let line: Value = serde_json::from_str(line)?;
            let pid = line["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
            if pid.is_some_and(|pid| own.contains(&pid)) {
                let of = |key: &str| line[key].as_u64().context("a number");
                return Ok((of("peak_bytes")?, of("busy_ns")?, of("until_ns")?));
            }
        }
        anyhow::bail!("the driver does not know the process")
    };
    let pod = "pod=\"busy\"";
    let mut seen = Vec::new();
    let (_, busy_before, before) = truth()?;
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(20) {
        let text = agent.get("/metrics")?;
        seen.extend(value(&text, "nanogpu_container_utilization_percent", &[pod, &id]));
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    let (memory, busy_after, after) = truth()?;
    let really = 100.0 * float(busy_after - busy_before) / float(after - before);
    // A look sees the last moment, and one in ten meets a pause of this machine: the middle of many
    // looks is compared, not their mean.
    seen.sort_by(f64::total_cmp);
    let middle = *seen.get(seen.len() / 2).context("no value was told")?;
    ensure!((middle - really).abs() <= 2.0, "busy: told {middle}, is {really}: {seen:?}");
    let text = agent.get("/metrics")?;
    let told = value(&text, "nanogpu_container_memory_used_bytes", &[pod, &id]);
    ensure!(told == Some(float(memory)), "memory: told {told:?}, is {memory}");
    let card = value(&text, "nanogpu_device_memory_used_bytes", &[&id]);
    ensure!(card == told, "the card: {card:?}");
    let limit = value(&text, "nanogpu_container_memory_limit_bytes", &[pod, &id]);
    ensure!(limit == Some(float(9216 << 20)), "{limit:?}");
    // A pod that uses nothing has its lines too.
    let idle = value(&text, "nanogpu_container_memory_used_bytes", &["pod=\"idle\"", &id]);
    ensure!(idle == Some(0.0), "{idle:?}");

    // The names that the original systems' dashboards ask for.
    let mib = float(memory) / f64::from(1u32 << 20);
    let names = [
        ("container_gpu_memory_total", "pod_name=\"busy\""),
        ("container_mem_usage", "pod=\"busy\""),
    ];
    for (name, label) in names {
        let told = value(&text, name, &[label]);
        ensure!(told == Some(mib), "{name}: {told:?} in {text}");
    }
    let usage = agent.get("/usage")?;
    let body = usage.split("\r\n\r\n").nth(1).context("a body")?;
    let usage: Value = serde_json::from_str(body).with_context(|| usage.clone())?;
    let uid = busy.metadata.uid.context("a UID")?;
    let dev = &usage["usage"][&uid]["stat"]["main"]["dev"][0];
    ensure!(dev["mem"] == memory >> 20 && dev["card_idx"] == "1", "{usage}");
    ensure!(usage["usage"][&uid]["spec"]["main"]["gpu"] == 0.6, "{usage}");
    let graph = agent.get("/graph")?;
    ensure!(graph.contains("GPU1 (pids: [") && graph.contains("ROOT:4"), "{graph}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn unmodified_loaders_find_the_driver_in_images_of_every_shape() -> Result<()> {
    let bed = Bed::new().await?;
    let agent = bed.agent(SMALL).await?;
    shapes(&bed, "story-shapes").await?;
    drop(agent);
    // And our library in its place.
    let limited = limiter(&bed, SMALL)?;
    let _agent = bed.agent_with(SMALL, &["--isolation", "limiter", "--limiter", &limited]).await?;
    shapes(&bed, "story-shapes-limited").await
}

async fn shapes(bed: &Bed, ns: &str) -> Result<()> {
    let ns = bed.session.namespace(ns).await?;
    let inventory = bed.inventory(SMALL).await?;
    for (card, shape) in ["debian", "ubuntu", "rhel"].into_iter().enumerate() {
        let limits = json!({"nano-gpu/gpu-percent": 10});
        let pod = using(shape, &user(shape, &limits, &["--memory 64MiB"]));
        let id = &inventory.devices[card].id;
        bed.place(&ns, &pod, SMALL, Some(&format!("v1;{SMALL};main={id}:10%+1000Mi"))).await?;
    }
    for shape in ["debian", "ubuntu", "rhel"] {
        bed.session.running(&ns, shape).await?;
        // The program opens `libcuda.so.1` by that name alone; nothing ran ldconfig.
        let through = |said: &str| said.contains("through libcuda.so.1");
        bed.session.says(&ns, shape, "main", through).await?;
        bed.uses_its_own(&ns, shape).await?;
        bed.delete(&ns, shape).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_goes_around_everything_is_reported_by_name_within_ten_seconds() -> Result<()> {
    let bed = Bed::new().await?;
    let agent = bed.agent_with(SMALL, &USUAL).await?;
    let ns = bed.session.namespace("story-rogue").await?;
    let inventory = bed.inventory(SMALL).await?;
    let id = inventory.devices[3].id.to_string();
    let limits = json!({"nano-gpu/gpu-percent": 10});
    let pod = using("rogue", &user("debian", &limits, &["--rogue --device 3 --memory 4GiB"]));
    bed.place(&ns, &pod, SMALL, Some(&format!("v1;{SMALL};main={id}:10%+1000Mi"))).await?;
    bed.session.running(&ns, "rogue").await?;
    bed.uses_its_own(&ns, "rogue").await?;
    let taken = Instant::now();
    bed.told(&ns, "rogue", &format!("of device {id} above its share")).await?;
    ensure!(taken.elapsed() < KNOWN, "told after {:?}", taken.elapsed());
    let text = agent.get("/metrics")?;
    let strange = value(&text, "nanogpu_device_unexplained_memory_bytes", &[&id]);
    ensure!(strange >= Some(float(3 << 30)), "{strange:?}");
    Ok(())
}

/// The right that is shipped only where it is asked for (`agent.evict` of the chart).
pub(crate) const EVICTION: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: nanogpu-agent-evict}
rules:
- {apiGroups: [''], resources: [pods/eviction], verbs: [create]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: nanogpu-agent-evict}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: nanogpu-agent-evict}
subjects:
- {kind: ServiceAccount, name: nanogpu-agent, namespace: nanogpu-system}
";

#[tokio::test(flavor = "multi_thread")]
async fn where_it_is_asked_for_such_a_pod_is_evicted_and_its_neighbour_is_not() -> Result<()> {
    let bed = Bed::new().await?;
    bed.session.apply("default", EVICTION).await?;
    let _agent = bed.agent_with(SMALL, &["--evict"]).await?;
    let ns = bed.session.namespace("story-evict").await?;
    let id = bed.inventory(SMALL).await?.devices[3].id.to_string();
    let limits = json!({"nano-gpu/gpu-percent": 10});
    let placement = format!("v1;{SMALL};main={id}:10%+1000Mi");
    let honest = using("honest", &user("debian", &limits, &["--memory 512MiB"]));
    bed.place(&ns, &honest, SMALL, Some(&placement)).await?;
    bed.session.running(&ns, "honest").await?;
    bed.uses_its_own(&ns, "honest").await?;
    let rogue = using("rogue", &user("debian", &limits, &["--rogue --device 3 --memory 4GiB"]));
    bed.place(&ns, &rogue, SMALL, Some(&placement)).await?;
    bed.session.gone::<k8s_openapi::api::core::v1::Pod>(&ns, "rogue").await?;
    let honest = bed.session.running(&ns, "honest").await?;
    ensure!(honest.metadata.deletion_timestamp.is_none(), "the neighbour was evicted too");
    Ok(())
}
