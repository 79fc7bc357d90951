//! Use what is idle, so that neighbours disturb one another least.

use model::Request;

use super::{Free, asks_memory_only, most};
use crate::board::{IDLE, SELLS, Spec, View};

/// The node with most idle cards first, then with most free, then with fewest cards.
pub(super) fn node_key(view: &View, spec: &Spec) -> u64 {
    let (mut cards, mut idle, mut cores, mut memory) = (0u64, 0u64, 0u64, 0u64);
    for slot in view.slots.iter().filter(|slot| slot.is(SELLS)) {
        cards += 1;
        idle += u64::from(slot.is(IDLE));
        cores += u64::from(slot.cores);
        memory += u64::from(slot.memory);
    }
    let free = if spec.memory_only { memory } else { cores };
    let few = |value: u64, bits: u32| ((1 << bits) - 1) - value.min((1 << bits) - 1);
    few(idle, 8) << 48 | few(free, 40) << 8 | cards
}

/// The emptiest card first.
pub(super) fn card_key(free: &Free, request: &Request) -> [u64; 2] {
    let (cores, memory) = (most(free.cores.0.into()), most(free.memory.0));
    if asks_memory_only(request) { [memory, cores] } else { [cores, memory] }
}
