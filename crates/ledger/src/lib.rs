//! Who holds what. One ledger over all dialects, so that a card is sold once.
//!
//! ```text
//!   watch events --apply--------------> Ledger --snapshot--> readers
//!   a decision   --reserve, fence, ---> (one writer)
//!                  commit | release
//! ```
//!
//! A node's account is the sum over the pods on it, computed anew whenever one of them changes.
//! So no order of events can make it drift, wrap or go negative, and the ledger can be thrown
//! away and rebuilt from the pods at any moment.
//!
//! What readers see changes only if it is different: a beat of an agent that is heard anyway, or
//! a pod told once more as it was, leaves every node the same `Arc`, so that nobody looks at it
//! again. [`Ledger::changes`] tells whether a new picture is due.
//!
//! No clock here: the caller says what time it is.
#![forbid(unsafe_code)]

mod account;
mod event;
mod listing;
mod load;
mod quota;
mod reserving;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::{
    Agent, Allowance, DeviceId, Holder, Load, Moment, Node, NodeName, PodUid, Snapshot, Topology,
    Wiring,
};

pub use event::{Event, NodeFacts};
pub use load::Measured;
pub use quota::{Quota, QuotaError};
pub use reserving::{ReserveError, StepError};

use account::Spending;
use listing::Listing;
use load::calmed;
use reserving::Reservation;

/// How long an agent may stay silent before its node takes nothing new.
pub const STALE_AFTER_MILLIS: u64 = 40_000;

/// The ledger. One task owns it and is the only one to change it.
#[derive(Debug, Default)]
pub struct Ledger {
    now: Moment,
    nodes: BTreeMap<NodeName, Entry>,
    /// What readers see of them.
    listing: Listing,
    /// Pods seen on a node, and which.
    bound: BTreeMap<PodUid, NodeName>,
    reserved: BTreeMap<PodUid, Reservation>,
    /// Which nodes list a device. Two is one too many.
    listings: BTreeMap<DeviceId, BTreeSet<NodeName>>,
    /// One for all nodes that are wired alike.
    topologies: BTreeMap<Wiring, Arc<Topology>>,
    quota: Quota,
    spending: Spending,
    changes: u64,
}

/// What is known of one node. Pods may be heard of before their node is.
#[derive(Debug, Default)]
struct Entry {
    facts: Option<NodeFacts>,
    /// How its devices reach one another.
    topology: Arc<Topology>,
    heard: Option<Moment>,
    /// What was measured on its devices.
    load: BTreeMap<DeviceId, Load>,
    /// Bound and reserved pods alike.
    holders: BTreeMap<PodUid, Arc<Holder>>,
    /// What readers see; nothing before the node is known.
    view: Option<Arc<Node>>,
}

impl Ledger {
    /// An empty ledger.
    pub fn new() -> Self {
        Self::default()
    }

    /// A ledger of this state of the world: what replaying all events would have led to.
    pub fn rebuild(events: impl IntoIterator<Item = Event>) -> Self {
        let mut ledger = Self::new();
        for event in events {
            ledger.apply(event);
        }
        ledger
    }

    /// Takes notice of something that happened outside.
    pub fn apply(&mut self, event: Event) {
        match event {
            Event::Node(facts) => self.node_changed(facts),
            Event::NodeGone(name) => self.node_gone(&name),
            Event::Heartbeat { node, at } => {
                self.now = self.now.max(at);
                let entry = self.nodes.entry(node.clone()).or_default();
                entry.heard = entry.heard.max(Some(at));
                self.refresh_if_turned(&node);
            }
            Event::Load { node, devices } => self.load_measured(&node, &devices),
            Event::Pod(holder) => self.pod_seen(holder),
            Event::PodGone(uid) => self.pod_gone(&uid),
            Event::Quota(quota) => {
                if self.quota != quota {
                    self.quota = quota;
                    self.changes += 1;
                }
            }
        }
    }

    /// How often what readers see has changed. The same number, the same picture.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Lets time pass: reservations whose time is over end, silent agents become stale.
    /// Returns the pods whose reservations ended.
    pub fn expire(&mut self, now: Moment) -> Vec<PodUid> {
        self.now = self.now.max(now);
        let due = |reservation: &Reservation| reservation.expires_by(self.now);
        let ended: Vec<PodUid> =
            self.reserved.iter().filter(|(_, r)| due(r)).map(|(uid, _)| uid.clone()).collect();
        for uid in &ended {
            self.end_reservation(uid);
        }
        let turned: Vec<NodeName> = self
            .nodes
            .iter()
            .filter(|(_, entry)| self.has_turned(entry))
            .map(|(name, _)| name.clone())
            .collect();
        for name in &turned {
            self.refresh(name);
        }
        let forgotten = |entry: &Entry| {
            entry.facts.is_none() && entry.holders.is_empty() && self.agent(entry) != Agent::Fresh
        };
        let forgotten: Vec<NodeName> =
            self.nodes.iter().filter(|(_, e)| forgotten(e)).map(|(name, _)| name.clone()).collect();
        for name in &forgotten {
            self.nodes.remove(name);
        }
        ended
    }

    /// A picture of now.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::sorted(self.listing.share(), Arc::new(self.quota.allowances(&self.spending)))
    }

    /// One node as readers see it now.
    pub fn node(&self, name: &NodeName) -> Option<&Arc<Node>> {
        self.nodes.get(name)?.view.as_ref()
    }

    /// What `namespace` may still take now.
    pub fn allowance(&self, namespace: &str) -> Allowance {
        self.quota.allowance(namespace, &self.spending)
    }

    /// Where `pod` was seen, if it is on a node.
    pub fn bound(&self, pod: &PodUid) -> Option<&NodeName> {
        self.bound.get(pod)
    }

    /// Whether readers see the node's agent in another state than it is in.
    fn has_turned(&self, entry: &Entry) -> bool {
        entry.view.as_ref().is_some_and(|view| view.agent != self.agent(entry))
    }

    fn refresh_if_turned(&mut self, name: &NodeName) {
        if self.nodes.get(name).is_some_and(|entry| self.has_turned(entry)) {
            self.refresh(name);
        }
    }

    fn node_changed(&mut self, facts: NodeFacts) {
        // Nodes are told of at every condition their kubelet renews.
        if self.nodes.get(&facts.name).is_some_and(|entry| entry.facts.as_ref() == Some(&facts)) {
            self.refresh_if_turned(&facts.name);
            return;
        }
        let name = facts.name.clone();
        let topology = self.topology(&facts);
        let entry = self.nodes.entry(name.clone()).or_default();
        entry.topology = topology;
        let devices = |facts: &NodeFacts| -> BTreeSet<DeviceId> {
            facts.devices().iter().map(|device| device.id.clone()).collect()
        };
        let new = devices(&facts);
        let old = entry.facts.replace(facts).as_ref().map(devices).unwrap_or_default();
        self.relist(&name, &old, &new);
        self.refresh(&name);
    }

    /// How the devices of a node reach one another, worked out only for wiring not seen yet.
    fn topology(&mut self, facts: &NodeFacts) -> Arc<Topology> {
        let links = match &facts.inventory {
            Some(Ok(inventory)) => &inventory.links[..],
            Some(Err(_)) | None => &[],
        };
        let wiring = Wiring::new(facts.devices(), links);
        if let Some(known) = self.topologies.get(&wiring) {
            return known.clone();
        }
        // What no node has any more is forgotten when something new comes.
        self.topologies.retain(|_, topology| Arc::strong_count(topology) > 1);
        let new = Arc::new(Topology::from(wiring.clone()));
        self.topologies.insert(wiring, new.clone());
        new
    }

    fn node_gone(&mut self, name: &NodeName) {
        let Some(entry) = self.nodes.get_mut(name) else { return };
        let old = entry.facts.take();
        entry.heard = None;
        entry.load.clear();
        let old = old.iter().flat_map(NodeFacts::devices).map(|device| device.id.clone()).collect();
        self.relist(name, &old, &BTreeSet::new());
        // Its pods are remembered: a node that comes back finds them counted.
        self.refresh(name);
        self.forget_if_empty(name);
    }

    fn load_measured(&mut self, name: &NodeName, report: &[(DeviceId, Measured)]) {
        // Of a node that is not known there is nothing to compare with: the next report counts.
        let Some(entry) = self.nodes.get_mut(name) else { return };
        let Some(view) = &entry.view else { return };
        let load = calmed(report, &entry.load, &view.devices);
        if load != entry.load {
            entry.load = load;
            self.refresh(name);
        }
    }

    /// Keeps track of who lists which device, and wakes the nodes that contest one.
    fn relist(&mut self, name: &NodeName, old: &BTreeSet<DeviceId>, new: &BTreeSet<DeviceId>) {
        let mut others = BTreeSet::new();
        for id in old.symmetric_difference(new) {
            let nodes = self.listings.entry(id.clone()).or_default();
            if new.contains(id) {
                nodes.insert(name.clone())
            } else {
                nodes.remove(name)
            };
            others.extend(nodes.iter().filter(|node| *node != name).cloned());
            if nodes.is_empty() {
                self.listings.remove(id);
            }
        }
        for other in &others {
            self.refresh(other);
        }
    }

    fn pod_seen(&mut self, holder: Holder) {
        // A pod is told of at every condition and container that starts.
        if self.holds_just(&holder) {
            return;
        }
        let uid = holder.pod.uid.clone();
        let node = holder.node.clone();
        if self.is_reserved_as(&holder) {
            // It holds what was held for it: the node stays as it is.
            self.reserved.remove(&uid);
            self.bound.insert(uid, node);
            self.changes += 1;
            return;
        }
        // Whatever we had in mind for it, this is where it is.
        self.end_reservation(&uid);
        let before = self.bound.insert(uid.clone(), node.clone());
        if let Some(before) = before.filter(|before| *before != node) {
            self.remove_holder(&before, &uid);
        }
        let entry = self.nodes.entry(node.clone()).or_default();
        entry.holders.insert(uid, Arc::new(holder));
        self.refresh(&node);
    }

    /// Whether the pod was seen to hold just this.
    fn holds_just(&self, holder: &Holder) -> bool {
        let uid = &holder.pod.uid;
        !self.reserved.contains_key(uid)
            && self.bound.get(uid) == Some(&holder.node)
            && self.counts(holder)
    }

    /// Whether just this is held for the pod, which was seen on no node yet.
    fn is_reserved_as(&self, holder: &Holder) -> bool {
        let uid = &holder.pod.uid;
        self.reserved.get(uid).is_some_and(|reservation| *reservation.node() == holder.node)
            && !self.bound.contains_key(uid)
            && self.counts(holder)
    }

    /// Whether the node counts the pod with just this.
    fn counts(&self, holder: &Holder) -> bool {
        let entry = self.nodes.get(&holder.node);
        let held = entry.and_then(|entry| entry.holders.get(&holder.pod.uid));
        held.is_some_and(|held| **held == *holder)
    }

    fn pod_gone(&mut self, uid: &PodUid) {
        self.end_reservation(uid);
        if let Some(node) = self.bound.remove(uid) {
            self.remove_holder(&node, uid);
        }
    }

    fn remove_holder(&mut self, node: &NodeName, uid: &PodUid) {
        if let Some(entry) = self.nodes.get_mut(node) {
            entry.holders.remove(uid);
            self.refresh(node);
            self.forget_if_empty(node);
        }
    }

    fn forget_if_empty(&mut self, name: &NodeName) {
        let empty = |entry: &Entry| {
            entry.facts.is_none() && entry.heard.is_none() && entry.holders.is_empty()
        };
        if self.nodes.get(name).is_some_and(empty) {
            self.nodes.remove(name);
        }
    }
}
