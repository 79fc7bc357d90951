//! An agent to which the driver names no processes, or whose `/proc` is not the host's.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::bed::{Bed, NAMESPACE, SMALL};
use crate::limiting::limiter;
use crate::measuring::{EVICTION, float, value};
use crate::pods::{user, using};
use crate::processes::Agent;

const SEES: &str = "\nnanogpu_agent_sees_processes 1\n";
const BLIND: &str = "\nnanogpu_agent_sees_processes 0\n";
/// What the pod may have of the card.
const LIMIT: u64 = 4096 << 20;

/// Waits until the agent's metrics have `text`, and the tenant's use of the card, and returns them.
async fn says(agent: &Agent, text: &str, id: &str) -> Result<String> {
    let started = Instant::now();
    loop {
        let all = agent.get("/metrics")?;
        // An agent may have been blind before the tenant came.
        if all.contains(text) && of_tenant(&all, id).is_some_and(|used| used >= float(1 << 30)) {
            return Ok(all);
        }
        ensure!(started.elapsed() < Duration::from_mins(1), "never {text}: {all}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn of_tenant(metrics: &str, id: &str) -> Option<f64> {
    value(metrics, "nanogpu_container_memory_used_bytes", &["pod=\"tenant\"", id])
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_cannot_see_processes_says_so_and_hurts_nobody() -> Result<()> {
    let bed = Bed::new().await?;
    bed.session.apply("default", EVICTION).await?;
    let library = limiter(&bed, SMALL)?;
    bed.simgpu(SMALL, &["fault", "nameless"])?;
    let blind = blind(&bed, &library).await;
    // First of all, so that a failure here is no other story's.
    bed.simgpu(SMALL, &["fault", "nameless", "--off"])?;
    let (agent, ns, id) = blind?;
    let text = says(&agent, SEES, &id).await?;
    bed.told("default", SMALL, "whose processes use the devices is seen again").await?;
    let used = of_tenant(&text, &id);
    let card = value(&text, "nanogpu_device_memory_used_bytes", &[&id]);
    ensure!(used == card, "what the driver says of it again: {used:?}, {card:?}");

    // The other way to see nothing: the driver names processes, and /proc has none of them.
    drop(agent);
    let nothing = tempfile::tempdir()?;
    let proc = nothing.path().display().to_string();
    let limited = ["--isolation", "limiter", "--limiter", &library, "--evict", "--proc", &proc];
    let agent = bed.agent_with(SMALL, &limited).await?;
    let text = says(&agent, BLIND, &id).await?;
    nothing_is_strange(&text, &id)?;
    let pod = bed.session.running(&ns, "tenant").await?;
    ensure!(pod.metadata.deletion_timestamp.is_none(), "it was evicted");
    Ok(())
}

/// The container's own count is told, and no memory is taken for a stranger's.
fn nothing_is_strange(text: &str, id: &str) -> Result<()> {
    let used = of_tenant(text, id).context("no line of the container")?;
    ensure!(used <= float(LIMIT), "it says that it uses {used}");
    let strange = value(text, "nanogpu_device_unexplained_memory_bytes", &[id]);
    ensure!(strange == Some(0.0), "strange: {strange:?}");
    Ok(())
}

/// An agent that sees nothing, the namespace of its tenant and the card of that.
async fn blind(bed: &Bed, library: &str) -> Result<(Agent, String, String)> {
    let limited = ["--isolation", "limiter", "--limiter", library, "--evict"];
    let agent = bed.agent_with(SMALL, &limited).await?;
    let ns = bed.session.namespace("story-blind").await?;
    let id = bed.inventory(SMALL).await?.devices[2].id.to_string();
    let limits = json!({"nano-gpu/gpu-percent": 30});
    let tenant = using("tenant", &user("debian", &limits, &["--memory 1GiB"]));
    let placement = format!("v1;{SMALL};main={id}:30%+4096Mi");
    bed.place(&ns, &tenant, SMALL, Some(&placement)).await?;
    bed.session.running(&ns, "tenant").await?;
    let through = |said: &str| said.contains("through libcuda.so.1");
    bed.session.says(&ns, "tenant", "main", through).await?;

    let text = says(&agent, BLIND, &id).await?;
    nothing_is_strange(&text, &id)?;
    bed.told("default", SMALL, "the agent needs hostPID").await?;
    let leases: Api<Lease> = Api::namespaced(bed.session.client(), NAMESPACE);
    let started = Instant::now();
    loop {
        let lease = leases.get(SMALL).await?;
        if lease.annotations().get(model::names::LACKS).is_some_and(|lacks| lacks == "processes") {
            let load = lease.annotations().get("nano-gpu/load").context("no load")?;
            ensure!(!load.contains("\"strangersMiB\":1"), "less is sold: {load}");
            break;
        }
        ensure!(started.elapsed() < Duration::from_mins(1), "doctor is not told");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok((agent, ns, id))
}
