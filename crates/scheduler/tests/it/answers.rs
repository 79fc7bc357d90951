//! The answers that `kubectl nanogpu` reads, kept as files: it is tested with the same ones, so
//! neither end can change without the other. `UPDATE_ANSWERS=1` writes them anew.

use std::net::SocketAddr;
use std::path::Path;

use kubeapi::{PodBudget, QuotaSource, Seen, SeenPod, Source};
use ledger::{Event, NodeFacts};
use model::codec::decode_inventory;
use model::{Bytes, Host, MilliCpu, Moment, NodeName};
use serde_json::{Value, json};

use crate::build::{World, pod};
use crate::http::{get, post, served};

/// Compares with the file, or writes it.
fn keep(name: &str, answer: &str) {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/answers").join(format!("{name}.json"));
    let answer: Value = serde_json::from_str(answer).unwrap_or_else(|e| panic!("{e}: {answer}"));
    let text = format!("{}\n", serde_json::to_string_pretty(&answer).unwrap());
    if std::env::var_os("UPDATE_ANSWERS").is_some() {
        std::fs::write(path, text).unwrap();
        return;
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, kept, "{name}: run with UPDATE_ANSWERS=1, and look at kubectl's transcripts");
}

/// A node with these cards: model, MiB, health. Cards 0-1 and 2-3 are joined by NVLink.
async fn node(world: &World, name: &str, cards: &[(&str, u64, &str)]) {
    let card = |(index, (model, memory, health)): (usize, &(&str, u64, &str))| {
        json!({"id": format!("GPU-{name}-{index}"), "index": index, "minor": index,
               "model": model, "mem": memory, "health": health})
    };
    let devices: Vec<Value> = cards.iter().enumerate().map(card).collect();
    let links = if devices.len() == 4 { json!({"SYS+NV4": "0-1 2-3"}) } else { json!({}) };
    let inventory = json!({"v": 1, "devices": devices, "links": links}).to_string();
    let inventory = (!devices.is_empty()).then(|| Ok(decode_inventory(&inventory).unwrap()));
    let facts = NodeFacts {
        name: NodeName::parse(name).unwrap(),
        allocatable: Host { cpu: MilliCpu(64_000), memory: Bytes(1 << 38) },
        pool: None,
        shunned: false,
        inventory,
        tickets: [
            ("nano-gpu/gpu-percent".to_owned(), 100 * cards.len() as u64),
            ("aliyun.com/gpu-mem".to_owned(), 16 * cards.len() as u64),
        ]
        .into(),
    };
    world.tell(Seen::Ledger(Event::Node(facts))).await;
}

async fn heard(world: &World, name: &str, at: Moment) {
    let node = NodeName::parse(name).unwrap();
    world.tell(Seen::Ledger(Event::Heartbeat { node, at })).await;
}

async fn pod_seen(world: &World, pod: &Value) {
    let seen = SeenPod::from_json(&pod.to_string()).unwrap();
    world.tell(Seen::Pod(std::sync::Arc::new(seen))).await;
}

/// A pod on a node that holds this, as a placement says it.
async fn holds(world: &World, name: &str, node: &str, grants: &str) {
    let mut pod = pod(name, "1");
    pod["metadata"]["labels"] = json!({"app": name});
    pod["metadata"]["annotations"]["nano-gpu/placement"] = json!(format!("v1;{node};c={grants}"));
    pod["spec"]["nodeName"] = json!(node);
    pod["status"]["phase"] = json!("Running");
    pod_seen(world, &pod).await;
}

const T4: (&str, u64, &str) = ("Tesla T4", 16_384, "healthy");

async fn fresh(world: &World, name: &str, cards: &[(&str, u64, &str)]) {
    node(world, name, cards).await;
    heard(world, name, world.clock.now()).await;
}

async fn why(world: &World, address: SocketAddr, file: &str, pod: &Value) {
    pod_seen(world, pod).await;
    world.settle().await;
    let name = pod["metadata"]["name"].as_str().unwrap();
    let (status, answer) = get(address, &format!("/api/v1/why/team/{name}")).await;
    assert_eq!(status, 200, "{answer}");
    keep(file, &answer);
}

fn memory(name: &str, gib: &str) -> Value {
    let mut pod = pod(name, "1");
    pod["spec"]["containers"][0]["resources"] = json!({"limits": {"aliyun.com/gpu-mem": gib}});
    pod
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_hold() {
    let (world, address, _stop) = served(0).await;
    fresh(&world, "gpu-a", &[T4, T4]).await;
    fresh(&world, "gpu-b", &[T4, T4]).await;
    node(&world, "cpu-1", &[]).await;
    for (node, first, second) in [("gpu-a", 13_056, 14_336), ("gpu-b", 14_336, 14_336)] {
        let (one, two) = (format!("{node}-x"), format!("{node}-y"));
        holds(&world, &one, node, &format!("GPU-{node}-0:50%+{first}Mi")).await;
        holds(&world, &two, node, &format!("GPU-{node}-1:50%+{second}Mi")).await;
    }
    why(&world, address, "why-memory", &memory("trainer", "8")).await;
    why(&world, address, "why-fragments", &pod("wide", "60")).await;
    why(&world, address, "why-never", &pod("wrong", "150")).await;
    why(&world, address, "why-bound", &{
        let mut bound = pod("gpu-a-x", "1");
        bound["metadata"]["annotations"]["nano-gpu/placement"] =
            json!("v1;gpu-a;c=GPU-gpu-a-0:50%+13056Mi");
        bound["spec"]["nodeName"] = json!("gpu-a");
        bound
    })
    .await;
    let mut model = pod("picky", "20");
    model["metadata"]["annotations"]["nano-gpu/use-gputype"] = json!("A100");
    why(&world, address, "why-model", &model).await;
    let mut pair = pod("pair", "200");
    pair["metadata"]["annotations"]["nano-gpu/topology"] = json!("link-strict");
    why(&world, address, "why-topology-none", &pair).await;
    why(&world, address, "why-fits", &pod("small", "10")).await;
    for list in ["nodes", "devices", "shares", "pods"] {
        keep(list, &get(address, &format!("/api/v1/{list}")).await.1);
    }
    for (file, manifest) in [
        ("simulate-fits", pod("new", "10")),
        ("simulate-waits", pod("new", "60")),
        ("simulate-refused", pod("new", "150")),
        ("simulate-not-ours", json!({"metadata": {"name": "web"}, "spec": {"containers": []}})),
    ] {
        let (_, answer) = post(address, "/api/v1/simulate", manifest.to_string().as_bytes()).await;
        keep(file, &answer);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn quota_cordon_silence_and_topology() {
    let (world, address, _stop) = served(0).await;
    fresh(&world, "gpu-a", &[T4, T4]).await;
    let quota = json!({"version": 1, "namespaces": {"team": {"models": {"T4": {"cores": 50}}}}})
        .to_string();
    world.tell(Seen::Quota(QuotaSource::Ours, Some(quota))).await;
    world.tell(Seen::Synced(Source::Quota(QuotaSource::Ours))).await;
    holds(&world, "first", "gpu-a", "GPU-gpu-a-0:40%+4096Mi").await;
    why(&world, address, "why-quota", &pod("second", "20")).await;
    keep("quotas", &get(address, "/api/v1/quotas").await.1);

    let (world, address, _stop) = served(0).await;
    let out = |health| ("Tesla T4", 16_384, health);
    fresh(&world, "gpu-a", &[out("cordoned"), out("sick")]).await;
    why(&world, address, "why-cordoned", &pod("hopeful", "20")).await;
    keep("devices-cordoned", &get(address, "/api/v1/devices").await.1);

    let (world, address, _stop) = served(0).await;
    node(&world, "gpu-a", &[T4]).await;
    heard(&world, "gpu-a", Moment(1)).await;
    heard(&world, "gpu-a2", Moment(60_000)).await;
    node(&world, "gpu-a", &[T4]).await;
    why(&world, address, "why-silent", &pod("lonely", "20")).await;

    let (world, address, _stop) = served(0).await;
    fresh(&world, "gpu-a", &[T4, T4, T4, T4]).await;
    holds(&world, "left", "gpu-a", "GPU-gpu-a-0:50%+4096Mi").await;
    holds(&world, "right", "gpu-a", "GPU-gpu-a-2:50%+4096Mi").await;
    let mut pair = pod("pair", "200");
    pair["metadata"]["annotations"]["nano-gpu/topology"] = json!("link-strict");
    why(&world, address, "why-topology", &pair).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn preemption_that_a_budget_forbids() {
    let (world, address, _stop) = served(0).await;
    fresh(&world, "gpu-a", &[T4]).await;
    holds(&world, "web", "gpu-a", "GPU-gpu-a-0:80%+8192Mi").await;
    let selector = serde_json::from_value(json!({"matchLabels": {"app": "web"}})).unwrap();
    let budget = PodBudget { uid: "b".into(), namespace: "team".into(), selector, allowed: 0 };
    world.tell(Seen::Budget(budget)).await;
    let mut urgent = pod("urgent", "50");
    urgent["spec"]["priority"] = json!(1000);
    why(&world, address, "why-budget", &urgent).await;
    world.tell(Seen::BudgetGone("b".into())).await;
    why(&world, address, "why-preempts", &urgent).await;
}
