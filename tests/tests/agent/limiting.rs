//! Shares that hold: the limiter, from the agent's spec to what the card saw.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::bed::{Bed, SMALL, containers};
use crate::measuring::float;
use crate::pods::{user, using};

/// Busy time and device time of a pod's processes, as the simulated card counts them.
fn busy(bed: &Bed, own: &[i32]) -> Result<(u64, u64)> {
    let (mut busy, mut until) = (0, 0);
    for line in bed.simgpu(SMALL, &["usage", "--json"])?.lines() {
        let line: Value = serde_json::from_str(line)?;
        let pid = line["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
        if pid.is_some_and(|pid| own.contains(&pid)) {
            busy += line["busy_ns"].as_u64().context("a number")?;
            until = line["until_ns"].as_u64().context("a number")?;
        }
    }
    ensure!(until > 0, "the driver knows none of the processes {own:?}");
    Ok((busy, until))
}

/// Puts our library onto the node, and says where, for an agent's `--limiter`.
pub(crate) fn limiter(bed: &Bed, node: &str) -> Result<String> {
    let folder = "/var/lib/nanogpu/limiter";
    let here = bed.cluster.layout().on_node(node, folder);
    std::fs::create_dir_all(&here)?;
    // A new file: containers of an earlier story may have the old one mapped.
    let _ = std::fs::remove_file(here.join("libnanogpu.so"));
    std::fs::copy(testbed::built_limiter()?, here.join("libnanogpu.so"))?;
    Ok(format!("{}={folder}", here.display()))
}

#[tokio::test(flavor = "multi_thread")]
async fn two_tenants_of_a_card_are_held_to_their_shares_and_a_third_to_its_memory() -> Result<()> {
    let bed = Bed::new().await?;
    let library = limiter(&bed, SMALL)?;
    let limited = ["--isolation", "limiter", "--limiter", &library];
    let agent = bed.agent_with(SMALL, &limited).await?;
    let ns = bed.session.namespace("story-limited").await?;
    let id = bed.inventory(SMALL).await?.devices[2].id.to_string();
    let asked = [("thirty", 30, 4096, "--memory 1GiB"), ("fifty", 50, 6144, "--memory 1GiB")];
    for (name, share, memory, holds) in asked {
        let limits = json!({"nano-gpu/gpu-percent": share});
        let pod = using(name, &user("debian", &limits, &[&format!("{holds} --busy 100%")]));
        let placement = format!("v1;{SMALL};main={id}:{share}%+{memory}Mi");
        bed.place(&ns, &pod, SMALL, Some(&placement)).await?;
    }
    let mut tenants = Vec::new();
    for (name, share, ..) in asked {
        let pod = bed.session.running(&ns, name).await?;
        let holds = |said: &str| said.contains("through libcuda.so.1");
        bed.session.says(&ns, name, "main", holds).await?;
        let own = bed.cluster.processes_of(&containers(&pod)[0])?;
        tenants.push((name, share, own));
    }

    // Half of the card is free, but not this pod's. It is as restricted as a pod can be.
    let limits = json!({"nano-gpu/gpu-percent": 10});
    let mut greedy = user("debian", &limits, &["--memory 4GiB"]);
    greedy["securityContext"] = json!({
        "runAsNonRoot": true,
        "runAsUser": 10_001,
        "readOnlyRootFilesystem": true,
        "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    });
    let greedy = using("greedy", &greedy);
    bed.place(&ns, &greedy, SMALL, Some(&format!("v1;{SMALL};main={id}:10%+2048Mi"))).await?;
    let denied = |said: &str| said.contains("out of memory (CUDA error 2)");
    bed.session.says(&ns, "greedy", "main", denied).await?;

    let before: Vec<_> = tenants.iter().map(|(.., own)| busy(&bed, own)).collect::<Result<_>>()?;
    tokio::time::sleep(Duration::from_secs(10)).await;
    for ((name, share, own), (busy_before, then)) in tenants.iter().zip(before) {
        let (busy_after, now) = busy(&bed, own)?;
        let got = 100.0 * float(busy_after - busy_before) / float(now - then);
        println!("{name}: asked {share}, got {got:.1}");
        // Wide below, for a machine that is slow to launch; a neighbour without limits would take
        // half of the card or more.
        let share = f64::from(*share);
        ensure!(got <= share + 3.0 && got >= share * 0.7, "{name}: asked {share}, got {got:.1}");
    }
    drop(agent);
    Ok(())
}
