//! Whom to evict on the nodes that kube-scheduler would clear for the pod.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use model::{NodeName, PodUid, Snapshot};
use placement::{Ask, Budget, preempt_on};

use super::wire::{MetaPod, MetaVictims, PreemptResult};

/// For each node the pods that really have to leave. A node without a good set is left out: an
/// empty set would tell kube-scheduler that the pod fits.
pub fn preempt(
    snapshot: &Snapshot,
    ask: &Ask,
    budgets: &[Budget],
    proposed: &BTreeMap<Cow<'_, str>, Vec<Cow<'_, str>>>,
) -> PreemptResult {
    let mut result = PreemptResult::default();
    for (node, victims) in proposed {
        let Ok(name) = NodeName::parse(node) else { continue };
        let uids: Result<BTreeSet<PodUid>, _> =
            victims.iter().map(|uid| PodUid::parse(uid)).collect();
        let Ok(uids) = uids else { continue };
        let Ok(found) = preempt_on(snapshot, &name, ask, budgets, &uids) else { continue };
        if found.victims.is_empty() {
            continue;
        }
        let pods = found.victims.iter().map(|victim| MetaPod { uid: victim.pod.uid.to_string() });
        let victims = MetaVictims { pods: pods.collect(), violations: 0 };
        result.node_name_to_meta_victims.insert(node.clone().into_owned(), victims);
    }
    result
}
