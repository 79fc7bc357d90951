//! What a new leader does before its first Binding.
//!
//! The leader before it may have sent Bindings that have not arrived. Each names the version of
//! its pod, so touching every pending pod makes them fail. Those that did arrive are read from
//! the store, because our watch may not have shown them yet.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dialect::{Settings, read};
use futures::StreamExt as _;
use kubeapi::{Annotated, Clock, Leadership, Outside, SeenPod, TouchOutcome};
use model::names;
use tokio::sync::watch;

use crate::state::Handle;

/// Prepares our terms, one after another.
pub struct TakingOver {
    /// The writer.
    pub handle: Handle,
    /// The API server.
    pub outside: Arc<dyn Outside>,
    /// Whether we lead.
    pub leadership: Arc<dyn Leadership>,
    /// Which dialects are spoken, and how.
    pub settings: Arc<Settings>,
    /// Names of schedulers whose pods are ours.
    pub schedulers: Vec<String>,
    /// The clock.
    pub clock: Clock,
}

impl std::fmt::Debug for TakingOver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TakingOver").finish_non_exhaustive()
    }
}

/// How many pods are touched at once.
const AT_ONCE: usize = 16;
/// How often a pod that changes meanwhile is tried again.
const TRIES: usize = 10;

impl TakingOver {
    /// Prepares every new term and then shows its number on `prepared`.
    pub async fn run(self, prepared: watch::Sender<u64>) {
        let mut done = 0;
        loop {
            if let Some(term) = self.leadership.leads_for(Duration::ZERO).filter(|t| *t > done) {
                match self.prepare().await {
                    Ok(touched) => {
                        done = term;
                        prepared.send_replace(term);
                        tracing::info!(term, touched, "leading");
                    }
                    Err(why) => tracing::warn!(term, why, "not leading yet"),
                }
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Touches all pending pods of ours and counts all bound ones. Returns how many were touched.
    pub async fn prepare(&self) -> Result<usize, String> {
        self.handle.watch_gone().await;
        let mut pods = self.outside.pods().await?;
        let pending: Vec<usize> = (0..pods.len()).filter(|&i| self.is_ours(&pods[i])).collect();
        let count = pending.len();
        let touches: Vec<_> = pending
            .into_iter()
            .map(|i| {
                let touched = touch(self.outside.clone(), pods[i].clone(), self.clock);
                async move { (i, touched.await) }
            })
            .collect();
        let touches: Vec<_> =
            futures::stream::iter(touches).buffer_unordered(AT_ONCE).collect().await;
        for (i, touched) in touches {
            // Bound in between: that is what counts.
            if let Some(bound) = touched? {
                pods[i] = bound;
            }
        }
        self.handle.take_over(pods).await;
        Ok(count)
    }

    fn is_ours(&self, seen: &SeenPod) -> bool {
        let pod = &seen.pod;
        pod.node.is_none()
            && self.schedulers.contains(&pod.scheduler)
            && !matches!(read(pod, &self.settings), Ok(None))
    }
}

/// Touches one pod. Returns it if it has been bound meanwhile.
async fn touch(
    outside: Arc<dyn Outside>,
    mut seen: SeenPod,
    clock: Clock,
) -> Result<Option<SeenPod>, String> {
    for _ in 0..TRIES {
        let pod = seen.pod.id.clone();
        let now = clock.wall().0.to_string();
        let mut annotations = BTreeMap::from([(names::RETRY.to_owned(), Some(now))]);
        // A decision of the verb without a bind: nobody holds anything for it any more.
        if seen.pod.annotations.contains_key(names::PLACEMENT) {
            annotations.insert(names::PLACEMENT.to_owned(), None);
        }
        let version = Some(seen.version.clone());
        let touch = Annotated { pod: pod.clone(), version, annotations };
        match outside.annotate(touch).await {
            TouchOutcome::Changed(_) | TouchOutcome::Gone => return Ok(None),
            TouchOutcome::Failed(why) => return Err(why),
            TouchOutcome::Conflict => {}
        }
        match outside.pod(&pod).await? {
            Some(now) if now.pod.id.uid != pod.uid => return Ok(None),
            Some(now) if now.pod.node.is_some() => return Ok(Some(now)),
            Some(now) => seen = now,
            None => return Ok(None),
        }
    }
    Err(format!("pod {} kept changing", seen.pod.id))
}
