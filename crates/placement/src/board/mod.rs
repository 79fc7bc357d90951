//! The nodes of a snapshot packed for ranking, and what was ranked before.
//!
//! A board gives the same answers as asking every node in full, only faster: a question that
//! was asked before is answered from the keys of the last time, after those nodes that have
//! changed since are weighed again. The laws of `tests` hold it to that.

mod memo;
mod numbers;
mod row;
mod spec;
mod states;

use std::collections::BTreeMap;
use std::sync::Arc;

use model::{CardModel, Node, PolicyName, Shape, Snapshot, Statistics};

pub(crate) use memo::REFUSED;
use memo::{FEW, Memo, Memos};
pub(crate) use numbers::{Numbers, Typical};
pub(crate) use row::{HOT, IDLE, Row, SELLS, Slot, View};
use spec::Full;
pub(crate) use spec::{Asks, Needs, OnePart, Spec, bit};
use states::States;

use crate::Ask;
use crate::fit::solve;
use crate::policy::{One, Taken, node_key};

/// How many states are kept at least before those that no card is in any more are forgotten.
const MOST_STATES: usize = 4096;

/// Nodes in order, packed. The first of two equal nodes wins.
#[derive(Debug)]
pub struct Board {
    nodes: Vec<Arc<Node>>,
    rows: Vec<Row>,
    slots: Vec<Slot>,
    /// The state of each of `slots`, by its number in `states`.
    state_of: Vec<u32>,
    states: States,
    models: Vec<CardModel>,
    shapes: BTreeMap<Shape, u32>,
    resources: Vec<String>,
    statistics: Arc<Statistics>,
    numbers: Numbers,
    memos: Memos,
}

impl Board {
    /// Packs `snapshot`.
    pub fn new(snapshot: &Snapshot) -> Self {
        Self::of(snapshot.nodes().to_vec(), snapshot.statistics().clone())
    }

    /// Packs `nodes` in this order.
    pub fn of(nodes: Vec<Arc<Node>>, statistics: Arc<Statistics>) -> Self {
        let mut board = Self {
            nodes: Vec::with_capacity(nodes.len()),
            rows: Vec::with_capacity(nodes.len()),
            slots: Vec::new(),
            state_of: Vec::new(),
            states: States::default(),
            models: Vec::new(),
            shapes: BTreeMap::new(),
            resources: Vec::new(),
            statistics,
            numbers: Numbers::default(),
            memos: Memos::default(),
        };
        for node in nodes {
            board.push(node);
        }
        board.learn(board.statistics.clone());
        board
    }

    /// The nodes, in their order.
    pub fn nodes(&self) -> &[Arc<Node>] {
        &self.nodes
    }

    /// Uses what was learned since.
    pub fn learn(&mut self, statistics: Arc<Statistics>) {
        let mut prices = vec![0; self.shapes.len()];
        for (shape, &number) in &self.shapes {
            let price = statistics.prices.get(shape).copied().unwrap_or(0);
            prices[number as usize] = i64::try_from(price).unwrap_or(i64::MAX);
        }
        let admitted = |kind: &model::PodKind| {
            let admits = |model: &CardModel| {
                kind.models.iter().all(|any| any.iter().any(|token| model.contains(token)))
                    && !kind.not_models.iter().any(|token| model.contains(token))
            };
            let admitted = self.models.iter().enumerate().filter(|(_, model)| admits(model));
            admitted.fold(0, |mask, (number, _)| mask | bit(number))
        };
        self.numbers = Numbers::new(&statistics, prices, admitted);
        self.statistics = statistics;
        self.states.weigh(&self.numbers);
        for (slot, &state) in self.slots.iter_mut().zip(&self.state_of) {
            *slot = self.states.slots()[state as usize];
        }
        for row in &mut self.rows {
            let range = row.start as usize..(row.start + row.len) as usize;
            row.weigh(&self.slots[range], &self.numbers);
        }
        self.memos.forget();
    }

    /// The same, if it is anything new.
    pub fn learn_if_new(&mut self, statistics: &Arc<Statistics>) {
        if !Arc::ptr_eq(&self.statistics, statistics) {
            self.learn(statistics.clone());
        }
    }

    /// The places of the nodes that can take the pod, best first. As [`crate::rank`] orders them,
    /// but for the quota: that is asked by [`crate::fit`].
    pub fn order(&mut self, ask: &Ask) -> Vec<u32> {
        let spec = self.spec(ask);
        if !spec.is_everything() {
            return in_order(self.keys_of(&spec, ask));
        }
        let mut memo = self.recall(&spec, ask);
        let order = memo.order().to_vec();
        self.memos.put(memo);
        order
    }

    /// Changes the node at `place`.
    pub fn change(&mut self, place: usize, change: impl FnOnce(&mut Node)) {
        change(Arc::make_mut(&mut self.nodes[place]));
        self.repack(place);
    }

    /// Puts another state of the same node at `place`.
    pub fn replace(&mut self, place: usize, node: Arc<Node>) {
        self.nodes[place] = node;
        self.repack(place);
    }

    /// The best node for `ask`, if any fits.
    pub fn best(&mut self, ask: &Ask) -> Option<usize> {
        let spec = self.spec(ask);
        if !spec.is_everything() {
            let keys = self.keys_of(&spec, ask).enumerate();
            let best = keys.min_by_key(|(_, key)| *key);
            return best.filter(|(_, key)| *key != REFUSED).map(|(place, _)| place);
        }
        let memo = self.recall(&spec, ask);
        let best = memo.best();
        self.memos.put(memo);
        best
    }

    /// The keys for `spec`, brought up to date.
    fn recall(&mut self, spec: &Spec, ask: &Ask) -> Memo {
        let mut memo = self.memos.take(spec, self.rows.len());
        let mut one = self.one(spec);
        if let Some(changed) = self.memos.changed(&memo) {
            if changed.len() > FEW {
                memo.disorder();
            }
            for place in changed.iter().map(|&place| place as usize) {
                memo.set(place, self.key(place, spec, one.as_ref(), ask));
            }
        } else {
            // Every card is looked at: weighing each state once saves most of it.
            if let Some(one) = &mut one
                && self.states.slots().len() < self.slots.len() / 2
            {
                one.weigh_states(spec, self.states.slots(), &self.numbers);
            }
            memo.fill(|place| self.key(place, spec, one.as_ref(), ask));
        }
        memo
    }

    /// Where every node stands for `ask`: the lowest first, [`REFUSED`] if it does not fit.
    pub(crate) fn keys(&self, ask: &Ask) -> Vec<u64> {
        self.keys_of(&self.spec(ask), ask).collect()
    }

    fn keys_of(&self, spec: &Spec, ask: &Ask) -> impl Iterator<Item = u64> {
        let one = self.one(spec);
        (0..self.rows.len()).map(move |place| self.key(place, spec, one.as_ref(), ask))
    }

    /// What does not depend on the node, made ready once.
    fn one(&self, spec: &Spec) -> Option<One> {
        match spec.asks {
            Asks::One { cards, part } => Some(One::new(spec, &self.numbers, cards, part)),
            Asks::Host | Asks::Several => None,
        }
    }

    /// The one node of a board of one, with what was learned.
    pub(crate) fn only(&self) -> Option<(View<'_>, &Numbers)> {
        (self.rows.len() == 1).then(|| (self.view(0), &self.numbers))
    }

    fn spec(&self, ask: &Ask) -> Spec {
        let resource = |name: &str| {
            let known = self.resources.iter().position(|known| known == name);
            known.and_then(|place| u16::try_from(place).ok()).unwrap_or(u16::MAX)
        };
        let mut spec = Spec::of(ask, &self.models, resource);
        if self.models.len() > 63 && !matches!(spec.asks, Asks::Host) {
            spec.asks = Asks::Several;
        }
        if matches!(spec.asks, Asks::Several) {
            spec.full = Some(Box::new(Full::of(ask)));
        }
        spec
    }

    fn key(&self, place: usize, spec: &Spec, one: Option<&One>, ask: &Ask) -> u64 {
        let view = self.view(place);
        if !spec.host_fits(view.row) {
            return REFUSED;
        }
        let node = &self.nodes[place];
        let key = |taken| node_key(&view, spec, &self.numbers, taken, node, ask);
        match (spec.asks, one) {
            (Asks::Host, _) => key(Taken::Host),
            (_, Some(one)) => {
                // Stranding weighs every card that fits, and so sees by itself if none does.
                let weighed = one.cards == 1 && spec.policy == PolicyName::Stranding;
                let may_fit = view.row.open && one.may_fit(view.row);
                if may_fit && (weighed || one.fits(&view)) { key(Taken::One(one)) } else { REFUSED }
            }
            (_, None) => match solve(node, ask) {
                Ok(search) => key(Taken::Several(&search.holds(), search.far(spec.near))),
                Err(_) => REFUSED,
            },
        }
    }

    fn view(&self, place: usize) -> View<'_> {
        let row = &self.rows[place];
        let range = row.start as usize..(row.start + row.len) as usize;
        View { row, slots: &self.slots[range.clone()], states: &self.state_of[range] }
    }

    fn push(&mut self, node: Arc<Node>) {
        let start = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
        let row = self.row(&node, start);
        for state in &node.devices {
            let model = self.model(&state.device.model);
            let slot = Slot::of(state, model, &self.numbers);
            self.state_of.push(self.states.number(&slot));
            self.slots.push(slot);
        }
        self.rows.push(row);
        self.nodes.push(node);
    }

    fn repack(&mut self, place: usize) {
        let node = self.nodes[place].clone();
        let (start, len) = (self.rows[place].start, self.rows[place].len as usize);
        let states = self.states.slots().len();
        if node.devices.len() != len || states > MOST_STATES.max(4 * self.slots.len()) {
            // Cards came or went, or too many states are of the past: rare, so everything is
            // packed anew.
            *self = Self::of(std::mem::take(&mut self.nodes), self.statistics.clone());
            return;
        }
        let mut row = self.row(&node, start);
        for (i, state) in node.devices.iter().enumerate() {
            let model = self.model(&state.device.model);
            let slot = Slot::of(state, model, &self.numbers);
            let at = start as usize + i;
            if self.slots[at] != slot {
                self.state_of[at] = self.states.number(&slot);
                self.slots[at] = slot;
            }
        }
        let slots = &self.slots[start as usize..start as usize + len];
        row.weigh(slots, &self.numbers);
        if row.shape as usize >= self.numbers.prices.len() {
            self.rows[place] = row;
            self.learn(self.statistics.clone());
            return;
        }
        self.rows[place] = row;
        self.memos.note(place);
    }

    fn row(&mut self, node: &Node, start: u32) -> Row {
        let shapes = u32::try_from(self.shapes.len()).unwrap_or(u32::MAX);
        let shape = *self.shapes.entry(Shape::of(node)).or_insert(shapes);
        let resources = &mut self.resources;
        let mut number = |name: &String| {
            let known = resources.iter().position(|known| known == name);
            let place = known.unwrap_or_else(|| {
                resources.push(name.clone());
                resources.len() - 1
            });
            u16::try_from(place).unwrap_or(u16::MAX)
        };
        let left = node.tickets.iter().map(|(name, tickets)| (number(name), tickets.free()));
        let tickets = left.collect();
        Row::of(node, start, shape, tickets)
    }

    fn model(&mut self, model: &CardModel) -> u8 {
        let known = self.models.iter().position(|known| known == model);
        let place = known.unwrap_or_else(|| {
            self.models.push(model.clone());
            self.models.len() - 1
        });
        u8::try_from(place.min(63)).unwrap_or(63)
    }
}

/// The places of those that fit, by their keys; the first of equals first.
fn in_order(keys: impl Iterator<Item = u64>) -> Vec<u32> {
    let fits = |(_, key): &(u32, u64)| *key != REFUSED;
    let mut places: Vec<(u64, u32)> =
        (0..).zip(keys).filter(fits).map(|(place, key)| (key, place)).collect();
    places.sort_unstable();
    places.into_iter().map(|(_, place)| place).collect()
}
