//! How long a verb takes over HTTP on loopback, and inside from bytes to bytes: p50 and p99.
//!
//! Numbers compare within one run only.
#![expect(clippy::print_stdout, reason = "a benchmark prints its table")]
#![expect(clippy::unwrap_used, reason = "a benchmark may stop at what cannot be")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kubeapi::Alone;
use scheduler::http::Limits;
use serde_json::{Value, json};

#[path = "../tests/it/build.rs"]
#[expect(dead_code, reason = "the tests use the rest")]
mod build;
#[path = "../tests/it/serving.rs"]
mod serving;

use build::{World, filter_body, pod};

fn main() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    // First, before anything else has grown the heap.
    runtime.block_on(memory(5000, 20_000));
    println!(
        "{:>6} {:>5} {:>10} {:>32} {:>9} {:>9} {:>9} {:>9}",
        "nodes", "cards", "verb", "asked", "p50", "p99", "in: p50", "in: p99"
    );
    // `cargo bench ... -- 5000` measures clusters of that size only.
    let sizes: Vec<usize> = std::env::args().filter_map(|arg| arg.parse().ok()).collect();
    for (nodes, cards) in [(100, 2), (1000, 2), (5000, 2), (5000, 8)] {
        if sizes.is_empty() || sizes.contains(&nodes) {
            measure(&runtime, nodes, cards);
        }
    }
}

/// What the service holds in memory, beyond what it had before: pods as a watch brings them, but
/// without the watch.
async fn memory(nodes: usize, pods: usize) {
    let before = resident();
    let world = World::new(nodes).await;
    let with_nodes = resident();
    for n in 0..pods {
        let (name, node, card) = (format!("p{n}"), format!("n-{}", n % nodes), n / nodes % 2);
        let mut held = pod(&name, "20");
        held["spec"]["nodeName"] = json!(node);
        held["spec"]["containers"][0]["env"] = json!([{"name": "X", "value": "x".repeat(2000)}]);
        let placement = format!("v1;{node};c=GPU-{node}-{card}:20%+3276Mi");
        held["metadata"]["annotations"] = json!({"nano-gpu/placement": placement});
        let seen = kubeapi::SeenPod::from_json(&held.to_string()).unwrap();
        world.tell(kubeapi::Seen::Pod(Arc::new(seen))).await;
    }
    world.settle().await;
    let body = filter_body(&pod("a", "30"), &world.names());
    drop((world.service.filter(&body, false), world.service.prioritize(&body)));
    println!(
        "resident: {} MiB for {nodes} nodes, {} MiB with {pods} pods (the program itself: {before} MiB)",
        with_nodes - before,
        resident() - before
    );
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap() >> 10
}

fn measure(runtime: &tokio::runtime::Runtime, nodes: usize, cards: usize) {
    let world = runtime.block_on(World::of(nodes, cards, Arc::new(Alone)));
    let limits = Limits {
        body: 512 << 20,
        arrive: Duration::from_mins(1),
        at_once: 64,
        turn: Duration::from_secs(5),
    };
    let (address, _shutdown) = runtime.block_on(async { serving::serve_world(&world, limits) });
    let bench = Bench { world, runtime, address, nodes, cards };
    let names = bench.world.names();
    let fits = filter_body(&pod("a", "30"), &names);
    let refused = filter_body(&pod("b", "900"), &names);
    let two = filter_body(&two_containers(), &names);
    let ordinary = json!({"metadata": {"name": "o"}, "spec": {"containers": [{"name": "c"}]}});
    let ordinary = filter_body(&ordinary, &names);
    for verb in ["filter", "prioritize"] {
        bench.report(verb, "names", &fits, Meanwhile::Nothing);
        bench.report(verb, "names, a node changed", &fits, Meanwhile::AChange);
        bench.report(verb, "names, agents beat", &fits, Meanwhile::Beats);
        bench.report(verb, "names, two containers", &two, Meanwhile::Nothing);
        bench.report(verb, "names, two containers, a change", &two, Meanwhile::AChange);
    }
    bench.report("filter", "names, all refused", &refused, Meanwhile::Nothing);
    bench.report("filter", "names, no card wanted", &ordinary, Meanwhile::Nothing);
    if cards > 2 {
        return;
    }
    let whole = whole(&pod("a", "30"), &names);
    bench.report("filter", "whole nodes of 10 KB", &whole, Meanwhile::Nothing);
    bench.report("prioritize", "whole nodes of 10 KB", &whole, Meanwhile::Nothing);
}

/// What happens before each call.
#[derive(Clone, Copy, PartialEq)]
enum Meanwhile {
    /// Nothing.
    Nothing,
    /// A pod comes to a node, or goes from it.
    AChange,
    /// A hundredth of the agents are heard: what a tenth of a second brings.
    Beats,
}

/// A pod that no packed question describes: two containers with a share each.
fn two_containers() -> Value {
    let mut two = pod("two", "30");
    let first = two["spec"]["containers"][0].clone();
    let mut second = first.clone();
    second["name"] = json!("d");
    second["resources"]["limits"]["nano-gpu/gpu-percent"] = json!("20");
    two["spec"]["containers"] = json!([first, second]);
    two
}

/// A request of a kube-scheduler that does not trust our cache.
fn whole(pod: &Value, names: &[String]) -> Vec<u8> {
    let node = |name: &String| {
        json!({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
               "spec": {}, "status": {"images": vec![json!({"names": ["x".repeat(1000)]}); 10]}})
    };
    let nodes: Vec<Value> = names.iter().map(node).collect();
    json!({"Pod": pod, "Nodes": {"items": nodes}}).to_string().into_bytes()
}

struct Bench<'a> {
    world: World,
    runtime: &'a tokio::runtime::Runtime,
    address: SocketAddr,
    nodes: usize,
    cards: usize,
}

impl Bench<'_> {
    fn report(&self, verb: &str, asked: &str, body: &[u8], meanwhile: Meanwhile) {
        let mut connection = BufReader::new(TcpStream::connect(self.address).unwrap());
        connection.get_ref().set_nodelay(true).unwrap();
        let path = format!("/scheduler/{verb}");
        let outside = self.times(meanwhile, || exchange(&mut connection, &path, body));
        let service = &self.world.service;
        let inside = self.times(meanwhile, || match verb {
            "filter" => drop(service.filter(body, false)),
            _ => drop(service.prioritize(body)),
        });
        let [a, b, c, d] = [at(&outside, 50), at(&outside, 99), at(&inside, 50), at(&inside, 99)];
        let Self { nodes, cards, .. } = self;
        println!(
            "{nodes:>6} {cards:>5} {verb:>10} {asked:>32} {a:>9.1?} {b:>9.1?} {c:>9.1?} {d:>9.1?}"
        );
    }

    fn times(&self, meanwhile: Meanwhile, mut call: impl FnMut()) -> Vec<Duration> {
        let mut took = Vec::new();
        let start = Instant::now();
        let calls = if meanwhile == Meanwhile::Nothing { 2000 } else { 400 };
        while took.len() < 50 || (start.elapsed() < Duration::from_secs(4) && took.len() < calls) {
            match meanwhile {
                Meanwhile::Nothing => {}
                Meanwhile::AChange => self.runtime.block_on(self.change(took.len())),
                Meanwhile::Beats => self.runtime.block_on(self.beats(took.len())),
            }
            let before = Instant::now();
            call();
            took.push(before.elapsed());
        }
        took.sort_unstable();
        took
    }

    async fn beats(&self, turn: usize) {
        let picture = self.world.handle.picture();
        let nodes = picture.snapshot.nodes();
        let first = turn * 37;
        for n in 0..nodes.len().div_ceil(100) {
            self.world.beat(&nodes[(first + n) % nodes.len()].name).await;
        }
        self.world.settle().await;
    }

    /// A pod comes to a node, or goes from it.
    async fn change(&self, turn: usize) {
        let name = format!("held-{}", turn % 7);
        if self.world.store.seen(&name).is_some() {
            self.world.store.remove(&name);
        } else {
            let node = format!("n-{}", turn * 31 % self.nodes);
            let mut held = pod(&name, "30");
            held["spec"]["nodeName"] = json!(node);
            let placement = format!("v1;{node};c=GPU-{node}-0:30%+4915Mi");
            held["metadata"]["annotations"] = json!({"nano-gpu/placement": placement});
            self.world.store.put(&held);
        }
        self.world.settle().await;
    }
}

fn at(took: &[Duration], part: usize) -> Duration {
    took[(took.len() - 1) * part / 100]
}

/// One request and its whole answer on a connection that stays.
fn exchange(connection: &mut BufReader<TcpStream>, path: &str, body: &[u8]) {
    let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
    connection.get_mut().write_all(&[head.as_bytes(), body].concat()).unwrap();
    let mut length = 0;
    loop {
        let mut line = String::new();
        connection.read_line(&mut line).unwrap();
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(text) = line.strip_prefix("content-length:") {
            length = text.trim().parse().unwrap();
        }
    }
    let mut answer = vec![0; length];
    connection.read_exact(&mut answer).unwrap();
}
