//! How much less than it prefers a pod would get on a node, where it prefers cards that are near.
//!
//! ```text
//!   0   a set as near as preferred is free
//!   1   linked was preferred, and a set on one NUMA node is the best there is
//!   2   neither
//! ```
//!
//! What a pod requires is no matter of rank: nodes without it refuse the pod.

use model::{Near, Places, Topology};

/// How far the cards are from what is preferred, and of how many cards that holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Far {
    steps: u32,
    cards: u32,
}

/// Where the steps stand in keys of policies whose keys are no costs: above all else but
/// hot cards.
const SHIFT: u32 = 60;

impl Far {
    /// For `cards` out of `fitting`.
    pub(crate) fn of(near: Near, topology: &Topology, cards: u32, fitting: Places) -> Self {
        let steps = match near {
            _ if topology.may_have(near, cards, fitting) => 0,
            Near::Link if topology.may_have(Near::Numa, cards, fitting) => 1,
            Near::Link | Near::Numa => 2,
        };
        Self { steps, cards }
    }

    /// Of two containers: the one that is further off speaks for all cards.
    pub(crate) fn and(self, other: Self) -> Self {
        Self { steps: self.steps.max(other.steps), cards: self.cards + other.cards }
    }

    /// Steps, for each card.
    pub(super) fn of_all_cards(self) -> i64 {
        i64::from(self.steps) * i64::from(self.cards)
    }

    /// The nearer node first, whatever else `key` says.
    pub(super) const fn before(self, key: u64) -> u64 {
        (self.steps as u64) << SHIFT | key
    }
}
