//! Which cards of real machines: every row can be checked against the matrix in `model/src/profiles`.

use model::Affinity::{self, Any, Prefer, Require};
use model::Near::{Link, Numa};
use model::{Node, Part, PolicyName, Role};
use placement::Policy;

use crate::build::{apps, choose, hold_whole, machine, percent, request};

fn chosen(node: &Node, wanted: u32, part: Part, affinity: Affinity) -> Result<Vec<u32>, String> {
    let mut request = apps(&[(wanted, part)]);
    request.affinity = affinity;
    let chosen = choose(node, &request, Policy::default()).map_err(|refusal| refusal.to_string());
    chosen.map(|mut containers| containers.remove(0))
}

/// Cards taken, cards wanted, how near, cards chosen.
type Row = (&'static [usize], u32, Affinity, &'static [u32]);

#[track_caller]
fn check(profile: &str, rows: &[Row]) {
    for (taken, wanted, affinity, expected) in rows {
        let got = chosen(&machine(profile, taken), *wanted, Part::Whole, *affinity);
        assert_eq!(got.as_deref(), Ok(*expected), "{profile} {taken:?} {wanted} {affinity:?}");
    }
}

#[test]
fn dgx_1v() {
    let rows: &[Row] = &[
        (&[], 1, Any, &[0]),
        // Two NVLinks and one switch: 2-3 and 6-7 are the two best pairs.
        (&[], 2, Any, &[2, 3]),
        (&[], 2, Prefer(Link), &[2, 3]),
        (&[], 2, Require(Link), &[2, 3]),
        // Then two NVLinks for two pods (4-7 and 5-6) rather than two and one (6-7 and 4-5).
        (&[2, 3], 2, Any, &[4, 7]),
        (&[2, 3, 4, 7], 2, Any, &[5, 6]),
        // In one half: 0-3 and 1-2, where 2-3 would leave one NVLink.
        (&[4, 5, 6, 7], 2, Any, &[0, 3]),
        (&[], 3, Any, &[0, 2, 3]),
        (&[], 4, Any, &[0, 1, 2, 3]),
        (&[1], 4, Any, &[4, 5, 6, 7]),
        // Across the sockets: 0-4 has two NVLinks, and the other pairs are on no switch.
        (&[1, 2, 3, 5, 6, 7], 2, Any, &[0, 4]),
        (&[1, 2, 3, 7], 2, Require(Numa), &[5, 6]),
        (&[], 8, Any, &[0, 1, 2, 3, 4, 5, 6, 7]),
    ];
    check("dgx-1v", rows);
}

#[test]
fn dgx_2() {
    let socket: &[u32] = &[0, 1, 2, 3, 4, 5, 6, 7];
    let other: &[u32] = &[8, 9, 10, 11, 12, 13, 14, 15];
    let rows: &[Row] = &[
        (&[], 2, Any, &[0, 1]),
        (&[], 4, Any, &[0, 1, 2, 3]),
        (&[], 8, Any, socket),
        (&[3], 8, Any, other),
        (&[3], 8, Prefer(Link), other),
        (&[3], 8, Require(Numa), other),
        (&[0, 1, 2, 3, 4, 5], 2, Any, &[6, 7]),
        // The odd card of a broken pair and not one of a whole socket.
        (&[0], 1, Any, &[1]),
    ];
    check("dgx-2", rows);
}

#[test]
fn dgx_a100() {
    let rows: &[Row] = &[
        (&[], 2, Any, &[0, 1]),
        (&[0], 2, Any, &[2, 3]),
        (&[0], 2, Prefer(Numa), &[2, 3]),
        (&[0], 1, Any, &[1]),
        (&[], 4, Any, &[0, 1, 2, 3]),
        // Two NUMA nodes rather than three.
        (&[1, 2], 4, Any, &[4, 5, 6, 7]),
        (&[1, 2, 5, 6], 2, Any, &[0, 3]),
    ];
    check("dgx-a100", rows);
}

#[test]
fn hgx_a100_with_two_network_cards() {
    let rows: &[Row] = &[
        (&[], 2, Any, &[0, 1]),
        // 4 and 5 are behind the switch of a NIC, 2 and 3 are not.
        (&[0, 1], 2, Any, &[4, 5]),
        (&[], 4, Any, &[0, 1, 2, 3]),
        (&[3], 4, Any, &[4, 5, 6, 7]),
    ];
    check("hgx-a100-2nic", rows);
}

#[test]
fn hgx_a100_of_four_cards() {
    // A NUMA node each; 1 and 3 have a NIC near.
    let rows: &[Row] = &[
        (&[], 2, Any, &[1, 3]),
        (&[3], 2, Any, &[0, 1]),
        (&[], 4, Require(Link), &[0, 1, 2, 3]),
        (&[], 2, Prefer(Numa), &[1, 3]),
        (&[], 1, Require(Numa), &[0]),
    ];
    check("hgx-a100-4", rows);
}

#[test]
fn eight_cards_on_switches_go_by_sockets() {
    for profile in ["dgx-h100", "hgx-h100", "hgx-b300", "hgx-a800"] {
        let rows: &[Row] = &[
            (&[], 1, Any, &[0]),
            (&[0], 1, Any, &[1]),
            (&[], 2, Any, &[0, 1]),
            (&[], 4, Any, &[0, 1, 2, 3]),
            (&[2], 4, Any, &[4, 5, 6, 7]),
            (&[2], 4, Require(Numa), &[4, 5, 6, 7]),
            (&[0, 1, 2], 2, Any, &[4, 5]),
            (&[0, 1, 2, 4, 5, 6], 2, Any, &[3, 7]),
            (&[], 8, Require(Link), &[0, 1, 2, 3, 4, 5, 6, 7]),
        ];
        check(profile, rows);
    }
}

#[test]
fn hgx_b200() {
    // Two cards a NUMA node.
    let rows: &[Row] = &[
        (&[], 2, Any, &[0, 1]),
        (&[1], 2, Any, &[2, 3]),
        (&[1], 1, Any, &[0]),
        (&[1, 2], 4, Any, &[4, 5, 6, 7]),
    ];
    check("hgx-b200", rows);
}

#[test]
fn hgx_b200_with_a_card_that_lost_its_links() {
    let rows: &[Row] = &[
        (&[], 1, Any, &[2]),
        (&[2], 1, Any, &[0]),
        (&[], 2, Any, &[0, 1]),
        (&[], 4, Any, &[4, 5, 6, 7]),
        (&[4], 4, Any, &[0, 1, 3, 5]),
        (&[], 7, Any, &[0, 1, 3, 4, 5, 6, 7]),
        (&[], 7, Require(Link), &[0, 1, 3, 4, 5, 6, 7]),
        (&[4], 4, Require(Link), &[0, 1, 3, 5]),
        // Here NUMA comes first, and only then the links.
        (&[4], 4, Prefer(Numa), &[0, 1, 2, 3]),
        (&[], 8, Prefer(Link), &[0, 1, 2, 3, 4, 5, 6, 7]),
    ];
    check("hgx-b200-degraded", rows);
}

#[test]
fn rtx_4090_by_numa_where_all_links_look_alike() {
    let rows: &[Row] = &[
        // 6 has a NIC near, so of two equal halves this one.
        (&[], 4, Any, &[4, 5, 6, 7]),
        (&[6], 4, Any, &[0, 1, 2, 3]),
        (&[6], 4, Require(Numa), &[0, 1, 2, 3]),
        (&[0, 6], 3, Any, &[1, 2, 3]),
        (&[1], 1, Any, &[0]),
        (&[0, 1, 2, 4, 5], 2, Any, &[6, 7]),
    ];
    check("rtx4090x8", rows);
}

#[test]
fn eight_cards_in_pairs_under_switches() {
    for profile in ["pcie-x8", "t4x8", "l4x8", "a10x8"] {
        let rows: &[Row] = &[
            (&[], 1, Any, &[0]),
            (&[0], 1, Any, &[1]),
            (&[2], 1, Any, &[3]),
            (&[], 2, Any, &[0, 1]),
            (&[0], 2, Any, &[2, 3]),
            (&[0, 2], 2, Any, &[4, 5]),
            (&[0, 2, 4, 6], 2, Any, &[1, 3]),
            (&[], 3, Any, &[0, 1, 2]),
            (&[], 4, Any, &[0, 1, 2, 3]),
            (&[1], 4, Any, &[4, 5, 6, 7]),
            // Three of one socket, and the card whose other half is taken.
            (&[1, 5], 4, Prefer(Numa), &[0, 2, 3, 4]),
        ];
        check(profile, rows);
    }
}

#[test]
fn four_cards_on_two_sockets() {
    for profile in ["pcie-x4", "l40sx4", "t4x4", "a10x4"] {
        let rows: &[Row] = &[
            // Both halves are alike, but the NICs are beside 2 and 3.
            (&[], 2, Any, &[2, 3]),
            (&[3], 2, Any, &[0, 1]),
            (&[3], 1, Any, &[2]),
            (&[], 4, Any, &[0, 1, 2, 3]),
        ];
        check(profile, rows);
    }
}

#[test]
fn a_flat_machine_goes_by_index() {
    let rows: &[Row] = &[
        (&[], 1, Any, &[0]),
        (&[], 2, Any, &[0, 1]),
        (&[0], 2, Prefer(Link), &[1, 2]),
        (&[1], 3, Require(Numa), &[0, 2, 3]),
    ];
    check("vm-x4", rows);
}

#[test]
fn bridged_cards_stay_together_although_they_are_on_two_sockets() {
    for profile in ["bridge-x4", "rtx8000x4"] {
        let rows: &[Row] = &[
            (&[], 2, Any, &[0, 3]),
            (&[], 2, Require(Link), &[0, 3]),
            (&[3], 2, Any, &[1, 2]),
            (&[0, 3], 2, Any, &[1, 2]),
            // The card whose other half is taken.
            (&[3], 1, Any, &[0]),
            (&[1], 1, Any, &[2]),
            (&[], 2, Prefer(Numa), &[0, 1]),
            (&[], 2, Require(Numa), &[0, 1]),
        ];
        check(profile, rows);
    }
}

#[test]
fn what_must_be_near_is_refused_where_it_is_not() {
    type Row = (&'static str, &'static [usize], u32, Affinity, &'static str);
    let rows: &[Row] = &[
        ("pcie-x8", &[], 2, Require(Link), "fewer than 2 cards joined by NVLink"),
        ("dgx-1v", &[], 5, Require(Link), "fewer than 5 cards joined by NVLink"),
        ("dgx-1v", &[0, 4], 4, Require(Link), "fewer than 4 cards joined by NVLink with room"),
        ("bridge-x4", &[], 3, Require(Link), "fewer than 3 cards joined by NVLink"),
        ("bridge-x4", &[0, 1], 2, Require(Link), "fewer than 2 cards joined by NVLink with room"),
        ("hgx-b200-degraded", &[], 8, Require(Link), "fewer than 8 cards joined by NVLink"),
        ("hgx-a100-4", &[], 2, Require(Numa), "fewer than 2 cards of one NUMA node"),
        ("dgx-a100", &[], 4, Require(Numa), "fewer than 4 cards of one NUMA node"),
        ("dgx-h100", &[3, 7], 4, Require(Numa), "fewer than 4 cards of one NUMA node with room"),
        // What is short anyhow is said first.
        ("dgx-h100", &[0, 1, 2, 3, 4], 4, Require(Link), "fewer than 4 cards wholly free"),
        ("bridge-x4", &[], 5, Require(Link), "fewer than 5 cards that would do"),
    ];
    for (profile, taken, wanted, affinity, expected) in rows {
        let node = machine(profile, taken);
        let got = chosen(&node, *wanted, Part::Whole, *affinity);
        assert_eq!(got, Err((*expected).to_owned()), "{profile} {taken:?}");
        // A wish for the same is granted as far as possible.
        let Require(near) = *affinity else { continue };
        let idle = node.devices.iter().filter(|state| state.is_idle()).count();
        if idle >= *wanted as usize {
            assert!(chosen(&node, *wanted, Part::Whole, Prefer(near)).is_ok(), "{profile}");
        }
    }
}

#[test]
fn shares_of_several_cards_are_near_only_if_the_pod_says_so() {
    let mut node = machine("bridge-x4", &[]);
    let some = model::Hold { cores: model::Cores(10), ..model::Hold::default() };
    node.devices[1].used.add(&some);
    // Binpack begins with the card in use, and takes its own way from there.
    assert_eq!(chosen(&node, 2, percent(20), Any), Ok(vec![0, 1]));
    // 1-2 and 0-3 are alike, and 1 breaks up nothing that is idle.
    assert_eq!(chosen(&node, 2, percent(20), Prefer(Link)), Ok(vec![1, 2]));
    assert_eq!(chosen(&node, 2, percent(20), Require(Link)), Ok(vec![1, 2]));
    assert_eq!(chosen(&node, 2, percent(95), Require(Link)), Ok(vec![0, 3]));
    node.devices[3].used.add(&some);
    assert_eq!(
        chosen(&node, 2, percent(95), Require(Link)),
        Err("fewer than 2 cards joined by NVLink with room".into())
    );
    // A single share goes to the card that the others miss least.
    assert_eq!(chosen(&machine("hgx-b200-degraded", &[]), 1, percent(20), Any), Ok(vec![2]));
}

#[test]
fn containers_take_sets_that_leave_room_for_the_others() {
    let node = machine("dgx-1v", &[]);
    let pairs = apps(&[(2, Part::Whole); 4]);
    // Each takes the pair that leaves the next pair most.
    assert_eq!(choose(&node, &pairs, Policy::default()).unwrap(), [[2, 3], [4, 7], [5, 6], [0, 1]]);
    // Where every pair must be linked, the last one has to be too.
    let mut wanted = apps(&[(2, Part::Whole), (2, Part::Whole)]);
    wanted.affinity = Require(Link);
    let node = machine("dgx-1v", &[2, 4, 6, 7]);
    // 0, 1, 3 and 5 are left: 1-5 and 0-3, where 0-1 would leave 3 and 5 apart.
    assert_eq!(choose(&node, &wanted, Policy::default()).unwrap(), [[0, 3], [1, 5]]);
    // An init container uses cards that the pod has anyway.
    let wanted = request(&[(Role::Init, 2, Part::Whole), (Role::App, 4, Part::Whole)]);
    let node = machine("dgx-1v", &[0]);
    assert_eq!(choose(&node, &wanted, Policy::default()).unwrap()[0], [6, 7]);
}

#[test]
fn random_decides_between_equal_sets_only() {
    let mut seen = std::collections::BTreeSet::new();
    for i in 0..64 {
        let mut wanted = apps(&[(2, Part::Whole)]);
        wanted.pod.uid = model::PodUid::parse(&format!("uid-{i}")).unwrap();
        let node = machine("dgx-a100", &[]);
        let policy = Policy::both(PolicyName::Random);
        seen.insert(choose(&node, &wanted, policy).unwrap().remove(0));
    }
    let pairs = [[0, 1], [2, 3], [4, 5], [6, 7]];
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), pairs);
}

#[test]
fn pods_one_after_the_other_leave_whole_halves() {
    // Whole cards one by one, then four at once: the singles fill one half.
    for profile in ["pcie-x8", "dgx-h100", "rtx4090x8", "dgx-1v"] {
        let mut node = machine(profile, &[]);
        for _ in 0..4 {
            let card = chosen(&node, 1, Part::Whole, Any).unwrap()[0] as usize;
            hold_whole(&mut node, card);
        }
        let four = chosen(&node, 4, Part::Whole, Any).unwrap();
        assert!(four == [0, 1, 2, 3] || four == [4, 5, 6, 7], "{profile} {four:?}");
    }
}
