//! A cluster's snapshot as JSON: what its nodes have, which pods are on them, which wait.
//!
//! ```text
//! {"version": 1,
//!  "nodes": [{"name": "gpu-1", "cpuMilli": 96000, "memoryMiB": 393216, "pool": "batch",
//!             "inventory": "<the text of nano-gpu/inventory>",
//!             "pods": [{"namespace": "a", "name": "p", "uid": "u", "cpuMilli": 4000,
//!                       "memoryMiB": 8192, "placement": "<the text of nano-gpu/placement>"}]}],
//!  "pending": [{"namespace": "a", "name": "q", "uid": "v", "cpuMilli": 1000, "memoryMiB": 2048,
//!               "requests": [{"container": "main", "cards": 1, "cores": 30, "memoryMiB": 4096}],
//!               "models": ["A100", "H100"]}]}
//! ```
//!
//! Of a node `pool` and `inventory` may be absent, of a pod `placement`, `requests`, `models` and
//! `priority`. A request without `cores` and memory is for whole cards; one without memory asks
//! for as much of the card's memory as of its compute. A pod on a node that has no `requests`
//! asks for what its placement says, and without `models` for a card of any model. Both
//! annotations are read by the codecs the cluster uses.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use model::codec::{decode_inventory, decode_placement};
use model::{
    Affinity, Agent, Claim, ContainerName, ContainerRequest, Cores, DeviceId, DeviceState, Holder,
    Inventory, Mebibytes, MemoryAsk, Node, NodeName, Overrides, Part, Placement, PodId, PodUid,
    Portion, Problem, Request, Role, Selector, Topology,
};
use serde::Deserialize;

use crate::trace::host;

/// The only version there is.
const VERSION: u32 = 1;

/// A cluster as it was exported.
#[derive(Debug, Clone)]
pub struct Exported {
    /// The nodes, with their pods on them, by name.
    pub nodes: Vec<Arc<Node>>,
    /// What the pods on each node ask.
    pub running: BTreeMap<NodeName, Vec<Request>>,
    /// The pods that wait.
    pub pending: Vec<Request>,
}

#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

#[derive(Deserialize)]
struct Wire {
    nodes: Vec<WireNode>,
    #[serde(default)]
    pending: Vec<WirePod>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireNode {
    name: String,
    cpu_milli: u64,
    #[serde(rename = "memoryMiB")]
    memory_mib: u64,
    pool: Option<String>,
    inventory: Option<String>,
    #[serde(default)]
    pods: Vec<WirePod>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WirePod {
    namespace: String,
    name: String,
    uid: String,
    cpu_milli: u64,
    #[serde(rename = "memoryMiB")]
    memory_mib: u64,
    placement: Option<String>,
    #[serde(default)]
    requests: Vec<WireRequest>,
    #[serde(default)]
    models: Vec<String>,
    #[serde(default)]
    priority: i32,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireRequest {
    container: String,
    #[serde(default)]
    role: WireRole,
    #[serde(default = "one")]
    cards: u32,
    cores: Option<u32>,
    #[serde(rename = "memoryMiB")]
    memory_mib: Option<u64>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
enum WireRole {
    Init,
    Sidecar,
    #[default]
    App,
}

const fn one() -> u32 {
    1
}

impl Exported {
    /// Reads a snapshot.
    pub fn parse(text: &str) -> Result<Self> {
        let Versioned { version } = serde_json::from_str(text)?;
        ensure!(version == VERSION, "it has version {version}; this build reads {VERSION}");
        let wire: Wire = serde_json::from_str(text)?;
        let mut made = Self { nodes: Vec::new(), running: BTreeMap::new(), pending: Vec::new() };
        for node in &wire.nodes {
            made.add(node).with_context(|| format!("node {}", node.name))?;
        }
        for pod in &wire.pending {
            let asked = pod.asked(None).with_context(|| format!("pending pod {}", pod.name))?;
            made.pending.push(asked);
        }
        made.nodes.sort_by(|a, b| a.name.cmp(&b.name));
        made.contest();
        Ok(made)
    }

    fn add(&mut self, wire: &WireNode) -> Result<()> {
        let mut node = wire.empty()?;
        ensure!(!self.running.contains_key(&node.name), "stands there twice");
        let mut asked = Vec::new();
        for pod in &wire.pods {
            let context = || format!("pod {}/{}", pod.namespace, pod.name);
            let (request, claim) = pod.on(&node.name).with_context(context)?;
            node.count(Arc::new(Holder {
                pod: request.pod.clone(),
                node: node.name.clone(),
                claim,
                host: request.host,
                tickets: Vec::new(),
                priority: request.priority,
                terminating: false,
            }));
            asked.push(request);
        }
        self.running.insert(node.name.clone(), asked);
        self.nodes.push(Arc::new(node));
        Ok(())
    }

    /// A device that two nodes list is sold by neither.
    fn contest(&mut self) {
        let mut listed = BTreeSet::new();
        let all = self.nodes.iter().flat_map(|node| &node.devices);
        let twice: BTreeSet<DeviceId> = all
            .filter(|state| !listed.insert(&state.device.id))
            .map(|state| state.device.id.clone())
            .collect();
        for node in self.nodes.iter_mut().filter(|_| !twice.is_empty()) {
            for state in &mut Arc::make_mut(node).devices {
                state.contested = twice.contains(&state.device.id);
            }
        }
    }
}

impl WireNode {
    fn empty(&self) -> Result<Node> {
        let host = host(self.cpu_milli, self.memory_mib);
        let (inventory, problem) = match self.inventory.as_deref().map(decode_inventory) {
            None => (Inventory::default(), None),
            Some(Ok(inventory)) => (inventory, None),
            Some(Err(why)) => (Inventory::default(), Some(Problem::Inventory(why.to_string()))),
        };
        Ok(Node {
            name: NodeName::parse(&self.name)?,
            allocatable: host,
            free: host,
            pool: self.pool.clone(),
            shunned: false,
            agent: if self.inventory.is_some() { Agent::Fresh } else { Agent::Never },
            problem,
            topology: Arc::new(Topology::new(&inventory.devices, &inventory.links)),
            devices: inventory.devices.into_iter().map(DeviceState::idle).collect(),
            tickets: BTreeMap::new(),
            holders: Vec::new(),
            missing: Vec::new(),
        })
    }
}

impl WirePod {
    /// What the pod asks and what it claims of the node it is on.
    fn on(&self, node: &NodeName) -> Result<(Request, Claim)> {
        Ok(match self.placement.as_deref().map(decode_placement) {
            Some(Ok(placement)) if placement.node() == node => {
                (self.asked(Some(&placement))?, Claim::of(&placement))
            }
            // One for another node gives it nothing here.
            None | Some(Ok(_)) => (self.asked(None)?, Claim::Nothing),
            Some(Err(why)) => (self.asked(None)?, Claim::Unreadable(why.to_string())),
        })
    }

    fn asked(&self, placement: Option<&Placement>) -> Result<Request> {
        let containers = match placement {
            Some(placement) if self.requests.is_empty() => granted(placement),
            _ => self.requests.iter().map(WireRequest::container).collect::<Result<_>>()?,
        };
        let uid = PodUid::parse(&self.uid)?;
        let models = if self.models.is_empty() { vec![] } else { vec![self.models.clone()] };
        Ok(Request {
            pod: PodId { namespace: self.namespace.clone(), name: self.name.clone(), uid },
            containers,
            one_card: false,
            selector: Selector { models, ..Selector::default() },
            affinity: Affinity::default(),
            overrides: Overrides::default(),
            host: host(self.cpu_milli, self.memory_mib),
            tickets: Vec::new(),
            priority: self.priority,
        })
    }
}

impl WireRequest {
    fn container(&self) -> Result<ContainerRequest> {
        if self.cards == 0 {
            bail!("container {} asks for no card", self.container);
        }
        let part = match (self.cores, self.memory_mib) {
            (None, None) => Part::Whole,
            (Some(cores), None) => {
                Part::Share { cores: Cores(cores), memory: MemoryAsk::Percent(Cores(cores)) }
            }
            (cores, Some(memory)) => Part::Share {
                cores: Cores(cores.unwrap_or(0)),
                memory: MemoryAsk::Exact(Mebibytes(memory)),
            },
        };
        Ok(ContainerRequest {
            name: ContainerName::parse(&self.container)?,
            role: match self.role {
                WireRole::Init => Role::Init,
                WireRole::Sidecar => Role::Sidecar,
                WireRole::App => Role::App,
            },
            cards: self.cards,
            part,
            burst: None,
        })
    }
}

/// What a pod would ask to get again what it was given.
fn granted(placement: &Placement) -> Vec<ContainerRequest> {
    let containers = placement.containers().iter().map(|container| {
        let parts = container.grants.iter().map(|grant| match grant.portion {
            Portion::Whole => Part::Whole,
            Portion::Share(share) => {
                Part::Share { cores: share.cores, memory: MemoryAsk::Exact(share.memory) }
            }
        });
        ContainerRequest {
            name: container.name.clone(),
            role: container.role,
            cards: u32::try_from(container.grants.len()).unwrap_or(u32::MAX),
            // A percentage of memory is more on a larger card: the most is enough anywhere.
            part: parts.reduce(larger).unwrap_or(Part::Whole),
            burst: None,
        }
    });
    containers.collect()
}

fn larger(one: Part, other: Part) -> Part {
    let (Part::Share { cores: a, memory: m }, Part::Share { cores: b, memory: n }) = (one, other)
    else {
        return Part::Whole;
    };
    let exact = |ask| match ask {
        MemoryAsk::Exact(memory) => memory,
        MemoryAsk::Percent(_) => Mebibytes::ZERO,
    };
    Part::Share { cores: a.max(b), memory: MemoryAsk::Exact(exact(m).max(exact(n))) }
}
