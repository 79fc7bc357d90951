//! Why a node cannot take a pod: a stable sentence, and the node's own numbers apart.
//!
//! The sentence holds numbers of the request only. kube-scheduler counts equal sentences over
//! all nodes, and a sentence that changed with every node or moment would requeue the pod for
//! ever.

use model::{Cores, Mebibytes, MemoryAsk, Near};

/// A node's refusal, and how close it came.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct NodeRefusal {
    /// The stable sentence.
    pub reason: Refusal,
    /// The node's own numbers.
    pub best: Best,
}

/// The best a node has to offer, over the cards the pod would accept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Best {
    /// The most memory free on one card.
    pub memory: Mebibytes,
    /// The most compute free on one card.
    pub cores: Cores,
    /// How many cards are wholly free.
    pub idle: u32,
    /// How many cards there are.
    pub cards: u32,
}

/// Why a node cannot take a pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// No agent was ever heard.
    #[error("no nanogpu agent reports from the node")]
    NoAgent,
    /// The agent has fallen silent.
    #[error("the node's agent has stopped reporting")]
    StaleAgent,
    /// The node's inventory is damaged or too new.
    #[error("the node's inventory cannot be read")]
    BadInventory,
    /// A pod there holds something we cannot read.
    #[error("a pod on the node holds cards in a way that cannot be read")]
    BadHolder,
    /// No card at all.
    #[error("the node has no card")]
    NoCards,
    /// The kubelet has never so many tickets.
    #[error("the node does not offer {count} {resource}")]
    NotOffered {
        /// Which resource.
        resource: String,
        /// How many are wanted.
        count: u64,
    },
    /// The kubelet has too few tickets left.
    #[error("fewer than {count} {resource} left")]
    TicketsShort {
        /// Which resource.
        resource: String,
        /// How many are wanted.
        count: u64,
    },
    /// CPU or memory of the host.
    #[error("too little CPU or memory left on the host")]
    HostShort,
    /// The namespace may not use this node's pool.
    #[error("namespace {namespace} may not use the node's pool")]
    Pool {
        /// Which namespace.
        namespace: String,
    },
    /// No card of the kind the pod asks for.
    #[error("no {selector}")]
    NoMatch {
        /// What the pod accepts.
        selector: String,
    },
    /// Not so many cards.
    #[error("{} that would do", few(*cards, "card"))]
    TooFewCards {
        /// How many are wanted.
        cards: u32,
    },
    /// No card is large enough, even empty.
    #[error("{} of {memory}", few(*cards, "card"))]
    CardTooSmall {
        /// How many are wanted.
        cards: u32,
        /// How large each must be.
        memory: MemoryAsk,
    },
    /// No card has so much compute, even empty: the administrator scaled it down.
    #[error("{} of {cores} compute", few(*cards, "card"))]
    CardTooWeak {
        /// How many are wanted.
        cards: u32,
        /// How much of each.
        cores: Cores,
    },
    /// The pod requires cards that are near to one another, and so many are not, even empty.
    #[error("{} {}", few(*cards, "card"), near_text(*near))]
    TooFarApart {
        /// How many are wanted.
        cards: u32,
        /// How near.
        near: Near,
    },
    /// Sick, cordoned, or listed by two nodes.
    #[error("{} in service", few(*cards, "card"))]
    OutOfService {
        /// How many are wanted.
        cards: u32,
    },
    /// The namespace has used up its quota.
    #[error("namespace {namespace} has no quota left for the node's cards")]
    Quota {
        /// Which namespace.
        namespace: String,
    },
    /// Too few cards without any holder.
    #[error("{} wholly free", few(*cards, "card"))]
    NotIdle {
        /// How many are wanted.
        cards: u32,
    },
    /// Too little compute on every card.
    #[error("{} with {cores} of its compute free", few(*cards, "card"))]
    CoresShort {
        /// How many are wanted.
        cards: u32,
        /// How much of each.
        cores: Cores,
    },
    /// Too little memory on every card.
    #[error("{} with {memory} free", few(*cards, "card"))]
    MemoryShort {
        /// How many are wanted.
        cards: u32,
        /// How much of each.
        memory: MemoryAsk,
    },
    /// Compute on some cards, memory on others.
    #[error("{} with {cores} of its compute and {memory} free together", few(*cards, "card"))]
    Fragmented {
        /// How many are wanted.
        cards: u32,
        /// How much compute of each.
        cores: Cores,
        /// How much memory of each.
        memory: MemoryAsk,
    },
    /// Of the cards that are near to one another, others hold too much.
    #[error("{} {} with room", few(*cards, "card"), near_text(*near))]
    NearTaken {
        /// How many are wanted.
        cards: u32,
        /// How near.
        near: Near,
    },
    /// Each container alone would fit.
    #[error("no room for the pod's {containers} GPU containers together")]
    NotTogether {
        /// How many containers.
        containers: usize,
    },
    /// More ways than can be tried.
    #[error("too many ways to place the pod's {containers} GPU containers to try them all")]
    GaveUp {
        /// How many containers.
        containers: usize,
    },
}

impl Refusal {
    /// The codes of all refusals, in the order in which they are looked for.
    pub const CODES: [&'static str; 23] = [
        "no-agent",
        "stale-agent",
        "bad-inventory",
        "bad-holder",
        "no-cards",
        "pool",
        "no-match",
        "too-few-cards",
        "card-too-weak",
        "card-too-small",
        "too-far-apart",
        "out-of-service",
        "not-idle",
        "cores-short",
        "memory-short",
        "fragmented",
        "near-taken",
        "not-offered",
        "tickets-short",
        "host-short",
        "quota",
        "not-together",
        "gave-up",
    ];

    /// Whether waiting and removing other pods cannot help: only another node can.
    pub const fn is_permanent(&self) -> bool {
        matches!(
            self,
            Self::NoAgent
                | Self::NoCards
                | Self::NotOffered { .. }
                | Self::Pool { .. }
                | Self::NoMatch { .. }
                | Self::TooFewCards { .. }
                | Self::CardTooSmall { .. }
                | Self::CardTooWeak { .. }
                | Self::TooFarApart { .. }
        )
    }

    /// A short name for metrics and tests.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NoAgent => "no-agent",
            Self::StaleAgent => "stale-agent",
            Self::BadInventory => "bad-inventory",
            Self::BadHolder => "bad-holder",
            Self::NoCards => "no-cards",
            Self::NotOffered { .. } => "not-offered",
            Self::TicketsShort { .. } => "tickets-short",
            Self::HostShort => "host-short",
            Self::Pool { .. } => "pool",
            Self::NoMatch { .. } => "no-match",
            Self::TooFewCards { .. } => "too-few-cards",
            Self::CardTooSmall { .. } => "card-too-small",
            Self::CardTooWeak { .. } => "card-too-weak",
            Self::TooFarApart { .. } => "too-far-apart",
            Self::OutOfService { .. } => "out-of-service",
            Self::Quota { .. } => "quota",
            Self::NotIdle { .. } => "not-idle",
            Self::CoresShort { .. } => "cores-short",
            Self::MemoryShort { .. } => "memory-short",
            Self::Fragmented { .. } => "fragmented",
            Self::NearTaken { .. } => "near-taken",
            Self::NotTogether { .. } => "not-together",
            Self::GaveUp { .. } => "gave-up",
        }
    }
}

fn few(count: u32, what: &str) -> String {
    if count == 1 { format!("no {what}") } else { format!("fewer than {count} {what}s") }
}

const fn near_text(near: Near) -> &'static str {
    match near {
        Near::Link => "joined by NVLink",
        Near::Numa => "of one NUMA node",
    }
}
