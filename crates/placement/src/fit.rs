//! May this node take the pod?

use model::{Agent, Node, Problem};

use crate::Ask;
use crate::explain::why;
use crate::refusal::{NodeRefusal, Refusal};
use crate::search::Search;

/// Whether `node` can take the pod now, or why not.
pub fn fit(node: &Node, ask: &Ask) -> Result<(), NodeRefusal> {
    solve(node, ask).map(|_| ())
}

/// The first way to place the pod on `node`, in the order of the device policy.
pub(crate) fn solve<'a>(node: &'a Node, ask: &'a Ask) -> Result<Search<'a>, NodeRefusal> {
    if let Some(reason) = closed(node, ask) {
        return Err(NodeRefusal::new(node, ask, reason));
    }
    let mut search = Search::new(node, ask);
    if short(node, ask).is_none() && search.run() {
        return Ok(search);
    }
    Err(NodeRefusal::new(node, ask, why(node, ask, &search)))
}

/// What keeps the node from taking this pod whatever is free on it.
fn closed(node: &Node, ask: &Ask) -> Option<Refusal> {
    match node.agent {
        Agent::Never => return Some(Refusal::NoAgent),
        Agent::Stale => return Some(Refusal::StaleAgent),
        Agent::Fresh => {}
    }
    match node.problem {
        Some(Problem::Inventory(_)) => return Some(Refusal::BadInventory),
        Some(Problem::Holder(_)) => return Some(Refusal::BadHolder),
        None => {}
    }
    if node.devices.is_empty() {
        return Some(Refusal::NoCards);
    }
    if !ask.allowance.admits_pool(node.pool.as_deref()) {
        return Some(Refusal::Pool { namespace: ask.request.pod.namespace.clone() });
    }
    None
}

/// What is too short beside the cards.
pub(crate) fn short(node: &Node, ask: &Ask) -> Option<Refusal> {
    for (resource, count) in &ask.request.tickets {
        let tickets = node.tickets.get(resource).copied().unwrap_or_default();
        let (resource, count) = (resource.clone(), *count);
        if tickets.total < count {
            return Some(Refusal::NotOffered { resource, count });
        }
        if tickets.free() < count {
            return Some(Refusal::TicketsShort { resource, count });
        }
    }
    (!node.free.covers(&ask.request.host)).then_some(Refusal::HostShort)
}
