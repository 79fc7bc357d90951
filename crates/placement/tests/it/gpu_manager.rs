//! gpu-manager's choices, as its own tests have them and as a simulation of it gave them.

use std::sync::Arc;

use model::arb::card;
use model::{Device, Hop, Inventory, Link, Mebibytes, Node, Part, PolicyName};
use placement::Policy;

use crate::build::{apps, choose, hold_whole, machine, share, take, wired};

const POLICY: Policy = Policy::both(PolicyName::GpuManager);

/// Cards of this much memory; `way` says how two of them reach each other.
fn tree(cards: u32, memory: u64, way: impl Fn(u32, u32) -> Hop) -> Node {
    let device = |index| Arc::new(Device { memory: Mebibytes(memory), ..card(index) });
    let links = (0..cards).flat_map(|a| (a + 1..cards).map(move |b| (a, b)));
    let links = links.map(|(a, b)| Link { a, b, hop: way(a, b), nvlinks: 0 });
    wired("a", &Inventory { devices: (0..cards).map(device).collect(), links: links.collect() })
}

/// Six cards: pairs under switches, the first four under one host bridge.
fn t6(memory: u64) -> Node {
    tree(6, memory, |a, b| match (a, b) {
        _ if a / 2 == b / 2 => Hop::OneSwitch,
        _ if b < 4 => Hop::HostBridge,
        _ => Hop::SameNode,
    })
}

/// Eight cards: pairs under switches, fours under host bridges.
fn t8() -> Node {
    tree(8, 16384, |a, b| match (a, b) {
        _ if a / 2 == b / 2 => Hop::OneSwitch,
        _ if a / 4 == b / 4 => Hop::HostBridge,
        _ => Hop::CrossSocket,
    })
}

/// What gpu-manager calls a request: 100 a card, or less of one and blocks of 256 MiB.
#[derive(Clone, Copy, Debug)]
struct Wants(u32, u64);

impl Wants {
    fn of(self, node: &Node) -> Option<Vec<u32>> {
        let Self(cores, blocks) = self;
        let wanted = if cores < 100 {
            apps(&[(1, share(cores, blocks * 256))])
        } else {
            apps(&[(cores / 100, Part::Whole)])
        };
        choose(node, &wanted, POLICY).ok().map(|mut containers| containers.remove(0))
    }

    /// Takes what it gets.
    fn take(self, node: &mut Node) -> Option<Vec<u32>> {
        let cards = self.of(node)?;
        for &place in &cards {
            match self {
                Self(100.., _) => hold_whole(node, place as usize),
                Self(cores, blocks) => take(&mut node.devices[place as usize], cores, blocks * 256),
            }
        }
        Some(cards)
    }
}

#[test]
fn its_own_tests_of_single_choices() {
    let mut node = t6(1024);
    assert_eq!(Wants(100, 1).of(&node), Some(vec![4]), "fragment, of the smallest group");
    assert_eq!(Wants(300, 1).of(&node), Some(vec![0, 1, 2]), "TestLink 1");
    hold_whole(&mut node, 2);
    assert_eq!(Wants(200, 1).of(&node), Some(vec![0, 1]), "TestLink 2");
    let mut node = t6(1024);
    hold_whole(&mut node, 4);
    assert_eq!(Wants(100, 1).of(&node), Some(vec![5]), "TestFragment 2");
    let one = tree(1, 1024, |_, _| Hop::OneSwitch);
    assert_eq!(Wants(100, 1).of(&one), Some(vec![0]), "TestFragmentOnlyOne");
    let mut node = t6(1);
    assert_eq!(Wants(50, 0).of(&node), Some(vec![0]), "TestShare 1");
    take(&mut node.devices[0], 50, 0);
    assert_eq!(Wants(60, 0).of(&node), Some(vec![1]), "TestShare 2");
}

#[test]
fn its_own_test_of_a_sequence() {
    let mut node = t6(1024);
    assert_eq!(Wants(300, 3).take(&mut node), Some(vec![0, 1, 2]), "pod-1");
    assert_eq!(Wants(100, 1).take(&mut node), Some(vec![3]), "pod-2, its first container");
    assert_eq!(Wants(100, 1).take(&mut node), Some(vec![4]), "pod-2, its second container");
    assert_eq!(Wants(100, 1).take(&mut node), Some(vec![5]), "pod-3");
    for place in [3, 4] {
        node.devices[place].used = model::Usage::default();
    }
    assert_eq!(Wants(50, 1).take(&mut node), Some(vec![3]), "pod-4");
    assert_eq!(Wants(60, 1).take(&mut node), Some(vec![4]), "pod-5");
    assert_eq!(Wants(50, 1).take(&mut node), Some(vec![3]), "pod-6");
    node.devices[4].used = model::Usage::default();
    assert_eq!(Wants(100, 1).take(&mut node), Some(vec![4]), "pod-7");
    assert!(node.devices.iter().all(|state| state.free_cores().is_zero()));
}

#[test]
fn both_containers_of_a_pod_go_by_its_rules() {
    let mut node = t6(1024);
    for place in [0, 1, 2] {
        hold_whole(&mut node, place);
    }
    let wanted = apps(&[(1, Part::Whole), (1, Part::Whole)]);
    assert_eq!(choose(&node, &wanted, POLICY).unwrap(), [[3], [4]]);
}

#[test]
fn sequences_of_a_simulation() {
    type Row = (fn() -> Node, &'static [Wants], &'static [Option<&'static [u32]>]);
    let flat: fn() -> Node = || tree(4, 16384, |_, _| Hop::CrossSocket);
    let table: &[Row] = &[
        (t8, &[Wants(100, 0), Wants(100, 0), Wants(100, 0)], &[Some(&[0]), Some(&[1]), Some(&[2])]),
        (
            t8,
            &[Wants(200, 0), Wants(100, 0), Wants(200, 0), Wants(400, 0)],
            &[Some(&[0, 1]), Some(&[2]), Some(&[4, 5]), None],
        ),
        (
            t8,
            &[Wants(400, 0), Wants(400, 0), Wants(100, 0)],
            &[Some(&[0, 1, 2, 3]), Some(&[4, 5, 6, 7]), None],
        ),
        (
            t8,
            &[Wants(30, 4), Wants(30, 4), Wants(50, 1), Wants(100, 0), Wants(200, 0)],
            &[Some(&[0]), Some(&[0]), Some(&[1]), Some(&[2]), Some(&[4, 5])],
        ),
        (
            t8,
            &[Wants(300, 0), Wants(300, 0), Wants(200, 0)],
            &[Some(&[0, 1, 2]), Some(&[4, 5, 6]), Some(&[3, 7])],
        ),
        (
            t8,
            &[Wants(100, 0), Wants(300, 0), Wants(400, 0)],
            &[Some(&[0]), Some(&[1, 2, 3]), Some(&[4, 5, 6, 7])],
        ),
        (t8, &[Wants(800, 0), Wants(10, 1)], &[Some(&[0, 1, 2, 3, 4, 5, 6, 7]), None]),
        (
            flat,
            &[
                Wants(30, 8),
                Wants(30, 8),
                Wants(30, 8),
                Wants(60, 1),
                Wants(100, 0),
                Wants(200, 0),
                Wants(100, 0),
            ],
            &[Some(&[0]), Some(&[0]), Some(&[0]), Some(&[1]), Some(&[2]), None, Some(&[3])],
        ),
    ];
    for (node, wants, expected) in table {
        let mut node = node();
        let got: Vec<Option<Vec<u32>>> = wants.iter().map(|wants| wants.take(&mut node)).collect();
        let got: Vec<Option<&[u32]>> = got.iter().map(Option::as_deref).collect();
        assert_eq!(got, *expected, "{wants:?}");
    }
}

#[test]
fn shares_count_memory_in_blocks_and_then_holders() {
    let mut node = t8();
    take(&mut node.devices[1], 20, 300);
    take(&mut node.devices[3], 20, 256);
    take(&mut node.devices[5], 10, 300);
    take(&mut node.devices[5], 10, 0);
    // 300 and 256 MiB leave 62 and 63 whole blocks; 1 and 5 tie but for their holders.
    assert_eq!(Wants(10, 1).of(&node), Some(vec![1]));
    take(&mut node.devices[1], 0, 1);
    assert_eq!(Wants(10, 1).of(&node), Some(vec![1]), "the lower number of two holders each");
}

#[test]
fn nvlinks_are_no_matter_to_it() {
    assert_eq!(Wants(200, 0).of(&machine("bridge-x4", &[])), Some(vec![0, 1]));
    // Where the pod says what it wants, that counts.
    let mut wanted = apps(&[(2, Part::Whole)]);
    wanted.affinity = model::Affinity::Prefer(model::Near::Link);
    assert_eq!(choose(&machine("bridge-x4", &[]), &wanted, POLICY).unwrap(), [[0, 3]]);
    // A node of which nothing is known is flat.
    let mut node = t8();
    node.topology = Arc::default();
    hold_whole(&mut node, 0);
    assert_eq!(Wants(200, 0).of(&node), Some(vec![1, 2]));
}
