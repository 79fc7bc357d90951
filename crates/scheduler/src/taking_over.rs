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
        let pods = self.outside.pods().await?;
        let pending: Vec<&SeenPod> = pods.iter().filter(|pod| self.is_ours(pod)).collect();
        let touches: Vec<_> =
            pending.iter().map(|pod| self.outside.annotate(self.touch(pod))).collect();
        let outcomes: Vec<_> =
            futures::stream::iter(touches).buffer_unordered(AT_ONCE).collect().await;
        let mut raced = false;
        for outcome in outcomes {
            match outcome {
                TouchOutcome::Changed(_) | TouchOutcome::Gone => {}
                // Changed since it was read: perhaps bound.
                TouchOutcome::Conflict => raced = true,
                TouchOutcome::Failed(why) => return Err(why),
            }
        }
        if raced {
            return Err("pods changed while they were touched".to_owned());
        }
        let count = pending.len();
        self.handle.take_over(pods).await;
        Ok(count)
    }

    fn is_ours(&self, seen: &SeenPod) -> bool {
        let pod = &seen.pod;
        pod.node.is_none()
            && self.schedulers.contains(&pod.scheduler)
            && !matches!(read(pod, &self.settings), Ok(None))
    }

    fn touch(&self, seen: &SeenPod) -> Annotated {
        let now = self.clock.wall().0.to_string();
        let mut annotations = BTreeMap::from([(names::RETRY.to_owned(), Some(now))]);
        // A decision of the verb without a bind: nobody holds anything for it any more.
        if seen.pod.annotations.contains_key(names::PLACEMENT) {
            annotations.insert(names::PLACEMENT.to_owned(), None);
        }
        let version = Some(seen.version.clone());
        Annotated { pod: seen.pod.id.clone(), version, annotations }
    }
}
