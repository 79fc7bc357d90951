//! The scheduler's answers, as far as they are shown. Fields that are not known are skipped, so
//! that a newer scheduler can be asked; `tests/it/answers.rs` of the scheduler keeps the other end.

use model::Health;
use serde::{Deserialize, Serialize};

/// A node, from `/api/v1/nodes`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Whether its agent is heard.
    pub agent: Agent,
    /// Why it takes nothing new, if something on it cannot be read.
    pub problem: Option<String>,
    /// Cards that pods hold and that are not there.
    #[serde(default)]
    pub missing: Vec<String>,
}

/// Whether a node's agent is heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Agent {
    /// Never yet.
    Never,
    /// Not any more.
    Stale,
    /// Yes.
    Fresh,
}

/// A card, from `/api/v1/devices`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// Its node.
    pub node: String,
    /// Its UUID.
    pub uuid: String,
    /// Its place in the driver's order.
    pub index: u32,
    /// Its model.
    pub model: String,
    /// Whether it takes new pods.
    pub sells: bool,
    /// Whether it is well.
    pub health: Health,
    /// Its compute, in percent.
    pub cores: u32,
    /// Of which free.
    pub cores_free: u32,
    /// Its memory.
    #[serde(rename = "memoryMiB")]
    pub memory: u64,
    /// Of which free.
    #[serde(rename = "memoryFreeMiB")]
    pub memory_free: u64,
    /// Whether it is busier than was promised.
    pub hot: bool,
    /// Memory that no pod explains.
    #[serde(rename = "strangersMiB")]
    pub strangers: u64,
}

/// What a pod holds of a card, from `/api/v1/shares`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Share {
    /// The pod's namespace.
    pub namespace: String,
    /// Its name.
    pub pod: String,
    /// The node.
    pub node: String,
    /// The card.
    pub uuid: String,
    /// Percent of its compute.
    pub cores: u32,
    /// Of its memory.
    #[serde(rename = "memoryMiB")]
    pub memory: u64,
    /// All of it.
    pub whole: bool,
}

/// A pod that holds or wants a card, from `/api/v1/pods`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Pod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// `bound`, `reserved` or `pending`.
    pub state: String,
    /// Why it can never run.
    #[serde(default)]
    pub refused: Option<String>,
    /// Where room is being made for it.
    #[serde(default)]
    pub nominated: Option<String>,
}

/// The answer of `/api/v1/why`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum Why {
    /// It is on a node.
    Bound {
        /// Which, if its cards are known.
        node: Option<String>,
    },
    /// It can never run as written.
    Refused {
        /// Why.
        reason: String,
    },
    /// It waits.
    Pending(Box<Pending>),
}

/// Why a pod waits.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pending {
    /// All nodes in one line.
    pub summary: String,
    /// Nodes that could take it now.
    pub fits: Vec<String>,
    /// The others.
    pub refused: Vec<NodeRefusal>,
    /// What a person could do.
    pub what_would_help: Vec<String>,
    /// Whether others could be evicted for it.
    pub preemption: Preemption,
    /// Where cards are held for it.
    pub reserved_on: Option<String>,
    /// Where room is being made for it.
    pub nominated: Option<String>,
    /// Sentences for its author.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// Why one node cannot take a pod.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRefusal {
    /// Which.
    pub node: String,
    /// A short name of the reason.
    pub code: String,
    /// The sentence.
    pub reason: String,
    /// Whether waiting cannot help.
    pub for_good: bool,
    /// How close it came.
    pub best: Best,
}

/// The most a node has to offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Best {
    /// Memory free on one card.
    #[serde(rename = "memoryMiB")]
    pub memory: u64,
    /// Compute free on one card.
    pub cores: u32,
    /// Cards wholly free.
    pub idle_cards: u32,
    /// Cards.
    pub cards: u32,
}

/// Whether others could be evicted for a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct Preemption {
    /// Now.
    pub now: Option<String>,
    /// When it was last tried.
    pub last: Option<String>,
}

/// The answer of `/api/v1/simulate`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum Simulated {
    /// It asks for no card.
    NotOurs,
    /// It can never run as written.
    Refused {
        /// Why.
        reason: String,
    },
    /// It would be placed.
    Fits {
        /// Best first, at most twenty.
        nodes: Vec<Fit>,
        /// Sentences for its author.
        #[serde(default)]
        notes: Vec<String>,
    },
    /// It would wait.
    Waits {
        /// All nodes in one line.
        summary: String,
        /// Whom it would displace.
        displaces: Displaces,
        /// Sentences for its author.
        #[serde(default)]
        notes: Vec<String>,
    },
}

/// A node on which a pod would fit.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Fit {
    /// Which.
    pub node: String,
    /// Its cards, as the annotation would say it.
    pub placement: Option<String>,
}

/// Whom a pod would displace.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Displaces {
    /// These.
    Pods {
        /// From where.
        node: String,
        /// Whom.
        pods: Vec<String>,
    },
    /// Nobody.
    Nobody {
        /// Why.
        nobody: String,
    },
}

/// An answer that says no.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Refused {
    /// Why.
    pub error: String,
}

/// What a namespace may hold, from `/api/v1/quotas`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Quota {
    /// Which.
    pub namespace: String,
    /// Limits by model.
    pub rules: Vec<Rule>,
}

/// A limit on cards of a model.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Rule {
    /// Which model; `*` is all of them.
    pub model: String,
    /// The most.
    pub limit: Amount,
    /// What is held.
    pub used: Amount,
}

/// Cards, compute and memory; where there is no limit, nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Amount {
    /// Cards.
    pub cards: Option<u64>,
    /// Percent of compute.
    pub cores: Option<u64>,
    /// Memory.
    #[serde(rename = "memoryMiB")]
    pub memory: Option<u64>,
}

impl Rule {
    /// `40% of 50% compute of T4`.
    pub fn in_words(&self) -> String {
        let pairs = [
            (self.used.cards, self.limit.cards, "", "cards"),
            (self.used.cores, self.limit.cores, "%", "compute"),
            (self.used.memory, self.limit.memory, "", "MiB"),
        ];
        let parts = pairs.into_iter().filter_map(|(used, limit, unit, what)| {
            Some(format!("{}{unit} of {}{unit} {what}", used.unwrap_or(0), limit?))
        });
        let on = if self.model == "*" {
            "on all models".to_owned()
        } else {
            format!("on {}", self.model)
        };
        format!("{} {on}", parts.collect::<Vec<_>>().join(", "))
    }
}
