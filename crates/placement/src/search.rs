//! Finds cards for all containers of a pod at once, or proves that there are none.
//!
//! Containers are placed one after the other on the first cards that fit, in the order of the
//! device policy; where a later one then finds no room, earlier choices are taken back. So the
//! result is what a plain greedy choice gives wherever that works, and a refusal is never wrong.
//!
//! Cards that differ in nothing that matters are tried once. What remains is exponential in
//! the worst case, so the number of steps is bounded: beyond it the search gives up and says so.

use model::peak::Peaks;
use std::collections::BTreeMap;

use model::{ContainerRequest, DeviceState, Hold, Node, Role, peak};

use crate::Ask;
use crate::policy::{CardOrder, Free, Key};

/// Enough for every pod people write (64 cards, a handful of containers), and a few
/// milliseconds at worst.
const MOST_STEPS: u32 = 10_000;

/// A search on one node.
pub(crate) struct Search<'a> {
    ask: &'a Ask<'a>,
    containers: &'a [ContainerRequest],
    order_of_cards: CardOrder<'a>,
    /// The cards this pod may have, by index, with their places on the node.
    cards: Vec<&'a DeviceState>,
    places: Vec<usize>,
    /// For each container, the cards it has so far.
    chosen: Vec<Vec<usize>>,
    /// Containers in the order in which they are placed.
    order: Vec<usize>,
    steps: u32,
}

impl<'a> Search<'a> {
    pub(crate) fn new(node: &'a Node, ask: &'a Ask<'a>) -> Self {
        let containers = &ask.request.containers[..];
        let accepts =
            |state: &&DeviceState| state.sells() && ask.request.selector.admits(&state.device);
        // What runs at the end comes first; an init container then prefers cards the pod has
        // anyway, and its choice constrains nobody.
        let order = 0..containers.len();
        let (inits, stay): (Vec<usize>, Vec<usize>) =
            order.partition(|&c| containers[c].role == Role::Init);
        let accepted = node.devices.iter().enumerate().filter(|(_, state)| accepts(state));
        let (places, cards) = accepted.unzip();
        Self {
            ask,
            containers,
            order_of_cards: CardOrder::new(node, ask),
            cards,
            places,
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

    fn place(&mut self, at: usize) -> bool {
        let Some(&container) = self.order.get(at) else { return true };
        let candidates = self.candidates(container);
        let wanted = self.containers[container].cards as usize;
        candidates.len() >= wanted && self.pick(at, &candidates, wanted)
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
            if tried.iter().any(|&other| self.alike(card, other)) {
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
        let mut fitting: Vec<(bool, Key, usize)> = (0..self.cards.len())
            .filter(|&card| bound.is_none_or(|bound| bound == card) && self.fits(container, card))
            .map(|card| (self.is_new_for_init(container, card), self.key(container, card), card))
            .collect();
        fitting.sort_unstable();
        fitting.into_iter().map(|(_, _, card)| card).collect()
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
            && (self.ask.allowance.is_unlimited() || a.device.model == b.device.model)
            && self.chosen.iter().all(|cards| cards.contains(&one) == cards.contains(&other))
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
