//! What readers see: an immutable picture of the cluster and of what was promised in it.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::{Holder, Node, NodeName, PodUid, Request, Snapshot};

use super::quotas::QuotaState;

/// The cluster at one moment, and what is promised.
#[derive(Debug, Clone, Default)]
pub struct Picture {
    /// The cluster, reservations counted.
    pub snapshot: Snapshot,
    /// Pods that have a reservation, and where.
    pub reserved: BTreeMap<PodUid, NodeName>,
    /// Pods for which others were evicted, placed where they will be. What they will hold is not
    /// free for pods of no higher priority.
    pub nominees: Vec<Arc<Holder>>,
    /// How it stands with the texts of quotas.
    pub quotas: Arc<BTreeMap<&'static str, QuotaState>>,
}

impl Picture {
    /// The cluster as the pod of `request` sees it: its own reservation is room for it, and what
    /// is promised to others of at least its priority is not.
    pub fn seen_by(&self, request: &Request) -> Cow<'_, Snapshot> {
        let own = self.reserved.get(&request.pod.uid);
        let concerned = |nominee: &&Arc<Holder>| {
            nominee.pod.uid != request.pod.uid && nominee.priority >= request.priority
        };
        let promised: Vec<&Arc<Holder>> = self.nominees.iter().filter(concerned).collect();
        if own.is_none() && promised.is_empty() {
            return Cow::Borrowed(&self.snapshot);
        }
        let nodes = self.snapshot.nodes().iter().map(|node| {
            let mine = own == Some(&node.name);
            if !mine && promised.iter().all(|nominee| nominee.node != node.name) {
                return node.clone();
            }
            let leaving = BTreeSet::from([request.pod.uid.clone()]);
            let mut seen = if mine { node.without(&leaving) } else { Node::clone(node) };
            for nominee in promised.iter().filter(|nominee| nominee.node == node.name) {
                if !seen.holders.iter().any(|holder| holder.pod.uid == nominee.pod.uid) {
                    seen.count(Arc::clone(nominee));
                }
            }
            Arc::new(seen)
        });
        Cow::Owned(self.snapshot.with_sorted_nodes(nodes.collect()))
    }

    /// The nodes of these names that are known, as a snapshot of their own. The names are sorted.
    pub fn part(snapshot: &Snapshot, names: &[NodeName]) -> Snapshot {
        let nodes = names.iter().filter_map(|name| snapshot.node(name).cloned()).collect();
        snapshot.with_sorted_nodes(nodes)
    }
}
