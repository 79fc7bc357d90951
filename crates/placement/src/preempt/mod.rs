//! Who would have to leave so that a pod fits?
//!
//! ```text
//!   preempt     over all nodes: the best node and the best set of victims
//!   preempt_on  on one node, beginning with the victims kube-scheduler proposes
//! ```
//!
//! The best answer has the fewest victims; then the lowest priorities, compared from the highest
//! down; then it throws out the least work; then the node's name and the pods' UIDs decide. All
//! victims have a lower priority than the pod and none is needless: were one of them to stay, the
//! pod would not fit. That it does fit is asked of [`fit`] on the node without them.
//!
//! Pods that are already leaving are counted as gone, so that nobody is evicted for room that
//! will come anyway. Nothing is evicted here: this only says who it would be.

mod answer;
mod needs;
mod sets;
mod site;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use model::{Allowance, Holder, Node, NodeName, PodUid, Snapshot};

use crate::Ask;
use crate::fit::{fit, short};
use crate::refusal::Refusal;

pub use answer::{Budget, NoPreemption, Preemption, Thoroughness};

use needs::{Fate, Needs};
use sets::{Found, MOST_STEPS_IN_ALL, Sets};
use site::{Site, holds, relieved};

/// The node and the pods whose eviction makes room for the pod at the least cost, or why none
/// should be evicted.
pub fn preempt(
    snapshot: &Snapshot,
    ask: &Ask,
    budgets: &[Budget],
) -> Result<Preemption, NoPreemption> {
    let nodes: Vec<(&Node, Option<Refusal>)> = snapshot
        .nodes()
        .iter()
        .map(|node| (node.as_ref(), fit(node, ask).err().map(|refusal| refusal.reason)))
        .collect();
    if let Some((node, _)) = nodes.iter().find(|(_, refusal)| refusal.is_none()) {
        return Err(NoPreemption::Fits { node: node.name.clone() });
    }
    let allowance = once_left(snapshot, ask);
    let mut searches = Vec::new();
    let mut obstacle = NoPreemption::NoNode;
    for (place, (node, refusal)) in nodes.iter().enumerate() {
        if refusal.as_ref().is_some_and(Refusal::is_permanent) {
            continue;
        }
        let site = Site::new(node, ask, &allowance, budgets);
        match search(site, place, budgets, &[]) {
            Ok(search) => searches.push(search),
            Err(waiting @ NoPreemption::Waiting { .. }) => return Err(waiting),
            Err(other) => obstacle = obstacle.max(other),
        }
    }
    best(searches).map_err(|none| none.max(obstacle))
}

/// The pods to evict on `node` if kube-scheduler proposes to evict `proposed` there, or why the
/// node is no candidate.
///
/// kube-scheduler knows reasons that are not seen here, such as host ports. A proposed victim
/// without which the host and the tickets would do all the same must be one of those: it stays
/// in the set. The others make way for the best set there is.
pub fn preempt_on(
    snapshot: &Snapshot,
    node: &NodeName,
    ask: &Ask,
    budgets: &[Budget],
    proposed: &BTreeSet<PodUid>,
) -> Result<Preemption, NoPreemption> {
    let node = snapshot.node(node).ok_or(NoPreemption::NoNode)?;
    let allowance = once_left(snapshot, ask);
    let site = Site::new(node, ask, &allowance, budgets);
    let given = unexplained(&site, proposed)?;
    match fit(node, ask) {
        Ok(()) if given.is_empty() => return Err(NoPreemption::Fits { node: node.name.clone() }),
        Err(refusal) if refusal.reason.is_permanent() => return Err(NoPreemption::NoNode),
        Ok(()) | Err(_) => {}
    }
    best(vec![search(site, 0, budgets, &given)?])
}

/// What the pod's namespace may take once every pod that is leaving is gone, on whatever node.
fn once_left<'a>(snapshot: &Snapshot, ask: &Ask<'a>) -> Cow<'a, Allowance> {
    let pods = snapshot.nodes().iter().flat_map(|node| node.holders.iter().map(move |h| (node, h)));
    let leaving = pods.filter(|(_, holder)| holder.terminating);
    let held: Vec<_> = leaving.map(|(node, holder)| (node, holder, holds(node, holder))).collect();
    let held = held.iter().map(|(node, holder, holds)| (node.as_ref(), holder.as_ref(), holds));
    relieved(ask.allowance, &ask.request.pod.namespace, held)
}

/// The proposed victims whose need cannot be seen here.
fn unexplained(site: &Site, proposed: &BTreeSet<PodUid>) -> Result<Vec<usize>, NoPreemption> {
    let mut given = Vec::new();
    for uid in proposed {
        let leaves = |holder: &Arc<Holder>| holder.terminating && holder.pod.uid == *uid;
        let others = proposed.iter().filter(|other| *other != uid);
        if site.node.holders.iter().any(leaves) || short(&site.without(others), site.ask).is_some()
        {
            continue;
        }
        let candidate = site.candidates.iter().position(|candidate| candidate.uid() == uid);
        given.push(candidate.ok_or(NoPreemption::Nobody)?);
    }
    given.sort_unstable();
    Ok(given)
}

/// The search on one node, or why there is nothing to search for.
fn search<'a>(
    site: Site<'a>,
    place: usize,
    budgets: &[Budget],
    given: &[usize],
) -> Result<Sets<'a>, NoPreemption> {
    let needs = Needs::of(&site);
    if given.is_empty() && needs.are_met(|_| Fate::Stays) && site.fits(&[]).is_ok() {
        return Err(NoPreemption::Waiting { node: site.node.name.clone() });
    }
    if needs.live(usize::MAX, |_| Fate::Open).is_none() {
        return Err(NoPreemption::Nobody);
    }
    let all: Vec<usize> = (0..site.candidates.len()).collect();
    site.fits(&all).map_err(|refusal| match refusal.reason {
        Refusal::Quota { namespace } => NoPreemption::Quota { namespace },
        Refusal::GaveUp { .. } => NoPreemption::GaveUp,
        _ => NoPreemption::Nobody,
    })?;
    Sets::new(site, needs, place, budgets, given).ok_or(NoPreemption::Budget)
}

/// The best set over all nodes, or why there is none.
fn best(mut searches: Vec<Sets>) -> Result<Preemption, NoPreemption> {
    let most = searches.iter().map(|search| search.site.candidates.len()).max();
    let mut best: Option<Found> = None;
    let mut steps = MOST_STEPS_IN_ALL;
    for size in 0..=most.ok_or(NoPreemption::NoNode)? {
        for search in &mut searches {
            search.improve(size, &mut best, &mut steps);
        }
        // A set of this size beats all that are larger; one that is larger has to wait.
        if best.as_ref().is_some_and(|best| best.rank.count <= size) {
            break;
        }
    }
    let gave_up = searches.iter().any(Sets::gave_up);
    // All candidates together make room, so only a budget can keep every set from being one.
    let none = if gave_up { NoPreemption::GaveUp } else { NoPreemption::Budget };
    let found = best.ok_or(none)?;
    let on = |search: &&Sets| search.place == found.rank.node;
    let site = &searches.iter().find(on).ok_or(NoPreemption::NoNode)?.site;
    let victims = found.going.iter().map(|&candidate| site.candidates[candidate].holder.clone());
    let mut victims: Vec<Arc<Holder>> = victims.collect();
    victims.sort_by(|a, b| (b.priority, &a.pod.uid).cmp(&(a.priority, &b.pod.uid)));
    let search = if gave_up { Thoroughness::CutShort } else { Thoroughness::Complete };
    Ok(Preemption { node: site.node.name.clone(), victims, search })
}
