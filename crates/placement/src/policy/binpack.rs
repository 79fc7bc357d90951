//! Fill what is already in use, so that whole cards and whole nodes stay free.

use model::Request;

use super::{Free, asks_memory_only};
use crate::board::{SELLS, Spec, View};

/// The fullest node first, then the smallest.
pub(super) fn node_key(view: &View, spec: &Spec) -> u64 {
    let (mut cards, mut cores, mut memory) = (0u64, (0u64, 0u64), (0u64, 0u64));
    for slot in view.slots.iter().filter(|slot| slot.is(SELLS)) {
        cards += 1;
        cores = (cores.0 + u64::from(slot.cores), cores.1 + u64::from(slot.all_cores));
        memory = (memory.0 + u64::from(slot.memory), memory.1 + u64::from(slot.all_memory));
    }
    let (first, second) = if spec.memory_only { (memory, cores) } else { (cores, memory) };
    ratio(first) << 31 | ratio(second) << 7 | cards.min(127)
}

/// How much is free, in 24 bits.
fn ratio((free, all): (u64, u64)) -> u64 {
    free * ((1 << 24) - 1) / all.max(1)
}

/// The fullest card first.
pub(super) fn card_key(free: &Free, request: &Request) -> [u64; 2] {
    let (cores, memory) = (u64::from(free.cores.0), free.memory.0);
    if asks_memory_only(request) { [memory, cores] } else { [cores, memory] }
}
