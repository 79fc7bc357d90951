//! The last decision about each pod, for whoever asks why.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use model::{PodId, PodUid};
use serde::Serialize;

/// What was decided about a pod.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Decision {
    /// The pod's namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Which verb decided.
    pub verb: &'static str,
    /// When, as seconds since 1970.
    pub at: u64,
    /// How many nodes kube-scheduler asked about.
    pub nodes: usize,
    /// How many of them fit.
    pub fits: usize,
    /// How many refused, by reason.
    pub refused: BTreeMap<&'static str, usize>,
    /// All of it in one line.
    pub summary: String,
}

/// The last decisions, of at most so many pods.
#[derive(Debug, Default)]
pub struct Decisions {
    // Held for a lookup or an insertion only.
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    by_pod: HashMap<PodUid, Arc<Decision>>,
    order: VecDeque<PodUid>,
}

const MOST: usize = 10_000;

impl Decisions {
    /// Remembers what was decided about `pod`.
    pub fn note(&self, pod: &PodId, decision: Decision) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.by_pod.insert(pod.uid.clone(), Arc::new(decision)).is_none() {
            kept.order.push_back(pod.uid.clone());
        }
        while kept.order.len() > MOST {
            if let Some(oldest) = kept.order.pop_front() {
                kept.by_pod.remove(&oldest);
            }
        }
    }

    /// The last decision about a pod.
    pub fn of(&self, uid: &PodUid) -> Option<Arc<Decision>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).by_pod.get(uid).cloned()
    }

    /// The last decision about a pod of this name.
    pub fn named(&self, namespace: &str, name: &str) -> Option<Arc<Decision>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let is = |d: &&Arc<Decision>| d.name == name && d.namespace == namespace;
        kept.by_pod.values().filter(is).max_by_key(|decision| decision.at).cloned()
    }

    /// All of them, the newest pods first.
    pub fn all(&self) -> Vec<Arc<Decision>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.order.iter().rev().filter_map(|uid| kept.by_pod.get(uid).cloned()).collect()
    }
}
