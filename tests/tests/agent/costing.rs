//! What the agent costs, for docs/results. `NANOGPU_BENCH=1` asks for it; else there is nothing to see.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::bed::{BIG, Bed};
use crate::limiting::limiter;
use crate::pods::simple;
use crate::processes::is_measured;

/// As many as a kubelet takes by default are 110; this one takes 250, a few of them not ours.
const PODS: usize = 240;
/// How long the agent is watched while nothing happens.
const IDLE: Duration = Duration::from_mins(1);
/// When one that was started anew has read what there is.
const SETTLED: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn what_a_full_node_costs() -> Result<()> {
    if !is_measured() {
        return Ok(());
    }
    let bed = Bed::new().await?;
    // As it is shipped: a look at the cards every three seconds, and the limiter.
    let library = limiter(&bed, BIG)?;
    let isolation = std::env::var("NANOGPU_BENCH_ISOLATION").unwrap_or("limiter".to_owned());
    let limited = ["--isolation", &isolation, "--limiter", &library];
    let shipped = [&["--look", "3000", "--heartbeat", "10"], &limited[..]].concat();
    let agent = bed.agent_with(BIG, &shipped).await?;
    report("no pods", &agent)?;
    let ns = bed.session.namespace("story-costs").await?;
    let inventory = bed.inventory(BIG).await?;
    let pods: usize =
        std::env::var("NANOGPU_BENCH_PODS").ok().and_then(|n| n.parse().ok()).unwrap_or(PODS);
    for n in 0..pods {
        let id = &inventory.devices[n % 8].id;
        let placement = format!("v1;{BIG};main={id}:3%+1000Mi");
        bed.place(&ns, &simple(&format!("pod-{n}"), 3), BIG, Some(&placement)).await?;
    }
    let patient = bed.session.clone().patience(Duration::from_mins(10));
    for n in 0..pods {
        patient.running(&ns, &format!("pod-{n}")).await?;
    }
    let text = agent.get("/metrics")?;
    for line in text.lines().filter(|line| line.contains("_duration_seconds")) {
        say(line);
    }
    report(&format!("{pods} pods"), &agent)?;
    let before = ticks(agent.pid())?;
    tokio::time::sleep(IDLE).await;
    let used = ticks(agent.pid())? - before;
    // A tick is a hundredth of a second.
    say(&format!("{pods} pods, idle for {} s: {used} ticks of CPU", IDLE.as_secs()));
    report(&format!("{pods} pods, a minute later"), &agent)?;
    let many: Vec<String> = threads(agent.pid())?;
    say(&format!("{pods} pods: {} threads: {}", many.len(), many.join(" ")));
    // Another one has to read all of it at once.
    agent.kill();
    let agent = bed.agent_with(BIG, &shipped).await?;
    tokio::time::sleep(SETTLED).await;
    report(&format!("{pods} pods, started anew"), &agent)?;
    // For whoever looks closer while all is as it was measured.
    let stay = std::env::var("NANOGPU_BENCH_STAY").ok().and_then(|n| n.parse().ok());
    tokio::time::sleep(Duration::from_secs(stay.unwrap_or(0))).await;
    Ok(())
}

fn report(when: &str, agent: &crate::processes::Agent) -> Result<()> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", agent.pid()))?;
    for line in status.lines().filter(|line| line.starts_with("VmRSS") || line.starts_with("Rss")) {
        say(&format!("{when}: {line}"));
    }
    Ok(())
}

/// The names of its threads.
fn threads(pid: u32) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        names.push(std::fs::read_to_string(task?.path().join("comm"))?.trim().to_owned());
    }
    names.sort();
    Ok(names)
}

fn ticks(pid: u32) -> Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // After the name, which may have anything in it: user time is the 12th, system time the 13th.
    let fields: Vec<&str> = stat.rsplit(')').next().context("a stat")?.split_whitespace().collect();
    Ok(fields[11].parse::<u64>()? + fields[12].parse::<u64>()?)
}

fn say(line: &str) {
    println!("{line}");
}
