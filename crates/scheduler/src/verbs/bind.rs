//! Bind: check again, choose cards, hold them, write one Binding, and say what became of it.
//!
//! ```text
//!   reserve -> fence -> Binding -> bound:     commit
//!                                  certain:   release, and why
//!                                  conflict:  look at the pod, and once more
//!                                  unknown:   touch the pod until it is certain
//! ```
//!
//! A second call for the same pod joins the first.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dialect::{Asked, Settings, read};
use kubeapi::{
    Annotated, Binding, BindingOutcome, Clock, Leadership, Outside, SeenPod, TouchOutcome,
};
use model::{NodeName, PodId, PodUid, names};
use prometheus_client::metrics::counter::Counter;
use tokio::sync::watch;

use super::wire::BindArgs;
use crate::state::{Handle, Reserved, Unreserved};
use crate::taking_over::HeldBack;

/// Why a pod was not bound. The text goes to the pod's events, by way of kube-scheduler.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// A name that is none.
    #[error("the request names no pod and node that could exist")]
    NotNames,
    /// We do not lead, and who does cannot be reached.
    #[error("this replica does not lead, and the leader cannot be reached")]
    NotLeading,
    /// We have just begun to lead.
    #[error("the scheduler is taking over; try again")]
    TakingOver,
    /// A Binding of the leader before us may still arrive.
    #[error("pod {0} could not be touched after a change of leader; it is tried again")]
    HeldBack(String),
    /// There is no such pod, or another has its name.
    #[error("pod {0} is gone")]
    Gone(String),
    /// It is on a node already.
    #[error("pod {pod} is already bound to node {node}")]
    Bound {
        /// Which pod.
        pod: String,
        /// Where it is.
        node: String,
    },
    /// It asks for no card of ours.
    #[error("pod {0} asks for no resource that nanogpu manages")]
    NotOurs(String),
    /// It has another scheduler's name.
    #[error("pod {pod} belongs to scheduler {scheduler}, which nanogpu does not serve")]
    Foreign {
        /// Which pod.
        pod: String,
        /// Whose it is.
        scheduler: String,
    },
    /// It can never run as written.
    #[error("{0}")]
    Never(dialect::Refusal),
    /// A Binding to another node is under way.
    #[error("a binding of pod {pod} to node {node} is under way")]
    UnderWay {
        /// Which pod.
        pod: String,
        /// Where to.
        node: String,
    },
    /// There is no room, or no longer.
    #[error("{0}")]
    NoRoom(String),
    /// The API server refused, or the pod kept changing.
    #[error("the API server did not take the binding: {0}")]
    Refused(String),
    /// The API server could not be asked about the pod.
    #[error("the pod could not be read: {0}")]
    Unread(String),
    /// Nobody knows yet whether it is bound; its share stays held until that is certain.
    #[error("the API server did not say whether the pod is bound; its share is kept for it: {0}")]
    Unknown(String),
}

impl BindError {
    /// A short name for metrics.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NotNames => "bad-request",
            Self::NotLeading => "not-leading",
            Self::TakingOver => "taking-over",
            Self::HeldBack(_) => "held-back",
            Self::Gone(_) => "gone",
            Self::Bound { .. } => "already-bound",
            Self::NotOurs(_) => "not-ours",
            Self::Foreign { .. } => "foreign",
            Self::Never(_) => "never",
            Self::UnderWay { .. } => "under-way",
            Self::NoRoom(_) => "no-room",
            Self::Refused(_) => "refused",
            Self::Unread(_) => "unread",
            Self::Unknown(_) => "unknown",
        }
    }
}

/// What a pod got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoundPod {
    /// Which pod.
    pub pod: PodId,
    /// What it got, as it is written on the pod.
    pub placement: String,
    /// What its author should know.
    pub notes: Vec<String>,
}

type Answer = Result<BoundPod, BindError>;

/// A call under way: where to, and where its answer will be.
type Joined = (NodeName, watch::Receiver<Option<Answer>>);

/// How binding goes.
#[derive(Debug, Clone)]
pub struct BindOptions {
    /// Which dialects are spoken, and how.
    pub settings: Arc<Settings>,
    /// Names of schedulers whose pods are ours.
    pub schedulers: Vec<String>,
    /// How long a reservation lives without a Binding, in milliseconds.
    pub hold: u64,
    /// How much longer our term must last for a Binding to be sent.
    pub margin: Duration,
    /// How long a call may take before it answers.
    pub answer_within: Duration,
    /// Counts Bindings that met a pod which had changed.
    pub conflicts: Counter,
}

/// Binds pods.
pub struct Binder {
    handle: Handle,
    outside: Arc<dyn Outside>,
    leadership: Arc<dyn Leadership>,
    options: BindOptions,
    clock: Clock,
    /// The term for which every pending pod was touched.
    prepared: watch::Receiver<u64>,
    /// Pods that could not be.
    held_back: Arc<HeldBack>,
    /// Calls under way. Held for a lookup only, never over an await.
    joined: Mutex<HashMap<PodUid, Joined>>,
}

impl std::fmt::Debug for Binder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Binder").field("options", &self.options).finish_non_exhaustive()
    }
}

/// How often a Binding is tried again because the pod had changed.
const TRIES: u32 = 4;

impl Binder {
    /// A binder that begins once `prepared` shows the number of our term.
    pub fn new(
        handle: Handle,
        outside: Arc<dyn Outside>,
        leadership: Arc<dyn Leadership>,
        options: BindOptions,
        clock: Clock,
        prepared: watch::Receiver<u64>,
        held_back: Arc<HeldBack>,
    ) -> Arc<Self> {
        let joined = Mutex::default();
        Arc::new(Self { handle, outside, leadership, options, clock, prepared, held_back, joined })
    }

    /// Binds the pod, or joins the call that does. Answers in time even if nothing is certain.
    pub async fn bind(self: &Arc<Self>, args: &BindArgs) -> Answer {
        let uid = PodUid::parse(&args.pod_uid).map_err(|_| BindError::NotNames)?;
        let node = NodeName::parse(&args.node).map_err(|_| BindError::NotNames)?;
        if args.pod_name.is_empty() || args.pod_namespace.is_empty() {
            return Err(BindError::NotNames);
        }
        let (namespace, name) = (args.pod_namespace.clone(), args.pod_name.clone());
        let pod = PodId { namespace, name, uid: uid.clone() };
        let mut answer = {
            let mut joined = self.joined.lock().unwrap_or_else(PoisonError::into_inner);
            match joined.get(&uid) {
                Some((under_way, answer)) if *under_way == node => answer.clone(),
                Some((under_way, _)) => {
                    let node = under_way.to_string();
                    return Err(BindError::UnderWay { pod: pod.to_string(), node });
                }
                None => {
                    let (tell, answer) = watch::channel(None);
                    joined.insert(uid, (node.clone(), answer.clone()));
                    // A task of its own: a caller that hangs up must not leave a Binding alone.
                    tokio::spawn(self.clone().run(pod.clone(), node, tell));
                    answer
                }
            }
        };
        let told = answer.wait_for(Option::is_some);
        match tokio::time::timeout(self.options.answer_within, told).await {
            Ok(Ok(told)) => told.clone().unwrap_or(Err(BindError::NotNames)),
            Ok(Err(_)) => Err(BindError::Unknown("the scheduler is stopping".to_owned())),
            Err(_) => Err(BindError::Unknown("it takes longer than expected".to_owned())),
        }
    }

    /// Whether we lead and have prepared for it.
    pub fn leads(&self) -> bool {
        let term = self.leadership.leads_for(self.options.margin);
        term.is_some_and(|term| *self.prepared.borrow() >= term)
    }

    /// Whether a call for this pod is under way.
    pub fn binds(&self, uid: &PodUid) -> bool {
        self.joined.lock().unwrap_or_else(PoisonError::into_inner).contains_key(uid)
    }

    /// How many calls are under way.
    pub fn under_way(&self) -> usize {
        self.joined.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    async fn run(self: Arc<Self>, pod: PodId, node: NodeName, tell: watch::Sender<Option<Answer>>) {
        let answer = self.try_to_bind(&pod, &node).await;
        if matches!(answer, Err(BindError::Unknown(_))) {
            tell.send_replace(Some(answer));
            self.resolve(&pod).await;
            self.leave(&pod.uid);
        } else {
            // First out of the way: who hears the answer may ask again at once.
            self.leave(&pod.uid);
            tell.send_replace(Some(answer));
        }
    }

    fn leave(&self, uid: &PodUid) {
        self.joined.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }

    async fn try_to_bind(&self, pod: &PodId, node: &NodeName) -> Answer {
        let term = self.term().await.ok_or(BindError::NotLeading)?;
        let mut prepared = self.prepared.clone();
        let ready = prepared.wait_for(|prepared| *prepared >= term);
        match tokio::time::timeout(self.options.answer_within / 2, ready).await {
            Ok(Ok(_)) => {}
            Ok(Err(_)) | Err(_) => return Err(BindError::TakingOver),
        }
        if self.held_back.holds(&pod.uid, Instant::now()) {
            return Err(BindError::HeldBack(pod.to_string()));
        }
        let known = self.handle.pods.pending(&pod.uid).map(|pending| pending.seen.clone());
        let mut seen = match known {
            Some(seen) => seen,
            None => self.fresh(pod).await?,
        };
        for _ in 0..TRIES {
            let asked = self.check(&seen)?;
            let until = self.clock.now().after(self.options.hold);
            let reserved =
                self.handle.reserve(asked.clone(), seen.clone(), node.clone(), until, None);
            let reserved = reserved.await.map_err(|error| no_room(&error))?;
            let outcome = match self.send(pod, &seen, &reserved, term).await {
                Ok(outcome) => outcome,
                Err(error) => {
                    self.handle.release(&pod.uid).await;
                    return Err(error);
                }
            };
            match outcome {
                BindingOutcome::Bound => return Ok(self.bound(pod, &asked, reserved).await),
                BindingOutcome::Gone => {
                    self.handle.release(&pod.uid).await;
                    return Err(BindError::Gone(pod.to_string()));
                }
                BindingOutcome::Refused(why) => {
                    self.handle.release(&pod.uid).await;
                    return Err(BindError::Refused(why));
                }
                BindingOutcome::Unknown(why) => return Err(BindError::Unknown(why)),
                BindingOutcome::Conflict(_) => match self.conflict(pod).await {
                    // This Binding did nothing, but an earlier one of ours may have.
                    Ok(Some(now)) if is_ours(&now, pod, &reserved) => {
                        return Ok(self.bound(pod, &asked, reserved).await);
                    }
                    Ok(Some(now)) if now.pod.id.uid == pod.uid => {
                        self.handle.release(&pod.uid).await;
                        seen = Arc::new(now);
                    }
                    Ok(_) => {
                        self.handle.release(&pod.uid).await;
                        return Err(BindError::Gone(pod.to_string()));
                    }
                    // Nor is it known whether one did, so the share stays held until that is certain.
                    Err(why) => return Err(BindError::Unknown(why)),
                },
            }
        }
        Err(BindError::Refused("the pod kept changing".to_owned()))
    }

    /// The pod as it is now that a Binding found it changed.
    async fn conflict(&self, pod: &PodId) -> Result<Option<SeenPod>, String> {
        self.options.conflicts.inc();
        self.outside.pod(pod).await
    }

    /// The number of our term, once we lead: an election may be under way.
    async fn term(&self) -> Option<u64> {
        let leads = async {
            loop {
                if let Some(term) = self.leadership.leads_for(self.options.margin) {
                    return term;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(self.options.answer_within / 3, leads).await.ok()
    }

    /// Whether the pod may be bound by us, and what it asks.
    fn check(&self, seen: &SeenPod) -> Result<Arc<Asked>, BindError> {
        let pod = &seen.pod;
        if let Some(node) = &pod.node {
            return Err(BindError::Bound { pod: pod.id.to_string(), node: node.to_string() });
        }
        let asked = match read(pod, &self.options.settings) {
            Ok(Some(asked)) => asked,
            Ok(None) => return Err(BindError::NotOurs(pod.id.to_string())),
            Err(refusal) => return Err(BindError::Never(refusal)),
        };
        if !self.options.schedulers.contains(&pod.scheduler) {
            let scheduler = pod.scheduler.clone();
            return Err(BindError::Foreign { pod: pod.id.to_string(), scheduler });
        }
        Ok(Arc::new(asked))
    }

    async fn fresh(&self, pod: &PodId) -> Result<Arc<SeenPod>, BindError> {
        match self.outside.pod(pod).await {
            Ok(Some(seen)) if seen.pod.id.uid == pod.uid => Ok(Arc::new(seen)),
            Ok(_) => Err(BindError::Gone(pod.to_string())),
            Err(why) => Err(BindError::Unread(why)),
        }
    }

    async fn send(
        &self,
        pod: &PodId,
        seen: &SeenPod,
        reserved: &Reserved,
        term: u64,
    ) -> Result<BindingOutcome, BindError> {
        if !self.handle.fence(&pod.uid).await {
            return Err(BindError::NoRoom("the reservation has expired".to_owned()));
        }
        // After the fence, as late as can be: another leader could have begun to sell.
        if self.leadership.leads_for(self.options.margin) != Some(term) {
            return Err(BindError::NotLeading);
        }
        let binding = Binding {
            pod: pod.clone(),
            version: seen.version.clone(),
            node: reserved.placement.node().clone(),
            annotations: reserved.written.annotations.clone(),
            labels: reserved.written.labels.clone(),
        };
        Ok(self.outside.bind(binding).await)
    }

    async fn bound(&self, pod: &PodId, asked: &Asked, reserved: Reserved) -> BoundPod {
        self.handle.commit(&pod.uid).await;
        let mut notes = asked.notes.clone();
        let omitted = &reserved.written.omitted;
        if let Some(first) = omitted.first() {
            let more = omitted.len() - 1;
            notes.push(if more == 0 {
                first.to_string()
            } else {
                format!("{first} (and {more} more keys for the like)")
            });
        }
        let placement = reserved.written.annotations.get(names::PLACEMENT).cloned();
        BoundPod { pod: pod.clone(), placement: placement.unwrap_or_default(), notes }
    }

    /// After a Binding of unknown outcome: touches the pod until it is certain that the Binding
    /// cannot succeed any more, or has. The ledger hears of a bound pod from the watch.
    async fn resolve(&self, pod: &PodId) {
        let mut pause = Duration::from_millis(200);
        loop {
            match self.touch(pod).await {
                Resolved::Free => {
                    self.handle.release(&pod.uid).await;
                    tracing::info!(pod = %pod, "binding of unknown outcome has failed");
                    return;
                }
                Resolved::Bound => {
                    self.handle.commit(&pod.uid).await;
                    tracing::info!(pod = %pod, "binding of unknown outcome has succeeded");
                    return;
                }
                Resolved::Unknown => {}
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(5));
        }
    }

    async fn touch(&self, pod: &PodId) -> Resolved {
        let seen = match self.outside.pod(pod).await {
            Ok(Some(seen)) if seen.pod.id.uid == pod.uid => seen,
            Ok(_) => return Resolved::Free,
            Err(_) => return Resolved::Unknown,
        };
        if seen.pod.node.is_some() {
            return Resolved::Bound;
        }
        // With the version: were it bound in between, this must not count as a touch.
        let annotations = [(names::RETRY.to_owned(), Some(self.clock.wall().0.to_string()))].into();
        let touch = Annotated { pod: pod.clone(), version: Some(seen.version), annotations };
        match self.outside.annotate(touch).await {
            TouchOutcome::Changed(_) | TouchOutcome::Gone => Resolved::Free,
            TouchOutcome::Conflict | TouchOutcome::Refused(_) | TouchOutcome::Failed(_) => {
                Resolved::Unknown
            }
        }
    }
}

enum Resolved {
    Free,
    Bound,
    Unknown,
}

/// Whether the pod is bound just as `reserved` says.
fn is_ours(seen: &SeenPod, pod: &PodId, reserved: &Reserved) -> bool {
    let text = seen.pod.annotations.get(names::PLACEMENT);
    seen.pod.id.uid == pod.uid
        && seen.pod.node.as_ref() == Some(reserved.placement.node())
        && text == reserved.written.annotations.get(names::PLACEMENT)
}

fn no_room(error: &Unreserved) -> BindError {
    BindError::NoRoom(error.to_string())
}
