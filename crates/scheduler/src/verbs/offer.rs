//! Which of the nodes that can take a pod are named to kube-scheduler: all, or of many the best.
//!
//! kube-scheduler sends every node we name through all its scorers and back to us for points, and
//! spends more on that than we on the whole decision. So of many nodes only those are named among
//! which it has something to say:
//!
//! - all of them, to a pod with wishes of its own (preferred nodes or neighbours, spreading): they may
//!   well lead away from the nodes that are best by cards;
//! - a hundred, to a pod of a `ReplicaSet` or the like, which kube-scheduler spreads by itself, and to one
//!   that pods on nodes may have near or far by their wishes. It looks at that many of many nodes by
//!   default, a sample taken in turn; here it is the hundred best;
//! - to any other pod the best alone: by the shipped weights the lead that prioritize gives it is more than
//!   `NodeResourcesFit`, the one scorer that tells nodes apart for it, can give, so no other can win.

use std::borrow::Cow;

use model::{Moment, Snapshot};
use placement::Ask;

use super::filter::{At, Filtered};
use super::memo::Memo;
use crate::state::Sent;

/// More nodes than this are many. As kube-scheduler's own least number of nodes to score.
pub const MANY: usize = 100;
/// How many of many are named to a pod about which kube-scheduler has nothing to say.
pub const USUAL: usize = 1;

/// How many nodes are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// So many or fewer are all named.
    pub many: usize,
    /// Of more, so many are named to a pod about which kube-scheduler has nothing to say; 0 is all.
    pub few: usize,
}

impl Offer {
    /// How many of `fits` nodes are named to `pod`, as kube-scheduler sends it; 0 is all. It `is_minded` if
    /// pods on nodes may have wishes about it.
    ///
    /// Looked for in its text: a pod that only speaks of what is looked for is named more nodes, which
    /// harms nobody.
    pub fn of(self, fits: usize, pod: &str, is_minded: bool) -> usize {
        let any = |texts: &[&str]| texts.iter().any(|text| pod.contains(text));
        // Both kinds of affinity have fields that begin like this.
        let wishes = ["preferredDuringScheduling", "topologySpreadConstraints"];
        let spread = ["\"ReplicaSet\"", "\"StatefulSet\"", "\"ReplicationController\""];
        if self.few == 0 || fits <= self.many || any(&wishes) {
            0
        } else if is_minded || any(&spread) {
            self.many.max(self.few)
        } else {
            self.few
        }
    }
}

/// Those of `fits` that are named, in the same order: the best `most`, all if that is 0. One alone has
/// room for the pod beside those that were `sent` there, if one of the best has.
///
/// A node that its administrator would rather spare comes after all others, so that kube-scheduler,
/// which heeds that in its scores, is not given such nodes only.
pub fn offer<'a>(
    snapshot: &Snapshot,
    ask: &Ask,
    filtered: &'a Filtered,
    most: usize,
    memo: &Memo,
    (sent, now): (&Sent, Moment),
) -> Cow<'a, [At]> {
    const NOT: u32 = u32::MAX;
    let fits = &filtered.fits;
    if most == 0 || fits.len() <= most {
        return Cow::Borrowed(fits);
    }
    // Where each node of the snapshot stands among those that fit.
    let mut places = vec![NOT; snapshot.nodes().len()];
    for (place, at) in (0..).zip(fits) {
        places[at.node()] = place;
    }
    let order = filtered.order.as_deref();
    let order = order.map_or_else(|| Cow::Owned(memo.order(snapshot, ask)), Cow::Borrowed);
    let fitting = |shunned: bool| {
        let alike = order.iter().map(|&node| node as usize);
        let alike = alike.filter(move |&node| snapshot.nodes()[node].shunned == shunned);
        alike.filter_map(|node| fits.get(places[node] as usize))
    };
    let best = fitting(false).chain(fitting(true)).copied();
    if most == 1 {
        let one = sent.first(best, |at| &*snapshot.nodes()[at.node()], ask, now);
        return one.into_iter().collect();
    }
    let mut offered: Vec<At> = best.take(most).collect();
    offered.sort_unstable_by_key(|at| at.place());
    Cow::Owned(offered)
}
