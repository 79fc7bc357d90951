//! Traces in the form of the public openb trace: a list of nodes and a list of pods.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use model::{
    Agent, Bytes, CardModel, ContainerName, ContainerRequest, Cores, Device, DeviceId, DeviceState,
    Health, Host, Kind, Mebibytes, MemoryAsk, Mig, MilliCpu, Node, NodeName, Overrides, Part,
    PodId, PodUid, Request, Role, Selector,
};
use serde::Deserialize;

/// A pod of a trace.
#[derive(Debug, Clone)]
pub struct TracePod {
    /// What it asks.
    pub request: Request,
    /// Compute over all its cards, in thousandths of a card.
    pub milli: u64,
    /// How results group it.
    pub class: Class,
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

#[derive(Deserialize)]
struct NodeRow {
    sn: String,
    cpu_milli: u64,
    memory_mib: u64,
    gpu: u32,
    model: String,
}

#[derive(Deserialize)]
struct PodRow {
    name: String,
    cpu_milli: u64,
    memory_mib: u64,
    num_gpu: u32,
    gpu_milli: u32,
    /// Not every list has it.
    #[serde(default)]
    gpu_spec: String,
}

/// Reads a list of nodes.
pub fn nodes(path: &Path) -> Result<Vec<Node>> {
    let mut reader =
        csv::Reader::from_path(path).with_context(|| format!("open {}", path.display()))?;
    let mut nodes = Vec::new();
    for (line, row) in reader.deserialize().enumerate() {
        let row: NodeRow = row.with_context(|| format!("{}, node {}", path.display(), line + 1))?;
        let host = Host { cpu: MilliCpu(row.cpu_milli), memory: Bytes(row.memory_mib << 20) };
        nodes.push(node(&row.sn, host, &row.model, row.gpu)?);
    }
    Ok(nodes)
}

/// An empty node of `cards` equal cards. Traces say nothing of their memory: 32 GiB each.
pub fn node(name: &str, host: Host, model: &str, cards: u32) -> Result<Node> {
    let device = |index: u32| -> Result<DeviceState> {
        Ok(DeviceState::idle(Arc::new(Device {
            kind: Kind::Gpu,
            id: DeviceId::parse(&format!("GPU-{name}-{index}"))?,
            index,
            minor: index,
            bus: String::new(),
            model: CardModel::new(model),
            memory: Mebibytes(32_768),
            cores: Cores::CARD,
            numa: None,
            health: Health::Healthy,
            mig: Mig::Off,
        })))
    };
    Ok(Node {
        name: NodeName::parse(name)?,
        allocatable: host,
        free: host,
        pool: None,
        agent: Agent::Fresh,
        problem: None,
        devices: (0..cards).map(device).collect::<Result<_>>()?,
        links: Arc::from([]),
        tickets: BTreeMap::new(),
        holders: Vec::new(),
        missing: Vec::new(),
    })
}

/// Reads a list of pods.
pub fn pods(path: &Path) -> Result<Vec<TracePod>> {
    let mut reader =
        csv::Reader::from_path(path).with_context(|| format!("open {}", path.display()))?;
    let mut pods = Vec::new();
    for (line, row) in reader.deserialize().enumerate() {
        let row: PodRow = row.with_context(|| format!("{}, pod {}", path.display(), line + 1))?;
        pods.push(pod(&row).with_context(|| format!("{}, pod {}", path.display(), row.name))?);
    }
    Ok(pods)
}

fn pod(row: &PodRow) -> Result<TracePod> {
    let (part, class) = match (row.num_gpu, row.gpu_milli) {
        (0, _) => (None, Class::CpuOnly),
        (1, milli @ 1..1000) => {
            // A tenth of a percent is finer than shares are sold: rounded up.
            let cores = Cores(milli.div_ceil(10));
            let memory = MemoryAsk::Percent(cores);
            (Some(Part::Share { cores, memory }), Class::Share)
        }
        (1, 1000) => (Some(Part::Whole), Class::OneCard),
        (_, 1000) => (Some(Part::Whole), Class::SeveralCards),
        (cards, milli) => bail!("asks {milli} thousandths of each of {cards} cards"),
    };
    let models = row.gpu_spec.split('|').map(str::trim).filter(|token| !token.is_empty());
    let models: Vec<String> = models.map(str::to_owned).collect();
    let container = |part| ContainerRequest {
        name: main(),
        role: Role::App,
        cards: row.num_gpu,
        part,
        burst: None,
    };
    let milli = part.map_or(0, |_| u64::from(row.num_gpu) * u64::from(row.gpu_milli));
    Ok(TracePod {
        request: Request {
            pod: PodId {
                namespace: "trace".into(),
                name: row.name.clone(),
                uid: PodUid::parse(&row.name)?,
            },
            containers: part.map(container).into_iter().collect(),
            one_card: false,
            selector: Selector {
                models: if models.is_empty() { Vec::new() } else { vec![models] },
                ..Selector::default()
            },
            overrides: Overrides::default(),
            host: Host { cpu: MilliCpu(row.cpu_milli), memory: Bytes(row.memory_mib << 20) },
            tickets: Vec::new(),
            priority: 0,
        },
        milli,
        class,
    })
}

fn main() -> ContainerName {
    #[expect(clippy::unwrap_used, reason = "a constant that is a container name")]
    ContainerName::parse("main").unwrap()
}
