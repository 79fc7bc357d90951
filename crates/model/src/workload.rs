//! What kinds of pods come, counted: the memory from which placement learns.

use std::collections::BTreeMap;

use crate::node::Host;
use crate::request::{MemoryAsk, Part, Request, Selector};
use crate::units::{Cores, Mebibytes};

/// How many pods of each kind were seen. Nothing in it depends on the order in which they came.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Workload {
    kinds: BTreeMap<PodKind, u64>,
}

/// What makes two pods alike for placement.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodKind {
    /// Host CPU and memory.
    pub host: (u64, u64),
    /// The containers that ask for a card: how many, and how much of each.
    pub cards: Vec<(u32, PartKind)>,
    /// Which models it wants: lists of tokens, one of each must match.
    pub models: Vec<Vec<String>>,
    /// Which it does not want.
    pub not_models: Vec<String>,
}

/// How much of a card, in an order of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PartKind {
    /// All of it.
    Whole,
    /// Compute, and memory as an amount.
    Exact(Cores, Mebibytes),
    /// Compute, and memory as a percentage.
    Percent(Cores, Cores),
}

impl Workload {
    /// Counts one more pod.
    pub fn see(&mut self, request: &Request) {
        *self.kinds.entry(PodKind::of(request)).or_default() += 1;
    }

    /// Every kind with its count.
    pub fn kinds(&self) -> impl Iterator<Item = (&PodKind, u64)> {
        self.kinds.iter().map(|(kind, &count)| (kind, count))
    }

    /// Whether nothing was seen yet.
    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }
}

impl PodKind {
    /// The kind of `request`.
    pub fn of(request: &Request) -> Self {
        let Host { cpu, memory } = request.host;
        let cards = request.containers.iter().map(|c| (c.cards, PartKind::of(c.part)));
        let Selector { models, not_models, .. } = &request.selector;
        Self {
            host: (cpu.0, memory.0),
            cards: cards.collect(),
            models: models.clone(),
            not_models: not_models.clone(),
        }
    }

    /// Compute over all its cards, in thousandths of a card.
    pub fn gpu_milli(&self) -> u64 {
        let milli = |(cards, part): &(u32, PartKind)| u64::from(*cards) * part.milli();
        self.cards.iter().map(milli).sum()
    }
}

impl PartKind {
    fn of(part: Part) -> Self {
        match part {
            Part::Whole => Self::Whole,
            Part::Share { cores, memory: MemoryAsk::Exact(memory) } => Self::Exact(cores, memory),
            Part::Share { cores, memory: MemoryAsk::Percent(part) } => Self::Percent(cores, part),
        }
    }

    /// Compute, in thousandths of a card.
    pub fn milli(self) -> u64 {
        match self {
            Self::Whole => 1000,
            Self::Exact(cores, _) | Self::Percent(cores, _) => u64::from(cores.0.min(100)) * 10,
        }
    }
}
