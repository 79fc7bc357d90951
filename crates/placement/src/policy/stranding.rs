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
    let served = numbers.served(row.cpu - spec.cpu, row.memory - spec.memory);
    let price = numbers.prices[row.shape as usize];
    let cost = |effect: Effect| {
        let room = row.room - effect.room;
        let stranded = room.saturating_sub(served).max(0) - row.stranded;
        let weighted = PRICE * price * effect.size / 1024 + VALUE * effect.value + OPEN * room;
        stranded + (weighted >> 10)
    };
    let cost = match taken {
        Taken::Host => {
            // A pod without a card takes as much of the node as it takes of its CPU.
            let cards = i64::from(row.len) * CARD;
            let part = i128::from(spec.cpu) * i128::from(cards) / i128::from(row.all_cpu);
            let size = i64::try_from(part).unwrap_or(cards);
            cost(Effect { size, ..Effect::default() })
        }
        Taken::One { cards: 1, part } => {
            let mut weighing = Weighing::new(part, numbers);
            let fitting = view.slots.iter().filter(|slot| spec.fits(slot, part));
            match fitting.map(|slot| cost(weighing.effect(slot))).min() {
                Some(cost) => cost,
                None => return REFUSED,
            }
        }
        Taken::One { cards, part } => {
            let mut weighing = Weighing::new(part, numbers);
            let fitting = view.slots.iter().filter(|slot| spec.fits(slot, part));
            let mut effects: Vec<Effect> = fitting.map(|slot| weighing.effect(slot)).collect();
            effects.sort_by_key(|effect| effect.value / STEP);
            cost(effects.into_iter().take(cards as usize).sum())
        }
        Taken::Several(holds) => {
            let effects = holds.iter().map(|(place, hold)| {
                let cores = u16::try_from(hold.cores.0).unwrap_or(u16::MAX);
                let memory = u32::try_from(hold.memory.0).unwrap_or(u32::MAX);
                let part =
                    if hold.whole { OnePart::Whole } else { OnePart::Exact { cores, memory } };
                Weighing::new(part, numbers).effect(&view.slots[*place])
            });
            cost(effects.sum())
        }
    };
    ((cost + OFFSET) / STEP).unsigned_abs()
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
    part: OnePart,
    numbers: &'a Numbers,
    /// What an amount of memory is on cards of this size: cards of a node are mostly equal.
    memory: (u32, u32),
}

impl<'a> Weighing<'a> {
    fn new(part: OnePart, numbers: &'a Numbers) -> Self {
        let by_memory = match part {
            OnePart::Percent { part, .. } => numbers.percent_as_compute(part),
            OnePart::Whole | OnePart::Exact { .. } => 0,
        };
        Self { part, numbers, memory: (0, by_memory) }
    }

    fn effect(&mut self, slot: &Slot) -> Effect {
        let cores = match self.part {
            OnePart::Whole => {
                let (room, value) = (slot.effective.into(), slot.value.into());
                return Effect { room, value, size: CARD };
            }
            OnePart::Percent { cores, .. } => cores,
            OnePart::Exact { cores, memory } => {
                if self.memory.0 != slot.all_memory {
                    let by_memory = self.numbers.memory_as_compute(memory, slot.all_memory);
                    self.memory = (slot.all_memory, by_memory);
                }
                cores
            }
        };
        let by_memory = self.memory.1;
        let asked = u32::from(cores) * 10_000;
        let cores_left = u32::from(slot.cores) * 10_000 - asked;
        let memory_left = slot.memory_effective.saturating_sub(by_memory);
        let after = cores_left.min(memory_left).min(slot.effective);
        Effect {
            room: (slot.effective - after).into(),
            value: (slot.value - self.numbers.value(after)).into(),
            size: asked.max(by_memory).min(1_000_000).into(),
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
