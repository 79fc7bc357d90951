//! One run: pods come, are placed or dropped, and what is allocated is written down.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::{Node, PolicyName};

use crate::arrival::{Order, arrivals};
use crate::baseline::{Baseline, Scoring};
use crate::churn::{Churned, churn};
use crate::nearness::Nearness;
use crate::trace::TracePod;
use crate::world::World;

/// Who decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decider {
    /// A policy of ours, as in a cluster.
    Ours(PolicyName),
    /// One from the literature.
    Baseline(Baseline),
}

impl Decider {
    /// Every decider.
    pub fn all() -> impl Iterator<Item = Self> {
        let ours = PolicyName::ALL.into_iter().map(Self::Ours);
        ours.chain(Baseline::ALL.into_iter().map(Self::Baseline))
    }

    /// The decider of this name, letter case aside.
    pub fn parse(text: &str) -> Option<Self> {
        Self::all().find(|decider| decider.as_str().eq_ignore_ascii_case(text))
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
    /// After that, how many times a pod leaves and others come.
    pub churn: u64,
    /// Whether statistics are those of the whole trace from the start.
    pub oracle: bool,
    /// Whether kube-scheduler places the pods without a card, as in a cluster, and how it scores.
    pub as_extender: Option<Scoring>,
}

/// What came of it.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// What was seen at each whole percent of arrived demand.
    pub steps: BTreeMap<u64, Step>,
    /// Pods that came while the cluster filled.
    pub came: u64,
    /// Those that found no place, by class.
    pub failed: BTreeMap<&'static str, u64>,
    /// How long each decision took, in nanoseconds, sorted.
    pub nanos: Vec<u64>,
    /// What became of the pods with several cards while the cluster filled.
    pub nearness: Nearness,
    /// What came of the churn, if there was any.
    pub churn: Option<Churned>,
    /// The nodes in the end.
    pub nodes: Vec<Arc<Node>>,
}

/// Means over the pods that came within one percent of demand.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Step {
    /// Allocated compute, in percent of all.
    pub allocated: f64,
    /// Free compute that typical pods cannot use, in percent of all.
    pub fragmented: f64,
    pods: u64,
}

impl Step {
    fn of(world: &World) -> Self {
        Self { allocated: world.allocated(), fragmented: world.fragmented(), pods: 1 }
    }

    fn add(&mut self, other: Self) {
        self.allocated += other.allocated;
        self.fragmented += other.fragmented;
        self.pods += other.pods;
    }
}

/// Replays `pods` on `nodes`. The seed decides the order of the nodes and of the pods.
pub fn run(nodes: &[Node], pods: &[TracePod], run: Run, seed: u64) -> Outcome {
    let mut world = World::new(nodes, pods, run, fastrand::Rng::with_seed(seed));
    let capacity = world.capacity();
    let come = arrivals(pods, run.order, capacity, run.to, world.rng());
    let mut outcome = Outcome { came: come.len() as u64, ..Outcome::default() };
    let mut running = Vec::new();
    let (mut arrived, mut reached) = (0, 0);
    for next in come {
        let pod = &pods[next];
        arrived += pod.milli;
        let percent = (arrived * 100 + capacity / 2) / capacity.max(1);
        // On a small cluster one pod may be several percent: in between, all is as before.
        let before = Step::of(&world);
        outcome.steps.extend((reached + 1..percent).map(|skipped| (skipped, before)));
        reached = percent;
        let arrival = world.arrive(next);
        outcome.nanos.push(arrival.nanos);
        let topology = |place: usize| &*world.nodes()[place].topology;
        let got = arrival.place.map(|place| (topology(place), arrival.cards));
        outcome.nearness.count(pod, got);
        match arrival.place {
            Some(place) => running.push((place, next)),
            None => *outcome.failed.entry(pod.class.as_str()).or_default() += 1,
        }
        outcome.steps.entry(percent).or_default().add(Step::of(&world));
    }
    for step in outcome.steps.values_mut() {
        #[expect(clippy::cast_precision_loss, reason = "counts of pods")]
        let pods = step.pods as f64;
        step.allocated /= pods;
        step.fragmented /= pods;
    }
    outcome.nanos.sort_unstable();
    if run.churn > 0 {
        outcome.churn = Some(churn(&mut world, pods, running, run.churn, seed));
    }
    outcome.nodes = world.nodes().to_vec();
    outcome
}
