//! What a node has: devices, how they are linked, and how others point at them.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::DeviceId;
use crate::units::{Cores, Mebibytes};

/// One card, or one MIG slice of a card, as the agent found it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// What sort of device this is.
    pub kind: Kind,
    /// Its UUID: the only key that means the same device everywhere.
    pub id: DeviceId,
    /// Its place in the driver's own order.
    pub index: u32,
    /// The number in its device node, `/dev/nvidia<minor>`.
    pub minor: u32,
    /// Its PCI address.
    pub bus: String,
    /// The model, as the driver spells it.
    pub model: CardModel,
    /// All its memory.
    pub memory: Mebibytes,
    /// All its compute: 100 unless the administrator scales it.
    pub cores: Cores,
    /// The NUMA node it hangs on, where known.
    pub numa: Option<u32>,
    /// The way to the nearest network card, where there is one.
    pub nic: Option<Hop>,
    /// Whether it may take new work.
    pub health: Health,
    /// Its part in MIG.
    pub mig: Mig,
}

/// What sort of device. One today; others join here without touching the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A GPU.
    #[default]
    Gpu,
}

/// Whether a device may take new work. Work it already has is never touched by this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// In service.
    #[default]
    Healthy,
    /// The driver or the agent says it is broken.
    Sick,
    /// A person took it out of service.
    Cordoned,
}

/// A device's part in MIG.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Mig {
    /// An ordinary card.
    #[default]
    Off,
    /// A card cut into slices: only its slices can be used.
    Parent,
    /// One slice of `parent`.
    Slice {
        /// The card it was cut from.
        parent: DeviceId,
        /// Its size, such as `1g.5gb`.
        profile: String,
    },
}

/// A model name, such as `NVIDIA A100-SXM4-40GB`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CardModel(pub Arc<str>);

impl CardModel {
    /// Wraps a model name as the driver spells it.
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// Whether `token` stands anywhere in the name, letter case aside.
    pub fn contains(&self, token: &str) -> bool {
        self.0.to_ascii_lowercase().contains(&token.to_ascii_lowercase())
    }
}

impl fmt::Display for CardModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How two devices of a node reach each other.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Link {
    /// The lower of the two indexes.
    pub a: u32,
    /// The higher of the two indexes.
    pub b: u32,
    /// The way over PCIe.
    pub hop: Hop,
    /// How many `NVLinks` join them, 0 if none.
    pub nvlinks: u8,
}

/// The way between two devices over PCIe, nearest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Hop {
    /// At most one PCIe bridge (`PIX`).
    #[serde(rename = "PIX")]
    OneSwitch,
    /// Several PCIe bridges (`PXB`).
    #[serde(rename = "PXB")]
    Switches,
    /// A PCIe host bridge (`PHB`).
    #[serde(rename = "PHB")]
    HostBridge,
    /// Between host bridges of one NUMA node (`NODE`).
    #[serde(rename = "NODE")]
    SameNode,
    /// Across sockets (`SYS`).
    #[serde(rename = "SYS")]
    CrossSocket,
}

impl Hop {
    /// Every hop, nearest first.
    pub const ALL: [Self; 5] =
        [Self::OneSwitch, Self::Switches, Self::HostBridge, Self::SameNode, Self::CrossSocket];

    /// The short name that `nvidia-smi topo -m` prints.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OneSwitch => "PIX",
            Self::Switches => "PXB",
            Self::HostBridge => "PHB",
            Self::SameNode => "NODE",
            Self::CrossSocket => "SYS",
        }
    }

    /// The hop of this short name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|hop| hop.as_str() == text)
    }
}

/// All devices of a node and their links.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Inventory {
    /// In the driver's order.
    pub devices: Vec<Arc<Device>>,
    /// At most one for each pair; a pair without one is unknown.
    pub links: Vec<Link>,
}

/// How a placement points at a device: ours by UUID, older systems by number.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceRef {
    /// The UUID.
    Id(DeviceId),
    /// The place in the driver's order.
    Index(u32),
    /// The number of the device node.
    Minor(u32),
}

impl DeviceRef {
    /// Whether this points at `device`.
    pub fn is(&self, device: &Device) -> bool {
        match self {
            Self::Id(id) => *id == device.id,
            Self::Index(index) => *index == device.index,
            Self::Minor(minor) => *minor == device.minor && device.mig == Mig::Off,
        }
    }
}

impl fmt::Display for DeviceRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => write!(f, "{id}"),
            Self::Index(index) => write!(f, "card {index}"),
            Self::Minor(minor) => write!(f, "device node {minor}"),
        }
    }
}
