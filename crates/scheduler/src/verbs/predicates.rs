//! The verb of gpu-admission, which has no bind: filter decides, and writes its decision onto the
//! pending pod before it answers with one node.
//!
//! The placement says until when it is valid. A new call for the pod replaces it; when its time
//! is over it is withdrawn: first from the pod, then from the ledger. Only what was reserved here
//! is ever given back here: a Binding of the same pod may be on its way.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dialect::Asked;
use kubeapi::{Annotated, Clock, Outside, SeenPod, TouchOutcome};
use model::{NodeName, PodId, PodUid, UnixNanos};

use crate::state::{Handle, Reserved, Unreserved};

/// Decisions that were written onto pending pods.
pub struct Predicates {
    handle: Handle,
    outside: Arc<dyn Outside>,
    clock: Clock,
    /// How long a decision is valid, in milliseconds.
    valid: u64,
    /// Held for a lookup only.
    latest: Mutex<Latest>,
}

/// The latest decision of each pod.
#[derive(Debug, Default)]
struct Latest {
    /// How many there were so far.
    count: u64,
    of: HashMap<PodUid, Decision>,
}

#[derive(Debug)]
struct Decision {
    number: u64,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Nobody knows yet what is on the pod.
    UnderWay,
    /// It is on the pod, under these keys, and its share is held.
    Written(Vec<String>),
}

impl std::fmt::Debug for Predicates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Predicates").field("valid", &self.valid).finish_non_exhaustive()
    }
}

/// Why no decision was written. The pod is tried again.
#[derive(Debug, thiserror::Error)]
pub enum NotPredicated {
    /// Another decision for it is being written or withdrawn.
    #[error("a decision for pod {0} is under way; it is tried again")]
    UnderWay(PodId),
    /// No room, or no longer.
    #[error("{0}")]
    NoRoom(#[from] Unreserved),
    /// The pod changed or went.
    #[error("pod {0} has changed; it is tried again")]
    Changed(PodId),
    /// The API server refused to change the pod.
    #[error("the decision for pod {pod} may not be written: {why}")]
    Refused {
        /// Which pod.
        pod: PodId,
        /// What was said.
        why: String,
    },
    /// The API server did not say whether it is written.
    #[error("the decision for pod {pod} may not have been written: {why}")]
    Unknown {
        /// Which pod.
        pod: PodId,
        /// What was said.
        why: String,
    },
    /// We are stopping.
    #[error("the scheduler is stopping")]
    Stopping,
}

impl Predicates {
    /// Decisions valid for `valid` milliseconds.
    pub fn new(handle: Handle, outside: Arc<dyn Outside>, clock: Clock, valid: u64) -> Arc<Self> {
        Arc::new(Self { handle, outside, clock, valid, latest: Mutex::default() })
    }

    /// Decides for `node` and writes it onto the pod.
    pub async fn predicate(
        self: &Arc<Self>,
        asked: Arc<Asked>,
        pod: Arc<SeenPod>,
        node: NodeName,
    ) -> Result<(), NotPredicated> {
        let id = pod.pod.id.clone();
        let (number, before) = self.begin(&id.uid).ok_or(NotPredicated::UnderWay(id))?;
        // A task of its own: a caller that hangs up must not leave a decision half written.
        let decided = tokio::spawn(self.clone().decide(asked, pod, node, number, before));
        decided.await.unwrap_or(Err(NotPredicated::Stopping))
    }

    /// How many pods have a decision.
    pub fn decided(&self) -> usize {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner).of.len()
    }

    async fn decide(
        self: Arc<Self>,
        asked: Arc<Asked>,
        pod: Arc<SeenPod>,
        node: NodeName,
        number: u64,
        before: Option<Vec<String>>,
    ) -> Result<(), NotPredicated> {
        let id = pod.pod.id.clone();
        if before.is_some() {
            // kube-scheduler asks again, so it does not bind by what we wrote before.
            self.handle.release(&id.uid).await;
        }
        let until = self.clock.now().after(self.valid);
        let nanos = self.clock.wall().0.saturating_add(self.valid.saturating_mul(1_000_000));
        let void = Some(UnixNanos(nanos));
        let reserved = match self.handle.reserve(asked, pod.clone(), node, until, void).await {
            Ok(reserved) => reserved,
            Err(error) => {
                self.give_up(id, number, before);
                return Err(error.into());
            }
        };
        self.handle.fence(&id.uid).await;
        let keys: Vec<String> = reserved.written.annotations.keys().cloned().collect();
        match self.outside.annotate(change(&pod, &reserved)).await {
            TouchOutcome::Changed(_) => {
                self.written(&id.uid, number, keys.clone());
                tokio::spawn(self.withdraw_later(id, number, keys));
                Ok(())
            }
            TouchOutcome::Conflict | TouchOutcome::Gone => {
                self.handle.release(&id.uid).await;
                self.give_up(id.clone(), number, before);
                Err(NotPredicated::Changed(id))
            }
            TouchOutcome::Refused(why) => {
                self.handle.release(&id.uid).await;
                self.give_up(id.clone(), number, before);
                Err(NotPredicated::Refused { pod: id, why })
            }
            TouchOutcome::Failed(why) => {
                tokio::spawn(self.withdraw(id.clone(), number, keys, Share::Held));
                Err(NotPredicated::Unknown { pod: id, why })
            }
        }
    }

    /// Nothing was decided. What an earlier decision left on the pod is taken off.
    fn give_up(self: Arc<Self>, pod: PodId, number: u64, before: Option<Vec<String>>) {
        match before {
            Some(keys) => drop(tokio::spawn(self.withdraw(pod, number, keys, Share::Free))),
            None => self.end(&pod.uid, number),
        }
    }

    async fn withdraw_later(self: Arc<Self>, pod: PodId, number: u64, keys: Vec<String>) {
        tokio::time::sleep(Duration::from_millis(self.valid)).await;
        self.withdraw(pod, number, keys, Share::Held).await;
    }

    async fn withdraw(self: Arc<Self>, pod: PodId, number: u64, keys: Vec<String>, share: Share) {
        let mut pause = Duration::from_millis(200);
        while self.is_latest(&pod.uid, number) {
            match self.take_off(&pod, &keys).await {
                Withdrawn::Bound => break,
                Withdrawn::Yes => {
                    if share == Share::Held {
                        self.handle.release(&pod.uid).await;
                        tracing::info!(pod = %pod, "placement withdrawn; its time was over");
                    }
                    break;
                }
                Withdrawn::NotYet => {}
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(5));
        }
        self.end(&pod.uid, number);
    }

    /// Takes `keys` off the pod, unless it is bound by them.
    async fn take_off(&self, pod: &PodId, keys: &[String]) -> Withdrawn {
        let seen = match self.outside.pod(pod).await {
            Ok(Some(seen)) if seen.pod.id.uid == pod.uid => seen,
            Ok(_) => return Withdrawn::Yes,
            Err(_) => return Withdrawn::NotYet,
        };
        if seen.pod.node.is_some() {
            return Withdrawn::Bound;
        }
        let annotations = keys.iter().map(|key| (key.clone(), None)).collect();
        let change = Annotated { pod: pod.clone(), version: Some(seen.version), annotations };
        match self.outside.annotate(change).await {
            TouchOutcome::Changed(_) | TouchOutcome::Gone => Withdrawn::Yes,
            TouchOutcome::Conflict | TouchOutcome::Refused(_) | TouchOutcome::Failed(_) => {
                Withdrawn::NotYet
            }
        }
    }

    /// A new decision: its number, and the keys of the one it replaces. Nothing: one is under way.
    fn begin(&self, uid: &PodUid) -> Option<(u64, Option<Vec<String>>)> {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if latest.of.get(uid).is_some_and(|before| matches!(before.state, State::UnderWay)) {
            return None;
        }
        latest.count += 1;
        let number = latest.count;
        let decision = Decision { number, state: State::UnderWay };
        let before = match latest.of.insert(uid.clone(), decision).map(|before| before.state) {
            Some(State::Written(keys)) => Some(keys),
            Some(State::UnderWay) | None => None,
        };
        Some((number, before))
    }

    fn written(&self, uid: &PodUid, number: u64, keys: Vec<String>) {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        latest.of.insert(uid.clone(), Decision { number, state: State::Written(keys) });
    }

    fn end(&self, uid: &PodUid, number: u64) {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if latest.of.get(uid).is_some_and(|decision| decision.number == number) {
            latest.of.remove(uid);
        }
    }

    fn is_latest(&self, uid: &PodUid, number: u64) -> bool {
        let latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        latest.of.get(uid).is_some_and(|decision| decision.number == number)
    }
}

/// Whether a decision's share is still held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Share {
    Held,
    Free,
}

enum Withdrawn {
    Yes,
    Bound,
    NotYet,
}

fn change(pod: &SeenPod, reserved: &Reserved) -> Annotated {
    let annotations: BTreeMap<String, Option<String>> =
        reserved.written.annotations.iter().map(|(k, v)| (k.clone(), Some(v.clone()))).collect();
    Annotated { pod: pod.pod.id.clone(), version: Some(pod.version.clone()), annotations }
}
