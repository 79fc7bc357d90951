//! The tables over sets of devices against plain sums.

use std::sync::Arc;

use model::arb::card;
use model::profiles::{Profile, names};
use model::{Device, Hop, Link, Near, Places, Topology};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

fn of(name: &str) -> Topology {
    let inventory = Profile::named(name).expect("a machine").inventory("GPU").expect("a prefix");
    Topology::new(&inventory.devices, &inventory.links)
}

fn places(list: &[usize]) -> Places {
    list.iter().copied().collect()
}

/// Devices with any NUMA and network card, and links with anything in them.
fn wirings(most: usize) -> impl Strategy<Value = (Vec<Arc<Device>>, Vec<Link>)> {
    let hop = || select(Hop::ALL.to_vec());
    let spots = vec((option::of(0u32..3), option::of(hop())), 0..=most);
    let end = 0..u32::try_from(most + 2).expect("few");
    let links = vec((end.clone(), end, hop(), 0u8..4), 0..most * 4);
    (spots, links).prop_map(|(spots, links)| {
        let device = |(index, (numa, nic))| Arc::new(Device { numa, nic, ..card(index) });
        let link = |(a, b, hop, nvlinks)| Link { a, b, hop, nvlinks };
        ((0u32..).zip(spots).map(device).collect(), links.into_iter().map(link).collect())
    })
}

/// 1 for the furthest to 5 for the nearest.
fn nearness(hop: Hop) -> u32 {
    Hop::ALL.iter().rev().zip(1..).find(|(known, _)| **known == hop).map_or(0, |(_, near)| near)
}

/// What stands between two devices, the last link counting, by the rule and no table.
fn naive_pair(links: &[Link], one: usize, other: usize) -> (u32, bool) {
    let ends = |link: &Link| [link.a as usize, link.b as usize];
    let joins = |link: &&Link| ends(link) == [one, other] || ends(link) == [other, one];
    let Some(link) = links.iter().rev().filter(|link| link.a != link.b).find(joins) else {
        return (0, false);
    };
    let hop = 10 * nearness(link.hop);
    (hop + 100 * u32::from(link.nvlinks), link.nvlinks > 0)
}

fn naive_worth(devices: &[Arc<Device>], links: &[Link], set: Places) -> u32 {
    let list: Vec<usize> = set.into_iter().collect();
    let mut worth = 0;
    for (i, &one) in list.iter().enumerate() {
        worth += list[..i].iter().map(|&other| naive_pair(links, one, other).0).sum::<u32>();
        worth += devices[one].nic.map_or(0, nearness);
    }
    let numa: Vec<Option<u32>> = list.iter().map(|&place| devices[place].numa).collect();
    let one_node = list.len() > 1 && numa[0].is_some() && numa.iter().all(|n| *n == numa[0]);
    worth + if one_node { 50 } else { 0 }
}

proptest! {
    #[test]
    fn tables_equal_plain_sums((devices, links) in wirings(7)) {
        let topology = Topology::new(&devices, &links);
        prop_assert_eq!(topology.count(), devices.len());
        let sets: Vec<Places> = (0..1u64 << devices.len()).map(Places::from_bits).collect();
        for &set in &sets {
            prop_assert_eq!(topology.worth(set), naive_worth(&devices, &links, set));
            let pairs = set.into_iter().flat_map(|a| set.into_iter().map(move |b| (a, b)));
            let pairs: Vec<_> = pairs.filter(|(a, b)| a < b).collect();
            let sum: u32 = pairs.iter().map(|&(a, b)| naive_pair(&links, a, b).0).sum();
            prop_assert_eq!(topology.sum(set), sum);
            let joined = pairs.iter().all(|&(a, b)| naive_pair(&links, a, b).1);
            prop_assert_eq!(topology.is_near(Near::Link, set), joined);
            for size in 0..=7 {
                let inside = || sets.iter().filter(|s| s.len() == size && s.is_within(set));
                for near in [Near::Link, Near::Numa] {
                    let has = inside().any(|set| topology.is_near(near, *set));
                    prop_assert_eq!(topology.may_have(near, size, set), has);
                }
                if (2..=devices.len() / 2).contains(&(size as usize)) {
                    let best = inside().map(|set| topology.worth(*set)).max().unwrap_or(0);
                    prop_assert_eq!(topology.best(size, set), best);
                }
            }
        }
    }

    /// More devices than there are tables for, and more than there are places.
    #[test]
    fn beyond_the_tables_sums_are_the_same(
        (devices, links) in wirings(70), picks in vec(0usize..70, 0..20),
    ) {
        let topology = Topology::new(&devices, &links);
        prop_assert_eq!(topology.count(), devices.len().min(64));
        let known = picks.into_iter().filter(|place| *place < topology.count());
        let set: Places = known.collect();
        prop_assert_eq!(topology.worth(set), naive_worth(&devices, &links, set));
        prop_assert!(!topology.is_near(Near::Link, set) || topology.may_have(Near::Link, set.len(), set));
        let _ = (topology.best(2, Places::first(64)), topology.bonds(69, set), topology.hop(1, 69));
    }
}

#[test]
fn tables_up_to_sixteen_devices_equal_sums_beyond() {
    let inventory = Profile::named("dgx-2").unwrap().inventory("GPU").unwrap();
    let table = Topology::new(&inventory.devices, &inventory.links);
    let mut devices = inventory.devices.clone();
    devices.push(Arc::new(card(16)));
    let plain = Topology::new(&devices, &inventory.links);
    for bits in (0..1 << 16).step_by(61) {
        let set = Places::from_bits(bits);
        assert_eq!((table.worth(set), table.sum(set)), (plain.worth(set), plain.sum(set)));
    }
    // All eight cards of one socket: 28 pairs of 6 NVLinks and NODE, NUMA, 8 NICs behind PIX.
    let socket = Places::first(8);
    assert_eq!(table.worth(socket), 28 * 620 + 50 + 8 * 5);
    assert_eq!(table.best(8, Places::first(16)), table.worth(socket));
    assert_eq!(plain.best(8, Places::first(17)), 0);
}

#[test]
fn a_card_that_lost_its_links_is_the_least_loss() {
    let topology = of("hgx-b200-degraded");
    let all = Places::first(8);
    let least = (0..8).min_by_key(|&card| topology.bonds(card, all)).unwrap();
    assert_eq!(least, 2);
    // And the last card of a pair whose other is taken, rather than one of a whole pair.
    let topology = of("pcie-x8");
    let left = all.without(Places::one(2));
    assert_eq!(left.into_iter().min_by_key(|&card| topology.bonds(card, left)), Some(3));
}

#[test]
fn near_is_what_the_matrix_shows() {
    let topology = of("dgx-1v");
    assert!(topology.is_near(Near::Link, places(&[0, 1, 2, 3])));
    assert!(topology.is_near(Near::Link, places(&[0, 4])));
    assert!(!topology.is_near(Near::Link, places(&[0, 5])));
    assert!(!topology.is_near(Near::Numa, places(&[0, 4])));
    assert!(!topology.may_have(Near::Link, 5, Places::first(8)));
    assert!(topology.may_have(Near::Link, 4, Places::first(8)));
    assert!(!topology.may_have(Near::Link, 4, Places::first(7).without(Places::one(0))));
    assert_eq!(of("dgx-a100").numa(), [&[2, 3][..], &[0, 1], &[6, 7], &[4, 5]].map(places));
    // One card is near to itself, wherever it is and whatever is known of it.
    let lonely = Topology::default();
    assert!(
        lonely.is_near(Near::Numa, places(&[3])) && lonely.may_have(Near::Link, 1, places(&[3]))
    );
    assert!(!lonely.may_have(Near::Link, 2, places(&[3, 4])));
}

#[test]
fn the_largest_near_sets_are_known() {
    // Machine, linked, on one NUMA node.
    let rows = [
        ("dgx-1v", 4, 4),
        ("dgx-2", 16, 8),
        ("dgx-a100", 8, 2),
        ("dgx-h100", 8, 4),
        ("hgx-b200-degraded", 7, 4),
        ("bridge-x4", 2, 2),
        ("pcie-x8", 1, 4),
        ("vm-x4", 1, 4),
    ];
    for (name, link, numa) in rows {
        let topology = of(name);
        assert_eq!((topology.most(Near::Link), topology.most(Near::Numa)), (link, numa), "{name}");
    }
    assert_eq!(Topology::new(&[], &[]).most(Near::Link), 0);
}

#[test]
fn the_same_wiring_is_the_same_topology_whatever_the_cards() {
    let (t4, a10) = (of("t4x8"), of("a10x8"));
    assert_eq!(t4, a10);
    for name in names().filter(|name| !["pcie-x8", "t4x8", "l4x8", "a10x8"].contains(name)) {
        assert_ne!(t4, of(name), "{name}");
    }
}
