//! The leader evicts where kube-scheduler never asks.
//!
//! kube-scheduler asks whom to evict only for nodes where its own sums fall short. A card in
//! fragments, or one held through another dialect, never makes them fall short. So a pod that we
//! refused everywhere, and for which pods of lower priority would have to leave, is served here:
//! victims by the pure function, evicted within their budgets, room promised to the pod.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use dialect::Asked;
use kubeapi::{EvictionOutcome, Outside, TouchOutcome};
use model::{Moment, NodeName, PodId, PodUid};
use placement::{Ask, NoPreemption, Policy, Preemption, preempt};

use crate::state::{Handle, Picture};
use crate::waking::Waits;

/// How long kube-scheduler has to ask for itself, in milliseconds.
const FIRST_CHANCE: u64 = 1_500;
/// How long before a pod for which nobody could be evicted is looked at again, in milliseconds.
const AGAIN_AFTER: u64 = 10_000;

/// How long an answer to kube-scheduler is left to take effect, in milliseconds. It hears of the
/// victim's end sooner than we do, tries the pod again, is refused by us, and would have a second
/// victim leave for the same pod.
const CARRIED_OUT_WITHIN: u64 = 5_000;

/// What became of looking for victims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Looked {
    /// Nobody should be evicted, and why.
    Nobody(NoPreemption),
    /// These were evicted for it.
    Evicted(Preemption),
    /// An eviction did not go through, and why.
    Stopped(String),
}

/// Evicts for pods that wait.
pub struct Preempting {
    handle: Handle,
    outside: Arc<dyn Outside>,
    policy: Policy,
    /// When each pod was last looked at or asked about by kube-scheduler, and what came of it.
    looked: Mutex<HashMap<PodUid, (Moment, Option<Looked>)>>,
    /// When kube-scheduler was last told whom to evict for each pod.
    told: Mutex<HashMap<PodUid, Moment>>,
}

impl std::fmt::Debug for Preempting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Preempting").finish_non_exhaustive()
    }
}

impl Preempting {
    /// Evicts through `outside`.
    pub fn new(handle: Handle, outside: Arc<dyn Outside>, policy: Policy) -> Self {
        Self { handle, outside, policy, looked: Mutex::default(), told: Mutex::default() }
    }

    /// kube-scheduler asks about this pod itself.
    pub fn asked_by_scheduler(&self, uid: &PodUid, now: Moment) {
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        looked.insert(uid.clone(), (now, None));
    }

    /// kube-scheduler was told whom to evict for this pod.
    pub fn told_scheduler(&self, uid: &PodUid, now: Moment) {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).insert(uid.clone(), now);
    }

    /// Whether what kube-scheduler was told may still be about to happen.
    pub fn is_carried_out(&self, uid: &PodUid, now: Moment) -> bool {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.get(uid).is_some_and(|at| now < at.after(CARRIED_OUT_WITHIN))
    }

    /// What came of looking for victims for this pod.
    pub fn outcome(&self, uid: &PodUid) -> Option<Looked> {
        let looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        looked.get(uid).and_then(|(_, outcome)| outcome.clone())
    }

    /// Forgets pods that do not wait any more. What is young stays: kube-scheduler may ask about
    /// a pod before our watch shows it.
    pub fn tidy(&self, now: Moment) {
        let waits = |uid: &PodUid| self.handle.pods.pending(uid).is_some();
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        looked.retain(|uid, (at, _)| now < at.after(AGAIN_AFTER) || waits(uid));
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.retain(|_, at| now < at.after(CARRIED_OUT_WITHIN));
    }

    /// How many pods something is remembered of.
    pub fn remembered(&self) -> usize {
        let looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner).len();
        looked.max(self.told.lock().unwrap_or_else(PoisonError::into_inner).len())
    }

    /// The pods whose turn it is, the highest priority first.
    pub fn due(&self, waiting: Vec<Waits>, now: Moment) -> Vec<Waits> {
        let looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        let due = |waits: &Waits| {
            let uid = &waits.asked.request.pod.uid;
            if self.is_carried_out(uid, now) {
                return false;
            }
            let first = now >= waits.since.after(FIRST_CHANCE);
            let rested = looked.get(uid).is_none_or(|(at, _)| now >= at.after(AGAIN_AFTER));
            waits.may_preempt && first && rested
        };
        let mut due: Vec<Waits> = waiting.into_iter().filter(due).collect();
        due.sort_by_key(|w| {
            (std::cmp::Reverse(w.asked.request.priority), w.asked.request.pod.uid.clone())
        });
        due
    }

    /// Looks for victims for one pod and evicts them.
    pub async fn look(&self, waits: &Waits, now: Moment) -> Looked {
        let looked = self.try_to_evict(waits).await;
        let uid = waits.asked.request.pod.uid.clone();
        let mut all = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(uid, (now, Some(looked.clone())));
        looked
    }

    async fn try_to_evict(&self, waits: &Waits) -> Looked {
        let picture = self.handle.picture();
        let budgets = self.handle.pods.budgets();
        let found = match victims(&picture, &waits.asked, waits, &budgets, self.policy) {
            Ok(found) => found,
            Err(nobody) => return Looked::Nobody(nobody),
        };
        let pod = &waits.asked.request.pod;
        // Promised first: what is freed must not be free for a moment.
        self.handle.promise(&pod.uid, &found.node).await;
        for victim in &found.victims {
            if let Some(stopped) = self.evict(&victim.pod).await {
                // Nothing is freed for it there: what comes free by itself is anyone's.
                self.handle.withdraw(&pod.uid).await;
                return Looked::Stopped(stopped);
            }
        }
        match self.outside.nominate(pod, &found.node).await {
            TouchOutcome::Changed(_) | TouchOutcome::Gone => {}
            TouchOutcome::Conflict => tracing::debug!(pod = %pod, "nomination raced"),
            TouchOutcome::Refused(why) | TouchOutcome::Failed(why) => {
                tracing::warn!(pod = %pod, why, "not nominated");
            }
        }
        Looked::Evicted(found)
    }

    async fn evict(&self, victim: &PodId) -> Option<String> {
        match self.outside.evict(victim).await {
            EvictionOutcome::Evicted | EvictionOutcome::Gone => None,
            EvictionOutcome::Blocked(why) => {
                Some(format!("pod {victim} may not be evicted now: {why}"))
            }
            EvictionOutcome::Failed(why) => Some(format!("pod {victim} was not evicted: {why}")),
        }
    }
}

/// Where room is on its way for the pod already, by whomever others were evicted for it.
pub fn promised(picture: &Picture, uid: &PodUid) -> Option<NodeName> {
    let nominee = picture.nominees.iter().find(|nominee| nominee.pod.uid == *uid)?;
    Some(nominee.node.clone())
}

/// Who would have to leave, of the nodes that kube-scheduler asked about.
///
/// Nobody for a pod that has been promised room: kube-scheduler does not ask about a node whose
/// victims are still leaving, and others would be evicted on another one.
pub fn victims(
    picture: &Picture,
    asked: &Asked,
    waits: &Waits,
    budgets: &[placement::Budget],
    policy: Policy,
) -> Result<Preemption, NoPreemption> {
    if let Some(node) = promised(picture, &asked.request.pod.uid) {
        return Err(NoPreemption::Waiting { node });
    }
    let seen = picture.seen_by(&asked.request);
    let part = Picture::part(&seen, &waits.refused);
    // A pod that is about to be bound cannot be evicted, and one that is promised room stays.
    preempt(&part, &Ask::new(&part, &asked.request, policy), budgets).and_then(|found| {
        let held = |uid: &PodUid| picture.reserved.contains_key(uid);
        let stays = |uid: &PodUid| held(uid) || promised(picture, uid).is_some();
        if found.victims.iter().any(|victim| stays(&victim.pod.uid)) {
            return Err(NoPreemption::Waiting { node: found.node });
        }
        Ok(found)
    })
}
