//! Sets of cards against plain comparison of all of them, and wiring that no machine has.

use std::cmp::Reverse;
use std::sync::Arc;

use model::arb::{card, inventories};
use model::{
    Affinity, Allowance, Cap, Device, Hop, Inventory, Link, ModelPattern, Near, Node, Part, Rule,
    Unlisted,
};
use placement::{Ask, Policy, Refusal};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use crate::build::{apps, ask, choose, device, hold_whole, machine, percent, wired};

fn affinities() -> impl Strategy<Value = Affinity> {
    use Affinity::{Any, Prefer, Require};
    let near = [Near::Link, Near::Numa];
    select([vec![Any], near.map(Prefer).to_vec(), near.map(Require).to_vec()].concat())
}

/// Up to eight equal cards, wired in any way.
fn machines() -> impl Strategy<Value = Inventory> {
    let hop = || select(Hop::ALL.to_vec());
    let spot = (option::weighted(0.9, 0u32..3), option::of(hop()));
    let nvlinks = prop_oneof![2 => Just(0u8), 3 => 1u8..4];
    (vec(spot, 2..=8), vec(option::weighted(0.9, (hop(), nvlinks)), 28)).prop_map(
        |(spots, ways)| {
            let count = u32::try_from(spots.len()).expect("few");
            let spots = (0u32..).zip(spots);
            let devices = spots
                .map(|(index, (numa, nic))| Arc::new(Device { numa, nic, ..card(index) }))
                .collect();
            let pairs = (0..count).flat_map(|a| (a + 1..count).map(move |b| (a, b)));
            let links = pairs
                .zip(ways)
                .filter_map(|((a, b), way)| way.map(|(hop, nvlinks)| Link { a, b, hop, nvlinks }));
            Inventory { devices, links: links.collect() }
        },
    )
}

/// The rules for sets, written out once more.
struct Judge<'a>(&'a Inventory);

impl Judge<'_> {
    fn link(&self, a: u32, b: u32) -> Option<&Link> {
        let ends = (a.min(b), a.max(b));
        self.0.links.iter().find(|link| (link.a, link.b) == ends)
    }

    fn numa(&self, set: &[u32]) -> bool {
        let numa = |index: u32| self.0.devices[index as usize].numa;
        numa(set[0]).is_some() && set.iter().all(|&card| numa(card) == numa(set[0]))
    }

    fn joined(&self, set: &[u32]) -> bool {
        let joined = |a, b| self.link(a, b).is_some_and(|link| link.nvlinks > 0);
        set.iter().all(|&a| set.iter().all(|&b| a == b || joined(a, b)))
    }

    fn worth(&self, set: &[u32]) -> u32 {
        let tens = |hop: Hop| {
            Hop::ALL.iter().rev().zip(1..).find(|(h, _)| **h == hop).map_or(0, |(_, n)| n)
        };
        let mut worth = if self.numa(set) { 50 } else { 0 };
        for (i, &a) in set.iter().enumerate() {
            worth += self.0.devices[a as usize].nic.map_or(0, tens);
            for link in set[..i].iter().filter_map(|&b| self.link(a, b)) {
                worth += 10 * tens(link.hop) + 100 * u32::from(link.nvlinks);
            }
        }
        worth
    }

    fn best(&self, free: &[u32], wanted: usize, affinity: Affinity) -> Option<Vec<u32>> {
        let all = subsets(free, wanted).into_iter().filter(|set| match affinity {
            Affinity::Require(Near::Link) => self.joined(set),
            Affinity::Require(Near::Numa) => self.numa(set),
            Affinity::Any | Affinity::Prefer(_) => true,
        });
        all.max_by_key(|set| {
            let left: Vec<u32> = free.iter().copied().filter(|card| !set.contains(card)).collect();
            let left = subsets(&left, wanted).iter().map(|set| self.worth(set)).max().unwrap_or(0);
            let preferred = match affinity {
                Affinity::Prefer(Near::Link) => self.joined(set),
                Affinity::Prefer(Near::Numa) => self.numa(set),
                Affinity::Any | Affinity::Require(_) => false,
            };
            (preferred, self.worth(set) + left, self.worth(set), Reverse(set.clone()))
        })
    }
}

fn subsets(of: &[u32], size: usize) -> Vec<Vec<u32>> {
    (0..1u32 << of.len())
        .filter(|mask| mask.count_ones() as usize == size)
        .map(|mask| (0..).zip(of).filter(move |(bit, _)| mask & (1 << bit) != 0).map(|(_, c)| *c))
        .map(Iterator::collect)
        .collect()
}

proptest! {
    #[test]
    fn the_chosen_set_is_the_best_of_all(
        inventory in machines(), taken in any::<u8>(), wanted in 2u32..=5, affinity in affinities(),
    ) {
        let mut node = wired("a", &inventory);
        let (taken, free): (Vec<u32>, Vec<u32>) =
            (0u32..).take(node.devices.len()).partition(|card| taken & (taken >> 4) & (1 << card) != 0);
        for &card in &taken {
            hold_whole(&mut node, card as usize);
        }
        let mut request = apps(&[(wanted, Part::Whole)]);
        request.affinity = affinity;
        let got = choose(&node, &request, Policy::default()).ok().map(|mut sets| sets.remove(0));
        prop_assert_eq!(got, Judge(&inventory).best(&free, wanted as usize, affinity));
    }

    /// Whatever is wired to whatever, a choice comes out and says the same twice.
    #[test]
    fn odd_wiring_is_no_matter(
        inventory in inventories(),
        links in vec((0u32..70, 0u32..70, select(Hop::ALL.to_vec()), any::<u8>()), 0..40),
        shift in 0u32..70, wanted in 1u32..4, affinity in affinities(),
    ) {
        let mut inventory = inventory;
        let odd = links.into_iter().map(|(a, b, hop, nvlinks)| Link { a, b, hop, nvlinks });
        inventory.links.extend(odd);
        for device in &mut inventory.devices {
            Arc::make_mut(device).index += shift;
        }
        let mut node = wired("a", &inventory);
        let mut request = apps(&[(wanted, Part::Whole), (wanted, percent(30))]);
        request.affinity = affinity;
        for policy in model::PolicyName::ALL {
            let first = choose(&node, &request, Policy::both(policy));
            prop_assert_eq!(&first, &choose(&node, &request, Policy::both(policy)));
        }
        // A topology of another node.
        node.topology = machine("bridge-x4", &[]).topology;
        let _ = choose(&node, &request, Policy::default());
    }
}

/// A node of more cards than there are tables for: fours joined by `NVLink`, eights on a NUMA node.
fn large(cards: u32) -> Node {
    let device = |index| Arc::new(Device { numa: Some(index / 8), ..card(index) });
    let pairs = (0..cards).flat_map(|a| (a + 1..cards).map(move |b| (a, b)));
    let links = pairs.map(|(a, b)| {
        let nvlinks = if a / 4 == b / 4 { 4 } else { 0 };
        Link { a, b, hop: Hop::CrossSocket, nvlinks }
    });
    wired("a", &Inventory { devices: (0..cards).map(device).collect(), links: links.collect() })
}

#[test]
fn large_nodes_are_placed_near_too() {
    let mut node = large(64);
    hold_whole(&mut node, 1);
    let chosen = |node: &Node, wanted, affinity| {
        let mut request = apps(&[(wanted, Part::Whole)]);
        request.affinity = affinity;
        let chosen = choose(node, &request, Policy::default());
        chosen.map(|mut sets| sets.remove(0)).map_err(|refusal| refusal.to_string())
    };
    // Few sets are compared, many are grown.
    assert_eq!(chosen(&node, 2, Affinity::Any), Ok(vec![0, 2]));
    assert_eq!(chosen(&node, 4, Affinity::Any), Ok(vec![4, 5, 6, 7]));
    assert_eq!(chosen(&node, 4, Affinity::Require(Near::Link)), Ok(vec![4, 5, 6, 7]));
    assert_eq!(chosen(&node, 8, Affinity::Require(Near::Numa)), Ok((8..16).collect()));
    assert_eq!(chosen(&node, 7, Affinity::Require(Near::Numa)).map(|set| set.len()), Ok(7));
    let apart = |what: &str| Err(format!("fewer than {what}"));
    let link = Affinity::Require(Near::Link);
    assert_eq!(chosen(&node, 5, link), apart("5 cards joined by NVLink"));
    let numa = Affinity::Require(Near::Numa);
    assert_eq!(chosen(&node, 9, numa), apart("9 cards of one NUMA node"));
    for four in 0..16 {
        hold_whole(&mut node, four * 4);
    }
    assert_eq!(chosen(&node, 4, link), apart("4 cards joined by NVLink with room"));
    assert_eq!(chosen(&node, 3, link), Ok(vec![5, 6, 7]));
}

#[test]
fn the_next_best_set_is_taken_where_the_quota_forbids_the_best() {
    let mut node = machine("bridge-x4", &[]);
    device(&mut node.devices[0]).model = model::CardModel::new("NVIDIA A100");
    device(&mut node.devices[1]).model = model::CardModel::new("NVIDIA A100");
    let allowance = Allowance {
        rules: vec![Rule {
            model: ModelPattern::new("A100"),
            cap: Cap { cards: Some(0), ..Cap::default() },
            used: model::Amount::default(),
        }],
        unlisted: Unlisted::Allowed,
        pools: Vec::new(),
    };
    let mut request = apps(&[(2, Part::Whole)]);
    let decide = |request: &model::Request| {
        let ask = Ask { allowance: &allowance, ..ask(request, Policy::default()) };
        placement::choose(&node, &ask).map(|placement| crate::build::indexes(&node, &placement))
    };
    // Both bridges have an A100 at one end.
    assert_eq!(decide(&request).unwrap(), [[2, 3]]);
    request.affinity = Affinity::Require(Near::Link);
    assert_eq!(decide(&request).unwrap_err().reason, Refusal::Quota { namespace: "team-a".into() });
}
