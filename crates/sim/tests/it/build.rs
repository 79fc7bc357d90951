//! Small worlds, and the command itself.

use std::fmt::Write;
use std::path::PathBuf;
use std::process::{Command, Output};

use model::{Node, PolicyName};
use sim::arrival::Order;
use sim::compare::Scene;
use sim::generate::Made;
use sim::replay::{Decider, Run};
use sim::trace::{NodeRow, PodRow, TracePod};

/// A node of so many CPUs, as many GiB times four, and cards of a model.
pub(crate) fn node(name: &str, cpus: u64, cards: u32, model: &str) -> Node {
    let row = NodeRow {
        sn: name.to_owned(),
        cpu_milli: cpus * 1000,
        memory_mib: cpus * 4096,
        gpu: cards,
        model: model.to_owned(),
        card_mem_mib: None,
        machine: String::new(),
    };
    row.node().unwrap()
}

/// A pod that asks for one CPU and so many thousandths of one card, or that many whole cards.
pub(crate) fn pod(name: &str, milli: u32) -> TracePod {
    row(name, milli).pod().unwrap()
}

pub(crate) fn row(name: &str, milli: u32) -> PodRow {
    PodRow {
        name: name.to_owned(),
        cpu_milli: 1000,
        memory_mib: 1024,
        num_gpu: milli.div_ceil(1000),
        gpu_milli: milli.min(1000),
        gpu_spec: String::new(),
        gpu_mem_mib: None,
        topology: String::new(),
        creation_time: 0,
        deletion_time: 0,
    }
}

/// As the file says, by the default policy, to 130 percent.
pub(crate) fn in_order() -> Run {
    Run {
        decider: Decider::Ours(PolicyName::Stranding),
        order: Order::Trace,
        to: 130,
        churn: 0,
        oracle: false,
        as_extender: None,
    }
}

/// A made-up cluster of 12 nodes.
pub(crate) fn made() -> Scene {
    Made::new(12, 200, 5).scene("made").unwrap()
}

/// Whether two percentages are the same, but for how floats round.
pub(crate) fn near(one: f64, other: f64) {
    assert!((one - other).abs() < 0.001, "{one} is not {other}");
}

/// Runs the command.
pub(crate) fn sim(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nanogpu-sim"));
    // What a developer's shell often has must not show.
    command.args(args).env("RUST_BACKTRACE", "1").output().unwrap()
}

/// What the command printed; it must have succeeded.
pub(crate) fn printed(args: &[&str]) -> String {
    let output = sim(args);
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{args:?}: {complaint}");
    assert_eq!(complaint, "");
    String::from_utf8(output.stdout).unwrap()
}

/// A path in a folder of tests, each with a name of its own.
pub(crate) fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// A file with this text.
pub(crate) fn file(name: &str, text: &str) -> String {
    let path = path(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// The list of nodes and of pods of a small trace, as files that begin with `name`.
pub(crate) fn trace(name: &str) -> (String, String) {
    let nodes = "sn,cpu_milli,memory_mib,gpu,model\n\
                 a,16000,65536,4,T4\nb,16000,65536,4,T4\nc,32000,131072,8,V100\n";
    let mut pods = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos\n".to_owned();
    for i in 0..20 {
        let (cards, milli) = [(1, 470), (1, 1000), (0, 0), (1, 810), (2, 1000)][i % 5];
        let model = if i % 4 == 0 { "V100" } else { "" };
        writeln!(pods, "pod-{i},2000,4096,{cards},{milli},{model},LS").unwrap();
    }
    (file(&format!("{name}-nodes.csv"), nodes), file(&format!("{name}-pods.csv"), &pods))
}
