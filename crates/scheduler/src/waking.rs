//! Refused pods are woken when something they can use becomes free.
//!
//! kube-scheduler tries a refused pod again on events it sees itself, else after minutes. A card
//! that recovers, an agent that is heard again, a quota that grows are no events to it. So a pod
//! that we refused and that fits now is touched once, which makes kube-scheduler try it again.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use dialect::Asked;
use model::{Moment, Node, NodeName, PodId, PodUid, Snapshot};
use placement::{Ask, Policy, fit};

use crate::state::{Picture, Pods};
use crate::verbs::slack::{Largest, slacken};

/// A pod is woken at most so often, in milliseconds.
const AT_MOST_EVERY: u64 = 1_000;
/// So long, in milliseconds, a refused pod is remembered that our watch has not shown: kube-scheduler
/// may hear of a pod, and ask about it, well before we do.
const UNSEEN: u64 = 30_000;

/// The pods we refused.
#[derive(Debug, Default)]
pub struct Waiting {
    // Held while pods are looked through, never over an await.
    pods: Mutex<BTreeMap<PodUid, Waits>>,
}

/// A pod we refused, and where.
#[derive(Debug, Clone)]
pub struct Waits {
    /// What it asks.
    pub asked: Arc<Asked>,
    /// The nodes that kube-scheduler asked about and we refused, by name. On others it cannot run.
    pub refused: Arc<[NodeName]>,
    /// When.
    pub since: Moment,
    /// Whether others may be evicted for it.
    pub may_preempt: bool,
    /// The picture it was judged on.
    judged: Arc<Picture>,
    woken: Option<Moment>,
}

impl Waits {
    /// A pod that was refused on `judged`, by the nodes `refused`, which are sorted by name.
    pub fn new(
        asked: Arc<Asked>,
        refused: Arc<[NodeName]>,
        may_preempt: bool,
        judged: Arc<Picture>,
        since: Moment,
    ) -> Self {
        Self { asked, refused, since, may_preempt, judged, woken: None }
    }

    /// A pod that another replica refused on a picture we do not have. It is looked at as if
    /// everything had changed since: if ours is newer and the pod fits, it is woken at once.
    pub fn elsewhere(
        asked: Arc<Asked>,
        refused: Arc<[NodeName]>,
        may_preempt: bool,
        since: Moment,
    ) -> Self {
        Self::new(asked, refused, may_preempt, Arc::default(), since)
    }
}

impl Waiting {
    /// Remembers that the pod was refused. A pod that was woken before stays so.
    pub fn refused(&self, mut waits: Waits) {
        let uid = waits.asked.request.pod.uid.clone();
        let mut pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
        waits.woken = pods.get(&uid).and_then(|before| before.woken);
        pods.insert(uid, waits);
    }

    /// Forgets a pod that fits, is bound or is gone.
    pub fn forget(&self, uid: &PodUid) {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }

    /// The pod could not be touched: it is looked at again as if everything had changed.
    pub fn not_woken(&self, uid: &PodUid) {
        let mut pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waits) = pods.get_mut(uid) {
            waits.judged = Arc::default();
        }
    }

    /// Forgets the pods that do not wait any more, and those that our watch does not show.
    pub fn tidy(&self, known: &Pods, now: Moment) {
        let mut pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
        pods.retain(|uid, waits| {
            let unseen = now < waits.since.after(UNSEEN) && !known.is_bound(uid);
            unseen || known.pending(uid).is_some()
        });
    }

    /// How many pods wait.
    pub fn len(&self) -> usize {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Whether none does.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A copy of all that wait.
    pub fn all(&self) -> Vec<Waits> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// The pods that fit now on a node that refused them before. Each is told once for every
    /// change that made it fit.
    pub fn wakes(&self, picture: &Arc<Picture>, policy: Policy, now: Moment) -> Vec<PodId> {
        let mut changes = Changes::new(picture);
        let mut pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
        let mut wakes = Vec::new();
        let mut largest = Largest::default();
        if !picture.snapshot.allowances().is_empty() {
            for node in picture.snapshot.nodes() {
                largest.see(node);
            }
        }
        for waits in pods.values_mut() {
            if waits.woken.is_some_and(|at| now < at.after(AT_MOST_EVERY)) {
                // Not judged: what changes now counts when it may be woken again.
                continue;
            }
            let judged = std::mem::replace(&mut waits.judged, picture.clone());
            let request = &waits.asked.request;
            let seen = picture.seen_by(request);
            let ask = Ask::new(&seen, request, policy);
            let fits = |name: &NodeName| seen.node(name).is_some_and(|n| fit(n, &ask).is_ok());
            let may_take = |p: &Picture| {
                let allowance = p.snapshot.allowance(&request.pod.namespace);
                slacken(allowance, request, largest).into_owned()
            };
            let promises = judged.nominees.len() != picture.nominees.len();
            let fits_now = if promises || may_take(&judged) != may_take(picture) {
                waits.refused.iter().any(fits)
            } else {
                let nodes = changes.since(&judged);
                nodes.iter().any(|name| waits.refused.binary_search(name).is_ok() && fits(name))
            };
            if fits_now {
                waits.woken = Some(now);
                wakes.push(request.pod.clone());
            }
        }
        wakes
    }
}

/// Which nodes changed since older pictures; each is compared once.
struct Changes<'a> {
    now: &'a Arc<Picture>,
    since: HashMap<*const Picture, Vec<NodeName>>,
}

impl<'a> Changes<'a> {
    fn new(now: &'a Arc<Picture>) -> Self {
        Self { now, since: HashMap::new() }
    }

    fn since(&mut self, before: &Arc<Picture>) -> &[NodeName] {
        let now = self.now;
        self.since
            .entry(Arc::as_ptr(before))
            .or_insert_with(|| changed(&before.snapshot, &now.snapshot))
    }
}

/// The nodes of `after` that are not just as in `before`. Both are sorted by name.
fn changed(before: &Snapshot, after: &Snapshot) -> Vec<NodeName> {
    let mut old = before.nodes().iter().peekable();
    let mut changed = Vec::new();
    for node in after.nodes() {
        while old.next_if(|old| old.name < node.name).is_some() {}
        let same = |old: &&Arc<Node>| old.name == node.name && Arc::ptr_eq(old, node);
        if !old.peek().is_some_and(same) {
            changed.push(node.name.clone());
        }
    }
    changed
}
