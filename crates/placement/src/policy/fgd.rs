//! Fragmentation gradient descent: let the pods that come find as much usable room as before.
//!
//! F(node) is the room that a typical pod could not use, averaged over the typical pods; the
//! node and card that raise it least come first. Known from the literature, and coarse as it is
//! there (a whole number of 0 to 100 by a sigmoid), because the ties this makes pack nodes.

use model::Part;

use super::{Free, Taken};
use crate::board::{Board, Numbers, OnePart, SELLS, Slot, Spec, Typical, View, bit};

/// The best score first.
pub(super) fn node_key(view: &View, spec: &Spec, numbers: &Numbers, taken: Taken) -> u64 {
    let mut cards = Cards::of(view.slots);
    let cpu = view.row.cpu;
    let before = fragmentation(&cards, cpu, &numbers.typical);
    let left = cpu - spec.cpu;
    let drop = match taken {
        Taken::Host => before - fragmentation(&cards, left, &numbers.typical),
        Taken::One(one) if one.cards == 1 && !matches!(one.part, OnePart::Whole) => {
            let cores = milli(one.part);
            let mut best = i64::MIN;
            for i in one.fitting(view) {
                cards.free[i] -= cores;
                best = best.max(before - fragmentation(&cards, left, &numbers.typical));
                cards.free[i] += cores;
            }
            best
        }
        Taken::One(one) => {
            for i in one.fitting(view).take(one.cards as usize) {
                cards.free[i] -= milli(one.part).min(cards.free[i]);
            }
            before - fragmentation(&cards, left, &numbers.typical)
        }
        Taken::Several(holds, _) => {
            for (place, hold) in holds {
                let cores = if hold.whole { 1000 } else { hold.cores.0.saturating_mul(10) };
                cards.free[*place] -= cores.min(cards.free[*place]);
            }
            before - fragmentation(&cards, left, &numbers.typical)
        }
    };
    100 - score(drop)
}

/// The card that leaves least unusable room first, then the first.
pub(super) fn card_key(free: &Free, part: Part, board: Option<&Board>) -> [u64; 2] {
    let Part::Share { cores: asked, .. } = part else { return [0, 0] };
    let Some((view, numbers)) = board.and_then(Board::only) else { return [0, 0] };
    let mut cards = Cards::of(view.slots);
    let place = free.state.device.index as usize;
    let Some(card) = cards.free.get_mut(place) else { return [0, 0] };
    *card = free.cores.0.saturating_mul(10).saturating_sub(asked.0.saturating_mul(10));
    let after = fragmentation(&cards, view.row.cpu, &numbers.typical);
    [after.unsigned_abs(), 0]
}

/// What is left on each card of a node, in thousandths.
struct Cards<'a> {
    slots: &'a [Slot],
    free: Vec<u32>,
}

impl<'a> Cards<'a> {
    fn of(slots: &'a [Slot]) -> Self {
        let free = |slot: &Slot| if slot.is(SELLS) { u32::from(slot.cores) * 10 } else { 0 };
        Self { slots, free: slots.iter().map(free).collect() }
    }
}

/// F(node), in billionths of a card.
fn fragmentation(cards: &Cards, cpu: u64, typical: &[Typical]) -> i64 {
    let all: u64 = cards.free.iter().map(|&free| u64::from(free)).sum();
    let mut sum = 0u64;
    for pod in typical {
        let useless = if pod.cards == 0 || cpu < pod.cpu {
            all
        } else {
            let (mut fitting, mut small) = (0, 0u64);
            for (slot, &free) in cards.slots.iter().zip(&cards.free) {
                if pod.models & bit(slot.model.into()) != 0 && free >= pod.milli {
                    fitting += 1;
                } else {
                    small += u64::from(free);
                }
            }
            if fitting < pod.cards { all } else { small }
        };
        sum += useless * pod.weight;
    }
    i64::try_from(sum).unwrap_or(i64::MAX)
}

fn milli(part: OnePart) -> u32 {
    match part {
        OnePart::Whole => 1000,
        OnePart::Exact { cores, .. } | OnePart::Percent { cores, .. } => u32::from(cores) * 10,
    }
}

/// The change as a whole number of 0 to 100, 50 for none.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a sigmoid of a few thousand, cut to 0..=100"
)]
fn score(drop: i64) -> u64 {
    let cards = drop as f64 / 1e9;
    (100.0 / (1.0 + (-cards).exp())) as u64
}
