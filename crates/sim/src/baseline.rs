//! Policies of the literature, for comparison. None is offered to a cluster.

use std::sync::Arc;

use model::{Node, Part, PolicyName, Request};
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

    /// The best node, if any fits.
    pub fn best(self, nodes: &[Arc<Node>], ask: &Ask, rng: &mut fastrand::Rng) -> Option<usize> {
        let fits = |place: &usize| fits(&nodes[*place], ask);
        let fitting = (0..nodes.len()).filter(fits);
        if self == Self::AnyFit {
            let fitting: Vec<usize> = fitting.collect();
            return (!fitting.is_empty()).then(|| fitting[rng.usize(..fitting.len())]);
        }
        let mut best: Option<(u64, usize)> = None;
        for place in fitting {
            let score = self.score(&nodes[place], ask.request);
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
    fn score(self, node: &Node, request: &Request) -> u64 {
        let cpu_free = node.free.cpu.0 as f64 / MOST_CPU;
        let cpu_asked = request.host.cpu.0 as f64 / MOST_CPU;
        let free: u64 = node.devices.iter().map(|state| u64::from(state.free_cores().0)).sum();
        let gpu_free = free as f64 / MOST_CARDS;
        let gpu_asked = milli(request) as f64 / 10.0 / MOST_CARDS;
        let score = match self {
            Self::AnyFit => 0.0,
            Self::DotProd => 1.0 - (cpu_free * cpu_asked + gpu_free * gpu_asked) / 2.0,
            Self::BestFit => 1.0 - ((cpu_free - cpu_asked) * 0.5 + (gpu_free - gpu_asked) * 0.5),
            Self::GpuPacking => packing(node, request),
            Self::GpuClustering => clustering(node, request),
        };
        (score * 100.0).clamp(0.0, 100.0) as u64
    }
}

/// The largest node of the trace: 128 CPUs and 8 cards, in thousandths and percents.
const MOST_CPU: f64 = 128_000.0;
const MOST_CARDS: f64 = 800.0;

/// kube-scheduler's choice for a pod without a card: the node with most left, by chance among
/// equals.
pub fn least_allocated(
    nodes: &[Arc<Node>],
    request: &Request,
    rng: &mut fastrand::Rng,
) -> Option<usize> {
    let score = |node: &Node| {
        let left = node.free.without(&request.host);
        let cpu = left.cpu.0 * 100 / node.allocatable.cpu.0.max(1);
        let memory = left.memory.0 / (node.allocatable.memory.0 / 100).max(1);
        (cpu + memory) / 2
    };
    let fitting = || nodes.iter().enumerate().filter(|(_, node)| node.free.covers(&request.host));
    let highest = fitting().map(|(_, node)| score(node)).max()?;
    let best: Vec<usize> =
        fitting().filter(|(_, node)| score(node) == highest).map(|(place, _)| place).collect();
    Some(best[rng.usize(..best.len())])
}

fn fits(node: &Node, ask: &Ask) -> bool {
    node.free.covers(&ask.request.host)
        && (ask.request.containers.is_empty() || fit(node, ask).is_ok())
}

fn milli(request: &Request) -> u64 {
    let part = |part| match part {
        Part::Whole => 1000,
        Part::Share { cores, .. } => u64::from(cores.0) * 10,
    };
    request.containers.iter().map(|c| u64::from(c.cards) * part(c.part)).sum()
}

#[expect(clippy::cast_precision_loss, reason = "a handful of cards")]
fn packing(node: &Node, request: &Request) -> f64 {
    let cards = node.devices.len().max(1) as f64;
    let idle = node.devices.iter().filter(|state| state.is_idle()).count() as f64;
    let shares = request.containers.iter().find_map(|container| match container.part {
        Part::Share { cores, .. } => Some(cores),
        Part::Whole => None,
    });
    let on_used = shares.is_some_and(|cores| {
        let used = |state: &&model::DeviceState| !state.is_idle();
        node.devices.iter().filter(used).any(|state| state.free_cores() >= cores)
    });
    if on_used {
        1.0 - idle / cards / 3.0
    } else if idle < cards {
        2.0 / 3.0 - idle / cards / 3.0
    } else {
        1.0 / 3.0 - idle / MOST_CARDS * 100.0 / 3.0
    }
}

#[expect(clippy::cast_precision_loss, reason = "a handful of cards")]
fn clustering(node: &Node, request: &Request) -> f64 {
    let cards = node.devices.len().max(1) as f64;
    let idle = node.devices.iter().filter(|state| state.is_idle()).count() as f64;
    let share = request.containers.iter().any(|c| matches!(c.part, Part::Share { .. }));
    let whole = !share && !request.containers.is_empty();
    let same = node.devices.iter().any(|state| {
        !state.is_idle() && ((share && !state.used.hold.whole) || (whole && state.used.hold.whole))
    });
    let fullness = 1.0 - idle / cards;
    if same { 0.5 + fullness / 2.0 } else { fullness / 2.0 }
}
