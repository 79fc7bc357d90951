//! Keep room on cards from being stranded, and rare nodes for those who need them.
//!
//! The cost of a placement, in millionths of a card:
//!
//! ```text
//!   what the host's CPU or memory can no longer serve     S(after) - S(before)
//! + how wanted this kind of node is by others             price * what is taken
//! + what the rest of the card is worth less to shares     0.3 * (V(before) - V(after))
//! + a little for every node that stays open               0.03 * room(after)
//! ```
//!
//! S(node) = max(0, room - CPU left / CPU per card, room - memory left / memory per card), where
//! the latter come from the pods seen so far; V(x) = x times the chance that a share fits in x.
//! Costs closer than a fiftieth of a card are equal, and equal nodes go in order: packing.

use model::{Part, Statistics};

use super::{Free, Taken};
use crate::board::{Numbers, OnePart, Slot, Spec, View, percent};

/// Costs are compared in steps of this.
const STEP: i64 = 20_000;
const CARD: i64 = 1_000_000;
/// Keeps every cost positive.
const OFFSET: i64 = 1 << 50;

/// The cheapest way first.
pub(super) fn node_key(view: &View, spec: &Spec, numbers: &Numbers, taken: Taken) -> u64 {
    let row = view.row;
    let (cpu, memory) = (row.cpu - spec.cpu, row.memory - spec.memory);
    let price = numbers.prices[row.shape as usize];
    let cost = |left: i64, lost_value: i64, size: i64| {
        let stranded = numbers.stranded(row.room - left, cpu, memory) - row.stranded;
        stranded + price * size / 1000 + 3 * lost_value / 10 + 3 * (row.room - left) / 100
    };
    let cost = match taken {
        Taken::Host => {
            // A pod without a card takes as much of the node as it takes of its CPU.
            let cards = i64::from(row.len) * CARD;
            let part = i128::from(spec.cpu) * i128::from(cards) / i128::from(row.all_cpu);
            cost(0, 0, i64::try_from(part).unwrap_or(cards))
        }
        Taken::One { cards: 1, part } => {
            let fitting = view.slots.iter().filter(|slot| spec.fits(slot, part));
            let costs = fitting.map(|slot| {
                let (left, value, size) = effect(slot, part, numbers);
                cost(left, value, size)
            });
            costs.min().unwrap_or(OFFSET)
        }
        Taken::One { cards, part } => {
            let fitting = view.slots.iter().filter(|slot| spec.fits(slot, part));
            let mut effects: Vec<_> = fitting.map(|slot| effect(slot, part, numbers)).collect();
            effects.sort_by_key(|(_, value, _)| value / STEP);
            let sum = effects.iter().take(cards as usize);
            let (left, value, size) =
                sum.fold((0, 0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1, sum.2 + one.2));
            cost(left, value, size)
        }
        Taken::Several(holds) => {
            let effects = holds.iter().map(|(place, hold)| {
                let cores = u16::try_from(hold.cores.0).unwrap_or(u16::MAX);
                let memory = u32::try_from(hold.memory.0).unwrap_or(u32::MAX);
                let part =
                    if hold.whole { OnePart::Whole } else { OnePart::Exact { cores, memory } };
                effect(&view.slots[*place], part, numbers)
            });
            let (left, value, size) =
                effects.fold((0, 0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1, sum.2 + one.2));
            cost(left, value, size)
        }
    };
    ((cost + OFFSET) / STEP).unsigned_abs()
}

/// What `part` of `slot` does: room lost, value lost, size taken.
fn effect(slot: &Slot, part: OnePart, numbers: &Numbers) -> (i64, i64, i64) {
    let before = i64::from(slot.effective);
    let (cores, memory) = match part {
        OnePart::Whole => return (before, value(numbers, before), CARD),
        OnePart::Exact { cores, memory } => (cores, memory),
        OnePart::Percent { cores, part } => (cores, percent(slot, part)),
    };
    let by_memory = numbers.memory_as_compute(memory, slot.all_memory);
    let cores_left = i64::from(slot.cores.saturating_sub(cores)) * 10_000;
    let memory_left = i64::from(slot.memory_effective.saturating_sub(by_memory));
    let after = cores_left.min(memory_left);
    let size = (i64::from(cores) * 10_000).max(i64::from(by_memory)).min(CARD);
    (before - after, value(numbers, before) - value(numbers, after), size)
}

fn value(numbers: &Numbers, effective: i64) -> i64 {
    let percent = usize::try_from(effective / 10_000).unwrap_or(0).min(100);
    numbers.value.get(percent).copied().unwrap_or(0)
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
    [lost * 3 / 10 / STEP.unsigned_abs(), 0]
}
