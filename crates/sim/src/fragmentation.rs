//! How much of the free compute the pods that come cannot use: F of the FGD paper.
//!
//! The typical pods are the kinds that make up 95 of 100 pods of a workload, with their
//! frequency. For one of them a node's free compute is useless altogether if the pod asks for no
//! card, if the node lacks CPU for it, or if too few cards fit; else useless is what is free on
//! cards that do not fit. F is the mean over the typical pods, added up over the nodes.
//!
//! Measured by the simulator for every policy alike, whatever the policy itself looks at. Where
//! shares ask for memory apart from compute, a card that lacks the memory does not fit either.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::{CardModel, DeviceState, Mebibytes, MemoryAsk, Node, Part, Request};

/// How much of a workload the typical pods cover, in percent.
const COVERED: u64 = 95;
/// Weights add up to this.
const ONE: u64 = 1_000_000;

/// F of a set of nodes, kept up to date node by node.
#[derive(Debug, Clone)]
pub struct Fragmentation {
    typical: Vec<Typical>,
    models: Vec<CardModel>,
    /// Free compute that is useless, in thousandths of a card times [`ONE`].
    by_node: Vec<u64>,
    sum: u64,
}

#[derive(Debug, Clone)]
struct Typical {
    cpu: u64,
    cards: u32,
    /// Of each card.
    milli: u32,
    memory: Mebibytes,
    /// The models that will do, a bit each.
    models: u64,
    weight: u64,
}

/// The bit of a model. Beyond the 64th they are taken for one.
const fn bit(number: usize) -> u64 {
    1 << if number < 63 { number } else { 63 }
}

/// What makes two pods alike, as far as the paper looks.
type Key<'a> = (u64, u32, u32, Mebibytes, &'a [Vec<String>]);

impl Fragmentation {
    /// F of `nodes` for a workload of `requests`.
    pub fn new<'a>(requests: impl IntoIterator<Item = &'a Request>, nodes: &[Arc<Node>]) -> Self {
        let mut models: Vec<CardModel> = Vec::new();
        for state in nodes.iter().flat_map(|node| &node.devices) {
            if !models.contains(&state.device.model) {
                models.push(state.device.model.clone());
            }
        }
        let mut kinds: BTreeMap<Key, (u64, &Request)> = BTreeMap::new();
        for request in requests {
            kinds.entry(key(request)).or_insert((0, request)).0 += 1;
        }
        let mut kinds: Vec<(Key, (u64, &Request))> = kinds.into_iter().collect();
        kinds.sort_by_key(|(_, (count, _))| std::cmp::Reverse(*count));
        let all: u64 = kinds.iter().map(|(_, (count, _))| count).sum();
        let mut covered = 0;
        let mut typical = Vec::new();
        for ((cpu, cards, milli, memory, _), (count, request)) in kinds {
            if covered * 100 >= all * COVERED {
                break;
            }
            covered += count;
            let admitted = models.iter().enumerate();
            let admitted = admitted.filter(|(_, model)| request.selector.admits_model(model));
            let models = admitted.fold(0, |bits, (number, _)| bits | bit(number));
            typical.push(Typical { cpu, cards, milli, memory, models, weight: count });
        }
        for kind in &mut typical {
            kind.weight = kind.weight * ONE / covered.max(1);
        }
        let mut made = Self { typical, models, by_node: vec![0; nodes.len()], sum: 0 };
        for (place, node) in nodes.iter().enumerate() {
            made.update(place, node);
        }
        made
    }

    /// Counts the node at `place` anew.
    pub fn update(&mut self, place: usize, node: &Node) {
        let cards: Vec<Card> = node.devices.iter().map(|state| self.card(state)).collect();
        let useless = useless(&cards, node.free.cpu.0, &self.typical);
        self.sum = self.sum - self.by_node[place] + useless;
        self.by_node[place] = useless;
    }

    /// F, in thousandths of a card.
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    pub fn milli(&self) -> f64 {
        self.sum as f64 / ONE as f64
    }

    fn card(&self, state: &DeviceState) -> Card {
        let model = self.models.iter().position(|known| *known == state.device.model);
        Card {
            free: if state.sells() { state.free_cores().0.saturating_mul(10) } else { 0 },
            memory: state.free_memory(),
            model: model.map_or(0, bit),
        }
    }
}

/// One card: what is free of it, and the bit of its model.
struct Card {
    free: u32,
    memory: Mebibytes,
    model: u64,
}

fn useless(cards: &[Card], cpu: u64, typical: &[Typical]) -> u64 {
    let all: u32 = cards.iter().map(|card| card.free).sum();
    if all == 0 {
        return 0;
    }
    let of = |pod: &Typical| {
        if pod.cards == 0 || cpu < pod.cpu {
            return all;
        }
        // Asked for every placement of a replay: no branch in the loop.
        let (mut fitting, mut useful) = (0, 0);
        for card in cards {
            let fits = u32::from(card.free >= pod.milli)
                & u32::from(card.memory >= pod.memory)
                & u32::from(card.model & pod.models != 0);
            fitting += fits;
            useful += fits * card.free;
        }
        if fitting < pod.cards { all } else { all - useful }
    };
    typical.iter().map(|pod| u64::from(of(pod)) * pod.weight).sum()
}

/// A pod of several containers is judged by the first.
fn key(request: &Request) -> Key<'_> {
    let cpu = request.host.cpu.0;
    let models = request.selector.models.as_slice();
    let Some(container) = request.containers.first() else {
        return (cpu, 0, 0, Mebibytes::ZERO, models);
    };
    let (milli, memory) = match container.part {
        Part::Whole => (1000, Mebibytes::ZERO),
        Part::Share { cores, memory: MemoryAsk::Exact(memory) } => {
            (cores.0.saturating_mul(10), memory)
        }
        // As much memory as compute: where the one is free, so is the other.
        Part::Share { cores, memory: MemoryAsk::Percent(_) } => {
            (cores.0.saturating_mul(10), Mebibytes::ZERO)
        }
    };
    (cpu, container.cards, milli, memory, models)
}
