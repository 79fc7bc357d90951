//! What a machine has, as its file `machine.json` says it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use model::device::Hop;
use serde::{Deserialize, Serialize};

use crate::kernel::Kernel;
use crate::state::CARDS;

/// The file of the description.
pub(crate) const FILE: &str = "machine.json";

/// A machine that is simulated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// The profile it was made from, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// What the driver calls its version, such as `550.163.01`.
    pub driver: String,
    /// The newest CUDA that the driver serves.
    pub cuda: CudaVersion,
    /// Whether time goes by or is moved.
    #[serde(default)]
    pub clock: Clock,
    /// How long a context may run before another's turn comes.
    #[serde(default = "default_quantum")]
    pub quantum_ns: u64,
    /// By how many percent a turn may be shorter or longer.
    #[serde(default = "default_jitter")]
    pub jitter_percent: u8,
    /// For the jitter.
    #[serde(default)]
    pub seed: u64,
    /// Contexts of different processes run at one time, as under MPS.
    #[serde(default)]
    pub mps: bool,
    /// As whose PIDs NVML lists processes.
    #[serde(default)]
    pub pids: PidView,
    /// Where device nodes are looked for.
    #[serde(default = "default_dev_root")]
    pub dev_root: PathBuf,
    /// What is seen where there is no `nvidiactl`.
    #[serde(default)]
    pub without_device_nodes: WithoutNodes,
    /// Its cards, in the order of their bus ids.
    pub cards: Vec<Card>,
    /// How they reach one another; a pair without a link is across sockets.
    #[serde(default)]
    pub links: Vec<Link>,
    /// How long kernels take, by the names of their functions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub kernels: BTreeMap<String, Kernel>,
}

/// One card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Card {
    /// As the driver spells it. Facts that are not given follow from it; see [`crate::cards`].
    pub model: String,
    /// All its memory, in MiB.
    pub memory_mib: u64,
    /// What the driver keeps of it, in MiB.
    #[serde(default)]
    pub reserved_mib: u64,
    /// What a context costs, in MiB.
    #[serde(default = "default_context")]
    pub context_mib: u64,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Copy engines.
    #[serde(default = "default_copy_engines")]
    pub copy_engines: u32,
    /// `GPU-` and a UUID.
    pub uuid: String,
    /// Its PCI address, such as `0000:07:00.0`.
    pub bus: String,
    /// The number in its device node.
    pub minor: u32,
    /// On the board.
    pub serial: String,
    /// The NUMA node it hangs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa: Option<u32>,
    /// The host's CPUs near to it, such as `0-15,32-47`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<String>,
    /// Whether it starts in MIG mode.
    #[serde(default)]
    pub mig: bool,
}

/// How two cards reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// The one.
    pub a: u32,
    /// The other.
    pub b: u32,
    /// The way over PCIe.
    pub hop: Hop,
    /// How many `NVLinks` join them.
    #[serde(default)]
    pub nvlinks: u8,
}

/// Whether time goes by or is moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Clock {
    /// The host's.
    #[default]
    Real,
    /// It stands until someone moves it, or waits for work.
    Virtual,
}

/// As whose PIDs processes are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PidView {
    /// The caller's PID namespace; processes that cannot be seen from there are left out.
    #[default]
    Namespace,
    /// The host's.
    Host,
    /// As `Namespace`, but what each holds is 0 for callers in another namespace than the host's, as the
    /// open kernel modules have it.
    Unsized,
}

/// What is seen where there are no device nodes at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WithoutNodes {
    /// All cards.
    #[default]
    All,
    /// No driver.
    None,
}

/// A version of CUDA, written as `12.4`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CudaVersion {
    /// Before the point.
    pub major: u16,
    /// After it.
    pub minor: u16,
}

impl CudaVersion {
    /// As the driver counts it: 12040.
    pub fn number(self) -> i32 {
        i32::from(self.major) * 1000 + i32::from(self.minor) * 10
    }
}

impl fmt::Display for CudaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl From<CudaVersion> for String {
    fn from(version: CudaVersion) -> Self {
        version.to_string()
    }
}

impl TryFrom<String> for CudaVersion {
    type Error = DescriptionError;

    fn try_from(text: String) -> Result<Self, DescriptionError> {
        let parts = text.split_once('.').and_then(|(major, minor)| {
            Some(Self { major: major.parse().ok()?, minor: minor.parse().ok()? })
        });
        parts.ok_or(DescriptionError::Cuda { text })
    }
}

/// Why a description cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DescriptionError {
    /// The file cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is no description.
    #[error("{path} is no description of a machine")]
    Json {
        /// Which.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// Not a version of CUDA.
    #[error("`{text}` is no version of CUDA; write it as 12.4")]
    Cuda {
        /// What stands there.
        text: String,
    },
    /// Not a version of the driver that can be simulated.
    #[error("`{text}` is no version of a driver from 535 to 615; write it as 550.163.01")]
    Driver {
        /// What stands there.
        text: String,
    },
    /// Too many cards, or none.
    #[error("a machine has 1 to {CARDS} cards, this one has {count}")]
    Cards {
        /// How many.
        count: usize,
    },
    /// Two cards with the same name.
    #[error("cards {one} and {other} have the same UUID, bus id or minor number")]
    Twice {
        /// The one.
        one: usize,
        /// The other.
        other: usize,
    },
    /// A card that cannot be.
    #[error(
        "card {card} needs a bus id such as 0000:07:00.0, a UUID that begins with GPU-, and at \
             least one multiprocessor and 1 MiB beyond what is reserved"
    )]
    Card {
        /// Which.
        card: usize,
    },
    /// A link to a card that is not there, or to itself.
    #[error("a link joins card {a} and card {b}, which are not two of the cards")]
    Link {
        /// The one.
        a: u32,
        /// The other.
        b: u32,
    },
}

impl Description {
    /// Reads the description in a machine's folder, and checks it.
    pub fn read(folder: &Path) -> Result<Self, DescriptionError> {
        let path = folder.join(FILE);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(source) => return Err(DescriptionError::Read { path, source }),
        };
        let description: Self = match serde_json::from_str(&text) {
            Ok(description) => description,
            Err(source) => return Err(DescriptionError::Json { path, source }),
        };
        description.checked()
    }

    /// Puts the cards in the order of their bus ids, and refuses what cannot be.
    pub fn checked(self) -> Result<Self, DescriptionError> {
        let Self { cards, links, .. } = &self;
        if cards.is_empty() || cards.len() > CARDS {
            return Err(DescriptionError::Cards { count: cards.len() });
        }
        if self.driver_branch().is_none() {
            return Err(DescriptionError::Driver { text: self.driver });
        }
        for (place, card) in cards.iter().enumerate() {
            let sound = card.bus_numbers().is_some()
                && card.uuid.starts_with("GPU-")
                && card.multiprocessors > 0
                && card.memory_mib > card.reserved_mib;
            if !sound {
                return Err(DescriptionError::Card { card: place });
            }
            let same = |other: &Card| {
                other.uuid == card.uuid || other.bus == card.bus || other.minor == card.minor
            };
            if let Some(other) = cards[..place].iter().position(same) {
                return Err(DescriptionError::Twice { one: other, other: place });
            }
        }
        let there = |index: u32| usize::try_from(index).is_ok_and(|index| index < cards.len());
        match links.iter().find(|link| link.a == link.b || !there(link.a) || !there(link.b)) {
            Some(link) => Err(DescriptionError::Link { a: link.a, b: link.b }),
            None => Ok(self.sorted()),
        }
    }

    fn sorted(mut self) -> Self {
        let mut order: Vec<usize> = (0..self.cards.len()).collect();
        order.sort_by_key(|place| self.cards[*place].bus_numbers());
        let new_place = |old: u32| {
            let at = order.iter().position(|place| u32::try_from(*place) == Ok(old));
            at.and_then(|at| u32::try_from(at).ok()).unwrap_or(old)
        };
        for link in &mut self.links {
            (link.a, link.b) = (new_place(link.a), new_place(link.b));
        }
        self.cards = order.iter().map(|place| self.cards[*place].clone()).collect();
        self
    }

    /// The first number of the driver's version.
    pub fn driver_branch(&self) -> Option<u32> {
        let mut parts = self.driver.split('.');
        let branch = parts.next()?.parse().ok().filter(|branch| (535..=615).contains(branch))?;
        let rest = parts.all(|part| part.parse::<u32>().is_ok());
        rest.then_some(branch)
    }

    /// How two cards reach each other: over PCIe, and by how many `NVLinks`.
    pub fn link(&self, one: usize, other: usize) -> (Hop, u8) {
        let is = |card: u32, place: usize| usize::try_from(card) == Ok(place);
        let found = self.links.iter().find(|link| {
            (is(link.a, one) && is(link.b, other)) || (is(link.a, other) && is(link.b, one))
        });
        found.map_or((Hop::CrossSocket, 0), |link| (link.hop, link.nvlinks))
    }
}

impl Card {
    /// Domain, bus, device and function.
    pub fn bus_numbers(&self) -> Option<(u32, u32, u32, u32)> {
        let number = |text| u32::from_str_radix(text, 16).ok();
        let (domain, rest) = self.bus.split_once(':')?;
        let (bus, rest) = rest.split_once(':')?;
        let (device, function) = rest.split_once('.')?;
        Some((number(domain)?, number(bus)?, number(device)?, number(function)?))
    }

    /// All its memory, in bytes.
    pub fn memory(&self) -> u64 {
        self.memory_mib << 20
    }

    /// What the driver keeps of it, in bytes.
    pub fn reserved(&self) -> u64 {
        self.reserved_mib << 20
    }

    /// What a context costs, in bytes.
    pub fn context(&self) -> u64 {
        self.context_mib << 20
    }
}

fn default_quantum() -> u64 {
    2_000_000
}

fn default_jitter() -> u8 {
    10
}

fn default_context() -> u64 {
    300
}

fn default_copy_engines() -> u32 {
    2
}

fn default_dev_root() -> PathBuf {
    PathBuf::from("/dev")
}
