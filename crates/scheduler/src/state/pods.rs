//! Pending pods that ask for a card, and what matters of the bound ones beside what they hold.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, PoisonError, RwLock};

use dialect::{Asked, Refusal};
use kubeapi::{PodBudget, SeenPod, selects};
use model::{Phase, PodUid};
use placement::Budget;

/// A pod that waits for a node.
#[derive(Debug, Clone)]
pub struct Pending {
    /// The pod.
    pub seen: Arc<SeenPod>,
    /// What it asks, or why it can never run.
    pub asked: Result<Arc<Asked>, Refusal>,
}

/// The pods. The writer changes them; readers look single pods up.
#[derive(Debug, Default)]
pub struct Pods {
    // Held for a lookup or an insertion only, never over an await.
    pending: RwLock<HashMap<PodUid, Arc<Pending>>>,
    bound: RwLock<HashMap<PodUid, Bound>>,
    budgets: RwLock<BTreeMap<String, PodBudget>>,
}

#[derive(Debug)]
struct Bound {
    namespace: Arc<str>,
    name: Arc<str>,
    labels: BTreeMap<String, String>,
    /// A pod that is not running yet is protected by no budget's count.
    running: bool,
}

impl Pods {
    /// The pending pod of this UID.
    pub fn pending(&self, uid: &PodUid) -> Option<Arc<Pending>> {
        self.pending.read().unwrap_or_else(PoisonError::into_inner).get(uid).cloned()
    }

    /// The pending pod of this name.
    pub fn pending_named(&self, namespace: &str, name: &str) -> Option<Arc<Pending>> {
        let pending = self.pending.read().unwrap_or_else(PoisonError::into_inner);
        let is = |pending: &&Arc<Pending>| {
            let id = &pending.seen.pod.id;
            id.name == name && id.namespace == namespace
        };
        pending.values().find(is).cloned()
    }

    /// All pending pods that ask for a card.
    pub fn all_pending(&self) -> Vec<Arc<Pending>> {
        self.pending.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Whether the pod is on a node.
    pub fn is_bound(&self, uid: &PodUid) -> bool {
        self.bound.read().unwrap_or_else(PoisonError::into_inner).contains_key(uid)
    }

    /// The UID of the bound pod of this name.
    pub fn bound_named(&self, namespace: &str, name: &str) -> Option<PodUid> {
        let bound = self.bound.read().unwrap_or_else(PoisonError::into_inner);
        let is = |bound: &Bound| &*bound.name == name && &*bound.namespace == namespace;
        bound.iter().find(|(_, bound)| is(bound)).map(|(uid, _)| uid.clone())
    }

    /// The disruption budgets, with the pods each protects.
    pub fn budgets(&self) -> Vec<Budget> {
        let budgets = self.budgets.read().unwrap_or_else(PoisonError::into_inner);
        if budgets.is_empty() {
            return Vec::new();
        }
        let bound = self.bound.read().unwrap_or_else(PoisonError::into_inner);
        let protects = |budget: &PodBudget| -> BTreeSet<PodUid> {
            let chosen = bound.iter().filter(|(_, pod)| {
                pod.running
                    && *pod.namespace == *budget.namespace
                    && selects(&budget.selector, &pod.labels)
            });
            chosen.map(|(uid, _)| uid.clone()).collect()
        };
        let budget = |b: &PodBudget| Budget { pods: protects(b), allowed: b.allowed };
        budgets.values().map(budget).collect()
    }

    pub(super) fn waits(&self, pending: Pending) {
        let uid = pending.seen.pod.id.uid.clone();
        let mut all = self.pending.write().unwrap_or_else(PoisonError::into_inner);
        all.insert(uid, Arc::new(pending));
    }

    pub(super) fn runs(&self, seen: &SeenPod) {
        let id = &seen.pod.id;
        self.pending.write().unwrap_or_else(PoisonError::into_inner).remove(&id.uid);
        let bound = Bound {
            namespace: id.namespace.as_str().into(),
            name: id.name.as_str().into(),
            labels: seen.pod.labels.clone(),
            running: seen.pod.phase == Phase::Running,
        };
        self.bound.write().unwrap_or_else(PoisonError::into_inner).insert(id.uid.clone(), bound);
    }

    pub(super) fn gone(&self, uid: &PodUid) {
        self.pending.write().unwrap_or_else(PoisonError::into_inner).remove(uid);
        self.bound.write().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }

    pub(super) fn budget(&self, budget: PodBudget) {
        let mut budgets = self.budgets.write().unwrap_or_else(PoisonError::into_inner);
        budgets.insert(budget.uid.clone(), budget);
    }

    pub(super) fn budget_gone(&self, uid: &str) {
        self.budgets.write().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }
}
