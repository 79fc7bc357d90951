//! What placement has learned of the pods that come, as plain numbers.
//!
//! Made by `placement::learn` from a [`Workload`](crate::Workload) and the nodes; carried by
//! the snapshot, so that a decision depends on nothing else. The default has learned nothing.

use std::collections::BTreeMap;

use crate::device::CardModel;
use crate::node::{Host, Node};
use crate::units::{Cores, Mebibytes};
use crate::workload::PodKind;

/// What was learned. All amounts of compute are in millionths of a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statistics {
    /// Host CPU that comes with one card's worth of compute, in thousandths; nothing if unknown.
    pub cpu_per_card: Option<u64>,
    /// Host memory that comes with it, in MiB; nothing if unknown.
    pub memory_per_card: Option<u64>,
    /// How much of a card's memory is asked for each part of its compute, in thousandths.
    pub card_memory_per_core: u64,
    /// What so many percent left on a card are worth: the chance that a share fits, times them.
    pub value: [u32; 101],
    /// How wanted a kind of node is: demand that could go there for each card, in thousandths.
    pub prices: BTreeMap<Shape, u64>,
    /// The kinds of pods that make up most of the workload, with their weight in millionths.
    pub typical: Vec<(PodKind, u64)>,
}

impl Default for Statistics {
    fn default() -> Self {
        Self {
            cpu_per_card: None,
            memory_per_card: None,
            card_memory_per_core: 1000,
            value: [0; 101],
            prices: BTreeMap::new(),
            typical: Vec::new(),
        }
    }
}

/// What makes two empty nodes alike.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shape {
    /// Its CPU in thousandths and its memory in bytes.
    pub host: (u64, u64),
    /// Its cards: model, memory, compute.
    pub cards: Vec<(CardModel, Mebibytes, Cores)>,
}

impl Shape {
    /// The shape of `node`.
    pub fn of(node: &Node) -> Self {
        let Host { cpu, memory } = node.allocatable;
        let cards = node.devices.iter().map(|state| {
            let device = &state.device;
            (device.model.clone(), device.memory, device.cores)
        });
        Self { host: (cpu.0, memory.0), cards: cards.collect() }
    }
}
