//! The task that owns the ledger. Everything that changes what is sold goes through here, one
//! after another; readers get a new picture after every batch.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use arc_swap::ArcSwap;
use dialect::{Asked, Settings, observe, read, write};
use kubeapi::{Clock, Seen, SeenPod, Source, UnreadPod};
use ledger::{Event, Ledger};
use model::{
    Claim, Device, DeviceId, Holder, Host, Moment, Node, NodeName, PodUid, Request, Snapshot,
    UnixNanos,
};
use placement::{Ask, Policy, choose};
use telemetry::Health;
use tokio::sync::{mpsc, watch};

use super::handle::{Command, Handle, Reserved, Unreserved};
use super::learning::Learning;
use super::picture::Picture;
use super::pods::{Pending, Pods};
use super::quotas::{Change, Quotas};
use super::sent::Sent;

/// What the writer must know beforehand.
#[derive(Debug, Clone)]
pub struct WriterOptions {
    /// Which dialects are spoken, and how.
    pub settings: Arc<Settings>,
    /// How cards are chosen.
    pub policy: Policy,
    /// How long a promised room is kept for a pod that does not come, in milliseconds.
    pub promise: u64,
}

/// Room that is kept for a pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Promise {
    node: NodeName,
    since: Moment,
}

/// Replies wait until the picture shows what was done.
type Replies = Vec<Box<dyn FnOnce() + Send>>;

/// The task's own state.
pub struct Writer {
    options: WriterOptions,
    clock: Clock,
    health: Arc<Health>,
    ledger: Ledger,
    learning: Learning,
    quotas: Quotas,
    pods: Arc<Pods>,
    sent: Arc<Sent>,
    /// Pods that others were evicted for.
    promised: HashMap<PodUid, Promise>,
    /// Pods that went while a take-over reads the store.
    gone: Option<HashSet<PodUid>>,
    picture: Arc<ArcSwap<Picture>>,
    /// Which state of the ledger the picture shows.
    shown: u64,
    /// What changed since, beside the ledger.
    unshown: Unshown,
    commands: mpsc::Receiver<Command>,
    changed: watch::Sender<u64>,
}

/// What readers have not been told yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Unshown {
    /// Nothing.
    Nothing,
    /// Something that is not in the picture: a pod that waits, a budget.
    Beside,
    /// Something the picture shows: a promise, what was learned.
    Picture,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").finish_non_exhaustive()
    }
}

/// At most so many events between two pictures.
const BATCH: usize = 512;

impl Writer {
    /// A writer that knows nothing yet, and the handle to it.
    pub fn new(options: WriterOptions, clock: Clock, health: Arc<Health>) -> (Self, Handle) {
        let (sender, commands) = mpsc::channel(1024);
        let (changed, reading) = watch::channel(0);
        let picture = Arc::new(ArcSwap::from_pointee(Picture::default()));
        let pods = Arc::new(Pods::default());
        let sent = Arc::new(Sent::default());
        let handle = Handle {
            commands: sender,
            picture: picture.clone(),
            pods: pods.clone(),
            sent: sent.clone(),
            changed: reading,
        };
        let writer = Self {
            options,
            clock,
            health,
            ledger: Ledger::new(),
            learning: Learning::default(),
            quotas: Quotas::default(),
            pods,
            sent,
            promised: HashMap::new(),
            gone: None,
            picture,
            shown: 0,
            unshown: Unshown::Nothing,
            commands,
            changed,
        };
        (writer, handle)
    }

    /// Works until nobody can send anything any more.
    pub async fn run(mut self, mut seen: mpsc::Receiver<Seen>) {
        let mut tick = tokio::time::interval(std::time::Duration::from_millis(500));
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let mut replies = Replies::new();
            tokio::select! {
                biased;
                command = self.commands.recv() => match command {
                    Some(command) => self.obey(command, &mut replies),
                    None => return,
                },
                Some(event) = seen.recv() => self.see(event),
                _ = tick.tick() => self.pass(),
            }
            for _ in 0..BATCH {
                if let Ok(command) = self.commands.try_recv() {
                    self.obey(command, &mut replies);
                } else if let Ok(event) = seen.try_recv() {
                    self.see(event);
                } else {
                    break;
                }
            }
            self.show();
            for reply in replies {
                reply();
            }
        }
    }

    /// Takes notice of what the API server showed.
    pub fn see(&mut self, seen: Seen) {
        match seen {
            Seen::Pod(pod) => self.pod_seen(&pod),
            Seen::Unread(unread) => self.unread(&unread),
            Seen::PodGone(uid) => self.pod_gone(&uid),
            Seen::Ledger(event) => self.ledger.apply(event),
            Seen::Load(node, devices) => self.ledger.apply(Event::Load { node, devices }),
            Seen::Budget(budget) => {
                self.pods.budget(budget);
                self.note(Unshown::Beside);
            }
            Seen::BudgetGone(uid) => {
                self.pods.budget_gone(&uid);
                self.note(Unshown::Beside);
            }
            Seen::Quota(source, text) => self.quota_seen(source, text.as_deref()),
            Seen::Synced(source) => {
                // Whoever finds us ready must see what made us so.
                self.show();
                self.health.ready(source.as_str());
            }
        }
    }

    fn pod_seen(&mut self, seen: &Arc<SeenPod>) {
        let pod = &seen.pod;
        if pod.has_ended() {
            return self.pod_gone(&pod.id.uid);
        }
        let asked = read(pod, &self.options.settings);
        if let Ok(Some(asked)) = &asked {
            self.learning.see(&asked.request);
        }
        if let Some(holder) = observe(pod, &self.options.settings) {
            self.break_promise(&pod.id.uid);
            self.pods.runs(seen);
            self.ledger.apply(Event::Pod(holder));
            return;
        }
        let asked = match asked {
            Ok(None) => return,
            Ok(Some(asked)) => Ok(Arc::new(asked)),
            Err(refusal) => Err(refusal),
        };
        self.nominated(&pod.id.uid, seen.nominated.as_ref());
        let promised = self.promised.contains_key(&pod.id.uid);
        self.note(if promised { Unshown::Picture } else { Unshown::Beside });
        self.pods.waits(Pending { seen: seen.clone(), asked });
    }

    /// A pod on a node holds nobody knows what: the node takes nothing new until it is gone.
    fn unread(&mut self, unread: &UnreadPod) {
        let Some(node) = unread.node.clone() else { return };
        self.break_promise(&unread.pod.uid);
        self.pods.gone(&unread.pod.uid);
        self.ledger.apply(Event::Pod(Holder {
            pod: unread.pod.clone(),
            node,
            claim: Claim::Unreadable(unread.why.clone()),
            host: Host::default(),
            tickets: Vec::new(),
            priority: i32::MAX,
            terminating: false,
        }));
    }

    fn note(&mut self, unshown: Unshown) {
        self.unshown = self.unshown.max(unshown);
    }

    fn break_promise(&mut self, uid: &PodUid) {
        if self.promised.remove(uid).is_some() {
            self.note(Unshown::Picture);
        }
    }

    /// What the pod's status says of where it was promised room. That it says nothing means
    /// nothing: kube-scheduler takes a nomination back at every try that fails, also while the
    /// victims are still leaving.
    fn nominated(&mut self, uid: &PodUid, node: Option<&NodeName>) {
        let Some(node) = node else { return };
        if self.promised.get(uid).is_none_or(|promise| promise.node != *node) {
            let promise = Promise { node: node.clone(), since: self.clock.now() };
            self.promised.insert(uid.clone(), promise);
        }
    }

    fn pod_gone(&mut self, uid: &PodUid) {
        if let Some(gone) = &mut self.gone {
            gone.insert(uid.clone());
        }
        self.break_promise(uid);
        self.learning.gone(uid);
        self.pods.gone(uid);
        self.note(Unshown::Beside);
        self.ledger.apply(Event::PodGone(uid.clone()));
    }

    fn quota_seen(&mut self, source: kubeapi::QuotaSource, text: Option<&str>) {
        let of = Source::Quota(source).as_str();
        let before = self.quotas.states().get(of).cloned();
        let change = self.quotas.change(source, text);
        if self.quotas.states().get(of) != before.as_ref() {
            self.note(Unshown::Picture);
        }
        match change {
            Change::Now(quota) => {
                self.ledger.apply(Event::Quota(quota));
                tracing::info!(of, "quota read");
            }
            Change::Broken(error) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                tracing::warn!(of, %error, cause, "quota broken; the last good one stays in force");
            }
            Change::Missing => {
                tracing::warn!(of, "quota missing; the last good one stays in force");
            }
            Change::None => {}
        }
    }

    /// Lets time pass.
    fn pass(&mut self) {
        let now = self.clock.now();
        for uid in self.ledger.expire(now) {
            tracing::info!(pod = %uid, "reservation expired");
        }
        let keep = self.options.promise;
        let promises = self.promised.len();
        self.promised.retain(|_, promise| now < promise.since.after(keep));
        let learned = self.learning.learn(&self.picture.load().snapshot, now.0);
        if learned || promises != self.promised.len() {
            self.note(Unshown::Picture);
        }
    }

    fn obey(&mut self, command: Command, replies: &mut Replies) {
        match command {
            Command::Reserve { asked, pod, node, until, void_after, reply } => {
                let answer = self.reserve(&asked, &pod, &node, until, void_after);
                replies.push(Box::new(move || {
                    let _ = reply.send(answer);
                }));
            }
            Command::Fence(uid, reply) => {
                let fenced = self.ledger.fence(&uid).is_ok();
                replies.push(Box::new(move || {
                    let _ = reply.send(fenced);
                }));
            }
            Command::Commit(uid, reply) => {
                // Not reserved any more: the watch was faster.
                let _ = self.ledger.commit(&uid);
                replies.push(Box::new(move || {
                    let _ = reply.send(());
                }));
            }
            Command::Release(uid, reply) => {
                let _ = self.ledger.release(&uid);
                replies.push(Box::new(move || {
                    let _ = reply.send(());
                }));
            }
            Command::Promise(uid, node, reply) => {
                let since = self.clock.now();
                self.promised.insert(uid, Promise { node, since });
                self.note(Unshown::Picture);
                replies.push(Box::new(move || {
                    let _ = reply.send(());
                }));
            }
            Command::Withdraw(uid, reply) => {
                self.break_promise(&uid);
                replies.push(Box::new(move || {
                    let _ = reply.send(());
                }));
            }
            Command::WatchGone(reply) => {
                self.gone = Some(HashSet::new());
                replies.push(Box::new(move || {
                    let _ = reply.send(());
                }));
            }
            Command::TakeOver(listed, reply) => {
                let gone = self.gone.take().unwrap_or_default();
                for pod in listed.pods {
                    let uid = &pod.pod.id.uid;
                    if !gone.contains(uid) && self.ledger.bound(uid).is_none() {
                        self.pod_seen(&Arc::new(pod));
                    }
                }
                for unread in listed.unread {
                    let uid = &unread.pod.uid;
                    if !gone.contains(uid) && self.ledger.bound(uid).is_none() {
                        self.unread(&unread);
                    }
                }
                replies.push(Box::new(move || {
                    let _ = reply.send(());
                }));
            }
        }
    }

    fn reserve(
        &mut self,
        asked: &Asked,
        pod: &SeenPod,
        node: &NodeName,
        until: Moment,
        void_after: Option<UnixNanos>,
    ) -> Result<Reserved, Unreserved> {
        let request = &asked.request;
        let known = self.ledger.node(node).ok_or_else(|| Unreserved::NoNode(node.clone()))?;
        let nominees = self.nominees();
        let seen = as_seen_by(known, request, &nominees);
        let allowance = self.ledger.allowance(&request.pod.namespace);
        let ask = Ask {
            request,
            allowance: &allowance,
            policy: self.options.policy.overridden(request.overrides),
            statistics: &self.learning.statistics,
        };
        let chosen = self.sent.choose(&seen, &ask, self.clock.now());
        let mut placement = chosen.map_err(|refusal| Unreserved::NoRoom {
            node: node.clone(),
            refusal: refusal.into(),
        })?;
        if let Some(until) = void_after {
            placement = placement.void_after(until);
        }
        let device = |id: &DeviceId| -> Option<&Device> { Some(&seen.device(id)?.device) };
        let now = self.clock.wall();
        let written = write(asked, &pod.pod, &placement, &device, &self.options.settings, now)?;
        self.ledger.reserve(Holder::placed(request, &placement), until)?;
        Ok(Reserved { placement, written })
    }

    /// The pods that others were evicted for, placed where they will be.
    fn nominees(&self) -> Vec<Arc<Holder>> {
        let nominee = |(uid, promise): (&PodUid, &Promise)| {
            let pending = self.pods.pending(uid)?;
            let asked = pending.asked.as_ref().ok()?;
            let node = self.ledger.node(&promise.node)?;
            let leaving = node.holders.iter().filter(|holder| holder.terminating);
            let mut leaving: BTreeSet<PodUid> = leaving.map(|h| h.pod.uid.clone()).collect();
            leaving.insert(uid.clone());
            let emptied = node.without(&leaving);
            let allowance = self.ledger.allowance(&asked.request.pod.namespace);
            let ask = Ask {
                request: &asked.request,
                allowance: &allowance,
                policy: self.options.policy.overridden(asked.request.overrides),
                statistics: &self.learning.statistics,
            };
            let placement = choose(&emptied, &ask).ok()?;
            Some(Arc::new(Holder::placed(&asked.request, &placement)))
        };
        let sorted: BTreeMap<_, _> = self.promised.iter().collect();
        sorted.into_iter().filter_map(nominee).collect()
    }

    /// Shows readers what they have not seen yet. What did not change is not shown anew: an agent
    /// that is heard is no reason for anyone to look at its node again.
    fn show(&mut self) {
        if self.ledger.changes() != self.shown {
            self.note(Unshown::Picture);
        }
        let unshown = std::mem::replace(&mut self.unshown, Unshown::Nothing);
        if unshown == Unshown::Nothing {
            return;
        }
        if unshown == Unshown::Picture {
            self.shown = self.ledger.changes();
            self.publish();
        }
        self.changed.send_modify(|count| *count += 1);
    }

    fn publish(&self) {
        let snapshot: Snapshot =
            self.ledger.snapshot().with_statistics(self.learning.statistics.clone());
        let reserved =
            self.ledger.reservations().map(|(uid, node)| (uid.clone(), node.clone())).collect();
        let nominees = if self.promised.is_empty() { Vec::new() } else { self.nominees() };
        let before = &self.picture.load().quotas;
        let quotas = if **before == *self.quotas.states() {
            before.clone()
        } else {
            Arc::new(self.quotas.states().clone())
        };
        self.picture.store(Arc::new(Picture { snapshot, reserved, nominees, quotas }));
    }
}

/// A node as the pod of `request` sees it; see [`Picture::seen_by`].
fn as_seen_by(node: &Arc<Node>, request: &Request, nominees: &[Arc<Holder>]) -> Arc<Node> {
    let nodes = vec![node.clone()];
    let has = |holder: &Arc<Holder>| holder.pod.uid == request.pod.uid;
    let own = node.holders.iter().any(has).then(|| (request.pod.uid.clone(), node.name.clone()));
    let picture = Picture {
        snapshot: Snapshot::new(nodes, Arc::default()),
        reserved: own.into_iter().collect(),
        nominees: nominees.to_vec(),
        quotas: Arc::default(),
    };
    picture.seen_by(request).nodes()[0].clone()
}
