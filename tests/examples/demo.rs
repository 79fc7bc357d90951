//! `cargo xtask demo`: sample pods of every dialect on a small made-up cluster.
//!
//! Reading, deciding, reserving and writing are the real thing; the cluster is made up.
#![expect(clippy::print_stdout, reason = "a demo talks to a person")]

use model::codec::encode_placement;
use model::{DeviceState, Node};
use stories::samples::{SAMPLES, cluster, sample};
use stories::{Cluster, Outcome};

fn main() {
    println!("Two nodes, four cards each; pods written for seven systems arrive one by one.\n");
    let mut cluster = cluster();
    show(&cluster);
    for (name, _) in SAMPLES {
        let pod = sample(name);
        let asks: Vec<String> = pod.containers.iter().flat_map(asks).collect();
        println!("{name:<20} asks {}", asks.join(" and "));
        match cluster.submit(&pod) {
            Outcome::Runs(running) => {
                println!("{:20}   runs: {}", "", encode_placement(&running.placement));
                for note in &running.asked.notes {
                    println!("{:20}   note: {note}", "");
                }
            }
            Outcome::Waits(why) => println!("{:20}   waits: {why}", ""),
            Outcome::Refused(why) => println!("{:20}   refused: {why}", ""),
            Outcome::NotOurs => println!("{:20}   is not ours", ""),
        }
    }
    println!();
    show(&cluster);
}

fn asks(container: &model::Container) -> Vec<String> {
    let gpu = |name: &&String| name.contains('/');
    let limits = container.limits.iter().filter(|(name, _)| gpu(name));
    limits.map(|(name, value)| format!("{name}={value}")).collect()
}

fn show(cluster: &Cluster) {
    println!(
        "{:<12} {:>5} {:<24} {:>8} {:>18} {:>5}",
        "NODE", "CARD", "MODEL", "COMPUTE", "MEMORY (MiB)", "PODS"
    );
    for node in cluster.ledger.snapshot().nodes() {
        for state in &node.devices {
            println!("{}", row(node, state));
        }
    }
    println!();
}

fn row(node: &Node, state: &DeviceState) -> String {
    let device = &state.device;
    let used = device.memory.saturating_sub(state.free_memory());
    format!(
        "{:<12} {:>5} {:<24} {:>7}% {:>18} {:>5}",
        node.name.as_str(),
        device.index,
        device.model.0,
        device.cores.saturating_sub(state.free_cores()).0,
        format!("{} / {}", used.0, device.memory.0),
        state.used.holders,
    )
}
