//! How nodes are ranked and cards are picked. One file a policy, each two pure keys.

mod binpack;
mod gpu_manager;
mod random;
mod spread;

use model::{
    Cores, DeviceState, Mebibytes, Node, Overrides, Places, PolicyName, Request, Topology,
};

/// How nodes are ranked, and how cards are picked on the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// For nodes.
    pub node: PolicyName,
    /// For cards.
    pub device: PolicyName,
}

impl Default for Policy {
    fn default() -> Self {
        Self { node: PolicyName::Binpack, device: PolicyName::Binpack }
    }
}

impl Policy {
    /// The same policy for both.
    pub const fn both(policy: PolicyName) -> Self {
        Self { node: policy, device: policy }
    }

    /// This policy, but for what the pod chose itself.
    #[must_use]
    pub fn overridden(self, by: Overrides) -> Self {
        Self { node: by.node.unwrap_or(self.node), device: by.device.unwrap_or(self.device) }
    }
}

/// What a policy sorts by: the lowest comes first. Ties go to the node's name, or to the card that
/// the idle ones miss least and then to its index, so that they always go the same way. A key of
/// cards has no index in it, or there would be no ties.
pub(crate) type Key = [u64; 4];

/// Where `node` stands for `request`.
pub(crate) fn node_key(policy: PolicyName, node: &Node, request: &Request) -> Key {
    match policy {
        // gpu-manager leaves nodes to others; filling them up suits its rules for cards.
        PolicyName::Binpack | PolicyName::GpuManager => {
            binpack::node_key(&Totals::of(node), request)
        }
        PolicyName::Spread => spread::node_key(&Totals::of(node), request),
        PolicyName::Random => random::key(request, node.name.as_str()),
    }
}

/// Where a card stands for `request`, with `free` of it left.
pub(crate) fn device_key(policy: PolicyName, free: &Free, request: &Request) -> Key {
    match policy {
        PolicyName::Binpack => binpack::device_key(free, request),
        PolicyName::Spread => spread::device_key(free, request),
        PolicyName::Random => random::key(request, free.state.device.id.as_str()),
        PolicyName::GpuManager => gpu_manager::device_key(free),
    }
}

/// The `wanted` whole cards of `free` that the policy takes, if it has a rule for whole cards.
pub(crate) fn whole_cards(
    policy: PolicyName,
    topology: &Topology,
    free: Places,
    wanted: u32,
) -> Option<Places> {
    match policy {
        PolicyName::GpuManager => gpu_manager::whole_cards(topology, free, wanted),
        _ => None,
    }
}

/// A card and what is left of it, this pod's own containers counted.
pub(crate) struct Free<'a> {
    pub(crate) state: &'a DeviceState,
    pub(crate) cores: Cores,
    pub(crate) memory: Mebibytes,
}

/// What the cards of a node that sell anything come to.
struct Totals {
    cards: u64,
    idle: u64,
    cores: Amounts,
    memory: Amounts,
}

struct Amounts {
    total: u64,
    free: u64,
}

impl Totals {
    fn of(node: &Node) -> Self {
        let mut totals = Self {
            cards: 0,
            idle: 0,
            cores: Amounts { total: 0, free: 0 },
            memory: Amounts { total: 0, free: 0 },
        };
        for state in node.devices.iter().filter(|state| state.sells()) {
            totals.cards += 1;
            totals.idle += u64::from(state.is_idle());
            totals.cores.add(state.device.cores.0.into(), state.free_cores().0.into());
            totals.memory.add(state.device.memory.0, state.free_memory().0);
        }
        totals
    }
}

impl Amounts {
    fn add(&mut self, total: u64, free: u64) {
        self.total = self.total.saturating_add(total);
        self.free = self.free.saturating_add(free);
    }

    /// How much is free, in billionths of all.
    fn free_ratio(&self) -> u64 {
        let scaled = u128::from(self.free) * 1_000_000_000 / u128::from(self.total.max(1));
        u64::try_from(scaled).unwrap_or(u64::MAX)
    }
}

/// Whether the pod asks for memory only: then memory leads, else compute does.
fn asks_memory_only(request: &Request) -> bool {
    let no_cores = |part| matches!(part, model::Part::Share { cores: Cores::ZERO, .. });
    request.containers.iter().all(|container| no_cores(container.part))
}

/// The more the better, as a key.
const fn most(value: u64) -> u64 {
    u64::MAX - value
}
