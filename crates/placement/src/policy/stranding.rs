//! Keep room on cards from being stranded, and rare nodes for those who need them.
//!
//! The cost of a placement, in millionths of a card:
//!
//! ```text
//!   what the host's CPU or memory can no longer serve     S(after) - S(before)
//! + how wanted this kind of node is by others             1.25 * price * what is taken
//! + what the rest of the card is worth less to shares     0.6 * (V(before) - V(after))
//! + a little for every node that stays open               0.025 * room(after)
//! + cards further apart than the pod prefers              1/4 for each and step, see `near`
//! ```
//!
//! S(node) = max(0, room - CPU left / CPU per card, room - memory left / memory per card), where
//! the latter come from the pods seen so far; V(x) = x times the chance that a share fits in x.
//! Costs closer than a fiftieth of a card are equal, and equal nodes go in order: packing.

use model::{Part, Statistics};

use super::{Far, Free, One, Taken};
use crate::board::{Numbers, OnePart, REFUSED, Slot, Spec, View};

/// The weights, in 1024ths. Chosen on a few of the public workloads and confirmed on others and
/// on fresh seeds; docs/placement.md has what was tried.
const PRICE: i64 = 1280;
const VALUE: i64 = 614;
const OPEN: i64 = 26;
/// What a card is worth less for each step that it is further from the others than preferred, in
/// millionths.
const FAR: i64 = 250_000;
/// Costs are compared in steps of this.
const STEP: i64 = 20_000;
const CARD: i64 = 1_000_000;
/// More than any cost: no card fits. With a cost added it is still a number.
const NO_CARD: i64 = 1 << 60;
/// Keeps every cost positive.
const OFFSET: i64 = 1 << 50;

/// The cheapest way first; [`REFUSED`] if a pod of one card fits on none.
pub(super) fn node_key(view: &View, spec: &Spec, numbers: &Numbers, taken: Taken, far: Far) -> u64 {
    let row = view.row;
    let costs = Costs {
        room: row.room,
        served: numbers.served(row.cpu - spec.cpu, row.memory - spec.memory),
        price: PRICE * numbers.prices[row.shape as usize] / 1024,
    };
    let cost = match taken {
        Taken::Host => {
            // A pod without a card takes as much of the node as it takes of its CPU.
            let cards = i64::from(row.len) * CARD;
            let part = i128::from(spec.cpu) * i128::from(cards) / i128::from(row.all_cpu);
            let size = i64::try_from(part).unwrap_or(cards);
            costs.of(Effect { size, ..Effect::default() })
        }
        Taken::One(one) if one.cards == 1 => {
            let cheapest = cheapest(view, one, &costs, numbers);
            if cheapest >= NO_CARD {
                return REFUSED;
            }
            cheapest
        }
        Taken::One(one) => {
            let effect = |place: usize| one.taking.effect(&view.slots[place], numbers);
            let mut effects: Vec<Effect> = one.fitting(view).map(effect).collect();
            effects.sort_by_key(|effect| effect.value / STEP);
            costs.of(effects.into_iter().take(one.cards as usize).sum())
        }
        Taken::Several(holds, _) => {
            let effects = holds.iter().map(|(place, hold)| {
                let cores = u16::try_from(hold.cores.0).unwrap_or(u16::MAX);
                let memory = u32::try_from(hold.memory.0).unwrap_or(u32::MAX);
                let part =
                    if hold.whole { OnePart::Whole } else { OnePart::Exact { cores, memory } };
                Taking::new(part, numbers).effect(&view.slots[*place], numbers)
            });
            costs.of(effects.sum())
        }
    };
    let far = FAR * far.of_all_cards();
    (((cost >> 10) + far - row.stranded + OFFSET) / STEP).unsigned_abs()
}

/// What the cost of a placement on one node depends on.
struct Costs {
    room: i64,
    served: i64,
    price: i64,
}

impl Costs {
    /// The cost of `effect` in 1024ths of a millionth, but for what is stranded already.
    fn of(&self, effect: Effect) -> i64 {
        let room = self.room - effect.room;
        self.stranded(room) + self.price * effect.size + VALUE * effect.value + OPEN * room
    }

    /// How much of `room` the host cannot serve, in 1024ths.
    fn stranded(&self, room: i64) -> i64 {
        (room - self.served).max(0) << 10
    }
}

/// What taking a part of a card does.
#[derive(Debug, Clone, Copy, Default)]
struct Effect {
    /// Room lost.
    room: i64,
    /// Value lost to shares.
    value: i64,
    /// Compute taken, or memory in its place if that is more.
    size: i64,
}

impl std::iter::Sum for Effect {
    fn sum<I: Iterator<Item = Self>>(effects: I) -> Self {
        effects.fold(Self::default(), |sum, one| Self {
            room: sum.room + one.room,
            value: sum.value + one.value,
            size: sum.size + one.size,
        })
    }
}

/// A part of a card, as it is taken from one card after the other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Taking {
    /// Compute taken.
    cores: u32,
    /// Memory taken, as the compute it stands for.
    memory: Memory,
}

#[derive(Debug, Clone, Copy)]
enum Memory {
    /// The same on all cards.
    Part(u32),
    /// An amount, which is more of a small card than of a large one.
    Amount(u32),
}

impl Taking {
    pub(super) fn new(part: OnePart, numbers: &Numbers) -> Self {
        let cores = |percent: u16| u32::from(percent) * 10_000;
        match part {
            OnePart::Whole => Self { cores: 1_000_000, memory: Memory::Part(1_000_000) },
            OnePart::Percent { cores: percent, part } => Self {
                cores: cores(percent),
                memory: Memory::Part(numbers.percent_as_compute(part)),
            },
            OnePart::Exact { cores: percent, memory } => {
                Self { cores: cores(percent), memory: Memory::Amount(memory) }
            }
        }
    }

    fn effect(&self, slot: &Slot, numbers: &Numbers) -> Effect {
        let memory = match self.memory {
            Memory::Part(part) => part,
            Memory::Amount(amount) => numbers.memory_as_compute(amount, slot.all_memory),
        };
        let cores_left = (u32::from(slot.cores) * 10_000).saturating_sub(self.cores);
        let memory_left = slot.memory_effective.saturating_sub(memory);
        let left = cores_left.min(memory_left).min(slot.effective);
        Effect {
            room: (slot.effective - left).into(),
            value: (slot.value - numbers.value(left)).into(),
            size: self.cores.max(memory).min(1_000_000).into(),
        }
    }
}

/// What taking a part does to a card in some state: all of its cost that does not depend on the
/// node.
#[derive(Debug, Clone, Copy)]
pub(super) struct OnState {
    /// [`NO_CARD`] if it does not fit, else what the loss of value costs.
    value: i64,
    /// Room lost.
    room: i32,
    /// As in [`Effect`].
    size: i32,
}

impl OnState {
    pub(super) fn new(one: &One, slot: &Slot, numbers: &Numbers) -> Self {
        let Effect { room, value, size } = one.taking.effect(slot, numbers);
        // A card has a million of each.
        let small = |amount: i64| i32::try_from(amount).unwrap_or(i32::MAX);
        let value = if one.needs.are_met(slot) { VALUE * value } else { NO_CARD };
        Self { value, room: small(room), size: small(size) }
    }
}

/// The cost on the cheapest card of a node that fits; at least [`NO_CARD`] if none does.
fn cheapest(view: &View, one: &One, costs: &Costs, numbers: &Numbers) -> i64 {
    let cost = |on: OnState| {
        let room = costs.room - i64::from(on.room);
        costs.stranded(room) + OPEN * room + costs.price * i64::from(on.size) + on.value
    };
    let all = if let Some(known) = &one.by_state {
        // Nothing in this loop is decided by branches: which cards fit is as good as random.
        view.states.iter().map(|&state| cost(known[state as usize])).min()
    } else {
        let fitting = view.slots.iter().filter(|slot| one.needs.are_met(slot));
        fitting.map(|slot| cost(OnState::new(one, slot, numbers))).min()
    };
    all.unwrap_or(NO_CARD)
}

/// The card that loses least value first, then the first.
pub(super) fn card_key(free: &Free, part: Part, statistics: &Statistics) -> [u64; 2] {
    let device = &free.state.device;
    let worth = |cores: u64, memory: u64| {
        let by_memory =
            memory * 100_000 / device.memory.0.max(1) / statistics.card_memory_per_core.max(1);
        let percent = cores.min(by_memory).min(100);
        let index = usize::try_from(percent).unwrap_or(100);
        u64::from(statistics.value[index])
    };
    let (cores, memory) = (u64::from(free.cores.0), free.memory.0);
    let Part::Share { cores: asked, memory: ask } = part else { return [0, 0] };
    let after =
        worth(cores.saturating_sub(asked.0.into()), memory.saturating_sub(ask.of(device).0));
    let lost = worth(cores, memory).saturating_sub(after);
    [lost * VALUE.unsigned_abs() / 1024 / STEP.unsigned_abs(), cores]
}
