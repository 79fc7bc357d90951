//! A cluster without Kubernetes: the way of a pod through the pure crates.

use std::collections::BTreeMap;
use std::sync::Arc;

use dialect::{Asked, Settings, Written, observe, read, write};
use ledger::{Event, Ledger, NodeFacts};
use model::codec::{decode_inventory, encode_inventory};
use model::{
    Bytes, Device, DeviceId, Host, Inventory, MilliCpu, Moment, NodeName, Placement, Pod, PodUid,
    Snapshot, UnixNanos,
};
use placement::{Ask, Policy, decide};

/// A ledger and the pods it should know.
#[derive(Debug)]
pub struct Cluster {
    /// What the administrator decided.
    pub settings: Settings,
    /// How nodes and cards are chosen.
    pub policy: Policy,
    /// Who holds what.
    pub ledger: Ledger,
    /// Pods as the API would show them.
    pub pods: BTreeMap<PodUid, Pod>,
    /// Nodes as they say of themselves.
    pub nodes: BTreeMap<NodeName, NodeFacts>,
    now: Moment,
}

/// How a submission ended.
#[derive(Debug)]
pub enum Outcome {
    /// It asks for no card of ours.
    NotOurs,
    /// It can never run as written.
    Refused(String),
    /// It waits, and why.
    Waits(String),
    /// It runs.
    Runs(Box<Running>),
}

/// A pod that was placed.
#[derive(Debug)]
pub struct Running {
    /// What it asked.
    pub asked: Asked,
    /// What it got.
    pub placement: Placement,
    /// What was written onto it.
    pub written: Written,
}

impl Cluster {
    /// An empty cluster.
    pub fn new(settings: Settings, policy: Policy) -> Self {
        let (pods, nodes) = (BTreeMap::new(), BTreeMap::new());
        Self { settings, policy, ledger: Ledger::new(), pods, nodes, now: Moment(0) }
    }

    /// Adds or changes a node whose agent reports.
    pub fn node(&mut self, name: &NodeName, inventory: &Inventory) {
        self.change(self.facts(name, inventory));
        self.heartbeat(name);
    }

    /// A node says this of itself.
    pub fn change(&mut self, facts: NodeFacts) {
        self.nodes.insert(facts.name.clone(), facts.clone());
        self.ledger.apply(Event::Node(facts));
    }

    /// A node's agent is heard.
    pub fn heartbeat(&mut self, name: &NodeName) {
        self.ledger.apply(Event::Heartbeat { node: name.clone(), at: self.now });
    }

    /// Time passes.
    pub fn pass(&mut self, millis: u64) {
        self.now = self.now.after(millis);
        self.ledger.expire(self.now);
    }

    /// What a healthy node with these devices says of itself. The inventory travels as the
    /// annotation it is.
    pub fn facts(&self, name: &NodeName, inventory: &Inventory) -> NodeFacts {
        let inventory = decode_inventory(&encode_inventory(inventory)).map_err(|e| e.to_string());
        let cards = inventory.as_ref().map_or(0, |inventory| inventory.devices.len() as u64);
        let enabled = self.settings.enabled.iter();
        let alone = enabled.clone().filter_map(|d| d.alone()).map(|alone| alone.tickets);
        let identities = enabled.flat_map(|d| d.identity_resources()).copied().chain(alone);
        NodeFacts {
            name: name.clone(),
            allocatable: Host { cpu: MilliCpu(96_000), memory: Bytes(1 << 39) },
            pool: None,
            shunned: false,
            inventory: Some(inventory),
            // Plenty: here the cards decide.
            tickets: identities.map(|name| (name.to_owned(), cards * 100_000)).collect(),
        }
    }

    /// A pod is created: it runs, waits or is refused. A pod that waits is not kept.
    ///
    /// # Panics
    ///
    /// If the pod, once bound, is seen to hold otherwise than what was reserved for it.
    pub fn submit(&mut self, pod: &Pod) -> Outcome {
        let asked = match read(pod, &self.settings) {
            Ok(Some(asked)) => asked,
            Ok(None) => return Outcome::NotOurs,
            Err(refusal) => return Outcome::Refused(refusal.to_string()),
        };
        let snapshot = self.ledger.snapshot();
        let placement = match decide(&snapshot, &Ask::new(&snapshot, &asked.request, self.policy)) {
            Ok(placement) => placement,
            Err(explanation) => return Outcome::Waits(explanation.to_string()),
        };
        self.now = self.now.after(1);
        let holder = model::Holder::placed(&asked.request, &placement);
        if let Err(error) = self.ledger.reserve(holder, self.now.after(1000)) {
            return Outcome::Waits(error.to_string());
        }
        let written = match self.written(&snapshot, &asked, pod, &placement) {
            Ok(written) => written,
            Err(error) => {
                let _ = self.ledger.release(&pod.id.uid);
                return Outcome::Waits(error);
            }
        };
        // The Binding: one write sets the node and the annotations.
        let mut bound = pod.clone();
        bound.node = Some(placement.node().clone());
        bound.annotations.extend(written.annotations.clone());
        bound.labels.extend(written.labels.clone());
        let reserved = self.ledger.node(placement.node()).cloned();
        self.see(&bound);
        let same = reserved.zip(self.ledger.node(placement.node()));
        assert!(
            same.is_some_and(|(reserved, seen)| Arc::ptr_eq(&reserved, seen)),
            "pod {} is seen to hold otherwise than what was reserved for it",
            pod.id
        );
        Outcome::Runs(Box::new(Running { asked, placement, written }))
    }

    fn written(
        &self,
        snapshot: &Snapshot,
        asked: &Asked,
        pod: &Pod,
        placement: &Placement,
    ) -> Result<Written, String> {
        let node = snapshot.node(placement.node()).ok_or("the node is gone")?;
        let device = |id: &DeviceId| -> Option<&Device> { Some(&node.device(id)?.device) };
        let now = UnixNanos(1_700_000_000_000_000_000 + self.now.0);
        write(asked, pod, placement, &device, &self.settings, now).map_err(|e| e.to_string())
    }

    /// The watch shows `pod` as it is now.
    pub fn see(&mut self, pod: &Pod) {
        match observe(pod, &self.settings) {
            Some(holder) => {
                self.ledger.apply(Event::Pod(holder));
                self.pods.insert(pod.id.uid.clone(), pod.clone());
            }
            None => self.end(&pod.id.uid),
        }
    }

    /// A pod is deleted, or its containers ended.
    pub fn end(&mut self, uid: &PodUid) {
        self.pods.remove(uid);
        self.ledger.apply(Event::PodGone(uid.clone()));
    }

    /// The events that a fresh start would see, pods first. Heartbeats are not among them.
    pub fn relist(&self) -> Vec<Event> {
        let pods = self.pods.values().rev().filter_map(|pod| observe(pod, &self.settings));
        let nodes = self.nodes.values().rev().cloned().map(Event::Node);
        pods.map(Event::Pod).chain(nodes).collect()
    }
}
