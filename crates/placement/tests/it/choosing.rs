//! Which cards of a node: the tables of the systems we replace, and our own rules.

use model::PolicyName::{Binpack, Random, Spread};
use model::{Health, Mebibytes, Mig, Part, Role};
use placement::{Policy, Refusal};

use crate::build::{Cards, apps, ask, choose, device, node, percent, request, share, take};

#[test]
fn nano_gpu_s_choices() {
    // Remaining percents, demands (0: no card), binpack, spread.
    type Row = (&'static [u32], &'static [u32], Option<&'static [u32]>, Option<&'static [u32]>);
    let table: &[Row] = &[
        (&[100, 100], &[20, 40], Some(&[0, 0]), Some(&[0, 1])),
        (&[20, 100], &[20, 40], Some(&[0, 1]), Some(&[1, 1])),
        (&[10, 100], &[20, 40], Some(&[1, 1]), Some(&[1, 1])),
        // The original's third case has a first container without a card; it asks nothing.
        (&[100, 100], &[40, 40], Some(&[0, 0]), Some(&[0, 1])),
        (&[10, 50], &[20, 40], None, None),
    ];
    for (cards, demands, binpack, spread) in table {
        let node = cards.iter().fold(node("a"), |node, &left| node.left(left));
        let wanted: Vec<_> = demands.iter().map(|&demand| (1, percent(demand))).collect();
        for (policy, expected) in [(Binpack, binpack), (Spread, spread)] {
            let got = choose(&node, &apps(&wanted), Policy::both(policy)).ok();
            let expected = expected.map(|cards| cards.iter().map(|&card| vec![card]).collect());
            assert_eq!(got, expected, "{cards:?} {demands:?} {policy}");
        }
    }
}

#[test]
fn gpushare_s_choice_is_the_tightest_card() {
    let free = [12207, 8138, 4069, 16276];
    let node = free.iter().fold(node("a"), |node, &memory| {
        node.add(|state| {
            device(state).memory = Mebibytes(16276);
            take(state, 0, 16276 - memory);
        })
    });
    let got = choose(&node, &apps(&[(1, share(0, 8138))]), Policy::both(Binpack));
    assert_eq!(got.unwrap(), [[1]]);
}

#[test]
fn gpushare_s_nodes_need_one_card_with_room() {
    let wanted = apps(&[(1, share(0, 8138))]);
    let fits = |node: &model::Node| placement::fit(node, &ask(&wanted, Policy::default())).is_ok();
    assert!(!fits(&node("n1").free(100, 4069)));
    assert!(!fits(&node("n2").free(100, 4069).free(100, 4069)));
    assert!(fits(&node("n3").free(100, 8138)));
}

#[test]
fn a_pod_of_one_card_puts_all_its_containers_there() {
    let mut wanted = apps(&[(1, share(0, 2000)), (1, share(0, 3000))]);
    let node = node("a").free(100, 3000).free(100, 4000).free(100, 6000);
    assert_eq!(choose(&node, &wanted, Policy::default()).unwrap(), [[0], [1]]);
    wanted.one_card = true;
    assert_eq!(choose(&node, &wanted, Policy::default()).unwrap(), [[2], [2]]);
}

#[test]
fn whole_cards_are_idle_cards() {
    let node = node("a").left(100).left(99).left(100).left(100);
    assert_eq!(choose(&node, &apps(&[(2, Part::Whole)]), Policy::default()).unwrap(), [[0, 2]]);
    let refusal = choose(&node, &apps(&[(4, Part::Whole)]), Policy::default()).unwrap_err();
    assert_eq!(refusal.reason, Refusal::NotIdle { cards: 4 });
    assert_eq!(refusal.best.idle, 3);
}

#[test]
fn a_memory_only_holder_keeps_whole_cards_away() {
    let node = node("a").add(|state| take(state, 0, 1));
    let refusal = choose(&node, &apps(&[(1, Part::Whole)]), Policy::default()).unwrap_err();
    assert_eq!(refusal.to_string(), "no card wholly free");
}

#[test]
fn several_cards_a_share_of_each() {
    let node = node("a").left(20).left(50).left(60).left(40);
    let wanted = apps(&[(2, percent(40))]);
    assert_eq!(choose(&node, &wanted, Policy::both(Binpack)).unwrap(), [[1, 3]]);
    assert_eq!(choose(&node, &wanted, Policy::both(Spread)).unwrap(), [[1, 2]]);
}

#[test]
fn an_earlier_choice_is_taken_back_where_a_later_one_needs_it() {
    // Greedy puts 40 on the fuller card, where alone 50 fits.
    let node = node("a").free(50, 10_000).free(100, 4000);
    let wanted = apps(&[(1, share(40, 4000)), (1, share(50, 5000))]);
    assert_eq!(choose(&node, &wanted, Policy::both(Binpack)).unwrap(), [[1], [0]]);
}

#[test]
fn init_containers_use_the_cards_the_pod_has_anyway() {
    let node = node("a").left(50).left(90);
    let wanted = request(&[(Role::Init, 1, percent(80)), (Role::App, 1, percent(40))]);
    // The app goes to card 0; the init container needs 80 and finds it on card 1 only.
    assert_eq!(choose(&node, &wanted, Policy::both(Binpack)).unwrap(), [[1], [0]]);
    let wanted = request(&[(Role::Init, 1, percent(50)), (Role::App, 1, percent(40))]);
    assert_eq!(choose(&node, &wanted, Policy::both(Binpack)).unwrap(), [[0], [0]]);
}

#[test]
fn a_sidecar_stays_beside_init_and_app() {
    let node = node("a").left(90);
    let fits = |containers: &[(Role, u32, Part)]| {
        choose(&node, &request(containers), Policy::default()).is_ok()
    };
    assert!(fits(&[(Role::Init, 1, percent(90)), (Role::App, 1, percent(90))]));
    assert!(fits(&[
        (Role::Sidecar, 1, percent(10)),
        (Role::Init, 1, percent(80)),
        (Role::App, 1, percent(80))
    ]));
    assert!(!fits(&[(Role::Sidecar, 1, percent(11)), (Role::Init, 1, percent(80))]));
    // A sidecar that starts later does not meet the init container.
    assert!(fits(&[(Role::Init, 1, percent(80)), (Role::Sidecar, 1, percent(11))]));
}

#[test]
fn a_whole_card_is_not_shared_within_the_pod_either() {
    let node = node("a").left(100);
    let refused = |containers: &[(Role, u32, Part)]| {
        choose(&node, &request(containers), Policy::default()).is_err()
    };
    assert!(refused(&[(Role::App, 1, Part::Whole), (Role::App, 1, percent(10))]));
    assert!(refused(&[(Role::Sidecar, 1, percent(10)), (Role::App, 1, Part::Whole)]));
    assert!(!refused(&[(Role::Init, 1, Part::Whole), (Role::App, 1, percent(10))]));
}

#[test]
fn sick_cordoned_contested_and_sliced_cards_take_nothing_new() {
    let wanted = apps(&[(1, percent(1))]);
    for (alter, reason) in [
        (
            (|state| device(state).health = Health::Sick) as fn(&mut model::DeviceState),
            "no card in service",
        ),
        (|state| device(state).health = Health::Cordoned, "no card in service"),
        (|state| state.contested = true, "no card in service"),
        (|state| device(state).mig = Mig::Parent, "no card that would do"),
    ] {
        let node = node("a").add(alter);
        assert_eq!(choose(&node, &wanted, Policy::default()).unwrap_err().to_string(), reason);
        let whole = apps(&[(1, Part::Whole)]);
        assert_eq!(choose(&node, &whole, Policy::default()).unwrap_err().to_string(), reason);
    }
}

#[test]
fn random_is_the_pod_s_own_and_always_the_same() {
    let node = (0..8).fold(node("a"), |node, _| node.left(100));
    let mut picks = std::collections::BTreeSet::new();
    for i in 0..64 {
        let mut wanted = apps(&[(1, percent(10))]);
        wanted.pod.uid = model::PodUid::parse(&format!("uid-{i}")).unwrap();
        let pick = choose(&node, &wanted, Policy::both(Random)).unwrap();
        assert_eq!(pick, choose(&node, &wanted, Policy::both(Random)).unwrap());
        picks.insert(pick);
    }
    assert_eq!(picks.len(), 8, "64 pods reach all 8 cards");
}

#[test]
fn a_search_without_end_gives_up_and_says_so() {
    // 40 containers that fit nowhere together, on cards that all differ.
    let node = (0..24).fold(node("a"), |node, i| node.free(100, 9000 + i));
    let wanted = apps(&[(1, share(1, 4600)); 40]);
    let refusal = choose(&node, &wanted, Policy::default()).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "too many ways to place the pod's 40 GPU containers to try them all"
    );
}
