//! Pending pods that ask for a card, and what matters of the bound ones beside what they hold.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, PoisonError, RwLock};

use dialect::{Asked, Refusal};
use kubeapi::{Minds, PodBudget, SeenPod, selects};
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
    minded: RwLock<Minded>,
    budgets: RwLock<BTreeMap<String, PodBudget>>,
}

#[derive(Debug)]
struct Bound {
    namespace: Arc<str>,
    name: Arc<str>,
    labels: BTreeMap<String, String>,
    /// A pod that is not running yet is protected by no budget's count.
    running: bool,
    minds: Minds,
}

/// How many bound pods would rather have others near or far.
#[derive(Debug, Default)]
struct Minded {
    /// Pods of this namespace only.
    namespaces: BTreeMap<Arc<str>, usize>,
    /// Pods of any.
    everybody: usize,
}

impl Minded {
    fn count(&mut self, pod: &Bound) {
        match pod.minds {
            Minds::Nobody => {}
            Minds::Namespace => *self.namespaces.entry(pod.namespace.clone()).or_default() += 1,
            Minds::Everybody => self.everybody += 1,
        }
    }

    fn discount(&mut self, pod: &Bound) {
        match pod.minds {
            Minds::Nobody => {}
            Minds::Namespace => {
                let left = self.namespaces.get(&pod.namespace).copied().unwrap_or(0);
                if left > 1 {
                    self.namespaces.insert(pod.namespace.clone(), left - 1);
                } else {
                    self.namespaces.remove(&pod.namespace);
                }
            }
            Minds::Everybody => self.everybody = self.everybody.saturating_sub(1),
        }
    }
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

    /// Whether a pod on a node may have a wish where pods of this namespace are.
    pub fn are_minded(&self, namespace: &str) -> bool {
        let minded = self.minded.read().unwrap_or_else(PoisonError::into_inner);
        minded.everybody > 0 || minded.namespaces.contains_key(namespace)
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
            minds: seen.minds,
        };
        let mut minded = self.minded.write().unwrap_or_else(PoisonError::into_inner);
        minded.count(&bound);
        let mut all = self.bound.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = all.insert(id.uid.clone(), bound) {
            minded.discount(&before);
        }
    }

    pub(super) fn gone(&self, uid: &PodUid) {
        self.pending.write().unwrap_or_else(PoisonError::into_inner).remove(uid);
        let gone = self.bound.write().unwrap_or_else(PoisonError::into_inner).remove(uid);
        if let Some(gone) = gone {
            self.minded.write().unwrap_or_else(PoisonError::into_inner).discount(&gone);
        }
    }

    pub(super) fn budget(&self, budget: PodBudget) {
        let mut budgets = self.budgets.write().unwrap_or_else(PoisonError::into_inner);
        budgets.insert(budget.uid.clone(), budget);
    }

    pub(super) fn budget_gone(&self, uid: &str) {
        self.budgets.write().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }
}
