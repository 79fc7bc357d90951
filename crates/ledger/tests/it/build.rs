//! Small worlds for the tests.

use std::sync::Arc;

use ledger::{Event, Ledger, NodeFacts};
use model::arb::{card, container_name, device_id, node_name};
use model::{
    Bytes, Claim, ContainerPlacement, Cores, Device, DeviceState, Grant, Holder, Host, Inventory,
    Mebibytes, MilliCpu, Moment, Node, Placement, PodId, PodUid, Portion, Role, Share,
};

pub(crate) const HOST: Host = Host { cpu: MilliCpu(8000), memory: Bytes(1 << 34) };

pub(crate) fn uid(text: &str) -> PodUid {
    PodUid::parse(text).unwrap()
}

/// A node with cards named after it, of 1,000 MiB each.
pub(crate) fn facts(name: &str, cards: u32) -> NodeFacts {
    let device = |index| {
        let id = device_id(&format!("GPU-{name}-{index}"));
        Arc::new(Device { id, memory: Mebibytes(1000), ..card(index) })
    };
    let inventory = Inventory { devices: (0..cards).map(device).collect(), links: Vec::new() };
    NodeFacts {
        name: node_name(name),
        allocatable: HOST,
        pool: None,
        shunned: false,
        inventory: Some(Ok(inventory)),
        tickets: [("nano-gpu/gpu-percent".to_owned(), u64::from(cards) * 100)].into(),
    }
}

/// A ledger with these nodes, all heard of.
pub(crate) fn ledger(nodes: Vec<NodeFacts>) -> Ledger {
    let mut ledger = Ledger::new();
    for facts in nodes {
        ledger.apply(Event::Heartbeat { node: facts.name.clone(), at: Moment(0) });
        ledger.apply(Event::Node(facts));
    }
    ledger
}

pub(crate) fn share(cores: u32, memory: u64) -> Portion {
    Portion::Share(Share { cores: Cores(cores), memory: Mebibytes(memory) })
}

/// A pod on `node` with these containers: role and cards by index with their portions.
pub(crate) fn pod(name: &str, node: &str, containers: &[(Role, &[(u32, Portion)])]) -> Holder {
    let containers = containers.iter().enumerate().map(|(i, (role, cards))| {
        let grant = |(index, portion): &(u32, Portion)| Grant {
            device: device_id(&format!("GPU-{node}-{index}")),
            portion: *portion,
        };
        let grants = cards.iter().map(grant).collect();
        ContainerPlacement { name: container_name(&format!("c{i}")), role: *role, grants }
    });
    let placement = Placement::new(node_name(node), containers.collect()).unwrap();
    Holder {
        pod: PodId {
            namespace: "team-a".into(),
            name: name.into(),
            uid: uid(&format!("uid-{name}")),
        },
        node: node_name(node),
        claim: Claim::of(&placement),
        host: Host { cpu: MilliCpu(1000), memory: Bytes(1 << 30) },
        tickets: Vec::new(),
        priority: 0,
        terminating: false,
    }
}

/// A pod with one container on one card.
pub(crate) fn simple(name: &str, node: &str, card: u32, cores: u32, memory: u64) -> Holder {
    pod(name, node, &[(Role::App, &[(card, share(cores, memory))])])
}

pub(crate) fn node(ledger: &Ledger, name: &str) -> Node {
    ledger.snapshot().node(&node_name(name)).unwrap().as_ref().clone()
}

pub(crate) fn free(state: &DeviceState) -> (u32, u64) {
    (state.free_cores().0, state.free_memory().0)
}

/// What is free on each card of `name`.
pub(crate) fn frees(ledger: &Ledger, name: &str) -> Vec<(u32, u64)> {
    node(ledger, name).devices.iter().map(free).collect()
}
