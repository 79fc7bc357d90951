//! The verb of gpu-admission, which has no bind: filter decides, and writes its decision onto the
//! pending pod before it answers with one node.
//!
//! The placement says until when it is valid. A new call for the pod replaces it; when its time
//! is over it is withdrawn: first from the pod, then from the ledger.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dialect::Asked;
use kubeapi::{Annotated, Clock, Outside, SeenPod, TouchOutcome};
use model::{NodeName, PodId, PodUid, UnixNanos};

use crate::state::{Handle, Reserved};

/// Decisions that were written onto pending pods.
pub struct Predicates {
    handle: Handle,
    outside: Arc<dyn Outside>,
    clock: Clock,
    /// How long a decision is valid, in milliseconds.
    valid: u64,
    /// The latest decision of each pod, by number. Held for a lookup only.
    latest: Mutex<HashMap<PodUid, u64>>,
}

impl std::fmt::Debug for Predicates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Predicates").field("valid", &self.valid).finish_non_exhaustive()
    }
}

/// Why no decision was written. The pod is tried again.
#[derive(Debug, thiserror::Error)]
pub enum NotPredicated {
    /// No room, or no longer.
    #[error("{0}")]
    NoRoom(#[from] crate::state::Unreserved),
    /// The pod changed or went.
    #[error("pod {0} has changed; it is tried again")]
    Changed(PodId),
    /// The API server did not say whether it is written.
    #[error("the decision for pod {pod} may not be written: {why}")]
    Unknown {
        /// Which pod.
        pod: PodId,
        /// What was said.
        why: String,
    },
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
        let number = {
            let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
            let number = latest.entry(id.uid.clone()).or_default();
            *number += 1;
            *number
        };
        // kube-scheduler asks again, so nothing of an earlier decision is on its way.
        self.handle.release(&id.uid).await;
        let until = self.clock.now().after(self.valid);
        let nanos = self.clock.wall().0.saturating_add(self.valid.saturating_mul(1_000_000));
        let void = Some(UnixNanos(nanos));
        let reserved = self.handle.reserve(asked, pod.clone(), node, until, void).await?;
        self.handle.fence(&id.uid).await;
        let keys: Vec<String> = reserved.written.annotations.keys().cloned().collect();
        let written = self.outside.annotate(change(&pod, &reserved)).await;
        match written {
            TouchOutcome::Changed(_) => {
                tokio::spawn(self.clone().withdraw_later(id, number, keys));
                Ok(())
            }
            TouchOutcome::Conflict | TouchOutcome::Gone => {
                self.handle.release(&id.uid).await;
                Err(NotPredicated::Changed(id))
            }
            TouchOutcome::Failed(why) => {
                tokio::spawn(self.clone().withdraw(id.clone(), number, keys));
                Err(NotPredicated::Unknown { pod: id, why })
            }
        }
    }

    async fn withdraw_later(self: Arc<Self>, pod: PodId, number: u64, keys: Vec<String>) {
        tokio::time::sleep(Duration::from_millis(self.valid)).await;
        self.withdraw(pod, number, keys).await;
    }

    async fn withdraw(self: Arc<Self>, pod: PodId, number: u64, keys: Vec<String>) {
        let mut pause = Duration::from_millis(200);
        while self.is_latest(&pod.uid, number) {
            match self.outside.pod(&pod).await {
                Ok(Some(seen)) if seen.pod.id.uid == pod.uid && seen.pod.node.is_some() => break,
                Ok(Some(seen)) if seen.pod.id.uid == pod.uid => {
                    let annotations = keys.iter().map(|key| (key.clone(), None)).collect();
                    let version = Some(seen.version);
                    let change = Annotated { pod: pod.clone(), version, annotations };
                    if let TouchOutcome::Changed(_) | TouchOutcome::Gone =
                        self.outside.annotate(change).await
                    {
                        self.handle.release(&pod.uid).await;
                        tracing::info!(pod = %pod, "placement withdrawn; its time was over");
                        break;
                    }
                }
                Ok(_) => {
                    self.handle.release(&pod.uid).await;
                    break;
                }
                Err(_) => {}
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(5));
        }
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if latest.get(&pod.uid) == Some(&number) {
            latest.remove(&pod.uid);
        }
    }

    fn is_latest(&self, uid: &PodUid, number: u64) -> bool {
        let latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        latest.get(uid) == Some(&number)
    }
}

fn change(pod: &SeenPod, reserved: &Reserved) -> Annotated {
    let annotations: BTreeMap<String, Option<String>> =
        reserved.written.annotations.iter().map(|(k, v)| (k.clone(), Some(v.clone()))).collect();
    Annotated { pod: pod.pod.id.clone(), version: Some(pod.version.clone()), annotations }
}
