//! gpu-manager's own limiter, which images may bring along: what it asks the node, and what it is told.
//! `vcuda.c` does what that library does, by its published interface.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::bed::{Bed, SIM, SMALL, containers};
use crate::pods::{pod, simple, user, using};
use crate::recovery::end;

/// Short, because a socket's path below it must be.
const FOLDER: &str = "/run/vm";

/// Compiles the program onto the node.
fn compile(bed: &Bed) -> Result<()> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/agent/vcuda.c");
    let program = bed.cluster.layout().on_node(SMALL, &format!("{SIM}/bin/vcuda"));
    let done = Command::new("cc").args(["-O1", "-Wall", "-o"]).arg(program).arg(source).status()?;
    ensure!(done.success(), "cc {source}");
    Ok(())
}

/// A container that asks again every second, then does what `more` says.
fn asks(name: &str, percent: u32, units: u32, more: &str) -> Value {
    let limits = json!({"tencent.com/vcuda-core": percent, "tencent.com/vcuda-memory": units});
    let mut one = user("debian", &limits, &[]);
    let forever = "while true; do /opt/simgpu/vcuda; sleep 1; done";
    one["name"] = json!(name);
    one["command"] = json!(["sh", "-c", format!("{more} {forever}")]);
    one
}

/// What a container was told last, by words: `memory`, `cores` and so on.
fn told(said: &str) -> Option<BTreeMap<&str, String>> {
    let line = said.lines().rev().find_map(|line| line.strip_prefix("vcuda: pod "))?;
    let (words, pids) = line.split_once(" pids")?;
    let words: Vec<&str> = ["pod"].into_iter().chain(words.split(' ')).collect();
    let mut told: BTreeMap<&str, String> =
        words.chunks_exact(2).map(|pair| (pair[0], pair[1].to_owned())).collect();
    told.insert("pids", pids.trim().to_owned());
    Some(told)
}

/// Waits until a container of this ID was told something, and compares it.
async fn is_told(
    bed: &Bed,
    ns: &str,
    name: &str,
    container: &str,
    expected: &[(&str, &str)],
) -> Result<()> {
    let has = |said: &str| told(said).is_some();
    let said = bed.session.says(ns, name, container, has).await?;
    let told = told(&said).context("nothing")?;
    for (word, value) in expected {
        ensure!(told.get(word).map(String::as_str) == Some(value), "{name}: {word} in {told:?}");
    }
    // It may have asked before the API server shows it.
    let pod = bed.session.running(ns, name).await?;
    ensure!(Some(&told["pod"]) == pod.metadata.uid.as_ref(), "{told:?}");
    let statuses = pod.status.and_then(|status| status.container_statuses).unwrap_or_default();
    let status = statuses.iter().find(|status| status.name == container).context("no status")?;
    let id = status.container_id.as_deref().unwrap_or_default().replace("containerd://", "");
    ensure!(told["id"] == id, "{id} in {told:?}");
    // Processes as the host numbers them: the shell, and the program and its kin come and go.
    let own: Vec<String> = bed.cluster.processes_of(&id)?.iter().map(ToString::to_string).collect();
    let known = told["pids"].split(' ').any(|pid| own.iter().any(|it| it == pid));
    ensure!(known, "{own:?} in {told:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn gpu_managers_own_limiter_is_told_its_limits_and_nobody_elses() -> Result<()> {
    let bed = Bed::new().await?;
    compile(&bed)?;
    let folder = bed.cluster.layout().on_node(SMALL, FOLDER);
    let both = format!("{}={FOLDER}", folder.display());
    // What pods leave is looked for after every ten looks.
    let served = ["--vcuda", &both, "--look", "300"];
    let agent = bed.agent_with(SMALL, &served).await?;
    let ns = bed.session.namespace("story-vcuda").await?;
    let inventory = bed.inventory(SMALL).await?;
    let (id, bus) = (inventory.devices[2].id.to_string(), inventory.devices[2].bus.clone());

    let placement = format!("v1;{SMALL};main={id}:20%+2048Mi");
    bed.place(&ns, &using("one", &asks("main", 20, 8, "")), SMALL, Some(&placement)).await?;
    let one = [
        ("container", "main"),
        ("bus", bus.as_str()),
        ("memory", "2147483648"),
        ("cores", "20"),
        ("hard", "1"),
        ("limit", "0"),
        ("driver", "550.163"),
        ("enable", "1"),
    ];
    is_told(&bed, &ns, "one", "main", &one).await?;
    let first = bed.session.running(&ns, "one").await?;

    // Two containers on the same card, one of which may have more while it is idle. Each asks before
    // the API server can know which of them it is. The second first says that it is the first pod,
    // and another container; it cannot write where it reads.
    let uid = first.metadata.uid.clone().context("a UID")?;
    let ends = "0".repeat(64);
    let hostile = format!(
        "/opt/simgpu/vcuda {uid}; /opt/simgpu/vcuda {uid} {}; /opt/simgpu/vcuda \
         $(sed -n 's|.*:memory:.*/pod\\([^/]*\\)/.*|\\1|p' /proc/self/cgroup) {ends}; \
         touch /etc/vcuda/x || echo cannot write; ls -a /etc/vcuda;",
        containers(&first)[0]
    );
    let both = [asks("main", 50, 16, ""), asks("side", 10, 4, &hostile)];
    let mut two = using("two", &both[0]);
    two["spec"]["containers"] = pod("two", &[], &both)["spec"]["containers"].clone();
    two["metadata"]["annotations"] = json!({"tencent.com/vcuda-core-limit": "70"});
    let placement = format!("v1;{SMALL};main={id}:50%+4096Mi;side={id}:10%+1024Mi");
    bed.place(&ns, &two, SMALL, Some(&placement)).await?;
    let main = [("container", "main"), ("memory", "4294967296"), ("cores", "50")];
    is_told(&bed, &ns, "two", "main", &[&main[..], &[("hard", "0"), ("limit", "70")]].concat())
        .await?;
    let side = [("container", "side"), ("memory", "1073741824"), ("cores", "10")];
    is_told(&bed, &ns, "two", "side", &side).await?;
    let said = bed.session.logs(&ns, "two", "side").await?;
    let lines: Vec<&str> = said.lines().take(3).collect();
    ensure!(lines == ["vcuda: refused"; 3], "{said}");
    ensure!(said.contains("cannot write"), "{said}");
    ensure!(!said.contains(&containers(&first)[0]), "it sees the other pod's folder: {said}");

    // Another container, another folder.
    end(&bed, &ns, "one").await?;
    let again = |pod: &Pod| containers(pod).first().is_some_and(|id| *id != containers(&first)[0]);
    bed.session.wait::<Pod>(&ns, "one", "started again", again).await?;
    is_told(&bed, &ns, "one", "main", &one).await?;

    // While the agent is away nobody answers; the next one does, in the same containers.
    agent.kill();
    let gone = |said: &str| said.trim_end().ends_with("vcuda: nobody is there");
    bed.session.says(&ns, "one", "main", gone).await?;
    let before = containers(&bed.session.running(&ns, "one").await?);
    let _agent = bed.agent_with(SMALL, &served).await?;
    let back = |said: &str| {
        let since = said.rsplit("vcuda: nobody is there").next();
        since.is_some_and(|since| told(since).is_some())
    };
    for (name, container) in [("one", "main"), ("two", "main"), ("two", "side")] {
        bed.session.says(&ns, name, container, back).await?;
    }
    is_told(&bed, &ns, "one", "main", &one).await?;
    is_told(&bed, &ns, "two", "side", &side).await?;
    ensure!(containers(&bed.session.running(&ns, "one").await?) == before, "it was touched");

    // What was there for a pod goes with it. The kubelet forgets it when it admits another.
    bed.delete(&ns, "one").await?;
    bed.session.gone::<Pod>(&ns, "one").await?;
    let placement = format!("v1;{SMALL};main={id}:10%+1000Mi");
    bed.place(&ns, &simple("next", 10), SMALL, Some(&placement)).await?;
    bed.session.running(&ns, "next").await?;
    let started = Instant::now();
    while folder.join(&uid).exists() {
        ensure!(started.elapsed() < Duration::from_mins(1), "its folder stays");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}
