//! Keep room on cards from being stranded, and rare nodes for those who need them.
//!
//! The cost of a placement, in millionths of a card:
//!
//! ```text
//!   what the host's CPU or memory can no longer serve     S(after) - S(before)
//! + how wanted this kind of node is by others             1.25 * price * what is taken
//! + what the rest of the card is worth less to shares     0.6 * (V(before) - V(after))
//! + a little for every node that stays open               0.025 * room(after)
//! ```
//!
//! S(node) = max(0, room - CPU left / CPU per card, room - memory left / memory per card), where
//! the latter come from the pods seen so far; V(x) = x times the chance that a share fits in x.
//! Costs closer than a fiftieth of a card are equal, and equal nodes go in order: packing.

use model::{Part, Statistics};

use super::{Free, Taken};
use crate::board::{Numbers, OnePart, REFUSED, Slot, Spec, View};

/// The weights, in 1024ths. Chosen on a few of the public workloads and confirmed on others and
/// on fresh seeds; docs/placement.md has what was tried.
const PRICE: i64 = 1280;
const VALUE: i64 = 614;
const OPEN: i64 = 26;
/// Costs are compared in steps of this.
const STEP: i64 = 20_000;
const CARD: i64 = 1_000_000;
/// Keeps every cost positive.
const OFFSET: i64 = 1 << 50;

/// The cheapest way first; [`REFUSED`] if a pod of one card fits on none.
pub(super) fn node_key(view: &View, spec: &Spec, numbers: &Numbers, taken: Taken) -> u64 {
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
        Taken::One { cards, part } => {
            let (needs, mut weighing) = (spec.needs(part), Weighing::new(part, numbers));
            let fitting = view.slots.iter().filter(|slot| needs.are_met(slot));
            if cards == 1 {
                match fitting.map(|slot| costs.of(weighing.effect(slot))).min() {
                    Some(cost) => cost,
                    None => return REFUSED,
                }
            } else {
                let mut effects: Vec<Effect> = fitting.map(|slot| weighing.effect(slot)).collect();
                effects.sort_by_key(|effect| effect.value / STEP);
                costs.of(effects.into_iter().take(cards as usize).sum())
            }
        }
        Taken::Several(holds) => {
            let effects = holds.iter().map(|(place, hold)| {
                let cores = u16::try_from(hold.cores.0).unwrap_or(u16::MAX);
                let memory = u32::try_from(hold.memory.0).unwrap_or(u32::MAX);
                let part =
                    if hold.whole { OnePart::Whole } else { OnePart::Exact { cores, memory } };
                Weighing::new(part, numbers).effect(&view.slots[*place])
            });
            costs.of(effects.sum())
        }
    };
    (((cost >> 10) - row.stranded + OFFSET) / STEP).unsigned_abs()
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
        let stranded = room.saturating_sub(self.served).max(0);
        (stranded << 10) + self.price * effect.size + VALUE * effect.value + OPEN * room
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

/// Weighs one part on one card after the other.
struct Weighing<'a> {
    numbers: &'a Numbers,
    /// Compute taken.
    cores: u32,
    /// Memory taken, as an amount; nothing if `by_memory` holds for every card.
    memory: Option<u32>,
    /// What the memory is worth in compute on cards of `all_memory`: cards of a node are mostly
    /// equal.
    all_memory: u32,
    by_memory: u32,
}

impl<'a> Weighing<'a> {
    fn new(part: OnePart, numbers: &'a Numbers) -> Self {
        let whole =
            Self { numbers, cores: 1_000_000, memory: None, all_memory: 0, by_memory: 1_000_000 };
        match part {
            OnePart::Whole => whole,
            OnePart::Percent { cores, part } => {
                let by_memory = numbers.percent_as_compute(part);
                Self { cores: u32::from(cores) * 10_000, by_memory, ..whole }
            }
            OnePart::Exact { cores, memory } => {
                Self { cores: u32::from(cores) * 10_000, memory: Some(memory), ..whole }
            }
        }
    }

    fn effect(&mut self, slot: &Slot) -> Effect {
        if let Some(memory) = self.memory.filter(|_| self.all_memory != slot.all_memory) {
            self.by_memory = self.numbers.memory_as_compute(memory, slot.all_memory);
            self.all_memory = slot.all_memory;
        }
        let cores_left = (u32::from(slot.cores) * 10_000).saturating_sub(self.cores);
        let memory_left = slot.memory_effective.saturating_sub(self.by_memory);
        let after = cores_left.min(memory_left).min(slot.effective);
        Effect {
            room: (slot.effective - after).into(),
            value: (slot.value - self.numbers.value(after)).into(),
            size: self.cores.max(self.by_memory).min(1_000_000).into(),
        }
    }
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
