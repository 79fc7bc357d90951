//! Who has to leave, who never does, and why nobody should.

mod exhaustive;
mod limits;
mod proposed;
mod victims;

use std::sync::Arc;

use model::arb::node_name;
use model::{Claim, Claimed, DeviceRef, Holder, Host, Node, Part, PodId, PodUid, Request, Role};
use placement::{Ask, Budget, Policy};

use crate::build::{Cards, apps, node, snapshot};

const NOBODY: &str = "no pod of lower priority holds what this pod needs";
const BUDGET: &str = "a disruption budget forbids every way";

/// A pod of team-b on some node. Its UID is its name.
fn pod(name: &str, priority: i32, parts: &[(u32, Part)]) -> Holder {
    let parts = parts.iter().map(|&(card, part)| (DeviceRef::Index(card), part)).collect();
    Holder {
        pod: PodId { namespace: "team-b".into(), name: name.into(), uid: uid(name) },
        node: node_name("any"),
        claim: Claim::Shares(vec![Claimed { role: Role::App, parts }]),
        host: Host::default(),
        tickets: Vec::new(),
        priority,
        terminating: false,
    }
}

fn uid(name: &str) -> PodUid {
    PodUid::parse(name).expect("a UID")
}

fn altered(mut holder: Holder, alter: impl FnOnce(&mut Holder)) -> Holder {
    alter(&mut holder);
    holder
}

fn altered_node(mut node: Node, alter: impl FnOnce(&mut Node)) -> Node {
    alter(&mut node);
    node
}

fn leaving(holder: Holder) -> Holder {
    altered(holder, |holder| holder.terminating = true)
}

/// A node with so many cards and these pods on it.
fn world(name: &str, cards: u32, pods: impl IntoIterator<Item = Holder>) -> Node {
    let mut node = (0..cards).fold(node(name), |node, _| node.left(100));
    pods.into_iter().for_each(|pod| node.count(Arc::new(pod)));
    node
}

/// A pod of priority 10 that asks for these.
fn wants(parts: &[(u32, Part)]) -> Request {
    Request { priority: 10, ..apps(parts) }
}

fn budget(pods: &[&str], allowed: u32) -> Budget {
    Budget { pods: pods.iter().map(|name| uid(name)).collect(), allowed }
}

fn answer(nodes: Vec<Node>, request: &Request, budgets: &[Budget]) -> String {
    let snapshot = snapshot(nodes);
    let ask = Ask::new(&snapshot, request, Policy::default());
    match placement::preempt(&snapshot, &ask, budgets) {
        Ok(preemption) => preemption.to_string(),
        Err(reason) => reason.to_string(),
    }
}
