//! What the agent costs, for docs/results. `NANOGPU_BENCH=1` asks for it; else there is nothing to see.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use kube::ResourceExt;
use kube::api::ListParams;

use crate::bed::{BIG, Bed};
use crate::limiting::limiter;
use crate::pods::simple;
use crate::processes::{Agent, is_measured};

/// As many as a kubelet takes by default are 110; this one takes 250, a few of them not ours.
const PODS: usize = 240;
/// How long the agent is watched while nothing happens.
const IDLE: Duration = Duration::from_mins(1);
/// When one that was started anew has read what there is.
const SETTLED: Duration = Duration::from_secs(20);
/// How often a Prometheus that is asked to hurry asks.
const SCRAPE: Duration = Duration::from_secs(15);

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
    for (which, every) in [("the first", IDLE), ("the second", IDLE), ("with scrapes", SCRAPE)] {
        let before = versions(&bed, &ns).await?;
        let when = format!("{pods} pods, idle minute, {which}");
        minute(&when, &agent, every).await?;
        let after = versions(&bed, &ns).await?;
        let written = before.iter().zip(&after).filter(|(before, after)| before != after).count();
        say(&format!("{when}: {written} pods were written"));
        report(&when, &agent)?;
    }
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

/// The versions of the pods. A kubelet may write them again and again though nothing happens: that of
/// 1.36 lists the tickets of a container in another order every time it looks at it.
async fn versions(bed: &Bed, ns: &str) -> Result<Vec<Option<String>>> {
    let pods = bed.pods(ns).list(&ListParams::default()).await?;
    Ok(pods.iter().map(ResourceExt::resource_version).collect())
}

/// What the agent uses in a minute, in which it is asked for its metrics as often as that.
async fn minute(when: &str, agent: &Agent, every: Duration) -> Result<()> {
    let (started, ticks_before, before) =
        (Instant::now(), ticks(agent.pid())?, threads(agent.pid())?);
    loop {
        tokio::time::sleep(every.min(IDLE.saturating_sub(started.elapsed()))).await;
        if started.elapsed() >= IDLE {
            break;
        }
        agent.get("/metrics")?;
    }
    let (used, after) = (ticks(agent.pid())? - ticks_before, threads(agent.pid())?);
    let seconds = started.elapsed().as_secs_f64();
    // A tick is a hundredth of a second.
    say(&format!("{when}: {used} ticks of CPU in {seconds:.1} s"));
    let mut by_name: BTreeMap<&str, (usize, u64, u64)> = BTreeMap::new();
    for (number, now) in &after {
        let then = before.get(number).filter(|then| then.name == now.name);
        let (ran, woken) = then.map_or((0, 0), |then| (then.ran, then.woken));
        let sum = by_name.entry(&now.name).or_default();
        *sum = (sum.0 + 1, sum.1 + now.ran - ran, sum.2 + now.woken - woken);
    }
    for (name, (count, ran, woken)) in by_name {
        let micros = ran / 1000;
        say(&format!("{when}: {count} threads {name}: {micros} us, woken {woken} times"));
    }
    Ok(())
}

/// A thread of the agent.
struct Thread {
    name: String,
    /// For how long it ran, in nanoseconds.
    ran: u64,
    /// How often it had slept and was woken.
    woken: u64,
}

/// Its threads, by their numbers. What a thread used that has ended since is lost here.
fn threads(pid: u32) -> Result<BTreeMap<u32, Thread>> {
    let mut threads = BTreeMap::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let task = task?.path();
        let read = |file: &str| std::fs::read_to_string(task.join(file));
        let number = task.file_name().and_then(|name| name.to_str()?.parse().ok());
        let ran = read("schedstat")?.split_whitespace().next().and_then(|ran| ran.parse().ok());
        let status = read("status")?;
        let woken = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        let thread = Thread {
            name: read("comm")?.trim().to_owned(),
            ran: ran.context("a time")?,
            woken: woken.context("a count")?.trim().parse()?,
        };
        threads.insert(number.context("a number")?, thread);
    }
    Ok(threads)
}

fn report(when: &str, agent: &Agent) -> Result<()> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", agent.pid()))?;
    for line in status.lines().filter(|line| line.starts_with("VmRSS") || line.starts_with("Rss")) {
        say(&format!("{when}: {line}"));
    }
    Ok(())
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
