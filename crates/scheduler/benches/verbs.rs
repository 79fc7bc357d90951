//! How long a verb takes, from the request's bytes to the answer's: p50 and p99.
//!
//! Numbers compare within one run only.
#![expect(clippy::print_stdout, reason = "a benchmark prints its table")]

use std::time::{Duration, Instant};

use serde_json::json;

#[path = "../tests/it/build.rs"]
#[expect(dead_code, reason = "the tests use the rest")]
#[expect(clippy::unwrap_used, reason = "a benchmark may stop at what cannot be")]
mod build;

use build::{World, filter_body, pod};

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    println!("{:>6} {:>12} {:>10} {:>10} {:>10}", "nodes", "verb", "form", "p50", "p99");
    for nodes in [100, 1000, 5000] {
        runtime.block_on(measure(nodes));
    }
}

async fn measure(nodes: usize) {
    let world = World::new(nodes).await;
    let names = world.names();
    let asks = pod("a", "30");
    let by_name = filter_body(&asks, &names);
    let whole: Vec<_> = names
        .iter()
        .map(|name| {
            json!({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
                   "spec": {}, "status": {"images": vec![json!({"names": ["x".repeat(1000)]}); 10]}})
        })
        .collect();
    let whole = json!({"Pod": asks, "Nodes": {"items": whole}}).to_string().into_bytes();
    let ordinary = json!({"metadata": {"name": "o"}, "spec": {"containers": [{"name": "c"}]}});
    let ordinary = filter_body(&ordinary, &names);
    let service = &world.service;
    report(nodes, "filter", "names", || drop(service.filter(&by_name, false)));
    report(nodes, "filter", "nodes", || drop(service.filter(&whole, false)));
    report(nodes, "filter", "no card", || drop(service.filter(&ordinary, false)));
    report(nodes, "prioritize", "names", || drop(service.prioritize(&by_name)));
}

fn report(nodes: usize, verb: &str, form: &str, mut call: impl FnMut()) {
    let mut took = Vec::new();
    let start = Instant::now();
    while took.len() < 30 || (start.elapsed() < Duration::from_secs(1) && took.len() < 2000) {
        let before = Instant::now();
        call();
        took.push(before.elapsed());
    }
    took.sort_unstable();
    let at = |part: usize| took[(took.len() - 1) * part / 100];
    println!("{nodes:>6} {verb:>12} {form:>10} {:>10.1?} {:>10.1?}", at(50), at(99));
}
