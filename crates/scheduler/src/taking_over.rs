//! What a new leader does before its first Binding.
//!
//! The leader before it may have sent Bindings that have not arrived. Each names the version of
//! its pod, so touching every pending pod makes them fail. Those that did arrive are read from
//! the store, because our watch may not have shown them yet.
//!
//! A pod that cannot be touched is no reason to let all others wait: only itself is not bound until
//! the API server has given up on whatever the leader before may have sent.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dialect::{Settings, read};
use futures::StreamExt as _;
use kubeapi::{Annotated, Clock, Leadership, Outside, SeenPod, TouchOutcome};
use model::{PodUid, names};
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
    /// Where pods go that cannot be touched.
    pub held_back: Arc<HeldBack>,
}

/// Pods that are not bound yet, because a Binding that we know nothing of may still arrive.
#[derive(Debug, Default)]
pub struct HeldBack {
    // Held for a lookup only.
    until: Mutex<HashMap<PodUid, Instant>>,
}

impl HeldBack {
    /// Whether the pod must wait still.
    pub fn holds(&self, pod: &PodUid, now: Instant) -> bool {
        let mut until = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        if until.is_empty() {
            return false;
        }
        until.retain(|_, until| now < *until);
        until.contains_key(pod)
    }

    fn hold(&self, pod: PodUid, until: Instant) {
        self.until.lock().unwrap_or_else(PoisonError::into_inner).insert(pod, until);
    }
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
/// How long the API server works on a request at most, if nobody has told it otherwise.
const REQUEST_TIMEOUT: Duration = Duration::from_mins(1);

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
        let mut listed = self.outside.pods().await?;
        let pods = &mut listed.pods;
        let pending: Vec<usize> = (0..pods.len()).filter(|&i| self.is_ours(&pods[i])).collect();
        let touches: Vec<_> = pending
            .into_iter()
            .map(|i| {
                let touched = touch(self.outside.clone(), pods[i].clone(), self.clock);
                async move { (i, touched.await) }
            })
            .collect();
        let touches: Vec<_> =
            futures::stream::iter(touches).buffer_unordered(AT_ONCE).collect().await;
        let mut count = 0;
        for (i, touched) in touches {
            match touched? {
                Touched::Yes => count += 1,
                // That is what counts.
                Touched::Bound(bound) => pods[i] = *bound,
                Touched::No(why) => {
                    let pod = &pods[i].pod.id;
                    tracing::warn!(%pod, why, "pod could not be touched; it alone is not bound yet");
                    self.held_back.hold(pod.uid.clone(), Instant::now() + REQUEST_TIMEOUT);
                }
            }
        }
        self.handle.take_over(listed).await;
        Ok(count)
    }

    fn is_ours(&self, seen: &SeenPod) -> bool {
        let pod = &seen.pod;
        pod.node.is_none()
            && self.schedulers.contains(&pod.scheduler)
            && !matches!(read(pod, &self.settings), Ok(None))
    }
}

/// What became of touching one pod.
enum Touched {
    /// No Binding that was sent before can succeed.
    Yes,
    /// It has been bound meanwhile.
    Bound(Box<SeenPod>),
    /// It cannot be touched, and why.
    No(String),
}

/// Touches one pod. An error: the API server is not there for any of them.
async fn touch(
    outside: Arc<dyn Outside>,
    mut seen: SeenPod,
    clock: Clock,
) -> Result<Touched, String> {
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
            TouchOutcome::Changed(_) | TouchOutcome::Gone => return Ok(Touched::Yes),
            TouchOutcome::Refused(why) => return Ok(Touched::No(why)),
            TouchOutcome::Failed(why) => return Err(why),
            TouchOutcome::Conflict => {}
        }
        match outside.pod(&pod).await? {
            Some(now) if now.pod.id.uid != pod.uid => return Ok(Touched::Yes),
            Some(now) if now.pod.node.is_some() => return Ok(Touched::Bound(Box::new(now))),
            Some(now) => seen = now,
            None => return Ok(Touched::Yes),
        }
    }
    Ok(Touched::No("it kept changing".to_owned()))
}
