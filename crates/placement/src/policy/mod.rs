//! How nodes are ranked and cards are picked. One file a policy, each two pure keys.

mod binpack;
mod fgd;
mod gpu_manager;
mod near;
mod random;
mod spread;
mod stranding;

use model::{
    Cores, DeviceState, Hold, Mebibytes, Node, Overrides, Part, Places, PolicyName, Request,
    Topology,
};

pub(crate) use near::Far;

use crate::Ask;
use crate::board::{Board, HOT, Needs, Numbers, OnePart, REFUSED, Row, Slot, Spec, View};

/// How nodes are ranked, and how cards are picked on the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// For nodes.
    pub node: PolicyName,
    /// For cards.
    pub device: PolicyName,
}

impl Default for Policy {
    fn default() -> Self {
        Self::both(PolicyName::Stranding)
    }
}

impl Policy {
    /// The same policy for both.
    pub const fn both(policy: PolicyName) -> Self {
        Self { node: policy, device: policy }
    }

    /// This policy, but for what the pod chose itself.
    #[must_use]
    pub fn overridden(self, by: Overrides) -> Self {
        Self { node: by.node.unwrap_or(self.node), device: by.device.unwrap_or(self.device) }
    }
}

/// What a pod would take of a node that it fits.
#[derive(Clone, Copy)]
pub(crate) enum Taken<'a> {
    /// CPU and memory of the host only.
    Host,
    /// The same part of each of several cards, still to be picked.
    One(&'a One),
    /// These parts of these cards, by place, and how far they are from what is preferred.
    Several(&'a [(usize, Hold)], Far),
}

/// The same part of each of so many cards, made ready once for all nodes.
#[derive(Debug)]
pub(crate) struct One {
    pub(crate) cards: u32,
    part: OnePart,
    needs: Needs,
    taking: stranding::Taking,
    /// What taking it does to a card in each state, if that was worked out.
    by_state: Option<Vec<stranding::OnState>>,
}

impl One {
    pub(crate) fn new(spec: &Spec, numbers: &Numbers, cards: u32, part: OnePart) -> Self {
        let taking = stranding::Taking::new(part, numbers);
        Self { cards, part, needs: spec.needs(part), taking, by_state: None }
    }

    /// Works out what taking it does to a card in each of `states`, where the policy asks that of
    /// every card.
    pub(crate) fn weigh_states(&mut self, spec: &Spec, states: &[Slot], numbers: &Numbers) {
        if spec.policy == PolicyName::Stranding && self.cards == 1 {
            let weigh = |slot| stranding::OnState::new(self, slot, numbers);
            self.by_state = Some(states.iter().map(weigh).collect());
        }
    }

    /// The places of the devices of `view` that fit.
    fn fitting(&self, view: &View) -> impl Iterator<Item = usize> {
        let fits = |(place, slot)| self.needs.are_met(slot).then_some(place);
        view.slots.iter().enumerate().filter_map(fits)
    }

    /// Whether `row` may have enough devices that fit; no is certain.
    pub(crate) const fn may_fit(&self, row: &Row) -> bool {
        self.needs.may_be_met(self.cards, row)
    }

    /// Whether enough devices of `view` fit.
    pub(crate) fn fits(&self, view: &View) -> bool {
        let wanted = self.cards as usize;
        self.fitting(view).take(wanted).count() == wanted
    }
}

/// Set in the keys of nodes that could only serve from hot cards: behind all others.
const STRAINED: u64 = 1 << 62;

/// Where a node stands: the lowest first, ties to the first node.
pub(crate) fn node_key(
    view: &View,
    spec: &Spec,
    numbers: &Numbers,
    taken: Taken,
    node: &Node,
    ask: &Ask,
) -> u64 {
    let far = match (spec.near, taken) {
        (Some(near), Taken::One(one)) if one.cards > 1 => {
            Far::of(near, &node.topology, one.cards, one.fitting(view).collect())
        }
        (_, Taken::Several(_, far)) => far,
        (_, Taken::Host | Taken::One(_)) => Far::default(),
    };
    let key = match spec.policy {
        PolicyName::Stranding => stranding::node_key(view, spec, numbers, taken, far),
        PolicyName::Fgd => far.before(fgd::node_key(view, spec, numbers, taken)),
        // gpu-manager leaves nodes to others; filling them up suits its rules for cards.
        PolicyName::Binpack | PolicyName::GpuManager => far.before(binpack::node_key(view, spec)),
        PolicyName::Spread => far.before(spread::node_key(view, spec)),
        PolicyName::Random => far.before(random::hash(ask.request, node.name.as_str()) >> 4),
    };
    if view.row.hot && key != REFUSED && is_strained(view, taken) { key | STRAINED } else { key }
}

fn is_strained(view: &View, taken: Taken) -> bool {
    match taken {
        Taken::Host => false,
        Taken::One(one) => {
            let cool = view.slots.iter().filter(|slot| !slot.is(HOT) && one.needs.are_met(slot));
            cool.count() < one.cards as usize
        }
        Taken::Several(holds, _) => holds.iter().any(|(place, _)| view.slots[*place].is(HOT)),
    }
}

/// What cards of one node are sorted by: the lowest first. Ties go to the card that the idle ones
/// miss least and then to its index, so that they always go the same way. There is no index in
/// it, or there would be no ties.
pub(crate) type Key = [u64; 5];

/// The `wanted` whole cards of `free` that the policy takes, if it has a rule for whole cards.
pub(crate) fn whole_cards(
    policy: PolicyName,
    topology: &Topology,
    free: Places,
    wanted: u32,
) -> Option<Places> {
    match policy {
        PolicyName::GpuManager => gpu_manager::whole_cards(topology, free, wanted),
        _ => None,
    }
}

/// Sorts the cards of one node for one pod.
pub(crate) struct CardOrder<'a> {
    ask: &'a Ask<'a>,
    /// Only what looks at the whole node needs it packed.
    board: Option<Board>,
}

/// A card and what is left of it, this pod's own containers counted.
pub(crate) struct Free<'a> {
    pub(crate) state: &'a DeviceState,
    pub(crate) cores: Cores,
    pub(crate) memory: Mebibytes,
}

impl<'a> CardOrder<'a> {
    pub(crate) fn new(node: &Node, ask: &'a Ask<'a>) -> Self {
        let board = (ask.policy.device == PolicyName::Fgd)
            .then(|| Board::of(vec![node.clone().into()], ask.statistics.clone()));
        Self { ask, board }
    }

    /// Where a card stands for a container that asks for `part` of it.
    pub(crate) fn key(&self, free: &Free, part: Part) -> Key {
        let request = self.ask.request;
        let hot = u64::from(free.state.load.hot);
        let two = |[first, second]: [u64; 2]| [first, second, 0, 0];
        let [a, b, c, d] = match self.ask.policy.device {
            PolicyName::Stranding => two(stranding::card_key(free, part, self.ask.statistics)),
            PolicyName::Fgd => two(fgd::card_key(free, part, self.board.as_ref())),
            PolicyName::Binpack => two(binpack::card_key(free, request)),
            PolicyName::Spread => two(spread::card_key(free, request)),
            PolicyName::Random => two([random::hash(request, free.state.device.id.as_str()), 0]),
            PolicyName::GpuManager => gpu_manager::card_key(free),
        };
        [hot, a, b, c, d]
    }
}

/// Whether the pod asks for memory only: then memory leads, else compute does.
pub(crate) fn asks_memory_only(request: &Request) -> bool {
    let no_cores = |part| matches!(part, Part::Share { cores: Cores::ZERO, .. });
    request.containers.iter().all(|container| no_cores(container.part))
}

/// The more the better, as a key.
const fn most(value: u64) -> u64 {
    u64::MAX - value
}
