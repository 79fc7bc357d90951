//! One run: pods come, are placed or dropped, and what is allocated is written down.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use model::{
    Allowance, DeviceId, Node, NodeName, Placement, PolicyName, Request, Statistics, Workload,
};
use placement::{Ask, Board, Policy, choose, learn};

use crate::arrival::{Order, arrivals};
use crate::baseline::Baseline;
use crate::trace::{Class, TracePod};

/// Who decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decider {
    /// A policy of ours, as in a cluster.
    Ours(PolicyName),
    /// One from the literature.
    Baseline(Baseline),
}

impl Decider {
    /// Every decider by name.
    pub fn parse(text: &str) -> Option<Self> {
        let baseline = || Baseline::ALL.into_iter().find(|b| b.as_str() == text);
        PolicyName::parse(text).map(Self::Ours).or_else(|| baseline().map(Self::Baseline))
    }

    /// The name in reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ours(policy) => policy.as_str(),
            Self::Baseline(baseline) => baseline.as_str(),
        }
    }
}

/// How to run.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// Who decides.
    pub decider: Decider,
    /// In which order pods come.
    pub order: Order,
    /// Until how many percent of the capacity have been asked for.
    pub to: u64,
    /// Whether statistics are those of the whole trace from the start.
    pub oracle: bool,
    /// Whether kube-scheduler places the pods without a card, as in a cluster.
    pub as_extender: bool,
}

/// What came of it.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// Allocated compute in percent of all, at each whole percent of arrived demand.
    pub allocated: BTreeMap<u64, f64>,
    /// Pods that found no place, by class.
    pub failed: BTreeMap<&'static str, u64>,
    /// How long each decision took, in nanoseconds, sorted.
    pub nanos: Vec<u64>,
}

/// How often statistics are learned anew, in pods.
const RELEARN: usize = 200;

/// Replays `pods` on `nodes`. The seed decides the order of the nodes and of the pods.
pub fn run(nodes: &[Node], pods: &[TracePod], run: Run, seed: u64) -> Outcome {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut board = Board::of(permuted(nodes, &mut rng), Arc::default());
    let capacity = nodes.iter().map(|node| node.devices.len() as u64 * 1000).sum();
    let come = arrivals(pods, run.order, capacity, run.to, &mut rng);
    let mut workload = Workload::default();
    if run.oracle {
        pods.iter().for_each(|pod| workload.see(&pod.request));
    }
    let mut world = World {
        statistics: Arc::new(learn(&workload, board.nodes().iter().map(AsRef::as_ref))),
        run,
        rng,
        sizes: vec![BTreeSet::new(); nodes.len()],
    };
    board.learn(world.statistics.clone());
    let mut outcome = Outcome::default();
    let mut steps: BTreeMap<u64, (f64, u64)> = BTreeMap::new();
    let (mut arrived, mut allocated) = (0, 0);
    for (i, &next) in come.iter().enumerate() {
        let pod = &pods[next];
        if !run.oracle {
            workload.see(&pod.request);
            if i % RELEARN == 0 || (i < RELEARN && i.is_power_of_two()) {
                let nodes = board.nodes().iter().map(AsRef::as_ref);
                world.statistics = Arc::new(learn(&workload, nodes));
                board.learn(world.statistics.clone());
            }
        }
        arrived += pod.milli;
        let start = Instant::now();
        let placed = world.place(&mut board, pod);
        outcome.nanos.push(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
        match placed {
            true => allocated += pod.milli,
            false => *outcome.failed.entry(pod.class.as_str()).or_default() += 1,
        }
        let percent = (arrived * 100 + capacity / 2) / capacity.max(1);
        let step = steps.entry(percent).or_default();
        #[expect(clippy::cast_precision_loss, reason = "thousandths of cards, far below 2^52")]
        let share = allocated as f64 * 100.0 / capacity as f64;
        *step = (step.0 + share, step.1 + 1);
    }
    #[expect(clippy::cast_precision_loss, reason = "counts of pods")]
    let means = steps.into_iter().map(|(percent, (sum, count))| (percent, sum / count as f64));
    outcome.allocated = means.collect();
    outcome.nanos.sort_unstable();
    outcome
}

/// The nodes in an order of their own, named after it: ties go by name.
fn permuted(nodes: &[Node], rng: &mut fastrand::Rng) -> Vec<Arc<Node>> {
    let mut nodes: Vec<Node> = nodes.to_vec();
    rng.shuffle(&mut nodes);
    let named = nodes.into_iter().enumerate().filter_map(|(place, mut node)| {
        node.name = NodeName::parse(&format!("n{place:05}")).ok()?;
        Some(Arc::new(node))
    });
    named.collect()
}

struct World {
    statistics: Arc<Statistics>,
    run: Run,
    rng: fastrand::Rng,
    /// Which sizes of pods each node holds.
    sizes: Vec<BTreeSet<u64>>,
}

impl World {
    fn place(&mut self, board: &mut Board, pod: &TracePod) -> bool {
        let policy = match self.run.decider {
            Decider::Ours(policy) => Policy::both(policy),
            Decider::Baseline(baseline) => baseline.card_policy(),
        };
        let ask = Ask {
            request: &pod.request,
            allowance: Allowance::unlimited(),
            policy,
            statistics: &self.statistics,
        };
        let place = match self.run.decider {
            _ if self.run.as_extender && pod.class == Class::CpuOnly => {
                crate::baseline::least_allocated(board.nodes(), &pod.request, &mut self.rng)
            }
            Decider::Ours(_) => board.best(&ask),
            Decider::Baseline(baseline) => {
                baseline.best(board.nodes(), &self.sizes, &ask, &mut self.rng)
            }
        };
        let Some(place) = place else { return false };
        let placement = if pod.request.containers.is_empty() {
            None
        } else {
            match choose(&board.nodes()[place], &ask) {
                Ok(placement) => Some(placement),
                Err(_) => return false,
            }
        };
        board.change(place, |node| take(node, &pod.request, placement.as_ref()));
        self.sizes[place].extend(crate::baseline::size(&pod.request));
        true
    }
}

/// Takes what a pod was given off its node.
fn take(node: &mut Node, request: &Request, placement: Option<&Placement>) {
    node.free = node.free.without(&request.host);
    let grants = placement.into_iter().flat_map(Placement::containers).flat_map(|c| &c.grants);
    for grant in grants {
        let is = |id: &DeviceId| *id == grant.device;
        if let Some(state) = node.devices.iter_mut().find(|state| is(&state.device.id)) {
            let hold = grant.portion.hold(&state.device);
            state.used.add(&hold);
        }
    }
}
