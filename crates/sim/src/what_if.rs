//! What would be if: nodes added, a node drained, other pods, another policy.
//!
//! Pods that ask for a card are placed by [`decide`], one after the other, each seeing what the
//! ones before it took; pods that ask for none go where kube-scheduler would put them.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result};
use model::{
    Device, DeviceId, DeviceState, Health, Mig, Node, NodeName, Request, Snapshot, Statistics,
    Workload,
};
use placement::{Ask, Policy, decide, learn};
use serde::Serialize;

use crate::baseline::{Scoring, beside};
use crate::exported::Exported;
use crate::fragmentation::Fragmentation;
use crate::world::{holds, take};

/// What is changed.
#[derive(Debug, Clone, Default)]
pub struct Change {
    /// How many nodes come, and like which.
    pub add: Option<(u32, NodeName)>,
    /// Which node goes.
    pub drain: Option<NodeName>,
}

/// What would be.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Answer {
    /// By which policy pods were placed.
    pub policy: String,
    /// Without the change.
    pub now: State,
    /// With it, if there is one.
    pub changed: Option<State>,
    /// Where the pods of the drained node go.
    pub drained: Vec<Outcome>,
    /// The pending pods, with the change if there is one.
    pub pending: Vec<Outcome>,
}

/// The cluster in a few numbers, before pending pods are placed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct State {
    /// How many nodes.
    pub nodes: usize,
    /// How many cards.
    pub cards: usize,
    /// Allocated compute, in percent of all.
    pub allocated: f64,
    /// Allocated memory of cards, in percent of all.
    pub memory: f64,
    /// Free compute that the pods here and pending cannot use, in percent of all.
    pub fragmented: f64,
    /// Of the pending pods, how many fit, one after the other.
    pub fit: usize,
}

/// What becomes of one pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// Which pod.
    pub pod: String,
    /// Where it goes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Why it goes nowhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// Answers for `exported` under `policy`.
pub fn answer(exported: &Exported, change: &Change, policy: Policy) -> Result<Answer> {
    let mut now = Cluster::new(exported, exported.nodes.clone(), policy);
    let mut state = now.state();
    let mut pending = now.place_all(&exported.pending);
    state.fit = fitting(&pending);
    let mut drained = Vec::new();
    let mut changed = None;
    if change.add.is_some() || change.drain.is_some() {
        let mut then = Cluster::new(exported, nodes(exported, change)?, policy);
        let leaving = change.drain.as_ref().and_then(|name| exported.running.get(name));
        drained = leaving.map(|pods| then.place_all(pods)).unwrap_or_default();
        let mut state = then.state();
        pending = then.place_all(&exported.pending);
        state.fit = fitting(&pending);
        changed = Some(state);
    }
    Ok(Answer { policy: policy.node.to_string(), now: state, changed, drained, pending })
}

fn fitting(outcomes: &[Outcome]) -> usize {
    outcomes.iter().filter(|outcome| outcome.node.is_some()).count()
}

/// The nodes with the change.
fn nodes(exported: &Exported, change: &Change) -> Result<Vec<Arc<Node>>> {
    let mut nodes = exported.nodes.clone();
    if let Some((count, like)) = &change.add {
        let like = find(&nodes, like)?.clone();
        let mut number = 0;
        for _ in 0..*count {
            let node = loop {
                number += 1;
                let node = another(&like, number)?;
                if !nodes.iter().any(|known| known.name == node.name) {
                    break node;
                }
            };
            nodes.push(Arc::new(node));
        }
    }
    if let Some(name) = &change.drain {
        find(&nodes, name)?;
        nodes.retain(|node| node.name != *name);
    }
    Ok(nodes)
}

fn find<'a>(nodes: &'a [Arc<Node>], name: &NodeName) -> Result<&'a Arc<Node>> {
    let known = || {
        let mut known: Vec<&str> = nodes.iter().take(10).map(|node| node.name.as_str()).collect();
        known.extend((nodes.len() > 10).then_some("..."));
        format!("the snapshot has no node {name}; it has {}", known.join(", "))
    };
    nodes.iter().find(|node| node.name == *name).with_context(known)
}

/// An empty node like `like`, with healthy cards of its own.
fn another(like: &Node, number: u32) -> Result<Node> {
    let renamed = |id: &DeviceId| DeviceId::parse(&format!("{id}-new-{number}"));
    let device = |state: &DeviceState| -> Result<DeviceState> {
        let mig = match &state.device.mig {
            Mig::Slice { parent, profile } => {
                Mig::Slice { parent: renamed(parent)?, profile: profile.clone() }
            }
            other => other.clone(),
        };
        let id = renamed(&state.device.id)?;
        let device = Device { id, mig, health: Health::Healthy, ..(*state.device).clone() };
        Ok(DeviceState::idle(Arc::new(device)))
    };
    Ok(Node {
        name: NodeName::parse(&format!("{}-new-{number}", like.name))?,
        free: like.allocatable,
        problem: None,
        devices: like.devices.iter().map(device).collect::<Result<_>>()?,
        holders: Vec::new(),
        missing: Vec::new(),
        ..like.clone()
    })
}

/// A cluster that pods are placed on.
struct Cluster<'a> {
    exported: &'a Exported,
    nodes: Vec<Arc<Node>>,
    statistics: Arc<Statistics>,
    policy: Policy,
    rng: fastrand::Rng,
}

impl<'a> Cluster<'a> {
    fn new(exported: &'a Exported, mut nodes: Vec<Arc<Node>>, policy: Policy) -> Self {
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        let mut workload = Workload::default();
        exported.running.values().flatten().for_each(|request| workload.see(request));
        exported.pending.iter().for_each(|request| workload.see(request));
        let statistics = Arc::new(learn(&workload, nodes.iter().map(AsRef::as_ref)));
        // kube-scheduler throws dice among equal nodes; here they always fall the same way.
        Self { exported, nodes, statistics, policy, rng: fastrand::Rng::with_seed(0) }
    }

    #[expect(clippy::cast_precision_loss, reason = "percents and MiB of a cluster")]
    fn state(&self) -> State {
        let cards = || self.nodes.iter().flat_map(|node| &node.devices).filter(|s| is_card(s));
        let part = |of: fn(&DeviceState) -> (u64, u64)| {
            let (used, all) = cards().map(of).fold((0, 0), |sum, (u, a)| (sum.0 + u, sum.1 + a));
            used as f64 * 100.0 / all.max(1) as f64
        };
        let requests = self.exported.running.values().flatten().chain(&self.exported.pending);
        let fragmentation = Fragmentation::new(requests, &self.nodes);
        let all: u64 = cards().map(|state| u64::from(state.device.cores.0) * 10).sum();
        State {
            nodes: self.nodes.len(),
            cards: cards().count(),
            allocated: part(|state| {
                let (all, free) = (state.device.cores.0, state.free_cores().0);
                (u64::from(all - free.min(all)), all.into())
            }),
            memory: part(|state| {
                let used = if state.used.hold.whole { u64::MAX } else { state.used.hold.memory.0 };
                (used.min(state.device.memory.0), state.device.memory.0)
            }),
            fragmented: fragmentation.milli() * 100.0 / all.max(1) as f64,
            fit: 0,
        }
    }

    fn place_all(&mut self, requests: &[Request]) -> Vec<Outcome> {
        let outcome = |request: &Request| {
            let (node, refused) = match self.place(request) {
                Ok(node) => (Some(node.to_string()), None),
                Err(why) => (None, Some(why)),
            };
            Outcome { pod: request.pod.to_string(), node, refused }
        };
        requests.iter().map(outcome).collect()
    }

    fn place(&mut self, request: &Request) -> Result<NodeName, String> {
        if request.containers.is_empty() {
            let place = beside(Scoring::LeastAllocated, &self.nodes, request, &mut self.rng);
            let Some(place) = place else {
                return Err(format!("{} nodes: none has the CPU and memory", self.nodes.len()));
            };
            let node = Arc::make_mut(&mut self.nodes[place]);
            node.free = node.free.without(&request.host);
            return Ok(node.name.clone());
        }
        let snapshot = Snapshot::new(self.nodes.clone(), Arc::new(BTreeMap::new()))
            .with_statistics(self.statistics.clone());
        let ask = Ask::new(&snapshot, request, self.policy);
        let placement = decide(&snapshot, &ask).map_err(|why| why.to_string())?;
        drop(snapshot);
        for node in self.nodes.iter_mut().filter(|node| node.name == *placement.node()) {
            let node = Arc::make_mut(node);
            node.free = node.free.without(&request.host);
            let held = holds(node, &placement);
            take(node, &held);
        }
        Ok(placement.node().clone())
    }
}

fn is_card(state: &DeviceState) -> bool {
    state.device.mig == Mig::Off
}
