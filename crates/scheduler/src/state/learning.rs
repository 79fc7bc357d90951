//! Which pods come, so that placement can learn from them.

use std::collections::HashSet;
use std::sync::Arc;

use model::{PodUid, Request, Snapshot, Statistics, Workload};
use placement::learn;

/// How often, at most, is learned anew.
const EVERY_MILLIS: u64 = 5_000;

/// The pods counted so far, and what was learned from them.
#[derive(Debug, Default)]
pub(super) struct Learning {
    workload: Workload,
    counted: HashSet<PodUid>,
    dirty: bool,
    learned_at: Option<u64>,
    pub(super) statistics: Arc<Statistics>,
}

impl Learning {
    /// Counts a pod, once.
    pub(super) fn see(&mut self, request: &Request) {
        if self.counted.insert(request.pod.uid.clone()) {
            self.workload.see(request);
            self.dirty = true;
        }
    }

    /// A pod that is gone is not met again; it stays counted.
    pub(super) fn gone(&mut self, uid: &PodUid) {
        self.counted.remove(uid);
    }

    /// Learns from the pods so far, if there are new ones and it is time. Returns whether it did.
    pub(super) fn learn(&mut self, snapshot: &Snapshot, now: u64) -> bool {
        let early = self.learned_at.is_some_and(|at| now < at.saturating_add(EVERY_MILLIS));
        if !self.dirty || early {
            return false;
        }
        let nodes = snapshot.nodes().iter().map(AsRef::as_ref);
        let learned = learn(&self.workload, nodes);
        self.dirty = false;
        self.learned_at = Some(now);
        if learned == *self.statistics {
            // Whoever ranked by it need not rank anew.
            return false;
        }
        self.statistics = Arc::new(learned);
        true
    }
}
