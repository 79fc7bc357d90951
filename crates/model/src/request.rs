//! What a pod asks, free of any dialect.

use std::fmt;

use crate::device::{CardModel, Device};
use crate::ids::{ContainerName, PodId};
use crate::node::Host;
use crate::placement::{Portion, Share};
use crate::units::{Cores, Mebibytes};

/// What one pod asks of the cards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Who asks.
    pub pod: PodId,
    /// The containers that ask for a card, in the order in which they start.
    pub containers: Vec<ContainerRequest>,
    /// Whether all of them must share one and the same card.
    pub one_card: bool,
    /// Which cards will do.
    pub selector: Selector,
    /// How near to one another the cards of a container should be.
    pub affinity: Affinity,
    /// Policies the pod chose for itself.
    pub overrides: Overrides,
    /// The host CPU and memory the whole pod asks.
    pub host: Host,
    /// The kubelet's tickets this pod will draw at its peak, by resource name.
    pub tickets: Vec<(String, u64)>,
    /// The pod's priority.
    pub priority: i32,
}

/// What one container asks: the same part of each of so many cards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerRequest {
    /// Which container.
    pub name: ContainerName,
    /// When it runs.
    pub role: Role,
    /// How many cards, at least one.
    pub cards: u32,
    /// How much of each.
    pub part: Part,
    /// Up to how much compute it may use while the card is idle; nothing means its share only.
    pub burst: Option<Cores>,
}

/// When a container runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Before the others, and then it is gone.
    Init,
    /// An init container that stays.
    Sidecar,
    /// The pod's work.
    App,
}

/// How much of a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// All of it, alone.
    Whole,
    /// A share of it.
    Share {
        /// Compute; zero promises none and limits none.
        cores: Cores,
        /// Memory.
        memory: MemoryAsk,
    },
}

/// How much memory of a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MemoryAsk {
    /// This much.
    Exact(Mebibytes),
    /// This part of whatever the card has.
    Percent(Cores),
}

impl Part {
    /// What this part is on `device`.
    pub fn of(self, device: &Device) -> Portion {
        match self {
            Self::Whole => Portion::Whole,
            Self::Share { cores, memory } => {
                Portion::Share(Share { cores, memory: memory.of(device) })
            }
        }
    }
}

impl MemoryAsk {
    /// How much this is on `device`.
    pub fn of(self, device: &Device) -> Mebibytes {
        match self {
            Self::Exact(memory) => memory,
            Self::Percent(part) => device.memory.percent(part),
        }
    }
}

impl fmt::Display for MemoryAsk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(memory) => write!(f, "{memory}"),
            Self::Percent(part) => write!(f, "{part} of its memory"),
        }
    }
}

/// Which cards will do. Empty lists allow all; every list given must agree.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selector {
    /// Lists of model tokens; of each list one must stand in the model's name.
    pub models: Vec<Vec<String>>,
    /// Model tokens none of which may stand in the model's name.
    pub not_models: Vec<String>,
    /// Lists of UUIDs; of each list one must be the card's.
    pub ids: Vec<Vec<String>>,
    /// UUIDs the card may not have.
    pub not_ids: Vec<String>,
}

impl Selector {
    /// Whether `device` will do.
    pub fn admits(&self, device: &Device) -> bool {
        let is = |id: &String| id.eq_ignore_ascii_case(device.id.as_str());
        self.admits_model(&device.model)
            && self.ids.iter().all(|any| any.iter().any(is))
            && !self.not_ids.iter().any(is)
    }

    /// Whether cards of `model` will do, as far as the model goes.
    pub fn admits_model(&self, model: &CardModel) -> bool {
        let named = |token: &String| model.contains(token);
        self.models.iter().all(|any| any.iter().any(named)) && !self.not_models.iter().any(named)
    }

    /// Whether every card will do.
    pub fn is_empty(&self) -> bool {
        self.models.is_empty()
            && self.not_models.is_empty()
            && self.ids.is_empty()
            && self.not_ids.is_empty()
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut wants: Vec<String> = self.models.iter().map(|any| any.join(" or ")).collect();
        wants.extend(self.ids.iter().map(|any| any.join(" or ")));
        let wanted = if wants.is_empty() { "card".to_owned() } else { wants.join(" and ") };
        write!(f, "{wanted}")?;
        let unwanted: Vec<&str> =
            self.not_models.iter().chain(&self.not_ids).map(String::as_str).collect();
        if !unwanted.is_empty() {
            write!(f, " other than {}", unwanted.join(" or "))?;
        }
        Ok(())
    }
}

/// How near to one another the cards of a container should be. For one card it means nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Affinity {
    /// The pod does not care; whole cards are still chosen near to one another.
    #[default]
    Any,
    /// Near if possible.
    Prefer(Near),
    /// Near, or not at all.
    Require(Near),
}

/// What makes cards near to one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Near {
    /// Every two of them are joined by NVLink.
    Link,
    /// All of them hang on one NUMA node.
    Numa,
}

/// Policies a pod chose for itself, already checked against what the administrator allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Overrides {
    /// How nodes are ranked.
    pub node: Option<PolicyName>,
    /// How cards are picked.
    pub device: Option<PolicyName>,
}

/// The policies there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyName {
    /// Keep CPU, memory and rare cards from being stranded. The default.
    Stranding,
    /// Let the fewest kinds of pods lose a place (fragmentation gradient descent).
    Fgd,
    /// Fill what is already in use.
    Binpack,
    /// Use what is idle.
    Spread,
    /// Anywhere, decided by the pod's UID.
    Random,
    /// By gpu-manager's own rules.
    GpuManager,
}

impl PolicyName {
    /// Every policy.
    pub const ALL: [Self; 6] =
        [Self::Stranding, Self::Fgd, Self::Binpack, Self::Spread, Self::Random, Self::GpuManager];

    /// The name people write.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stranding => "stranding",
            Self::Fgd => "fgd",
            Self::Binpack => "binpack",
            Self::Spread => "spread",
            Self::Random => "random",
            Self::GpuManager => "gpu-manager",
        }
    }

    /// The policy of this name, letter case aside.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.as_str().eq_ignore_ascii_case(text))
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
