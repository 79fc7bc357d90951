//! How others talk to the writer: they read what it publishes, and ask it for what changes it.

use std::sync::Arc;

use arc_swap::ArcSwap;
use dialect::{Asked, WriteError, Written};
use kubeapi::{Listed, SeenPod};
use ledger::ReserveError;
use model::{Moment, NodeName, Placement, PodUid, UnixNanos};
use placement::NodeRefusal;
use tokio::sync::{mpsc, oneshot, watch};

use super::picture::Picture;
use super::pods::Pods;
use super::sent::Sent;

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

/// What the writer is asked to do.
pub(super) enum Command {
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
    Withdraw(PodUid, Reply<()>),
    TakeOver(Listed, Reply<()>),
    WatchGone(Reply<()>),
}

/// How others talk to the writer.
#[derive(Debug, Clone)]
pub struct Handle {
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) picture: Arc<ArcSwap<Picture>>,
    /// Pending pods, looked up by readers.
    pub pods: Arc<Pods>,
    /// Pods whose bind is expected.
    pub sent: Arc<Sent>,
    pub(super) changed: watch::Receiver<u64>,
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

    /// Counts what changed, in the picture or among the pods that wait; waits on it see every
    /// change at least once.
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

    /// Keeps nothing for the pod any more.
    pub async fn withdraw(&self, pod: &PodUid) {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Withdraw(pod.clone(), reply), answer).await;
    }

    /// From now on remembers which pods go, until [`Handle::take_over`].
    pub async fn watch_gone(&self) {
        let (reply, answer) = oneshot::channel();
        self.send(Command::WatchGone(reply), answer).await;
    }

    /// Counts what `listed`, read from the store, shows and the watch has not shown yet.
    pub async fn take_over(&self, listed: Listed) {
        let (reply, answer) = oneshot::channel();
        self.send(Command::TakeOver(listed, reply), answer).await;
    }

    async fn send<T>(&self, command: Command, answer: oneshot::Receiver<T>) -> Option<T> {
        self.commands.send(command).await.ok()?;
        answer.await.ok()
    }
}
