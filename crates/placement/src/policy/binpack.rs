//! Fill what is already in use, so that whole cards and whole nodes stay free.

use model::Request;

use super::{Free, Key, Totals, asks_memory_only};

/// The fullest node first, then the smallest.
pub(super) fn node_key(node: &Totals, request: &Request) -> Key {
    let (cores, memory) = (node.cores.free_ratio(), node.memory.free_ratio());
    let (first, second) = if asks_memory_only(request) { (memory, cores) } else { (cores, memory) };
    [first, second, node.cards, 0]
}

/// The fullest card first.
pub(super) fn device_key(free: &Free, request: &Request) -> Key {
    let (cores, memory) = (u64::from(free.cores.0), free.memory.0);
    let (first, second) = if asks_memory_only(request) { (memory, cores) } else { (cores, memory) };
    [first, second, 0, 0]
}
