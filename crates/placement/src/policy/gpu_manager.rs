//! gpu-manager's own rules, for clusters that come from there.
//!
//! ```text
//!   share     a share          the tightest card
//!   fragment  one whole card   the one whose loss breaks up the fewest others
//!   link      several          the lowest common switch with enough free cards below
//! ```
//!
//! Cards hang in a tree by the way between them over PCIe, `NVLinks` aside. Where groups of cards
//! tie, gpu-manager lets chance decide; here the one with the lowest card wins.

use model::{Hop, Mebibytes, Places, Topology};

use super::Free;

/// What gpu-manager counts memory in.
const BLOCK: Mebibytes = Mebibytes(256);

/// The tightest card first, by compute, then by whole blocks of memory.
pub(super) fn card_key(free: &Free) -> [u64; 4] {
    let blocks = free.memory.0 / BLOCK.0;
    let holders = free.state.used.holders.into();
    [free.cores.0.into(), blocks, holders, free.state.device.minor.into()]
}

/// The `wanted` whole cards of `free` that gpu-manager takes, if there are so many.
pub(super) fn whole_cards(topology: &Topology, free: Places, wanted: u32) -> Option<Places> {
    let tree = Tree::new(topology, free.or(Places::first(topology.count())));
    let below = if wanted == 1 { tree.fragment(free, wanted) } else { tree.link(free, wanted) };
    let cards: Places = below.and(free).into_iter().take(wanted as usize).collect();
    (cards.len() == wanted).then_some(cards)
}

/// The cards of a node, grouped by how near they are.
struct Tree {
    root: Places,
    /// Every group of at least two, the nearest first; of two groups one holds the other, or
    /// they have nothing in common.
    groups: Vec<Group>,
}

struct Group {
    level: usize,
    cards: Places,
}

impl Tree {
    fn new(topology: &Topology, root: Places) -> Self {
        let level = |one, other| {
            let hop = topology.hop(one, other);
            // What is not known is further than all that is.
            hop.and_then(|hop| Hop::ALL.iter().position(|known| *known == hop))
                .unwrap_or(Hop::ALL.len())
        };
        let mut whole: Vec<Places> = root.into_iter().map(Places::one).collect();
        let mut groups: Vec<Group> = Vec::new();
        for at in 0..=Hop::ALL.len() {
            for one in root {
                let near = root.into_iter().filter(|&other| other > one && level(one, other) == at);
                near.for_each(|other| join(&mut whole, one, other));
            }
            for &cards in whole.iter().filter(|cards| cards.len() > 1) {
                if groups.iter().all(|group| group.cards != cards) {
                    groups.push(Group { level: at, cards });
                }
            }
        }
        Self { root, groups }
    }

    /// Walks down from the root, always into the group with the fewest free cards that has
    /// enough of them.
    fn fragment(&self, free: Places, wanted: u32) -> Places {
        let mut at = self.root;
        loop {
            let inside = self.groups.iter().filter(|g| g.cards != at && g.cards.is_within(at));
            let inside: Vec<Places> = inside.map(|group| group.cards).collect();
            let is_child = |cards: &&Places| {
                !inside.iter().any(|other| *other != **cards && cards.is_within(*other))
            };
            let enough = inside.iter().filter(is_child).filter(|c| c.and(free).len() >= wanted);
            match enough.min_by_key(|cards| (cards.and(free).len(), cards.lowest())) {
                Some(child) => at = *child,
                None => return at,
            }
        }
    }

    /// The nearest group with enough free cards, of these the one with the fewest.
    fn link(&self, free: Places, wanted: u32) -> Places {
        let enough = self.groups.iter().filter(|group| group.cards.and(free).len() >= wanted);
        enough
            .min_by_key(|g| (g.level, g.cards.and(free).len(), g.cards.lowest()))
            .map_or(self.root, |group| group.cards)
    }
}

/// Makes one group of the two that have these cards.
fn join(groups: &mut Vec<Places>, one: usize, other: usize) {
    let (joined, mut rest): (Vec<Places>, Vec<Places>) =
        groups.iter().partition(|group| group.contains(one) || group.contains(other));
    rest.push(joined.into_iter().fold(Places::NONE, Places::or));
    *groups = rest;
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use model::Link;
    use model::arb::card;

    use super::*;

    #[test]
    fn fragment_takes_the_smallest_group_that_is_large_enough() {
        // Pairs under switches, the first four cards under one host bridge.
        let links = (0..6u32).flat_map(|a| (a + 1..6).map(move |b| (a, b))).map(|(a, b)| {
            let hop = match (a, b) {
                _ if a / 2 == b / 2 => Hop::OneSwitch,
                _ if b < 4 => Hop::HostBridge,
                _ => Hop::SameNode,
            };
            Link { a, b, hop, nvlinks: 0 }
        });
        let devices: Vec<_> = (0..6).map(|index| Arc::new(card(index))).collect();
        let topology = Topology::new(&devices, &links.collect::<Vec<_>>());
        let all = Places::first(6);
        let tree = Tree::new(&topology, all);
        // gpu-manager's TestFragment asks this mode for two cards, which no pod can.
        assert_eq!(tree.fragment(all, 2).into_iter().collect::<Vec<_>>(), [4, 5]);
        assert_eq!(tree.fragment(all, 3), Places::first(4));
        assert_eq!(tree.fragment(all, 5), all);
        assert_eq!(tree.groups.len(), 5);
    }
}
