//! Use what is idle, so that neighbours disturb one another least.

use model::Request;

use super::{Free, Key, Totals, asks_memory_only, most};

/// The node with most idle cards first, then with most free, then with fewest cards.
pub(super) fn node_key(node: &Totals, request: &Request) -> Key {
    let free = if asks_memory_only(request) { node.memory.free } else { node.cores.free };
    [most(node.idle), most(free), node.cards, 0]
}

/// The emptiest card first.
pub(super) fn device_key(free: &Free, request: &Request) -> Key {
    let (cores, memory) = (most(free.cores.0.into()), most(free.memory.0));
    let (first, second) = if asks_memory_only(request) { (memory, cores) } else { (cores, memory) };
    [first, second, 0, 0]
}
