//! A made-up load through the real kube-scheduler with the shipped configuration, against
//! `nanogpu-sim --as-extender` on the same nodes and pods. Reported, not judged:
//! `cargo xtask soak simulated`.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::{Value, json};
use testbed::{Cluster, FakeNodes, Options};

use crate::bed::{self, CONFIG, Scheduler, node_of};

/// A row of a trace, by the names of its columns.
type Row = std::collections::BTreeMap<String, String>;

fn rows(file: &Path) -> Result<Vec<Row>> {
    let text = std::fs::read_to_string(file)?;
    let mut lines = text.lines();
    let head: Vec<&str> = lines.next().context("a head")?.split(',').collect();
    let row = |line: &str| {
        head.iter().map(|h| (*h).to_owned()).zip(line.split(',').map(str::to_owned)).collect()
    };
    Ok(lines.map(row).collect())
}

fn of(row: &Row, column: &str) -> Result<u64> {
    row[column].parse().with_context(|| format!("{column} of {row:?}"))
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes on a machine of its own: cargo xtask soak simulated"]
async fn a_generated_load_against_the_simulator() -> Result<()> {
    let count = std::env::var("NANOGPU_SIM_NODES").unwrap_or_else(|_| "300".to_owned());
    let folder = tempfile::tempdir()?;
    let sim = tokio::task::spawn_blocking(testbed::built).await??.join("nanogpu-sim");
    // Thirteen pods a node ask for somewhat more than all cards.
    let pods = (count.parse::<u64>()? * 13).to_string();
    let generated = Command::new(&sim)
        .args(["generate", "--nodes", &count, "--pods", &pods, "--seed", "42", "--out"])
        .arg(folder.path())
        .status()?;
    ensure!(generated.success(), "no load was generated");
    let (nodes, pods) = (folder.path().join("nodes.csv"), folder.path().join("pods.csv"));
    let replayed = |mode: &[&str]| -> Result<f64> {
        let output = Command::new(&sim)
            .args(["replay", "--order", "given", "--seeds", "42", "--to", "100", "--json"])
            .args(mode)
            .arg("--nodes")
            .arg(&nodes)
            .arg("--pods")
            .arg(&pods)
            .output()?;
        let answer: Value = serde_json::from_slice(&output.stdout)?;
        let points = answer[0]["points"].as_array().context("points")?;
        let last = points.iter().find(|point| point["demand"] == json!(100));
        last.context("100 %")?["allocated_mean"].as_f64().context("a number")
    };
    let real = real(rows(&nodes)?, &rows(&pods)?).await?;
    eprintln!("allocated at 100 % demand: {real:.2} % through kube-scheduler");
    let packed: &[&str] = &["--as-extender=most-allocated"];
    for mode in [packed, &["--as-extender"], &[]] {
        let simulated = replayed(mode)?;
        let mode = mode.join(" ");
        eprintln!("{simulated:.2} % by nanogpu-sim {mode} ({:+.2})", real - simulated);
    }
    Ok(())
}

/// The same on a cluster: the percentage of all cards that bound pods hold.
async fn real(nodes: Vec<Row>, pods: &[Row]) -> Result<f64> {
    let mut options = Options::new("simulated").nodes(0).scheduler(CONFIG);
    let mut cards = 0;
    let mut names = Vec::new();
    for row in &nodes {
        cards += of(row, "gpu")?;
        names.push(format!("{}-00000", row["sn"]));
        options = options.fake(fake(row)?);
    }
    let cluster = tokio::task::spawn_blocking(move || Cluster::for_tests(options)).await??;
    let session = cluster.session()?;
    bed::rights(cluster, &session).await?;
    let target = Arc::new(Mutex::new(SocketAddr::from(([127, 0, 0, 1], 9))));
    bed::relay(cluster.listen(bed::EXTENDER)?, target.clone());
    let silenced: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    bed::agents(session.clone(), silenced, names, Duration::from_secs(10));
    let scheduler = Scheduler::start_fast(cluster, &["--log-level", "warn"]).await?;
    *target.lock().unwrap() = scheduler.address;
    scheduler.ready().await?;
    let hang = Instant::now();
    while scheduler.get("/api/v1/nodes").await?.1.matches("\"fresh\"").count() < nodes.len() {
        ensure!(hang.elapsed() < Duration::from_mins(2), "agents were not heard");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let namespace = session.namespace("simulated").await?;
    let api: Api<Pod> = Api::namespaced(session.client(), &namespace);
    let (mut asked, mut created) = (0, 0);
    let started = Instant::now();
    for row in pods {
        // As the simulator counts: the pod with which all cards are asked for still comes.
        if asked >= cards * 1000 {
            break;
        }
        asked += of(row, "num_gpu")? * of(row, "gpu_milli")?;
        // One after another: kube-scheduler takes them in the order in which they come.
        api.create(&PostParams::default(), &serde_json::from_value(pod(row)?)?).await?;
        created += 1;
    }
    let (mut allocated, mut waiting);
    loop {
        (allocated, waiting) = (0, 0);
        let mut untried = 0;
        for pod in api.list(&ListParams::default()).await? {
            let milli: u64 = bed::annotation(&pod, "milli").context("milli")?.parse()?;
            if node_of(&pod).is_some() {
                allocated += milli;
            } else if is_refused(&pod) {
                waiting += 1;
            } else {
                untried += 1;
            }
        }
        if untried == 0 {
            break;
        }
        ensure!(started.elapsed() < Duration::from_mins(10), "{untried} pods were not tried");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    eprintln!("{created} pods, {waiting} of them wait, in {:?}", started.elapsed());
    #[expect(clippy::cast_precision_loss, reason = "thousands")]
    Ok(allocated as f64 / (cards * 10) as f64)
}

fn is_refused(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| {
        condition.type_ == "PodScheduled" && condition.reason.as_deref() == Some("Unschedulable")
    })
}

fn fake(row: &Row) -> Result<FakeNodes> {
    let (cards, memory) = (of(row, "gpu")?, of(row, "card_mem_mib")?);
    let card = |index: u64| {
        json!({"id": format!("GPU-{{node}}-{index}"), "index": index, "minor": index,
               "model": row["model"], "mem": memory, "health": "healthy"})
    };
    let inventory = json!({"v": 1, "devices": (0..cards).map(card).collect::<Vec<_>>()});
    Ok(FakeNodes::new(1)
        .prefix(&format!("{}-", row["sn"]))
        .capacity("cpu", &format!("{}m", row["cpu_milli"]))
        .capacity("memory", &format!("{}Mi", row["memory_mib"]))
        .capacity("nano-gpu/gpu-percent", &(100 * cards).to_string())
        .annotation("nano-gpu/inventory", &inventory.to_string()))
}

fn pod(row: &Row) -> Result<Value> {
    let (cards, milli) = (of(row, "num_gpu")?, of(row, "gpu_milli")?);
    let mut limits = json!({
        "cpu": format!("{}m", row["cpu_milli"]), "memory": format!("{}Mi", row["memory_mib"]),
    });
    if cards > 0 {
        limits["nano-gpu/gpu-percent"] = json!((cards * milli / 10).to_string());
    }
    let memory = row.get("gpu_mem_mib").filter(|text| !text.is_empty());
    if let Some(memory) = memory.filter(|_| cards * milli < 1000) {
        limits["nano-gpu/gpu-memory"] = json!(memory);
    }
    let mut pod = bed::asks(&row["name"], &limits);
    let mut annotations = json!({"milli": (cards * milli).to_string()});
    if let Some(models) = row.get("gpu_spec").filter(|text| !text.is_empty()) {
        annotations["nano-gpu/use-gputype"] = json!(models.replace('|', ","));
    }
    pod["metadata"]["annotations"] = annotations;
    Ok(pod)
}
