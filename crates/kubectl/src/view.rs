//! Nodes, their cards and who holds them: what `top` and `inspect` show, wherever it comes from.

use std::collections::BTreeMap;

use model::{Claim, DeviceState, Health, Snapshot};
use serde::Serialize;

use crate::wire::{self, Agent};

/// The cluster at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct View {
    /// Who says so.
    pub source: Source,
    /// Nodes with cards, and those whose cards cannot be read, by name.
    pub nodes: Vec<Node>,
    /// Pods that want cards and are on no node.
    pub waiting: Vec<Waiting>,
    /// What could not be seen, in sentences.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hidden: Vec<String>,
}

/// Who says so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// The scheduler's ledger.
    Scheduler,
    /// Annotations of pods and nodes, because the scheduler could not be asked.
    Cluster {
        /// Why not.
        because: String,
    },
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Whether its agent is heard.
    pub agent: Agent,
    /// Why it takes nothing new, if something on it cannot be read.
    pub problem: Option<String>,
    /// Its cards, in the driver's order.
    pub cards: Vec<Card>,
}

/// A card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Card {
    /// Its place in the driver's order.
    pub index: u32,
    /// Its UUID.
    pub uuid: String,
    /// Its model.
    pub model: String,
    /// Whether it takes new pods, and why not.
    pub state: State,
    /// Its compute, in percent.
    pub cores: u32,
    /// Of which promised.
    pub cores_held: u32,
    /// Its memory.
    #[serde(rename = "memoryMiB")]
    pub memory: u64,
    /// Of which promised, or taken by strangers.
    #[serde(rename = "memoryHeldMiB")]
    pub memory_held: u64,
    /// Of which taken by processes that no pod explains.
    #[serde(rename = "strangersMiB")]
    pub strangers: u64,
    /// Who holds it.
    pub held_by: Vec<Held>,
}

/// Whether a card takes new pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It does.
    Ok,
    /// It does, and is busier than was promised.
    Hot,
    /// A person took it out of service.
    Cordoned,
    /// It is broken.
    Sick,
    /// It is cut into slices, or two nodes list it.
    Withheld,
}

impl State {
    /// One word for it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Hot => "hot",
            Self::Cordoned => "cordoned",
            Self::Sick => "sick",
            Self::Withheld => "withheld",
        }
    }

    fn new(health: Health, sells: bool, hot: bool) -> Self {
        match (health, sells) {
            (Health::Cordoned, _) => Self::Cordoned,
            (Health::Sick, _) => Self::Sick,
            (Health::Healthy, false) => Self::Withheld,
            (Health::Healthy, true) if hot => Self::Hot,
            (Health::Healthy, true) => Self::Ok,
        }
    }
}

/// What a pod holds of a card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Held {
    /// The pod's namespace.
    pub namespace: String,
    /// Its name.
    pub pod: String,
    /// Percent of the compute.
    pub cores: u32,
    /// Of the memory.
    #[serde(rename = "memoryMiB")]
    pub memory: u64,
    /// All of it.
    pub whole: bool,
}

/// A pod that waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Waiting {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub pod: String,
    /// Why it can never run, if it cannot.
    pub refused: Option<String>,
    /// Where room is being made for it.
    pub nominated: Option<String>,
}

impl View {
    /// What the scheduler says.
    pub fn of_scheduler(
        nodes: Vec<wire::Node>,
        devices: Vec<wire::Device>,
        shares: Vec<wire::Share>,
        pods: Vec<wire::Pod>,
    ) -> Self {
        let mut held: BTreeMap<(String, String), Vec<Held>> = BTreeMap::new();
        for share in shares {
            let wire::Share { namespace, pod, node, uuid, cores, memory, whole } = share;
            let one = Held { namespace, pod, cores, memory, whole };
            held.entry((node, uuid)).or_default().push(one);
        }
        let mut cards: BTreeMap<String, Vec<Card>> = BTreeMap::new();
        for device in devices {
            let key = (device.node.clone(), device.uuid.clone());
            let mut held_by = held.remove(&key).unwrap_or_default();
            sort(&mut held_by);
            cards.entry(device.node).or_default().push(Card {
                index: device.index,
                uuid: device.uuid,
                model: device.model,
                state: State::new(device.health, device.sells, device.hot),
                cores: device.cores,
                cores_held: device.cores.saturating_sub(device.cores_free),
                memory: device.memory,
                memory_held: device.memory.saturating_sub(device.memory_free),
                strangers: device.strangers,
                held_by,
            });
        }
        let nodes = nodes.into_iter().map(|node| Node {
            cards: cards.remove(&node.name).unwrap_or_default(),
            name: node.name,
            agent: node.agent,
            problem: node.problem.or_else(|| missing(&node.missing)),
        });
        let waiting = pods.into_iter().filter(|pod| pod.state == "pending").map(|pod| Waiting {
            namespace: pod.namespace,
            pod: pod.name,
            refused: pod.refused,
            nominated: pod.nominated,
        });
        Self::new(Source::Scheduler, nodes.collect(), waiting.collect())
    }

    /// What a ledger made from the cluster's objects says.
    pub fn of_snapshot(snapshot: &Snapshot, waiting: Vec<Waiting>, because: String) -> Self {
        let nodes = snapshot.nodes().iter().map(|node| {
            let mut cards: Vec<Card> = node.devices.iter().map(card).collect();
            for holder in &node.holders {
                let Claim::Shares(claimed) = &holder.claim else { continue };
                for (place, hold) in node.holds(claimed).0 {
                    cards[place].held_by.push(Held {
                        namespace: holder.pod.namespace.clone(),
                        pod: holder.pod.name.clone(),
                        cores: hold.cores.0,
                        memory: hold.memory.0,
                        whole: hold.whole,
                    });
                }
            }
            for card in &mut cards {
                sort(&mut card.held_by);
            }
            Node {
                name: node.name.to_string(),
                agent: match node.agent {
                    model::Agent::Never => Agent::Never,
                    model::Agent::Stale => Agent::Stale,
                    model::Agent::Fresh => Agent::Fresh,
                },
                problem: node.problem.as_ref().map(|problem| match problem {
                    model::Problem::Inventory(why) | model::Problem::Holder(why) => why.clone(),
                }),
                cards,
            }
        });
        Self::new(Source::Cluster { because }, nodes.collect(), waiting)
    }

    fn new(source: Source, mut nodes: Vec<Node>, mut waiting: Vec<Waiting>) -> Self {
        nodes.retain(|node| !node.cards.is_empty() || node.problem.is_some());
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        for node in &mut nodes {
            node.cards.sort_by_key(|card| card.index);
        }
        waiting.sort_by(|a, b| (&a.namespace, &a.pod).cmp(&(&b.namespace, &b.pod)));
        Self { source, nodes, waiting, hidden: Vec::new() }
    }

    /// Only this node; nothing if there is no such node with cards.
    #[must_use]
    pub fn only(mut self, node: &str) -> Option<Self> {
        self.nodes.retain(|known| known.name == node);
        self.waiting.clear();
        (!self.nodes.is_empty()).then_some(self)
    }

    /// All cards.
    pub fn cards(&self) -> impl Iterator<Item = &Card> {
        self.nodes.iter().flat_map(|node| &node.cards)
    }
}

fn sort(held: &mut [Held]) {
    held.sort_by(|a, b| (&a.namespace, &a.pod).cmp(&(&b.namespace, &b.pod)));
}

fn missing(what: &[String]) -> Option<String> {
    (!what.is_empty()).then(|| format!("pods hold cards that are not there: {}", what.join(", ")))
}

fn card(state: &DeviceState) -> Card {
    let device = &state.device;
    Card {
        index: device.index,
        uuid: device.id.to_string(),
        model: device.model.to_string(),
        state: State::new(device.health, state.sells(), state.load.hot),
        cores: device.cores.0,
        cores_held: device.cores.saturating_sub(state.free_cores()).0,
        memory: device.memory.0,
        memory_held: device.memory.saturating_sub(state.free_memory()).0,
        strangers: state.load.strangers.0,
        held_by: Vec::new(),
    }
}
