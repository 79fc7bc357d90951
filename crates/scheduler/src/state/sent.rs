//! Pods that were sent to a node a moment ago and whose bind has not come yet.
//!
//! kube-scheduler asks about the next pod while it begins to bind the one before. The node that is
//! best for one is mostly best for the other too; where it has no room for both, the second would hear of
//! that in bind only, and kube-scheduler would try it again a second later. So who was sent where is
//! remembered for a moment, and the next is sent elsewhere if there is no room for both.
//!
//! In bind each gets cards that leave room for those that are still to come, in whichever order they come.
//!
//! A note and no more: nothing is held by it, and nobody is refused for it. Bind decides by the ledger.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};

use model::{Holder, Moment, Node, Placement};
use placement::{Ask, NodeRefusal, choose};

/// So long, in milliseconds, a bind may take to come.
const SOON: u64 = 1_000;
/// So many nodes are looked at.
const FEW: usize = 16;

/// Who was sent where.
#[derive(Debug, Default)]
pub struct Sent {
    // Held for a look only, never over an await.
    pods: Mutex<Vec<Expected>>,
}

#[derive(Debug)]
struct Expected {
    holder: Arc<Holder>,
    until: Moment,
}

impl Sent {
    /// The first of `nodes`, best first, on which the pod of `ask` fits beside those that were sent
    /// there. If it does on none of a few, the very first.
    pub fn first<'a, N: Copy>(
        &self,
        nodes: impl IntoIterator<Item = N>,
        node: impl Fn(N) -> &'a Node,
        ask: &Ask,
        now: Moment,
    ) -> Option<N> {
        let mut nodes = nodes.into_iter().take(FEW).peekable();
        let best = nodes.peek().copied();
        nodes.find(|it| self.leave_room(node(*it), ask, now)).or(best)
    }

    /// Cards of `node` for the pod of `ask`: such that there is room for those that were sent there, if
    /// that can be.
    pub fn choose(&self, node: &Node, ask: &Ask, now: Moment) -> Result<Placement, NodeRefusal> {
        match self.joined(node, ask, now) {
            Cow::Borrowed(node) => choose(node, ask),
            Cow::Owned(joined) => choose(&joined, ask).or_else(|_| choose(node, ask)),
        }
    }

    fn leave_room(&self, node: &Node, ask: &Ask, now: Moment) -> bool {
        match self.joined(node, ask, now) {
            Cow::Borrowed(_) => true,
            Cow::Owned(node) => choose(&node, ask).is_ok(),
        }
    }

    /// Remembers that the pod of `ask` was sent to `node`.
    pub fn send(&self, node: &Node, ask: &Ask, now: Moment) {
        let Ok(placement) = choose(&self.joined(node, ask, now), ask) else { return };
        let holder = Arc::new(Holder::placed(ask.request, &placement));
        let mut pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
        pods.retain(|sent| now < sent.until && sent.holder.pod.uid != holder.pod.uid);
        pods.push(Expected { holder, until: now.after(SOON) });
    }

    /// Its bind came, and the ledger knows by now, or it will come again.
    pub fn forget(&self, uid: &str) {
        let mut pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
        pods.retain(|sent| sent.holder.pod.uid.as_str() != uid);
    }

    /// `node` with the other pods that were sent there and that it does not count yet.
    fn joined<'a>(&self, node: &'a Node, ask: &Ask, now: Moment) -> Cow<'a, Node> {
        let pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
        let mut joined = Cow::Borrowed(node);
        for Expected { holder, until } in &*pods {
            let uid = &holder.pod.uid;
            if now < *until
                && holder.node == node.name
                && *uid != ask.request.pod.uid
                && node.holders.iter().all(|counted| counted.pod.uid != *uid)
            {
                joined.to_mut().count(holder.clone());
            }
        }
        joined
    }
}
