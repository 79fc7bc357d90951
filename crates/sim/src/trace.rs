//! Traces in the form of the public openb trace: a list of nodes and a list of pods, as CSV.
//!
//! Four columns are our own and may be absent: `card_mem_mib` of nodes and `gpu_mem_mib` of pods,
//! for shares that ask for memory apart from compute; `machine` of nodes and `topology` of pods,
//! for cards that are near to one another or not. Other columns are not looked at.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result, bail, ensure};
use model::{
    Affinity, Agent, Bytes, CardModel, ContainerName, ContainerRequest, Cores, Device, DeviceId,
    DeviceState, Health, Host, Kind, Mebibytes, MemoryAsk, Mig, MilliCpu, Near, Node, NodeName,
    Overrides, Part, PodId, PodUid, Request, Role, Selector, Topology,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::machines;

/// A pod of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracePod {
    /// What it asks.
    pub request: Request,
    /// Compute over all its cards, in thousandths of a card.
    pub milli: u64,
    /// How results group it.
    pub class: Class,
}

impl TracePod {
    /// Whether only some models of cards will do.
    pub fn is_type_bound(&self) -> bool {
        !self.request.containers.is_empty() && !self.request.selector.is_empty()
    }
}

/// How results group pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// No card.
    CpuOnly,
    /// A part of a card.
    Share,
    /// One whole card.
    OneCard,
    /// Several whole cards.
    SeveralCards,
}

impl Class {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::CpuOnly, Self::Share, Self::OneCard, Self::SeveralCards];

    /// The name in reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::CpuOnly => "cpu-only",
            Self::Share => "share",
            Self::OneCard => "one-card",
            Self::SeveralCards => "several-cards",
        }
    }
}

/// A line of a list of nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRow {
    /// Its name.
    pub sn: String,
    /// Host CPU, in thousandths.
    pub cpu_milli: u64,
    /// Host memory, in MiB.
    pub memory_mib: u64,
    /// How many cards.
    pub gpu: u32,
    /// Their model.
    pub model: String,
    /// The memory of each, in MiB. Not every list has it.
    #[serde(default)]
    pub card_mem_mib: Option<u64>,
    /// The machine whose cards are wired like these, by its name; empty if nothing is known.
    #[serde(default)]
    pub machine: String,
}

/// A line of a list of pods.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodRow {
    /// Its name.
    pub name: String,
    /// Host CPU, in thousandths.
    pub cpu_milli: u64,
    /// Host memory, in MiB.
    pub memory_mib: u64,
    /// How many cards.
    pub num_gpu: u32,
    /// How much compute of each, in thousandths.
    pub gpu_milli: u32,
    /// Models that will do, with `|` between them. Not every list has it.
    #[serde(default)]
    pub gpu_spec: String,
    /// How much memory of the card, in MiB; nothing means as much of it as of its compute.
    #[serde(default)]
    pub gpu_mem_mib: Option<u64>,
    /// How near several cards should be, as in the annotation `nano-gpu/topology`.
    #[serde(default)]
    pub topology: String,
    /// When it came, in seconds. Written only: lists differ in how they spell it.
    #[serde(skip_deserializing)]
    pub creation_time: u64,
    /// When it left. Written only.
    #[serde(skip_deserializing)]
    pub deletion_time: u64,
}

/// What a list of nodes must have.
const NODE_COLUMNS: [&str; 5] = ["sn", "cpu_milli", "memory_mib", "gpu", "model"];
/// What a list of pods must have.
const POD_COLUMNS: [&str; 5] = ["name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"];
/// What a card has where the list does not say. Shares then ask for percents of it.
const CARD_MEMORY: u64 = 32_768;
/// More cards on one node are a typing error.
const MOST_CARDS: usize = 64;

/// Reads a list of nodes.
pub fn nodes(path: &Path) -> Result<Vec<Node>> {
    let rows: Vec<NodeRow> = rows(path, "nodes", &NODE_COLUMNS)?;
    let node =
        |row: &NodeRow| row.node().with_context(|| format!("{}: node {}", path.display(), row.sn));
    let nodes: Vec<Node> = rows.iter().map(node).collect::<Result<_>>()?;
    let has_cards = nodes.iter().any(|node| !node.devices.is_empty());
    ensure!(has_cards, "{} lists no node with a card", path.display());
    Ok(nodes)
}

/// Reads a list of pods.
pub fn pods(path: &Path) -> Result<Vec<TracePod>> {
    let rows: Vec<PodRow> = rows(path, "pods", &POD_COLUMNS)?;
    let pod =
        |row: &PodRow| row.pod().with_context(|| format!("{}: pod {}", path.display(), row.name));
    let pods: Vec<TracePod> = rows.iter().map(pod).collect::<Result<_>>()?;
    let asks = pods.iter().any(|pod| pod.milli > 0);
    ensure!(asks, "{} lists no pod that asks for a card", path.display());
    Ok(pods)
}

fn rows<T: DeserializeOwned>(path: &Path, what: &str, columns: &[&str]) -> Result<Vec<T>> {
    let mut reader = csv::Reader::from_path(path)
        .with_context(|| format!("cannot read the {what} in {}", path.display()))?;
    let header = reader.headers().with_context(|| format!("{}", path.display()))?;
    if let Some(missing) = columns.iter().find(|column| !header.iter().any(|h| h == **column)) {
        let columns = columns.join(", ");
        bail!("{} has no column {missing}; a list of {what} has {columns}", path.display());
    }
    let rows = reader.deserialize().collect::<Result<_, csv::Error>>();
    rows.with_context(|| format!("{}", path.display()))
}

impl NodeRow {
    /// The empty node.
    pub fn node(&self) -> Result<Node> {
        ensure!(
            self.gpu as usize <= MOST_CARDS,
            "has {} cards; a node may have at most {MOST_CARDS}",
            self.gpu
        );
        if !self.machine.is_empty() {
            return self.wired();
        }
        let host = host(self.cpu_milli, self.memory_mib);
        let memory = Mebibytes(self.card_mem_mib.unwrap_or(CARD_MEMORY));
        let device = |index: u32| -> Result<Arc<Device>> {
            Ok(Arc::new(Device {
                kind: Kind::Gpu,
                id: DeviceId::parse(&format!("GPU-{}-{index}", self.sn))?,
                index,
                minor: index,
                bus: String::new(),
                model: CardModel::new(&self.model),
                memory,
                cores: Cores::CARD,
                numa: None,
                nic: None,
                health: Health::Healthy,
                mig: Mig::Off,
            }))
        };
        let devices: Vec<Arc<Device>> = (0..self.gpu).map(device).collect::<Result<_>>()?;
        let topology = unwired(&devices);
        self.with(host, devices, topology)
    }

    /// The empty node, wired like its machine.
    fn wired(&self) -> Result<Node> {
        let (inventory, topology) = machines::like(&self.machine)?;
        let has = inventory.devices.len();
        ensure!(has == self.gpu as usize, "has {} cards; a {} has {has}", self.gpu, self.machine);
        let device = |known: &Arc<Device>| -> Result<Arc<Device>> {
            Ok(Arc::new(Device {
                id: DeviceId::parse(&format!("GPU-{}-{}", self.sn, known.index))?,
                model: CardModel::new(&self.model),
                memory: self.card_mem_mib.map_or(known.memory, Mebibytes),
                ..Device::clone(known)
            }))
        };
        let devices = inventory.devices.iter().map(device).collect::<Result<_>>()?;
        self.with(host(self.cpu_milli, self.memory_mib), devices, topology)
    }

    fn with(&self, host: Host, devices: Vec<Arc<Device>>, topology: Arc<Topology>) -> Result<Node> {
        Ok(Node {
            name: NodeName::parse(&self.sn)?,
            allocatable: host,
            free: host,
            pool: None,
            shunned: false,
            agent: Agent::Fresh,
            problem: None,
            topology,
            devices: devices.into_iter().map(DeviceState::idle).collect(),
            tickets: BTreeMap::new(),
            holders: Vec::new(),
            missing: Vec::new(),
        })
    }
}

impl PodRow {
    /// The pod.
    pub fn pod(&self) -> Result<TracePod> {
        let (part, class) = match (self.num_gpu, self.gpu_milli) {
            (0, _) => (None, Class::CpuOnly),
            (1, milli @ 1..1000) => {
                // A tenth of a percent is finer than shares are sold: rounded up.
                let cores = Cores(milli.div_ceil(10));
                let exact = self.gpu_mem_mib.map(|memory| MemoryAsk::Exact(Mebibytes(memory)));
                let memory = exact.unwrap_or(MemoryAsk::Percent(cores));
                (Some(Part::Share { cores, memory }), Class::Share)
            }
            (1, 1000) => (Some(Part::Whole), Class::OneCard),
            (_, 1000) => (Some(Part::Whole), Class::SeveralCards),
            (1, milli) => bail!("asks for {milli} thousandths of a card, which has 1000"),
            (cards, milli) => {
                bail!("asks for {milli} thousandths of each of {cards} cards, which must be whole")
            }
        };
        let models = self.gpu_spec.split('|').map(str::trim).filter(|token| !token.is_empty());
        let models: Vec<String> = models.map(str::to_owned).collect();
        let container = |part| ContainerRequest {
            name: main(),
            role: Role::App,
            cards: self.num_gpu,
            part,
            burst: None,
        };
        let milli = match part {
            None => 0,
            Some(Part::Whole) => u64::from(self.num_gpu) * 1000,
            Some(Part::Share { cores, .. }) => u64::from(cores.0) * 10,
        };
        let uid = PodUid::parse(&self.name)?;
        Ok(TracePod {
            request: Request {
                pod: PodId { namespace: "trace".into(), name: self.name.clone(), uid },
                containers: part.map(container).into_iter().collect(),
                one_card: false,
                selector: Selector {
                    models: if models.is_empty() { Vec::new() } else { vec![models] },
                    ..Selector::default()
                },
                affinity: affinity(&self.topology)?,
                overrides: Overrides::default(),
                host: host(self.cpu_milli, self.memory_mib),
                tickets: Vec::new(),
                priority: 0,
            },
            milli,
            class,
        })
    }
}

/// What the annotation `nano-gpu/topology` says.
fn affinity(text: &str) -> Result<Affinity> {
    Ok(match text {
        "" | "none" => Affinity::Any,
        "link" => Affinity::Prefer(Near::Link),
        "numa" => Affinity::Prefer(Near::Numa),
        "link-strict" => Affinity::Require(Near::Link),
        "numa-strict" => Affinity::Require(Near::Numa),
        _ => bail!(
            "topology is {text:?}; it must be one of none, link, link-strict, numa, numa-strict"
        ),
    })
}

/// Host CPU and memory from the units of traces and snapshots.
pub fn host(cpu_milli: u64, memory_mib: u64) -> Host {
    Host { cpu: MilliCpu(cpu_milli), memory: Bytes(memory_mib.saturating_mul(1 << 20)) }
}

/// Of cards whose links nobody reported: the same for as many cards, so it is made once.
fn unwired(devices: &[Arc<Device>]) -> Arc<Topology> {
    static KNOWN: [OnceLock<Arc<Topology>>; MOST_CARDS + 1] =
        [const { OnceLock::new() }; MOST_CARDS + 1];
    KNOWN[devices.len()].get_or_init(|| Arc::new(Topology::new(devices, &[]))).clone()
}

fn main() -> ContainerName {
    #[expect(clippy::unwrap_used, reason = "a constant that is a container name")]
    ContainerName::parse("main").unwrap()
}
