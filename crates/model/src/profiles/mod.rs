//! Machines people have, for simulations and tests.
//!
//! Each is a matrix as `nvidia-smi topo -m` printed it, with its source in the file, and what is
//! known of the host. A new one is a text file and a line in `SHEETS`.

mod matrix;

use std::sync::Arc;

pub use matrix::{Cell, Matrix, MatrixError};

use crate::device::{CardModel, Device, Health, Hop, Inventory, Kind, Link, Mig};
use crate::ids::{DeviceId, NameError, Quoted};
use crate::units::{Bytes, Cores, Mebibytes, MilliCpu};

/// A kind of machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// What it is called here.
    pub name: &'static str,
    /// The model of its cards, as the driver spells it.
    pub model: CardModel,
    /// The memory of each.
    pub memory: Mebibytes,
    /// The host's CPU, each thread one, where known.
    pub cpu: Option<MilliCpu>,
    /// The host's memory, where known.
    pub host_memory: Option<Bytes>,
    /// How its cards reach one another, as printed.
    pub matrix: Matrix,
    beneath: Beneath,
}

/// Why there is no such profile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// No machine of this name.
    #[error("no machine is called {0}")]
    Unknown(Quoted),
    /// Its text is damaged.
    #[error("the matrix of this machine cannot be read")]
    Matrix(#[from] MatrixError),
}

/// The names of all machines.
pub fn names() -> impl Iterator<Item = &'static str> {
    SHEETS.iter().flat_map(|sheet| sheet.cards.iter().map(|(name, ..)| *name))
}

impl Profile {
    /// The machine of this name.
    pub fn named(name: &str) -> Result<Self, ProfileError> {
        let found = SHEETS.iter().find_map(|sheet| {
            let cards = sheet.cards.iter().find(|(known, ..)| *known == name)?;
            Some((sheet, cards))
        });
        let (sheet, &(name, model, memory)) =
            found.ok_or_else(|| ProfileError::Unknown(Quoted::new(name)))?;
        Ok(Self {
            name,
            model: CardModel::new(model),
            memory: Mebibytes(memory),
            cpu: sheet.threads.map(|threads| MilliCpu(threads * 1000)),
            host_memory: sheet.gib.map(|gib| Bytes(gib << 30)),
            matrix: Matrix::parse(sheet.matrix)?,
            beneath: sheet.beneath,
        })
    }

    /// What the agent of such a machine would report. Its cards are called `prefix-0` and so on.
    pub fn inventory(&self, prefix: &str) -> Result<Inventory, NameError> {
        let devices = (0u32..).zip(0..self.matrix.count()).map(|(index, card)| {
            Ok(Arc::new(Device {
                kind: Kind::Gpu,
                id: DeviceId::parse(&format!("{prefix}-{index}"))?,
                index,
                minor: index,
                bus: format!("0000:{:02x}:00.0", index + 1),
                model: self.model.clone(),
                memory: self.memory,
                cores: Cores::CARD,
                numa: self.matrix.numa(card),
                nic: self.matrix.nic(card),
                health: Health::Healthy,
                mig: Mig::Off,
            }))
        });
        let indexes: Vec<u32> = (0u32..).take(self.matrix.count()).collect();
        let link = |(one, other): (usize, usize)| {
            let (hop, nvlinks) = match self.matrix.cell(one, other)? {
                Cell::Pcie(hop) => (hop, 0),
                Cell::NvLinks(count) => (self.hidden_hop(one, other), count),
            };
            Some(Link { a: indexes[one], b: indexes[other], hop, nvlinks })
        };
        let links = self.matrix.pairs().filter_map(link).collect();
        Ok(Inventory { devices: devices.collect::<Result<_, _>>()?, links })
    }

    /// The way over PCIe between two cards whose `NVLinks` hide it.
    fn hidden_hop(&self, one: usize, other: usize) -> Hop {
        let numa = |card| self.matrix.numa(card);
        if self.beneath.switches.contains(&(one, other)) {
            Hop::OneSwitch
        } else if numa(one).is_some() && numa(one) == numa(other) {
            self.beneath.same_numa
        } else {
            Hop::CrossSocket
        }
    }
}

struct Sheet {
    /// A name, the model of the cards, and the memory of each in MiB; cards of several models
    /// are sold in machines of one shape.
    cards: &'static [(&'static str, &'static str, u64)],
    matrix: &'static str,
    /// Of the host.
    threads: Option<u64>,
    /// Of the host.
    gib: Option<u64>,
    beneath: Beneath,
}

/// What lies beneath `NVLinks`, which hide it in the matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Beneath {
    /// Cards under one switch.
    switches: &'static [(usize, usize)],
    /// Between others of one NUMA node.
    same_numa: Hop,
}

/// Where nothing is known but NUMA nodes.
const NUMA_ONLY: Beneath = Beneath { switches: &[], same_numa: Hop::SameNode };

/// From NVIDIA/go-gpuallocator, `NewDGX1VoltaNode` in `common_test.go`.
const DGX_1: Beneath =
    Beneath { switches: &[(0, 1), (2, 3), (4, 5), (6, 7)], same_numa: Hop::HostBridge };

macro_rules! sheet {
    ($file:literal, $threads:expr, $gib:expr, $beneath:expr, $($cards:expr),+) => {
        Sheet {
            cards: &[$($cards),+],
            matrix: include_str!($file),
            threads: $threads,
            gib: $gib,
            beneath: $beneath,
        }
    };
}

/// Memory as `nvidia-smi` prints it for each model.
const SHEETS: &[Sheet] = &[
    sheet!("dgx-1v.txt", Some(80), Some(512), DGX_1, ("dgx-1v", "Tesla V100-SXM2-32GB", 32768)),
    sheet!("dgx-2.txt", Some(96), Some(1536), NUMA_ONLY, ("dgx-2", "Tesla V100-SXM3-32GB", 32768)),
    sheet!(
        "dgx-a100.txt",
        Some(256),
        Some(1024),
        NUMA_ONLY,
        ("dgx-a100", "NVIDIA A100-SXM4-40GB", 40960)
    ),
    sheet!(
        "hgx-a100-2nic.txt",
        Some(128),
        None,
        NUMA_ONLY,
        ("hgx-a100-2nic", "NVIDIA A100-SXM4-80GB", 81920)
    ),
    sheet!(
        "hgx-a100-4.txt",
        Some(64),
        Some(512),
        NUMA_ONLY,
        ("hgx-a100-4", "NVIDIA A100-SXM4-40GB", 40960)
    ),
    sheet!(
        "dgx-h100.txt",
        Some(224),
        Some(2048),
        NUMA_ONLY,
        ("dgx-h100", "NVIDIA H100 80GB HBM3", 81559)
    ),
    sheet!(
        "hgx-h100.txt",
        Some(224),
        None,
        NUMA_ONLY,
        ("hgx-h100", "NVIDIA H100 80GB HBM3", 81559)
    ),
    sheet!("hgx-b200.txt", Some(112), None, NUMA_ONLY, ("hgx-b200", "NVIDIA B200", 183_359)),
    sheet!(
        "hgx-b300.txt",
        Some(256),
        None,
        NUMA_ONLY,
        ("hgx-b300", "NVIDIA B300 SXM6 AC", 275_040)
    ),
    sheet!(
        "hgx-b200-degraded.txt",
        Some(224),
        None,
        NUMA_ONLY,
        ("hgx-b200-degraded", "NVIDIA B200", 183_359)
    ),
    sheet!(
        "rtx4090x8.txt",
        Some(224),
        None,
        NUMA_ONLY,
        ("rtx4090x8", "NVIDIA GeForce RTX 4090", 24564)
    ),
    sheet!(
        "pcie-x8.txt",
        Some(40),
        None,
        NUMA_ONLY,
        ("pcie-x8", "Tesla T4", 15360),
        ("t4x8", "Tesla T4", 15360),
        ("l4x8", "NVIDIA L4", 23034),
        ("a10x8", "NVIDIA A10", 23028)
    ),
    sheet!(
        "pcie-x4.txt",
        Some(384),
        None,
        NUMA_ONLY,
        ("pcie-x4", "NVIDIA L40S", 46068),
        ("l40sx4", "NVIDIA L40S", 46068),
        ("t4x4", "Tesla T4", 15360),
        ("a10x4", "NVIDIA A10", 23028)
    ),
    sheet!("vm-x4.txt", Some(120), None, NUMA_ONLY, ("vm-x4", "Tesla T4", 15360)),
    sheet!(
        "bridge-x4.txt",
        None,
        None,
        NUMA_ONLY,
        ("bridge-x4", "Quadro RTX 8000", 49152),
        ("rtx8000x4", "Quadro RTX 8000", 49152)
    ),
    sheet!(
        "hgx-a800.txt",
        Some(192),
        None,
        NUMA_ONLY,
        ("hgx-a800", "NVIDIA A800-SXM4-80GB", 81920)
    ),
];
