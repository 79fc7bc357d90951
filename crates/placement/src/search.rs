//! Finds cards for all containers of a pod at once, or proves that there are none.
//!
//! Containers are placed one after the other on the first cards that fit, in the order of the
//! device policy, or on the best set of cards where it matters how near they are; where a later
//! one then finds no room, earlier choices are taken back. So the result is what a plain greedy
//! choice gives wherever that works, and a refusal is never wrong.
//!
//! Cards that differ in nothing that matters are tried once. What remains is exponential in
//! the worst case, so the number of steps is bounded: beyond it the search gives up and says so.

use std::collections::{BTreeMap, BTreeSet};

use model::peak::Peaks;
use model::{
    Affinity, ContainerRequest, DeviceState, Hold, Near, Node, Part, Places, Role, Topology, peak,
};

use crate::Ask;
use crate::policy::{CardOrder, Far, Free, Key, whole_cards};
use crate::topology::Sets;

/// Enough for every pod people write (64 cards, a handful of containers), and a few
/// milliseconds at worst.
const MOST_STEPS: u32 = 10_000;

/// How the cards of one container are found.
enum Way<'a> {
    /// One card after the other, in this order.
    OneByOne(Vec<usize>),
    /// By comparing sets of cards.
    BySets(Sets<'a>),
}

/// A search on one node.
pub(crate) struct Search<'a> {
    ask: &'a Ask<'a>,
    containers: &'a [ContainerRequest],
    order_of_cards: CardOrder<'a>,
    /// The cards this pod may have, by index.
    cards: Vec<&'a DeviceState>,
    /// Where each of them stands among all devices of the node.
    places: Vec<usize>,
    topology: &'a Topology,
    /// Cards that nobody holds and that sell, whoever wants them.
    idle: Places,
    /// For each container, the cards it has so far.
    chosen: Vec<Vec<usize>>,
    /// Containers in the order in which they are placed.
    order: Vec<usize>,
    steps: u32,
}

impl<'a> Search<'a> {
    pub(crate) fn new(node: &'a Node, ask: &'a Ask<'a>) -> Self {
        let containers = &ask.request.containers[..];
        let selling = || node.devices.iter().enumerate().filter(|(_, state)| state.sells());
        let admits = |state: &DeviceState| ask.request.selector.admits(&state.device);
        let (places, cards) = selling().filter(|(_, state)| admits(state)).unzip();
        // What runs at the end comes first; an init container then prefers cards the pod has
        // anyway, and its choice constrains nobody.
        let order = 0..containers.len();
        let (inits, stay): (Vec<usize>, Vec<usize>) =
            order.partition(|&c| containers[c].role == Role::Init);
        Self {
            ask,
            containers,
            order_of_cards: CardOrder::new(node, ask),
            cards,
            places,
            topology: &node.topology,
            idle: selling().filter(|(_, s)| s.is_idle()).map(|(place, _)| place).collect(),
            chosen: vec![Vec::new(); containers.len()],
            order: stay.into_iter().chain(inits).collect(),
            steps: MOST_STEPS,
        }
    }

    /// Whether there is a way. If so it is in [`Search::cards_of`].
    pub(crate) fn run(&mut self) -> bool {
        self.place(0)
    }

    /// Whether the steps ran out before the search was complete.
    pub(crate) fn gave_up(&self) -> bool {
        self.steps == 0
    }

    /// The cards of a container.
    pub(crate) fn cards_of(&self, container: usize) -> impl Iterator<Item = &'a DeviceState> {
        self.chosen[container].iter().map(|&card| self.cards[card])
    }

    /// How far the cards of each container are from what the pod prefers.
    pub(crate) fn far(&self, near: Option<Near>) -> Far {
        let Some(near) = near else { return Far::default() };
        let several = self.chosen.iter().filter(|cards| cards.len() > 1);
        let far = several.map(|cards| {
            let set: Places = cards.iter().map(|&card| self.places[card]).collect();
            Far::of(near, self.topology, set.len(), set)
        });
        far.reduce(Far::and).unwrap_or_default()
    }

    fn place(&mut self, at: usize) -> bool {
        let Some(&container) = self.order.get(at) else { return true };
        let candidates = self.candidates(container);
        let wanted = self.containers[container].cards as usize;
        if candidates.len() < wanted {
            return false;
        }
        match self.way(container, &candidates) {
            Way::OneByOne(cards) => self.pick(at, &cards, wanted),
            Way::BySets(sets) => self.pick_set(at, &candidates, &sets),
        }
    }

    /// How the cards of `container` are found among `candidates`.
    fn way(&mut self, container: usize, candidates: &[usize]) -> Way<'a> {
        let ContainerRequest { cards: wanted, part, .. } = self.containers[container];
        let affinity = self.ask.request.affinity;
        if let Some(set) = self.set_of_policy(container, candidates) {
            let (mut cards, rest): (Vec<usize>, Vec<usize>) =
                candidates.iter().partition(|&&card| set.contains(self.places[card]));
            cards.extend(rest);
            return Way::OneByOne(cards);
        }
        if wanted <= 1 || (affinity == Affinity::Any && part != Part::Whole) {
            return Way::OneByOne(candidates.to_vec());
        }
        let sets = Sets {
            topology: self.topology,
            affinity,
            size: wanted as usize,
            cards: candidates.iter().map(|&card| self.places[card]).collect(),
            idle: self.idle_now(),
            first: self.own_cards(container),
        };
        self.steps = self.steps.saturating_sub(sets.steps());
        if sets.count().is_some() {
            return Way::BySets(sets);
        }
        let set: Vec<usize> = sets.grown().iter().flat_map(|set| sets.ranks(set)).collect();
        let rest = (0..candidates.len()).filter(|rank| !set.contains(rank));
        Way::OneByOne(set.iter().copied().chain(rest).map(|rank| candidates[rank]).collect())
    }

    /// The whole cards that the device policy takes together, if it has a rule for that and the
    /// pod has no wish.
    fn set_of_policy(&self, container: usize, candidates: &[usize]) -> Option<Places> {
        let ContainerRequest { cards: wanted, part, .. } = self.containers[container];
        if part != Part::Whole || (wanted > 1 && self.ask.request.affinity != Affinity::Any) {
            return None;
        }
        let all: Places = candidates.iter().map(|&card| self.places[card]).collect();
        let own = all.and(self.own_cards(container));
        let free = if own.len() >= wanted { own } else { all };
        whole_cards(self.ask.policy.device, self.topology, free, wanted)
    }

    /// For an init container, the cards the pod has anyway: it had better use these.
    fn own_cards(&self, container: usize) -> Places {
        match self.containers[container].role {
            Role::Init => self.chosen.iter().flatten().map(|&card| self.places[card]).collect(),
            Role::Sidecar | Role::App => Places::NONE,
        }
    }

    /// Cards that will still be idle beside this pod's lasting containers.
    fn idle_now(&self) -> Places {
        let lasting = |c: &usize| self.containers[*c].role != Role::Init;
        let taken = (0..self.chosen.len()).filter(lasting).flat_map(|c| &self.chosen[c]);
        self.idle.without(taken.map(|&card| self.places[card]).collect())
    }

    /// Gives the container at `at` the best of `sets` with which all others find room.
    fn pick_set(&mut self, at: usize, candidates: &[usize], sets: &Sets) -> bool {
        let cards = |set| sets.ranks(&set).map(|rank| candidates[rank]).collect();
        let Some(best) = sets.best() else { return false };
        if self.take(at, cards(best)) {
            return true;
        }
        // Rare: the best would leave no room for another container, or exceed the quota. Sets
        // of cards that differ in nothing that matters fail alike.
        self.steps = self.steps.saturating_sub(sets.steps());
        let same = |card| candidates.iter().position(|&other| self.alike(card, other));
        let kinds: Vec<Option<usize>> = candidates.iter().map(|&card| same(card)).collect();
        if kinds.iter().all(|kind| *kind == kinds[0]) {
            return false;
        }
        let kinds = |set| -> Vec<Option<usize>> {
            let mut kinds: Vec<_> = sets.ranks(&set).map(|rank| kinds[rank]).collect();
            kinds.sort_unstable();
            kinds
        };
        let mut tried = BTreeSet::from([kinds(best)]);
        sets.in_order().into_iter().any(|set| tried.insert(kinds(set)) && self.take(at, cards(set)))
    }

    /// Gives the container at `at` exactly these cards, then goes on to the next.
    fn take(&mut self, at: usize, cards: Vec<usize>) -> bool {
        if self.steps == 0 {
            return false;
        }
        self.steps -= 1;
        let container = self.order[at];
        self.chosen[container] = cards;
        let placed = self.within_quota() && self.place(at + 1);
        if !placed {
            self.chosen[container].clear();
        }
        placed
    }

    /// Gives the container at `at` `wanted` more of `candidates`, then goes on to the next.
    fn pick(&mut self, at: usize, candidates: &[usize], wanted: usize) -> bool {
        if wanted == 0 {
            return self.within_quota() && self.place(at + 1);
        }
        let container = self.order[at];
        let mut tried: Vec<usize> = Vec::new();
        for (i, &card) in candidates.iter().enumerate() {
            if candidates.len() - i < wanted {
                break;
            }
            if !self.stays_near(container, card)
                || tried.iter().any(|&other| self.alike(card, other))
            {
                continue;
            }
            if self.steps == 0 {
                return false;
            }
            self.steps -= 1;
            self.chosen[container].push(card);
            if self.pick(at, &candidates[i + 1..], wanted - 1) {
                return true;
            }
            self.chosen[container].pop();
            tried.push(card);
        }
        false
    }

    /// The cards `container` fits on now, best first.
    fn candidates(&self, container: usize) -> Vec<usize> {
        let bound = if self.ask.request.one_card { self.pod_s_card() } else { None };
        let idle = self.idle_now();
        let loss = |card: usize| self.loss(container, card, idle);
        let mut fitting: Vec<(bool, Key, u32, usize)> = (0..self.cards.len())
            .filter(|&card| bound.is_none_or(|bound| bound == card) && self.fits(container, card))
            .map(|card| {
                let is_new = self.is_new_for_init(container, card);
                (is_new, self.key(container, card), loss(card), card)
            })
            .collect();
        fitting.sort_unstable();
        fitting.into_iter().map(|(.., card)| card).collect()
    }

    /// What a single card is to the idle ones, so that of equals the one is taken that others
    /// will miss least.
    fn loss(&self, container: usize, card: usize, idle: Places) -> u32 {
        let place = self.places[card];
        let single = self.containers[container].cards == 1;
        if single && idle.contains(place) { self.topology.bonds(place, idle) } else { 0 }
    }

    /// Whether `card` is as near to those the container has as the pod requires.
    fn stays_near(&self, container: usize, card: usize) -> bool {
        let Affinity::Require(near) = self.ask.request.affinity else { return true };
        let place = |card: usize| Places::one(self.places[card]);
        let near_to = |&other: &usize| {
            let two = place(card).or(place(other));
            two.len() == 2 && self.topology.is_near(near, two)
        };
        self.chosen[container].iter().all(near_to)
    }

    fn pod_s_card(&self) -> Option<usize> {
        self.chosen.iter().find_map(|cards| cards.first().copied())
    }

    fn is_new_for_init(&self, container: usize, card: usize) -> bool {
        let is_init = self.containers[container].role == Role::Init;
        is_init && !self.chosen.iter().any(|cards| cards.contains(&card))
    }

    /// Where a card stands by the device policy, with this pod's lasting containers counted.
    fn key(&self, container: usize, card: usize) -> Key {
        let own = self.held(card, |other| self.containers[other].role != Role::Init);
        let own = own.unwrap_or_default();
        let state = self.cards[card];
        let free = Free {
            state,
            cores: state.free_cores().saturating_sub(own.cores),
            memory: state.free_memory().saturating_sub(own.memory),
        };
        self.order_of_cards.key(&free, self.containers[container].part)
    }

    fn fits(&self, container: usize, card: usize) -> bool {
        let state = self.cards[card];
        let hold = self.hold(container, card);
        match self.held(card, |other| self.run_together(container, other)) {
            None => state.fits(&hold),
            // Nobody shares a whole card, not even with the pod's own containers.
            Some(beside) if beside.whole || hold.whole => false,
            Some(beside) => state.fits(&beside.plus(&hold)),
        }
    }

    fn hold(&self, container: usize, card: usize) -> Hold {
        let device = &self.cards[card].device;
        self.containers[container].part.of(device).hold(device)
    }

    /// What those of this pod's containers that `count` hold of `card`, if any does.
    fn held(&self, card: usize, count: impl Fn(usize) -> bool) -> Option<Hold> {
        let on_it = (0..self.chosen.len()).filter(|&c| self.chosen[c].contains(&card) && count(c));
        on_it.map(|c| self.hold(c, card)).reduce(|sum, hold| sum.plus(&hold))
    }

    fn run_together(&self, one: usize, other: usize) -> bool {
        let (first, second) = (one.min(other), one.max(other));
        match (self.containers[first].role, self.containers[second].role) {
            // An init container meets the sidecars that started before it.
            (before, Role::Init) => before == Role::Sidecar,
            (Role::Init, _) => false,
            (Role::Sidecar | Role::App, _) => true,
        }
    }

    /// Whether swapping the two cards would change nothing for this pod.
    fn alike(&self, one: usize, other: usize) -> bool {
        let (a, b) = (self.cards[one], self.cards[other]);
        let device = |s: &DeviceState| (s.device.memory, s.device.cores);
        device(a) == device(b)
            && a.used == b.used
            && a.load.strangers == b.load.strangers
            && self.wired_alike(one, other)
            && (self.ask.allowance.is_unlimited() || a.device.model == b.device.model)
            && self.chosen.iter().all(|cards| cards.contains(&one) == cards.contains(&other))
    }

    /// Whether swapping the two cards would leave the same cards near to one another, where that
    /// is required.
    fn wired_alike(&self, one: usize, other: usize) -> bool {
        let Affinity::Require(near) = self.ask.request.affinity else { return true };
        let both = Places::one(self.places[one]).or(Places::one(self.places[other]));
        let near_to = |card: usize| -> Places {
            let place = self.places[card];
            match near {
                Near::Link => self.topology.joined(place),
                Near::Numa => {
                    let mut groups = self.topology.numa().iter();
                    groups.find(|group| group.contains(place)).copied().unwrap_or_default()
                }
            }
        };
        near_to(one).without(both) == near_to(other).without(both)
    }

    fn within_quota(&self) -> bool {
        if self.ask.allowance.is_unlimited() {
            return true;
        }
        let held = self.peaks();
        let held = held.iter().map(|(&card, &hold)| (&self.cards[card].device.model, hold));
        self.ask.allowance.admits(&held.collect::<Vec<_>>())
    }

    /// What the pod holds of each of its cards at its peak.
    fn peaks(&self) -> BTreeMap<usize, Hold> {
        peak(self.chosen.iter().enumerate().map(|(container, cards)| {
            let holds = cards.iter().map(|&card| (card, self.hold(container, card)));
            (self.containers[container].role, holds.collect::<BTreeMap<_, _>>())
        }))
    }

    /// The same, by place on the node.
    pub(crate) fn holds(&self) -> Vec<(usize, Hold)> {
        self.peaks().into_iter().map(|(card, hold)| (self.places[card], hold)).collect()
    }
}
