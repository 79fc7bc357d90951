//! The statistics in the form ranking uses: reciprocals in place of divisions, tables by number.

use model::{PartKind, Statistics};

/// What was learned, ready for use with one board's numbering of shapes and models.
#[derive(Debug, Clone)]
pub(crate) struct Numbers {
    /// Millionths of a card for each thousandth of a CPU and each MiB, shifted; 0 if unknown.
    per_cpu: u64,
    per_memory: u64,
    /// Thousandths: compute that a part of a card's memory stands for.
    compute_per_memory: u64,
    /// What so many percent of a card are worth. As long as a power of two, so that no index
    /// needs a check.
    value: [i32; 128],
    /// Price by shape, in 1024ths.
    pub(crate) prices: Vec<i64>,
    pub(crate) typical: Vec<Typical>,
}

/// A kind of pod that comes often.
#[derive(Debug, Clone)]
pub(crate) struct Typical {
    pub(crate) cpu: u64,
    /// Thousandths of each card, and how many.
    pub(crate) milli: u32,
    pub(crate) cards: u32,
    pub(crate) models: u64,
    /// In millionths of all pods.
    pub(crate) weight: u64,
}

impl Default for Numbers {
    fn default() -> Self {
        Self::new(&Statistics::default(), Vec::new(), |_| 0)
    }
}

const SHIFT: u32 = 20;
const CARD: u64 = 1_000_000;

impl Numbers {
    pub(crate) fn new(
        statistics: &Statistics,
        prices: Vec<i64>,
        models: impl Fn(&model::PodKind) -> u64,
    ) -> Self {
        let reciprocal =
            |per_card: Option<u64>| per_card.map_or(0, |n| (CARD << SHIFT) / n.max(16));
        let typical = statistics.typical.iter().map(|(kind, weight)| {
            let part = kind.cards.first().copied().unwrap_or((0, PartKind::Whole));
            Typical {
                cpu: kind.host.0,
                milli: u32::try_from(part.1.milli()).unwrap_or(1000),
                cards: part.0,
                models: models(kind),
                weight: *weight,
            }
        });
        Self {
            per_cpu: reciprocal(statistics.cpu_per_card),
            per_memory: reciprocal(statistics.memory_per_card),
            compute_per_memory: CARD / statistics.card_memory_per_core.max(1),
            value: std::array::from_fn(|percent| {
                i32::try_from(statistics.value[percent.min(100)]).unwrap_or(i32::MAX)
            }),
            prices: prices.into_iter().map(|price| price.saturating_mul(1024) / 1000).collect(),
            typical: typical.collect(),
        }
    }

    /// What `effective` room on a card is worth.
    pub(crate) fn value(&self, effective: u32) -> i32 {
        self.value[((effective / 10_000) & 127) as usize]
    }

    /// The room on cards that `cpu` and `memory` of the host can serve.
    pub(crate) fn served(&self, cpu: u64, memory: u64) -> i64 {
        let served = |amount: u64, per: u64| {
            if per == 0 {
                return i64::MAX;
            }
            // Where it exceeds 64 bits there is more than all cards of any node need.
            amount.checked_mul(per).map_or(i64::MAX, |product| (product >> SHIFT).cast_signed())
        };
        served(cpu, self.per_cpu).min(served(memory >> 20, self.per_memory))
    }

    /// So much of a card's memory, as the compute it usually comes with.
    pub(crate) fn memory_as_compute(&self, memory: u32, all: u32) -> u32 {
        let part = u64::from(memory) * CARD / u64::from(all.max(1));
        u32::try_from(part * self.compute_per_memory / 1000).unwrap_or(u32::MAX)
    }

    /// So many percent of a card's memory, as the compute they usually come with.
    pub(crate) fn percent_as_compute(&self, percent: u16) -> u32 {
        let part = u64::from(percent) * (CARD / 100);
        u32::try_from(part * self.compute_per_memory / 1000).unwrap_or(u32::MAX)
    }
}
