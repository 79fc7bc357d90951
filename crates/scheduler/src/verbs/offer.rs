//! Which of the nodes that can take a pod are named to kube-scheduler: all, or of many the best.
//!
//! kube-scheduler sends every node we name through all its scorers and back to us for points, and
//! spends more on that than we on the whole decision. By the shipped weights a rank of ours is worth
//! more than `NodeResourcesFit` can give, so that of a thousand nodes hundreds are scored that cannot
//! win. Who is named is still more than kube-scheduler itself looks at by default, which of many nodes
//! are a sample taken in turn, a hundred at least; here it is the hundred best.
//!
//! Everyone is named to a pod with wishes of its own (preferred nodes or neighbours, spreading): they
//! may well lead away from the nodes that are best by cards.

use std::borrow::Cow;

use model::Snapshot;
use placement::Ask;

use super::filter::Fits;
use super::memo::Memo;

/// As kube-scheduler's own least number of nodes to score.
pub const USUAL: usize = 100;

/// Those of `fits` that are named, in the same order: the best `most`, all if that is 0.
///
/// A node that its administrator would rather spare comes after all others, so that kube-scheduler,
/// which heeds that in its scores, is not given such nodes only.
pub fn offer<'a>(
    snapshot: &Snapshot,
    ask: &Ask,
    fits: &'a [Fits],
    most: usize,
    memo: &Memo,
) -> Cow<'a, [Fits]> {
    if most == 0 || fits.len() <= most {
        return Cow::Borrowed(fits);
    }
    let mut places: Vec<Option<usize>> = vec![None; snapshot.nodes().len()];
    for fits in fits {
        places[fits.node] = Some(fits.place);
    }
    let order = memo.order(snapshot, ask);
    let fitting = |shunned: bool| {
        let alike = order.iter().filter(move |&&node| snapshot.nodes()[node].shunned == shunned);
        alike.filter_map(|&node| Some(Fits { place: places[node]?, node }))
    };
    let mut offered: Vec<Fits> = fitting(false).chain(fitting(true)).take(most).collect();
    offered.sort_unstable_by_key(|fits| fits.place);
    Cow::Owned(offered)
}

/// Whether a pod, as kube-scheduler sends it, says which of several nodes it would rather have.
/// Looked for in its text: a pod that only speaks of it is named every node, which harms nobody.
pub fn has_wishes(pod: &str) -> bool {
    // Both kinds of affinity have fields that begin like this.
    pod.contains("preferredDuringScheduling") || pod.contains("topologySpreadConstraints")
}
