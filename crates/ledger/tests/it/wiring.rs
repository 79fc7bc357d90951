//! Nodes that are wired alike share what is worked out from their wiring.

use std::sync::Arc;

use ledger::{Event, Ledger, NodeFacts};
use model::arb::node_name;
use model::{Node, Places, Profile};

use crate::build::facts;

fn machine(name: &str, profile: &str) -> NodeFacts {
    let inventory = Profile::named(profile).expect("a machine").inventory(name);
    NodeFacts { inventory: Some(Ok(inventory.expect("a prefix"))), ..facts(name, 0) }
}

fn node(ledger: &Ledger, name: &str) -> Arc<Node> {
    ledger.snapshot().node(&node_name(name)).expect("a node").clone()
}

#[test]
fn nodes_that_are_wired_alike_share_a_topology() {
    let machines = [("a", "t4x8"), ("b", "a10x8"), ("c", "dgx-h100"), ("d", "t4x8")];
    let mut ledger =
        Ledger::rebuild(machines.map(|(name, profile)| Event::Node(machine(name, profile))));
    let same = |ledger: &Ledger, one: &str, other: &str| {
        Arc::ptr_eq(&node(ledger, one).topology, &node(ledger, other).topology)
    };
    // The model of the cards is no matter.
    assert!(same(&ledger, "a", "b") && same(&ledger, "a", "d") && !same(&ledger, "a", "c"));
    assert_eq!(node(&ledger, "c").topology.sum(Places::first(2)), 1820);
    ledger.apply(Event::Node(machine("a", "dgx-h100")));
    assert!(same(&ledger, "a", "c") && same(&ledger, "b", "d"));
    // What changes nothing makes nothing anew.
    let before = node(&ledger, "b").topology.clone();
    ledger.apply(Event::Node(NodeFacts { pool: Some("x".into()), ..machine("b", "a10x8") }));
    assert!(Arc::ptr_eq(&before, &node(&ledger, "b").topology));
}

#[test]
fn an_inventory_that_cannot_be_read_has_no_topology() {
    let mut ledger = Ledger::rebuild([Event::Node(machine("a", "dgx-2"))]);
    assert_eq!(node(&ledger, "a").topology.count(), 16);
    ledger.apply(Event::Node(NodeFacts {
        inventory: Some(Err("damaged".into())),
        ..machine("a", "dgx-2")
    }));
    assert_eq!(node(&ledger, "a").topology.count(), 0);
}
