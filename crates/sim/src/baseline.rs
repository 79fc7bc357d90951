//! Policies of the literature, for comparison. None is offered to a cluster.

use std::collections::BTreeSet;
use std::sync::Arc;

use model::{Affinity, DeviceState, Node, Part, PolicyName, Request};
use placement::{Ask, Policy, fit};

/// A policy of the literature. Scores are whole numbers of 0 to 100, ties go to the first node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Baseline {
    /// Any node that fits, any card.
    AnyFit,
    /// The smallest product of what is asked and what is free (Tetris).
    DotProd,
    /// Nodes that hold pods of the same size first, then fuller ones.
    GpuClustering,
    /// Cards in use, then free cards of nodes in use, then free nodes.
    GpuPacking,
    /// The node that has least left over.
    BestFit,
}

impl Baseline {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::AnyFit, Self::DotProd, Self::GpuClustering, Self::GpuPacking, Self::BestFit];

    /// The name in reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AnyFit => "any-fit",
            Self::DotProd => "dot-prod",
            Self::GpuClustering => "gpu-clustering",
            Self::GpuPacking => "gpu-packing",
            Self::BestFit => "best-fit",
        }
    }

    /// How it picks cards on the node.
    pub const fn card_policy(self) -> Policy {
        Policy::both(match self {
            Self::AnyFit => PolicyName::Random,
            _ => PolicyName::Binpack,
        })
    }

    /// The best node, if any fits. `sizes`: which sizes of pods each node holds.
    pub fn best(
        self,
        nodes: &[Arc<Node>],
        sizes: &[BTreeSet<u64>],
        ask: &Ask,
        rng: &mut fastrand::Rng,
    ) -> Option<usize> {
        let fits = |place: &usize| fits(&nodes[*place], ask);
        let fitting = (0..nodes.len()).filter(fits);
        if self == Self::AnyFit {
            let fitting: Vec<usize> = fitting.collect();
            return (!fitting.is_empty()).then(|| fitting[rng.usize(..fitting.len())]);
        }
        let mut best: Option<(u64, usize)> = None;
        for place in fitting {
            let score = self.score(&nodes[place], ask.request, &sizes[place]);
            if best.is_none_or(|(highest, _)| score > highest) {
                best = Some((score, place));
            }
        }
        best.map(|(_, place)| place)
    }

    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "ratios below one, scaled to 0..=100"
    )]
    fn score(self, node: &Node, request: &Request, sizes: &BTreeSet<u64>) -> u64 {
        let cpu_free = node.free.cpu.0 as f64 / MOST_CPU;
        let cpu_asked = request.host.cpu.0 as f64 / MOST_CPU;
        let free: u64 = node.devices.iter().map(|state| u64::from(state.free_cores().0)).sum();
        let gpu_free = free as f64 / MOST_CARDS;
        let gpu_asked = milli(request) as f64 / 10.0 / MOST_CARDS;
        let score = match self {
            Self::AnyFit => 0.0,
            Self::DotProd => 1.0 - f64::midpoint(cpu_free * cpu_asked, gpu_free * gpu_asked),
            Self::BestFit => 1.0 - ((cpu_free - cpu_asked) * 0.5 + (gpu_free - gpu_asked) * 0.5),
            Self::GpuPacking => return packing(node, request),
            Self::GpuClustering => return clustering(node, request, sizes),
        };
        (score * 100.0).clamp(0.0, 100.0) as u64
    }
}

/// The largest node of the trace: 128 CPUs and 8 cards, in thousandths and percents.
const MOST_CPU: f64 = 128_000.0;
const MOST_CARDS: f64 = 800.0;
const MOST_CARDS_PERCENT: u64 = 800;

/// How kube-scheduler's `NodeResourcesFit` scores nodes for a pod without a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Scoring {
    /// The node with most left, as in its default profile.
    LeastAllocated,
    /// The node with least left, as in the configuration we ship.
    MostAllocated,
}

/// kube-scheduler's choice for a pod without a card, by chance among equals.
pub fn beside(
    scoring: Scoring,
    nodes: &[Arc<Node>],
    request: &Request,
    rng: &mut fastrand::Rng,
) -> Option<usize> {
    let score = |node: &Node| {
        let left = node.free.without(&request.host);
        let cpu = left.cpu.0 * 100 / node.allocatable.cpu.0.max(1);
        let memory = left.memory.0 / (node.allocatable.memory.0 / 100).max(1);
        let left = cpu.midpoint(memory);
        match scoring {
            Scoring::LeastAllocated => left,
            Scoring::MostAllocated => 100_u64.saturating_sub(left),
        }
    };
    let fitting = || nodes.iter().enumerate().filter(|(_, node)| node.free.covers(&request.host));
    let highest = fitting().map(|(_, node)| score(node)).max()?;
    let best: Vec<usize> =
        fitting().filter(|(_, node)| score(node) == highest).map(|(place, _)| place).collect();
    Some(best[rng.usize(..best.len())])
}

fn fits(node: &Node, ask: &Ask) -> bool {
    let request = ask.request;
    if !node.free.covers(&request.host) {
        return false;
    }
    // All pods of a trace are of these two kinds; asking in full takes a hundred times as long.
    match (request.containers.as_slice(), request.affinity) {
        ([], _) => true,
        ([container], Affinity::Any | Affinity::Prefer(_)) => {
            let fits = |state: &&DeviceState| {
                let device = &state.device;
                state.sells()
                    && state.fits(&container.part.of(device).hold(device))
                    && request.selector.admits(device)
            };
            let wanted = container.cards as usize;
            node.devices.iter().filter(fits).take(wanted).count() == wanted
        }
        _ => fit(node, ask).is_ok(),
    }
}

fn milli(request: &Request) -> u64 {
    let part = |part| match part {
        Part::Whole => 1000,
        Part::Share { cores, .. } => u64::from(cores.0) * 10,
    };
    request.containers.iter().map(|c| u64::from(c.cards) * part(c.part)).sum()
}

/// Cards in use: 100 less a tenth of what is left on them; idle cards of a node in use: 50 less
/// how many; an idle node: 33 less its cards.
fn packing(node: &Node, request: &Request) -> u64 {
    let Some(container) = request.containers.first() else { return 0 };
    let idle = node.devices.iter().filter(|state| state.is_idle()).count() as u64;
    if idle == node.devices.len() as u64 {
        return (100 / 3_u64).saturating_sub(idle).max(idle);
    }
    let wanted = match container.part {
        Part::Whole => 100,
        Part::Share { cores, .. } => cores.0,
    };
    let mut left: Vec<u32> = node.devices.iter().map(|state| state.free_cores().0).collect();
    left.sort_unstable();
    let used = left.iter().filter(|left| **left >= wanted).take(container.cards as usize);
    let fresh = used.clone().filter(|left| **left == 100).count() as u64;
    if fresh > 0 {
        return (50 - fresh.min(50)).max(100 / 3);
    }
    let spare: u64 = used.map(|left| u64::from(*left)).sum();
    (100_u64.saturating_sub(spare / 10)).max(50)
}

/// Nodes with pods of the same size only, then with such pods among others, then idle ones, then
/// the rest; within each the fuller the better.
fn clustering(node: &Node, request: &Request, sizes: &BTreeSet<u64>) -> u64 {
    let Some(own) = size(request) else { return 0 };
    let left: u64 = node.devices.iter().map(|state| u64::from(state.free_cores().0)).sum();
    let fullness = 25 * (MOST_CARDS_PERCENT.saturating_sub(left)) / MOST_CARDS_PERCENT;
    let group = match (sizes.contains(&own), sizes.len()) {
        (true, 1) => 75,
        (true, _) => 50,
        (false, 0) => 25,
        (false, _) => 0,
    };
    fullness + group
}

/// The size by which pods are clustered: a share, or so many cards.
pub fn size(request: &Request) -> Option<u64> {
    let container = request.containers.first()?;
    Some(match container.part {
        Part::Whole => container.cards.into(),
        Part::Share { .. } => 0,
    })
}
