//! Small worlds for the tests.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::arb::{card, container_name, device_id, node_name};
use model::{
    Affinity, Agent, Allowance, Bytes, CardModel, ContainerRequest, Cores, Device, DeviceState,
    Health, Hold, Host, Inventory, Mebibytes, MemoryAsk, MilliCpu, Node, Overrides, Part,
    Placement, PodId, PodUid, Profile, Request, Role, Selector, Snapshot, Statistics, Topology,
};
use placement::{Ask, NodeRefusal, Policy};

pub(crate) const HOST: Host = Host { cpu: MilliCpu(64_000), memory: Bytes(1 << 38) };

/// A node with no card yet.
pub(crate) fn node(name: &str) -> Node {
    Node {
        name: node_name(name),
        allocatable: HOST,
        free: HOST,
        pool: None,
        shunned: false,
        agent: Agent::Fresh,
        problem: None,
        devices: Vec::new(),
        topology: Arc::default(),
        tickets: BTreeMap::new(),
        holders: Vec::new(),
        missing: Vec::new(),
    }
}

/// A node with these cards and links, all idle.
pub(crate) fn wired(name: &str, inventory: &Inventory) -> Node {
    let states = inventory.devices.iter().cloned().map(DeviceState::idle);
    let topology = Topology::new(&inventory.devices, &inventory.links);
    Node { devices: states.collect(), topology: Arc::new(topology), ..node(name) }
}

/// A machine people have, all its cards idle but these.
pub(crate) fn machine(profile: &str, taken: &[usize]) -> Node {
    let profile = Profile::named(profile).expect("a machine");
    let mut node = wired("a", &profile.inventory("GPU").expect("a prefix"));
    for &place in taken {
        hold_whole(&mut node, place);
    }
    node
}

/// Somebody takes a whole card.
pub(crate) fn hold_whole(node: &mut Node, place: usize) {
    let device = &node.devices[place].device;
    let hold = Hold { cores: device.cores, memory: device.memory, whole: true };
    node.devices[place].used.add(&hold);
}

pub(crate) trait Cards: Sized {
    fn add(self, alter: impl FnOnce(&mut DeviceState)) -> Self;

    /// A card of 10,000 MiB of which this much compute and the same part of memory are free.
    fn left(self, percent: u32) -> Self {
        self.free(percent, u64::from(percent) * 100)
    }

    /// A card of 10,000 MiB of which this much is free.
    fn free(self, percent: u32, memory: u64) -> Self {
        self.add(|state| take(state, 100 - percent, 10_000 - memory))
    }

    /// A card of this model and size, all free.
    fn model(self, model: &str, memory: u64) -> Self {
        self.add(|state| {
            device(state).model = CardModel::new(model);
            device(state).memory = Mebibytes(memory);
        })
    }

    fn sick(self) -> Self {
        self.add(|state| device(state).health = Health::Sick)
    }
}

impl Cards for Node {
    fn add(mut self, alter: impl FnOnce(&mut DeviceState)) -> Self {
        let index = u32::try_from(self.devices.len()).unwrap();
        let id = device_id(&format!("GPU-{}-{index}", self.name));
        let device = Device { id, memory: Mebibytes(10_000), ..card(index) };
        let mut state = DeviceState::idle(Arc::new(device));
        alter(&mut state);
        self.devices.push(state);
        self
    }
}

/// The card itself, to be altered.
pub(crate) fn device(state: &mut DeviceState) -> &mut Device {
    Arc::make_mut(&mut state.device)
}

pub(crate) fn take(state: &mut DeviceState, cores: u32, memory: u64) {
    if (cores, memory) != (0, 0) {
        let hold = Hold { cores: Cores(cores), memory: Mebibytes(memory), whole: false };
        state.used.add(&hold);
    }
}

pub(crate) fn percent(part: u32) -> Part {
    Part::Share { cores: Cores(part), memory: MemoryAsk::Percent(Cores(part)) }
}

pub(crate) fn share(cores: u32, memory: u64) -> Part {
    Part::Share { cores: Cores(cores), memory: MemoryAsk::Exact(Mebibytes(memory)) }
}

/// A request of app containers, one for each of these.
pub(crate) fn apps(parts: &[(u32, Part)]) -> Request {
    request(&parts.iter().map(|&(cards, part)| (Role::App, cards, part)).collect::<Vec<_>>())
}

pub(crate) fn request(containers: &[(Role, u32, Part)]) -> Request {
    let containers = containers.iter().enumerate().map(|(i, &(role, cards, part))| {
        let name = container_name(&format!("c{i}"));
        ContainerRequest { name, role, cards, part, burst: None }
    });
    Request {
        pod: PodId {
            namespace: "team-a".into(),
            name: "pod".into(),
            uid: PodUid::parse("uid-1").unwrap(),
        },
        containers: containers.collect(),
        one_card: false,
        selector: Selector::default(),
        affinity: Affinity::default(),
        overrides: Overrides::default(),
        host: Host::default(),
        tickets: Vec::new(),
        priority: 0,
    }
}

pub(crate) fn ask(request: &Request, policy: Policy) -> Ask<'_> {
    static NOTHING_LEARNED: std::sync::LazyLock<Arc<Statistics>> =
        std::sync::LazyLock::new(Arc::default);
    let allowance = Allowance::unlimited();
    Ask { request, allowance, policy, statistics: &NOTHING_LEARNED }
}

/// The indexes of the cards each container got.
pub(crate) fn indexes(node: &Node, placement: &Placement) -> Vec<Vec<u32>> {
    let index = |id: &model::DeviceId| node.device(id).unwrap().device.index;
    let containers = placement.containers().iter();
    containers.map(|c| c.grants.iter().map(|grant| index(&grant.device)).collect()).collect()
}

pub(crate) fn choose(
    node: &Node,
    request: &Request,
    policy: Policy,
) -> Result<Vec<Vec<u32>>, NodeRefusal> {
    placement::choose(node, &ask(request, policy)).map(|placement| indexes(node, &placement))
}

pub(crate) fn snapshot(nodes: Vec<Node>) -> Snapshot {
    Snapshot::new(nodes.into_iter().map(Arc::new).collect(), Arc::default())
}
