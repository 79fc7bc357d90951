//! The cluster while pods come and go: who is where, what is free, what was learned.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use model::{Allowance, Hold, Node, NodeName, Placement, Places, Statistics, Workload};
use placement::{Ask, Board, Policy, choose, learn};

use crate::arrival::Order;
use crate::baseline;
use crate::fragmentation::Fragmentation;
use crate::replay::{Decider, Run};
use crate::trace::{Class, TracePod};

/// A cluster under one policy.
pub struct World<'a> {
    pods: &'a [TracePod],
    run: Run,
    board: Board,
    rng: fastrand::Rng,
    workload: Workload,
    statistics: Arc<Statistics>,
    /// How many pods came.
    came: usize,
    /// Who is on each node.
    residents: Vec<Vec<Resident>>,
    /// Which sizes of pods each node holds.
    sizes: Vec<BTreeSet<u64>>,
    fragmentation: Fragmentation,
    /// In thousandths of a card.
    allocated: u64,
    capacity: u64,
}

/// A pod on a node.
struct Resident {
    /// Its place in the list of pods, of which several may come.
    pod: usize,
    /// What it holds of which card.
    holds: Vec<(usize, Hold)>,
}

/// What became of a pod that came.
pub struct Arrival {
    /// The node it is on, or nothing.
    pub place: Option<usize>,
    /// The cards it has there, by their places.
    pub cards: Places,
    /// How long the decision took.
    pub nanos: u64,
}

/// How often statistics are learned anew, in pods.
const RELEARN: usize = 200;

impl<'a> World<'a> {
    /// An empty cluster of `nodes`, in an order decided by `rng`.
    pub fn new(nodes: &[Node], pods: &'a [TracePod], run: Run, mut rng: fastrand::Rng) -> Self {
        let nodes = ordered(nodes, run.order, &mut rng);
        let cards = nodes.iter().map(|node| node.devices.len() as u64).sum::<u64>();
        let mut world = Self {
            pods,
            run,
            rng,
            workload: Workload::default(),
            statistics: Arc::default(),
            came: 0,
            residents: nodes.iter().map(|_| Vec::new()).collect(),
            sizes: vec![BTreeSet::new(); nodes.len()],
            fragmentation: Fragmentation::new(pods.iter().map(|pod| &pod.request), &nodes),
            allocated: 0,
            capacity: cards * 1000,
            board: Board::of(nodes, Arc::default()),
        };
        if run.oracle {
            for pod in pods {
                world.workload.see(&pod.request);
            }
        }
        world.learn();
        world
    }

    /// The generator of chance, after what was drawn for the nodes.
    pub fn rng(&mut self) -> &mut fastrand::Rng {
        &mut self.rng
    }

    /// The nodes as they are now.
    pub fn nodes(&self) -> &[Arc<Node>] {
        self.board.nodes()
    }

    /// All compute there is, in thousandths of a card.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Allocated compute, in percent of all.
    #[expect(clippy::cast_precision_loss, reason = "thousandths of cards, far below 2^52")]
    pub fn allocated(&self) -> f64 {
        self.allocated as f64 * 100.0 / self.capacity as f64
    }

    /// Free compute that typical pods cannot use, in percent of all.
    #[expect(clippy::cast_precision_loss, reason = "thousandths of cards, far below 2^52")]
    pub fn fragmented(&self) -> f64 {
        self.fragmentation.milli() * 100.0 / self.capacity as f64
    }

    /// The pod at `next` in the list comes, and is placed if there is room.
    pub fn arrive(&mut self, next: usize) -> Arrival {
        let pod = &self.pods[next];
        if !self.run.oracle {
            self.workload.see(&pod.request);
            let (came, early) = (self.came, self.came < RELEARN);
            if came.is_multiple_of(RELEARN) || (early && came.is_power_of_two()) {
                self.learn();
            }
        }
        self.came += 1;
        let start = Instant::now();
        let placed = self.place(pod);
        let nanos = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let Some((place, holds)) = placed else {
            return Arrival { place: None, cards: Places::NONE, nanos };
        };
        let cards = holds.iter().map(|(card, _)| *card).collect();
        self.allocated += pod.milli;
        self.sizes[place].extend(baseline::size(&pod.request));
        self.residents[place].push(Resident { pod: next, holds });
        self.fragmentation.update(place, &self.board.nodes()[place]);
        Arrival { place: Some(place), cards, nanos }
    }

    /// One of the pods on the node at `place` leaves, which was at `pod` in the list.
    pub fn leave(&mut self, place: usize, pod: usize) {
        let residents = &mut self.residents[place];
        let Some(gone) = residents.iter().position(|resident| resident.pod == pod) else { return };
        residents.swap_remove(gone);
        let pods = self.pods;
        self.allocated -= pods[pod].milli;
        self.sizes[place] =
            residents.iter().filter_map(|r| baseline::size(&pods[r.pod].request)).collect();
        // The node is added up anew from who is left, as the ledger does.
        let residents = &self.residents[place];
        self.board.change(place, |node| {
            node.free = node.allocatable;
            node.devices.iter_mut().for_each(|state| state.used = model::Usage::default());
            for resident in residents {
                node.free = node.free.without(&pods[resident.pod].request.host);
                take(node, &resident.holds);
            }
        });
        self.fragmentation.update(place, &self.board.nodes()[place]);
    }

    fn learn(&mut self) {
        let nodes = self.board.nodes().iter().map(AsRef::as_ref);
        self.statistics = Arc::new(learn(&self.workload, nodes));
        self.board.learn(self.statistics.clone());
    }

    fn place(&mut self, pod: &TracePod) -> Option<(usize, Vec<(usize, Hold)>)> {
        let request = &pod.request;
        let policy = match self.run.decider {
            Decider::Ours(policy) => Policy::both(policy),
            Decider::Baseline(baseline) => baseline.card_policy(),
        };
        let statistics = &self.statistics;
        let ask = Ask { request, allowance: Allowance::unlimited(), policy, statistics };
        let place = match (self.run.as_extender, self.run.decider) {
            (Some(scoring), _) if pod.class == Class::CpuOnly => {
                baseline::beside(scoring, self.board.nodes(), request, &mut self.rng)
            }
            (_, Decider::Ours(_)) => self.board.best(&ask),
            (_, Decider::Baseline(baseline)) => {
                baseline.best(self.board.nodes(), &self.sizes, &ask, &mut self.rng)
            }
        }?;
        let holds = if request.containers.is_empty() {
            Vec::new()
        } else {
            let node = &self.board.nodes()[place];
            holds(node, &choose(node, &ask).ok()?)
        };
        self.board.change(place, |node| {
            node.free = node.free.without(&request.host);
            take(node, &holds);
        });
        Some((place, holds))
    }
}

/// What a pod holds of the cards of `node` at its peak, by their places.
pub fn holds(node: &Node, placement: &Placement) -> Vec<(usize, Hold)> {
    let device = |id: &_| node.device(id).map(|state| &*state.device);
    let place = |id: &_| node.devices.iter().position(|state| state.device.id == *id);
    let holds = placement.holds(device).into_iter();
    holds.filter_map(|(id, hold)| Some((place(&id)?, hold))).collect()
}

/// Takes what a pod holds off the cards.
pub fn take(node: &mut Node, holds: &[(usize, Hold)]) {
    for (place, hold) in holds {
        node.devices[*place].used.add(hold);
    }
}

/// The nodes in an order by chance, unless one is given, named after it: ties go by name.
fn ordered(nodes: &[Node], order: Order, rng: &mut fastrand::Rng) -> Vec<Arc<Node>> {
    let mut nodes: Vec<Node> = nodes.to_vec();
    if order != Order::Given {
        rng.shuffle(&mut nodes);
    }
    let named = nodes.into_iter().enumerate().filter_map(|(place, mut node)| {
        node.name = NodeName::parse(&format!("n{place:05}")).ok()?;
        Some(Arc::new(node))
    });
    named.collect()
}
