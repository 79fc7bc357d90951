//! A made-up cluster and the pods that come to it, the same for the same seed.
//!
//! ```text
//!   nodes      the shapes below, by weight
//!   pods       come as applications: replicas of one kind, close together
//!   kind       15 % no card, 45 % a share, 34 % one card, 4 % two, 1 % four, 1 % eight cards
//!   replicas   1 and more, each further one with 3 chances in 4; one if several cards are asked
//!   share      compute and memory of the card drawn apart, by the tables below
//!   host       CPU by the tables below; 2, 4 or 8 GiB of memory with each, 25:50:25
//!   models     of the applications with cards 80 % take any, 15 % one model, 5 % one of two, of
//!              those whose cards are large enough, each as likely as it has nodes
//!   arrival    exponential gaps: 300 s between applications, 5 s between replicas
//!   lifetime   exponential: no card 6 h, share 48 h, one card 12 h, several 24 h
//! ```
//!
//! The shapes are machines that clouds rent out; the rest is invented and resembles no cluster in
//! particular.
//!
//! With known wiring ([`Made::wired`]) the machines are others, whose links people have published,
//! and several cards are asked for more often:
//!
//! ```text
//!   kind       10 % no card, 30 % a share, 25 % one card, 18 % two, 11 % four, 6 % eight cards
//!   wish       of those with several cards 40 % none, 25 % prefer links, 10 % one NUMA node, 15 %
//!              require links, 10 % one NUMA node; none where no machine could serve it
//! ```

use std::collections::BTreeSet;

use anyhow::Result;
use fastrand::Rng;
use model::Near;

use crate::compare::Scene;
use crate::machines;
use crate::trace::{NodeRow, PodRow};

/// A kind of machine.
struct Machine {
    weight: u32,
    /// How its cards are wired; empty if that is not known.
    wired: &'static str,
    model: &'static str,
    cards: u32,
    card_gib: u64,
    cpus: u64,
    memory_gib: u64,
}

const MACHINES: [Machine; 5] = [
    machine(25, "", "T4", 4, 16, 48, 192),
    machine(20, "", "L4", 8, 24, 96, 384),
    machine(15, "", "V100", 8, 32, 64, 488),
    machine(30, "", "A100", 8, 80, 96, 1152),
    machine(10, "", "H100", 8, 80, 192, 2048),
];

/// Machines whose wiring is known: PCIe trees, bridged pairs, meshes and switches of `NVLink`.
const WIRED: [Machine; 6] = [
    machine(20, "t4x8", "T4", 8, 16, 96, 384),
    machine(15, "l40sx4", "L40S", 4, 48, 64, 384),
    machine(10, "rtx8000x4", "RTX8000", 4, 48, 64, 384),
    machine(20, "dgx-1v", "V100", 8, 32, 80, 512),
    machine(25, "dgx-a100", "A100", 8, 40, 256, 1024),
    machine(10, "dgx-h100", "H100", 8, 80, 224, 2048),
];

const fn machine(
    weight: u32,
    wired: &'static str,
    model: &'static str,
    cards: u32,
    card_gib: u64,
    cpus: u64,
    memory_gib: u64,
) -> Machine {
    Machine { weight, wired, model, cards, card_gib, cpus, memory_gib }
}

/// Weights and what an application asks.
const KINDS: [(u32, Kind); 6] = [
    (15, Kind::CpuOnly),
    (45, Kind::Share),
    (34, Kind::Cards(1)),
    (4, Kind::Cards(2)),
    (1, Kind::Cards(4)),
    (1, Kind::Cards(8)),
];
/// The same where wiring is known.
const KINDS_OF_WIRED: [(u32, Kind); 6] = [
    (10, Kind::CpuOnly),
    (30, Kind::Share),
    (25, Kind::Cards(1)),
    (18, Kind::Cards(2)),
    (11, Kind::Cards(4)),
    (6, Kind::Cards(8)),
];
/// How near an application wishes several cards.
const WISHES: [(u32, &str); 5] =
    [(40, ""), (25, "link"), (10, "numa"), (15, "link-strict"), (10, "numa-strict")];
/// Compute of a share, in percent of the card.
const SHARE_PERCENT: [(u32, u32); 9] =
    [(10, 10), (15, 20), (10, 25), (15, 30), (10, 40), (15, 50), (10, 60), (8, 75), (7, 80)];
/// Memory of a share, in GiB.
const SHARE_GIB: [(u32, u64); 10] =
    [(10, 1), (15, 2), (20, 4), (10, 6), (15, 8), (5, 10), (10, 12), (5, 16), (5, 20), (5, 40)];
/// Host CPUs of a pod without a card, with a share, and for each whole card.
const CPUS_ALONE: [(u32, u64); 6] = [(20, 1), (25, 2), (25, 4), (15, 8), (10, 16), (5, 32)];
const CPUS_OF_SHARE: [(u32, u64); 5] = [(20, 1), (30, 2), (25, 4), (15, 6), (10, 8)];
const CPUS_OF_CARD: [(u32, u64); 5] = [(20, 4), (35, 8), (20, 10), (20, 12), (5, 16)];
/// Host memory that comes with each CPU, in GiB.
const GIB_PER_CPU: [(u32, u64); 3] = [(25, 2), (50, 4), (25, 8)];

/// Mean times, in seconds.
const BETWEEN_APPLICATIONS: f64 = 300.0;
const BETWEEN_REPLICAS: f64 = 5.0;
const HOUR: f64 = 3600.0;

#[derive(Clone, Copy)]
enum Kind {
    CpuOnly,
    Share,
    Cards(u32),
}

/// The rows of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    /// The nodes.
    pub nodes: Vec<NodeRow>,
    /// The pods, in the order in which they come.
    pub pods: Vec<PodRow>,
}

impl Made {
    /// So many nodes and pods, by `seed`.
    pub fn new(nodes: usize, pods: usize, seed: u64) -> Self {
        Self::from(&MACHINES, &KINDS, nodes, pods, seed)
    }

    /// The same with machines whose wiring is known, and pods that wish for near cards.
    pub fn wired(nodes: usize, pods: usize, seed: u64) -> Self {
        Self::from(&WIRED, &KINDS_OF_WIRED, nodes, pods, seed)
    }

    fn from(
        machines: &[Machine],
        kinds: &[(u32, Kind)],
        nodes: usize,
        pods: usize,
        seed: u64,
    ) -> Self {
        let mut rng = Rng::with_seed(seed);
        let nodes: Vec<NodeRow> = (0..nodes).map(|i| node(i, machines, &mut rng)).collect();
        let mut rows = Vec::with_capacity(pods);
        let mut now = 0.0;
        while rows.len() < pods {
            now += exponential(BETWEEN_APPLICATIONS, &mut rng);
            let mut when = now;
            let (kind, row) = application(&nodes, kinds, &mut rng);
            let mut more = true;
            while more && rows.len() < pods {
                when += exponential(BETWEEN_REPLICAS, &mut rng);
                let leaves = when + exponential(lifetime(kind), &mut rng);
                rows.push((when, leaves, row.clone()));
                more = !matches!(kind, Kind::Cards(2..)) && rng.u32(..4) < 3;
            }
        }
        // Replicas of one application may come among those of the next.
        rows.sort_by(|(a, ..), (b, ..)| a.total_cmp(b));
        let named = rows.into_iter().enumerate().map(|(i, (comes, leaves, row))| PodRow {
            name: format!("pod-{i:05}"),
            creation_time: seconds(comes),
            deletion_time: seconds(leaves),
            ..row
        });
        Self { nodes, pods: named.collect() }
    }

    /// The same as a scene to replay.
    pub fn scene(&self, workload: &str) -> Result<Scene> {
        Ok(Scene {
            workload: workload.to_owned(),
            nodes: self.nodes.iter().map(NodeRow::node).collect::<Result<_>>()?,
            pods: self.pods.iter().map(PodRow::pod).collect::<Result<_>>()?,
        })
    }
}

fn node(number: usize, machines: &[Machine], rng: &mut Rng) -> NodeRow {
    let machine = pick(machines.iter().map(|machine| (machine.weight, machine)), rng);
    NodeRow {
        sn: format!("node-{number:04}"),
        cpu_milli: machine.cpus * 1000,
        memory_mib: machine.memory_gib << 10,
        gpu: machine.cards,
        model: machine.model.to_owned(),
        card_mem_mib: Some(machine.card_gib << 10),
        machine: machine.wired.to_owned(),
    }
}

/// One pod of an application, still without a name.
fn application(nodes: &[NodeRow], kinds: &[(u32, Kind)], rng: &mut Rng) -> (Kind, PodRow) {
    let kind = pick(kinds.iter().copied(), rng);
    let (num_gpu, gpu_milli, gpu_mem_mib, cpus) = match kind {
        Kind::CpuOnly => (0, 0, None, pick(CPUS_ALONE, rng)),
        Kind::Share => {
            let milli = pick(SHARE_PERCENT, rng) * 10;
            (1, milli, Some(pick(SHARE_GIB, rng) << 10), pick(CPUS_OF_SHARE, rng))
        }
        Kind::Cards(cards) => (cards, 1000, None, pick(CPUS_OF_CARD, rng) * u64::from(cards)),
    };
    let fits = |node: &&NodeRow| node.gpu >= num_gpu && node.card_mem_mib >= gpu_mem_mib;
    let mut fitting: Vec<&NodeRow> = nodes.iter().filter(fits).collect();
    let wired = nodes.iter().any(|node| !node.machine.is_empty());
    if wired {
        fitting.retain(|node| node.cpu_milli >= cpus * 1000);
    }
    let mut topology = if wired && num_gpu > 1 { pick(WISHES, rng) } else { "" };
    if let Some(near) = required(topology) {
        let serves = |node: &&NodeRow| most(node, near) >= num_gpu;
        let serving: Vec<&NodeRow> = fitting.iter().copied().filter(serves).collect();
        if serving.is_empty() {
            topology = "";
        } else {
            fitting = serving;
        }
    }
    let row = PodRow {
        name: String::new(),
        cpu_milli: cpus * 1000,
        memory_mib: (cpus * pick(GIB_PER_CPU, rng)) << 10,
        num_gpu,
        gpu_milli,
        gpu_spec: if num_gpu == 0 { String::new() } else { models(&fitting, rng) },
        gpu_mem_mib,
        topology: topology.to_owned(),
        creation_time: 0,
        deletion_time: 0,
    };
    (kind, row)
}

/// What a wish requires, if it does.
fn required(wish: &str) -> Option<Near> {
    match wish {
        "link-strict" => Some(Near::Link),
        "numa-strict" => Some(Near::Numa),
        _ => None,
    }
}

/// How many cards of `node` are near to one another.
fn most(node: &NodeRow, near: Near) -> u32 {
    machines::like(&node.machine).map_or(0, |(_, topology)| topology.most(near))
}

/// The models an application insists on, of those of `nodes`.
fn models(nodes: &[&NodeRow], rng: &mut Rng) -> String {
    let any = |rng: &mut Rng| rng.choice(nodes).map_or("", |node| &node.model);
    match rng.u32(..20) {
        0..16 => String::new(),
        16..19 => any(rng).to_owned(),
        _ => {
            let two = BTreeSet::from([any(rng), any(rng)]);
            two.into_iter().collect::<Vec<_>>().join("|")
        }
    }
}

const fn lifetime(kind: Kind) -> f64 {
    match kind {
        Kind::CpuOnly => 6.0 * HOUR,
        Kind::Share => 48.0 * HOUR,
        Kind::Cards(1) => 12.0 * HOUR,
        Kind::Cards(_) => 24.0 * HOUR,
    }
}

fn pick<T>(weighted: impl IntoIterator<Item = (u32, T), IntoIter: Clone>, rng: &mut Rng) -> T {
    let mut weighted = weighted.into_iter();
    let all: u32 = weighted.clone().map(|(weight, _)| weight).sum();
    let mut draw = rng.u32(..all);
    loop {
        let Some((weight, item)) = weighted.next() else { unreachable!("draw is below the sum") };
        if draw < weight {
            return item;
        }
        draw -= weight;
    }
}

fn exponential(mean: f64, rng: &mut Rng) -> f64 {
    // Of (0, 1], so that the logarithm is finite.
    -(1.0 - rng.f64()).ln() * mean
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative")]
fn seconds(time: f64) -> u64 {
    time as u64
}
