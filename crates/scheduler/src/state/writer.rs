//! The task that owns the ledger. Everything that changes what is sold goes through here, one
//! after another; readers get a new picture after every batch.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use arc_swap::ArcSwap;
use dialect::{Asked, Settings, WriteError, Written, observe, read, write};
use kubeapi::{Clock, Seen, SeenPod, Source};
use ledger::{Event, Ledger, ReserveError};
use model::{
    Device, DeviceId, Holder, Moment, Node, NodeName, Placement, PodUid, Request, Snapshot,
    UnixNanos,
};
use placement::{Ask, NodeRefusal, Policy, choose};
use telemetry::Health;
use tokio::sync::{mpsc, oneshot, watch};

use super::learning::Learning;
use super::picture::Picture;
use super::pods::{Pending, Pods};
use super::quotas::{Change, Quotas};

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

/// A decision that is held for its pod.
#[derive(Debug, Clone)]
pub struct Reserved {
    /// Where, and which cards.
    pub placement: Placement,
    /// What to write onto the pod.
    pub written: Written,
}

/// Why a decision could not be held.
#[derive(Debug, thiserror::Error)]
pub enum Unreserved {
    /// The node is not known.
    #[error("node {0} is not known")]
    NoNode(NodeName),
    /// It no longer has room.
    #[error("node {node}: {refusal}")]
    NoRoom {
        /// Which node.
        node: NodeName,
        /// Why.
        refusal: Box<NodeRefusal>,
    },
    /// The ledger said no.
    #[error(transparent)]
    Ledger(#[from] ReserveError),
    /// The pod's annotations have no room for the decision.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// We are stopping.
    #[error("the scheduler is stopping")]
    Stopping,
}

type Reply<T> = oneshot::Sender<T>;

enum Command {
    Reserve {
        asked: Arc<Asked>,
        pod: Arc<SeenPod>,
        node: NodeName,
        until: Moment,
        void_after: Option<UnixNanos>,
        reply: Reply<Result<Reserved, Unreserved>>,
    },
    Fence(PodUid, Reply<bool>),
    Commit(PodUid, Reply<()>),
    Release(PodUid, Reply<()>),
    Promise(PodUid, NodeName, Reply<()>),
    TakeOver(Vec<SeenPod>, Reply<()>),
    WatchGone(Reply<()>),
}

/// How others talk to the writer.
#[derive(Debug, Clone)]
pub struct Handle {
    commands: mpsc::Sender<Command>,
    picture: Arc<ArcSwap<Picture>>,
    /// Pending pods, looked up by readers.
    pub pods: Arc<Pods>,
    changed: watch::Receiver<u64>,
}

impl std::fmt::Debug for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Command")
    }
}

impl Handle {
    /// The newest picture.
    pub fn picture(&self) -> Arc<Picture> {
        self.picture.load_full()
    }

    /// Counts the pictures published; waits on it see every change at least once.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.clone()
    }

    /// Chooses cards on `node` for the pod, and holds them until `until`. With `void_after` the
    /// placement says of itself when it ends.
    pub async fn reserve(
        &self,
        asked: Arc<Asked>,
        pod: Arc<SeenPod>,
        node: NodeName,
        until: Moment,
        void_after: Option<UnixNanos>,
    ) -> Result<Reserved, Unreserved> {
        let (reply, answer) = oneshot::channel();
        let command = Command::Reserve { asked, pod, node, until, void_after, reply };
        self.send(command, answer).await.unwrap_or(Err(Unreserved::Stopping))
    }

    /// Call before the Binding is sent. False: the reservation has ended, do not send it.
    pub async fn fence(&self, pod: &PodUid) -> bool {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Fence(pod.clone(), reply), answer).await.unwrap_or(false)
    }

    /// Call when the Binding succeeded.
    pub async fn commit(&self, pod: &PodUid) {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Commit(pod.clone(), reply), answer).await;
    }

    /// Call when the Binding certainly failed.
    pub async fn release(&self, pod: &PodUid) {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Release(pod.clone(), reply), answer).await;
    }

    /// Keeps what is freed on `node` for the pod.
    pub async fn promise(&self, pod: &PodUid, node: &NodeName) {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Promise(pod.clone(), node.clone(), reply), answer).await;
    }

    /// From now on remembers which pods go, until [`Handle::take_over`].
    pub async fn watch_gone(&self) {
        let (reply, answer) = oneshot::channel();
        self.send(Command::WatchGone(reply), answer).await;
    }

    /// Counts what `pods`, read from the store, show and the watch has not shown yet.
    pub async fn take_over(&self, pods: Vec<SeenPod>) {
        let (reply, answer) = oneshot::channel();
        self.send(Command::TakeOver(pods, reply), answer).await;
    }

    async fn send<T>(&self, command: Command, answer: oneshot::Receiver<T>) -> Option<T> {
        self.commands.send(command).await.ok()?;
        answer.await.ok()
    }
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
    /// Pods that others were evicted for.
    promised: HashMap<PodUid, Promise>,
    /// Pods that went while a take-over reads the store.
    gone: Option<HashSet<PodUid>>,
    picture: Arc<ArcSwap<Picture>>,
    commands: mpsc::Receiver<Command>,
    changed: watch::Sender<u64>,
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
        let handle = Handle {
            commands: sender,
            picture: picture.clone(),
            pods: pods.clone(),
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
            promised: HashMap::new(),
            gone: None,
            picture,
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
            let mut changed = tokio::select! {
                biased;
                command = self.commands.recv() => match command {
                    Some(command) => { self.obey(command, &mut replies); true }
                    None => return,
                },
                Some(event) = seen.recv() => { self.see(event); true }
                _ = tick.tick() => self.pass(),
            };
            for _ in 0..BATCH {
                if let Ok(command) = self.commands.try_recv() {
                    self.obey(command, &mut replies);
                } else if let Ok(event) = seen.try_recv() {
                    self.see(event);
                } else {
                    break;
                }
                changed = true;
            }
            if changed {
                self.publish();
            }
            for reply in replies {
                reply();
            }
        }
    }

    /// Takes notice of what the API server showed.
    pub fn see(&mut self, seen: Seen) {
        match seen {
            Seen::Pod(pod) => self.pod_seen(&pod),
            Seen::PodGone(uid) => self.pod_gone(&uid),
            Seen::Ledger(event) => self.ledger.apply(event),
            Seen::Load(node, devices) => self.ledger.apply(Event::Load { node, devices }),
            Seen::Budget(budget) => self.pods.budget(budget),
            Seen::BudgetGone(uid) => self.pods.budget_gone(&uid),
            Seen::Quota(source, text) => self.quota_seen(source, text.as_deref()),
            Seen::Synced(source) => {
                if source == Source::Pods || source == Source::Nodes || source == Source::Agents {
                    self.publish();
                }
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
            self.promised.remove(&pod.id.uid);
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
        self.pods.waits(Pending { seen: seen.clone(), asked });
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
        self.promised.remove(uid);
        self.learning.gone(uid);
        self.pods.gone(uid);
        self.ledger.apply(Event::PodGone(uid.clone()));
    }

    fn quota_seen(&mut self, source: kubeapi::QuotaSource, text: Option<&str>) {
        let of = Source::Quota(source).as_str();
        match self.quotas.change(source, text) {
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

    /// Lets time pass. True if something changed by that.
    fn pass(&mut self) -> bool {
        let before = self.picture.load();
        let ended = self.ledger.expire(self.clock.now());
        for uid in &ended {
            tracing::info!(pod = %uid, "reservation expired");
        }
        let now = self.clock.now();
        let keep = self.options.promise;
        let promises = self.promised.len();
        self.promised.retain(|_, promise| now < promise.since.after(keep));
        let learned = self.learning.learn(&before.snapshot, now.0);
        let after = self.ledger.snapshot();
        let same = after.nodes().len() == before.snapshot.nodes().len()
            && after.nodes().iter().zip(before.snapshot.nodes()).all(|(a, b)| Arc::ptr_eq(a, b));
        !same || learned || !ended.is_empty() || promises != self.promised.len()
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
            Command::TakeOver(pods, reply) => {
                let gone = self.gone.take().unwrap_or_default();
                for pod in pods {
                    let uid = &pod.pod.id.uid;
                    if !gone.contains(uid) && self.ledger.bound(uid).is_none() {
                        self.pod_seen(&Arc::new(pod));
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
        let mut placement = choose(&seen, &ask).map_err(|refusal| Unreserved::NoRoom {
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

    fn publish(&mut self) {
        let snapshot: Snapshot =
            self.ledger.snapshot().with_statistics(self.learning.statistics.clone());
        let reserved =
            self.ledger.reservations().map(|(uid, node)| (uid.clone(), node.clone())).collect();
        let nominees = if self.promised.is_empty() { Vec::new() } else { self.nominees() };
        self.picture.store(Arc::new(Picture { snapshot, reserved, nominees }));
        self.changed.send_modify(|count| *count += 1);
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
    };
    picture.seen_by(request).nodes()[0].clone()
}
