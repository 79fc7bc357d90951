//! Which nodes, best first?

use std::sync::Arc;

use model::{Node, Placement, Snapshot};

use crate::Ask;
use crate::board::Board;
use crate::choose::choose;
use crate::explain::Explanation;
use crate::fit::fit;

/// The nodes of a snapshot in order, and the refusals of the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ranking {
    /// Nodes that can take the pod, best first.
    pub fitting: Vec<Arc<Node>>,
    /// Why the others cannot.
    pub refused: Explanation,
}

/// Orders the nodes that can take the pod and explains those that cannot.
pub fn rank(snapshot: &Snapshot, ask: &Ask) -> Ranking {
    let mut fitting = Vec::new();
    let mut refused = Vec::new();
    for (node, key) in snapshot.nodes().iter().zip(Board::new(snapshot).keys(ask)) {
        match fit(node, ask) {
            Ok(()) => fitting.push((key, node)),
            Err(refusal) => refused.push((node.name.clone(), refusal)),
        }
    }
    // Stable, and the snapshot is sorted by name: ties go to the first name.
    fitting.sort_by_key(|(key, _)| *key);
    Ranking {
        fitting: fitting.into_iter().map(|(_, node)| node.clone()).collect(),
        refused: Explanation::new(snapshot.nodes().len(), refused),
    }
}

/// The best node and its cards, or why no node will do.
pub fn decide(snapshot: &Snapshot, ask: &Ask) -> Result<Placement, Explanation> {
    let ranking = rank(snapshot, ask);
    match ranking.fitting.first().map(|node| choose(node, ask)) {
        Some(Ok(placement)) => Ok(placement),
        // `choose` refuses no node that `fit` accepted; were it to, nothing is placed.
        Some(Err(_)) | None => Err(ranking.refused),
    }
}
