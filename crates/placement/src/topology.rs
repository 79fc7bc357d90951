//! Which set of cards, where a container asks for several of them.
//!
//! ```text
//!   score of a set = its worth, as the node's topology has it
//!                  + the worth of the best set of that size among the idle cards it leaves
//! ```
//!
//! Sets that are as near as the pod prefers come first. The second half keeps the cards together that the next pod will want together. It is the best
//! before less what is lost, and the best before is the same for all sets. Of equal scores the set
//! that is worth most itself wins, and of these the one that comes first by the device policy.
//!
//! Every set is looked at, as each is a few look-ups in tables. Where there are too many, which
//! takes more than 16 cards, sets are grown from a few cards over the whole node instead.

use std::cmp::Reverse;

use model::{Affinity, Places, Topology};

/// How many sets are compared at most: those of 8 out of 16 cards.
const MOST_SETS: u64 = 12_870;

/// How many sets are compared in the time of one step of the search.
const SETS_PER_STEP: u64 = 64;

/// From how many cards a set is grown, where there are too many to compare all.
const SEEDS: usize = 16;

/// The sets that one container may get.
pub(crate) struct Sets<'a> {
    pub(crate) topology: &'a Topology,
    pub(crate) affinity: Affinity,
    /// How many cards are wanted.
    pub(crate) size: usize,
    /// The cards that fit, best by the device policy first.
    pub(crate) cards: Vec<usize>,
    /// Cards that nobody holds and that sell.
    pub(crate) idle: Places,
    /// Cards that had better be used before any other.
    pub(crate) first: Places,
}

/// Where a set stands. The highest is the best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Standing {
    first: u32,
    as_preferred: bool,
    score: u32,
    worth: u32,
    /// The set, as the ranks of its cards: the policy's first card is the highest bit, so that of
    /// equals the set that comes first has the highest number.
    ranks: u64,
}

impl Sets<'_> {
    /// How many sets there are, if they are few enough to compare.
    pub(crate) fn count(&self) -> Option<u64> {
        if self.cards.len() > Places::MOST || self.size > self.cards.len() {
            return None;
        }
        let rest = self.cards.len() - self.size;
        // Row by row of Pascal's triangle: each product is a whole multiple of the divisor.
        let mut count = 1u64;
        for (i, top) in (rest + 1..=self.cards.len()).enumerate() {
            count = count.checked_mul(top as u64)? / (i as u64 + 1);
        }
        (count <= MOST_SETS).then_some(count)
    }

    /// What the choice costs, in steps of the search.
    pub(crate) fn steps(&self) -> u32 {
        let grown = SEEDS * self.size * self.cards.len();
        let looked_at = self.count().unwrap_or(grown as u64);
        u32::try_from(looked_at / SETS_PER_STEP).unwrap_or(u32::MAX)
    }

    /// The best of all sets.
    pub(crate) fn best(&self) -> Option<Standing> {
        self.all().max()
    }

    /// All sets, the best first.
    pub(crate) fn in_order(&self) -> Vec<Standing> {
        let mut all: Vec<Standing> = self.all().collect();
        all.sort_unstable_by_key(|standing| Reverse(*standing));
        all
    }

    /// A good set, where there are too many to compare: from each of a few cards on, the card
    /// that has most to do with those before.
    pub(crate) fn grown(&self) -> Option<Standing> {
        if self.cards.len() > Places::MOST {
            return None;
        }
        let seeds = (0..self.cards.len()).step_by(self.cards.len().div_ceil(SEEDS).max(1));
        seeds.filter_map(|seed| self.grown_from(seed)).max()
    }

    /// The cards of a set, by their rank in the device policy.
    pub(crate) fn ranks(&self, set: &Standing) -> impl Iterator<Item = usize> {
        let last = self.cards.len() - 1;
        let ranks: Vec<usize> =
            Places::from_bits(set.ranks).into_iter().map(|bit| last - bit).collect();
        ranks.into_iter().rev()
    }

    fn all(&self) -> impl Iterator<Item = Standing> {
        masks(self.cards.len(), self.size).filter_map(|ranks| self.standing(ranks))
    }

    fn standing(&self, ranks: u64) -> Option<Standing> {
        let last = self.cards.len() - 1;
        let set: Places =
            Places::from_bits(ranks).into_iter().map(|bit| self.cards[last - bit]).collect();
        let near = |near| set.len() as usize == self.size && self.topology.is_near(near, set);
        let as_preferred = match self.affinity {
            Affinity::Any => false,
            Affinity::Prefer(wanted) => near(wanted),
            Affinity::Require(wanted) if near(wanted) => false,
            Affinity::Require(_) => return None,
        };
        let worth = self.topology.worth(set);
        let left = self.topology.best(set.len(), self.idle.without(set));
        let first = self.first.and(set).len();
        Some(Standing { first, as_preferred, score: worth + left, worth, ranks })
    }

    fn grown_from(&self, seed: usize) -> Option<Standing> {
        let last = self.cards.len() - 1;
        let mut set = Places::one(self.cards[seed]);
        let mut ranks = Places::one(last - seed);
        for _ in 1..self.size {
            let allowed = |card: usize| match self.affinity {
                Affinity::Require(near) => self.topology.is_near(near, set.or(Places::one(card))),
                Affinity::Any | Affinity::Prefer(_) => true,
            };
            let fresh = (0..=last).filter(|&rank| !ranks.contains(last - rank));
            let next = fresh.filter(|&rank| allowed(self.cards[rank])).max_by_key(|&rank| {
                let card = self.cards[rank];
                (self.first.contains(card), self.topology.bonds(card, set), Reverse(rank))
            })?;
            set = set.or(Places::one(self.cards[next]));
            ranks = ranks.or(Places::one(last - next));
        }
        self.standing(ranks.bits())
    }
}

/// All numbers of `bits` bits of which `ones` are set, lowest first.
fn masks(bits: usize, ones: usize) -> impl Iterator<Item = u64> {
    let first = Places::first(ones).bits();
    let last = first.checked_shl(u32::try_from(bits - ones).unwrap_or(u32::MAX)).unwrap_or(0);
    std::iter::successors(Some(first), move |&mask| {
        if mask == last {
            return None;
        }
        // Gosper's hack: move the lowest one that can move up by one place, and all below it
        // back to the bottom.
        let lowest = mask & mask.wrapping_neg();
        let moved = mask + lowest;
        Some(moved | (((mask ^ moved) >> 2) / lowest))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_all_there_are() {
        for bits in 1..=10 {
            for ones in 1..=bits {
                let all: Vec<u64> = (0..1 << bits)
                    .filter(|mask: &u64| mask.count_ones() as usize == ones)
                    .collect();
                assert_eq!(masks(bits, ones).collect::<Vec<_>>(), all);
            }
        }
        assert_eq!(masks(64, 64).collect::<Vec<_>>(), [u64::MAX]);
        assert_eq!(masks(64, 1).count(), 64);
        assert_eq!(masks(64, 63).last(), Some(u64::MAX << 1));
        assert_eq!(masks(64, 2).last(), Some(3 << 62));
    }

    #[test]
    fn sets_are_counted_before_they_are_compared() {
        let topology = Topology::default();
        let count = |cards: usize, size| {
            let (affinity, idle) = (Affinity::Any, Places::NONE);
            let cards = (0..cards).collect();
            Sets { topology: &topology, affinity, size, cards, idle, first: idle }.count()
        };
        assert_eq!((count(8, 4), count(16, 8), count(16, 16)), (Some(70), Some(12_870), Some(1)));
        assert_eq!((count(64, 2), count(64, 63), count(64, 64)), (Some(2016), Some(64), Some(1)));
        assert_eq!(
            (count(17, 8), count(64, 32), count(65, 2), count(3, 4)),
            (None, None, None, None)
        );
    }
}
