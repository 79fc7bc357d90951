//! Whose eviction makes room at the least cost.

use std::collections::BTreeSet;
use std::sync::Arc;

use model::{
    Claim, Claimed, DeviceRef, Host, MilliCpu, Node, Part, PodUid, Request, Role, Tickets,
};
use placement::{Ask, Budget, Policy, Preemption, Thoroughness};

use super::{altered, answer, pod, uid, wants, world};
use crate::build::{percent, share, snapshot};

#[test]
fn of_eight_cards_the_lowest_priority_makes_room() {
    let priorities = [5, 4, 3, 0, 6, 7, 8, 9];
    let pods = (0..8u32).zip(priorities);
    let pods = pods.map(|(card, p)| pod(&format!("p{card}"), p, &[(card, percent(60))]));
    let node = world("node-a", 8, pods);
    assert_eq!(
        answer(vec![node], &wants(&[(1, percent(50))]), &[]),
        "evicting 1 pod on node-a makes room: team-b/p3 (priority 0)"
    );
}

#[test]
fn the_best_victims_are_few_then_lowly_then_small_then_first() {
    let half = wants(&[(1, percent(50))]);
    let three = ["x", "y", "z"].map(|name| pod(name, 0, &[(0, percent(33))]));
    let one = |name: &str, priority, size| [pod(name, priority, &[(0, percent(size))])];
    let on = |name: &str, victims: &str| format!("evicting 1 pod on {name} makes room: {victims}");
    let table = [
        // One pod of high priority rather than two of low.
        (world("a", 1, three), world("b", 1, one("p", 9, 60)), on("b", "team-b/p (priority 9)")),
        (
            world("a", 1, one("p", 2, 60)),
            world("b", 1, one("q", 1, 70)),
            on("b", "team-b/q (priority 1)"),
        ),
        (
            world("a", 1, one("p", 1, 70)),
            world("b", 1, one("q", 1, 60)),
            on("b", "team-b/q (priority 1)"),
        ),
        (
            world("b", 1, one("p", 1, 60)),
            world("a", 1, one("q", 1, 60)),
            on("a", "team-b/q (priority 1)"),
        ),
    ];
    for (one, other, expected) in table {
        assert_eq!(answer(vec![one, other], &half, &[]), expected);
    }
    // On one node, by UID.
    let pods = ["n", "m"].map(|name| pod(name, 0, &[(0, percent(30))]));
    let node = world("a", 1, pods.into_iter().chain([pod("o", 0, &[(0, percent(30))])]));
    assert_eq!(
        answer(vec![node], &wants(&[(1, percent(40))]), &[]),
        on("a", "team-b/m (priority 0)")
    );
}

#[test]
fn priorities_are_compared_from_the_highest_down() {
    // Card 0: 5 and 1; card 1: 4 and 4. The highest counts first, so 4 and 4 go.
    let pods = [("a", 5, 0), ("b", 1, 0), ("c", 4, 1), ("d", 4, 1)];
    let pods = pods.map(|(name, priority, card)| pod(name, priority, &[(card, percent(40))]));
    assert_eq!(
        answer(vec![world("node-a", 2, pods)], &wants(&[(1, percent(90))]), &[]),
        "evicting 2 pods on node-a makes room: team-b/c (priority 4), team-b/d (priority 4)"
    );
}

#[test]
fn a_card_held_through_another_dialect_is_freed_too() {
    // Memory only, as gpushare writes it, and by device node.
    let memory_only = altered(pod("gpushare", 0, &[]), |holder| {
        let parts = vec![(DeviceRef::Minor(0), share(0, 500))];
        holder.claim = Claim::Shares(vec![Claimed { role: Role::App, parts }]);
    });
    let whole = pod("whole", 1, &[(0, Part::Whole)]);
    let evicts = |pod: &str| format!("evicting 1 pod on node-a makes room: team-b/{pod}");
    for (holder, wanted, expected) in [
        (memory_only.clone(), Part::Whole, evicts("gpushare (priority 0)")),
        (memory_only, share(10, 9600), evicts("gpushare (priority 0)")),
        (whole.clone(), Part::Whole, evicts("whole (priority 1)")),
        (whole, share(0, 1), evicts("whole (priority 1)")),
    ] {
        assert_eq!(
            answer(vec![world("node-a", 1, [holder])], &wants(&[(1, wanted)]), &[]),
            expected
        );
    }
}

#[test]
fn several_cards_are_freed_by_the_fewest_pods() {
    // Two whole cards: cards 2 and 3 cost one pod each, cards 0 and 1 two each.
    let pods = [
        pod("a", 0, &[(0, percent(10))]),
        pod("b", 0, &[(0, percent(10))]),
        pod("c", 0, &[(1, percent(10))]),
        pod("d", 0, &[(1, percent(10))]),
        pod("g", 9, &[(2, percent(90))]),
        pod("f", 8, &[(3, percent(90))]),
    ];
    let node = world("node-a", 4, pods.clone());
    assert_eq!(
        answer(vec![node], &wants(&[(2, Part::Whole)]), &[]),
        "evicting 2 pods on node-a makes room: team-b/g (priority 9), team-b/f (priority 8)"
    );
    // One pod that spans both is fewer still.
    let pods = pods.map(|pod| altered(pod, |pod| pod.priority = 0));
    let spanning = pod("wide", 9, &[(4, percent(50)), (5, percent(50))]);
    let node = world("node-a", 6, pods.into_iter().chain([spanning]));
    assert_eq!(
        answer(vec![node], &wants(&[(2, Part::Whole)]), &[]),
        "evicting 1 pod on node-a makes room: team-b/wide (priority 9)"
    );
}

#[test]
fn pods_without_cards_go_only_where_the_host_is_short() {
    let cpus = |count: u64| Host { cpu: MilliCpu(count * 1000), ..Host::default() };
    let plain = |name: &str, priority, count| {
        altered(pod(name, priority, &[]), |pod| {
            pod.claim = Claim::Nothing;
            pod.host = cpus(count);
        })
    };
    let holder = altered(pod("gpu", 5, &[(0, percent(60))]), |pod| pod.host = cpus(40));
    let asks = |part, count| Request { host: cpus(count), ..wants(&[(1, part)]) };
    let node = || world("node-a", 1, [holder.clone(), plain("web", 0, 20), plain("db", -1, 2)]);
    let table = [
        // The card is short, the host is not: who holds no card stays.
        (asks(percent(50), 1), "team-b/gpu (priority 5)"),
        // The host is short, the card is not.
        (asks(percent(40), 10), "team-b/web (priority 0)"),
        (asks(percent(40), 4), "team-b/db (priority -1)"),
        // Both are: the holder frees both.
        (asks(percent(50), 40), "team-b/gpu (priority 5)"),
    ];
    for (request, expected) in table {
        let expected = format!("evicting 1 pod on node-a makes room: {expected}");
        assert_eq!(answer(vec![node()], &request, &[]), expected);
    }
    assert_eq!(
        answer(vec![node()], &asks(percent(50), 62), &[]),
        "evicting 2 pods on node-a makes room: team-b/gpu (priority 5), team-b/web (priority 0)"
    );
}

#[test]
fn tickets_come_back_from_those_who_draw_them() {
    let name = "nano-gpu/gpu-percent".to_owned();
    let draws = |pod: &str, count| {
        let holder = super::pod(pod, 0, &[(0, percent(10))]);
        altered(holder, |holder| holder.tickets = vec![(name.clone(), count)])
    };
    let node = || {
        let mut node = world("node-a", 1, []);
        node.tickets = [(name.clone(), Tickets { total: 100, used: 0 })].into();
        for pod in [pod("none", -1, &[(0, percent(10))]), draws("few", 30), draws("many", 60)] {
            node.count(Arc::new(pod));
        }
        node
    };
    let asks =
        |count| Request { tickets: vec![(name.clone(), count)], ..wants(&[(1, percent(10))]) };
    let evicts =
        |pod: &str| format!("evicting 1 pod on node-a makes room: team-b/{pod} (priority 0)");
    assert_eq!(answer(vec![node()], &asks(20), &[]), evicts("few"));
    assert_eq!(answer(vec![node()], &asks(50), &[]), evicts("many"));
    assert_eq!(
        answer(vec![node()], &asks(101), &[]),
        "no node could take this pod, whoever leaves"
    );
}

/// 15 cards with eleven pods of all sizes each: too many ways to free seven of them.
fn crowd(name: &str) -> Node {
    let pods = (0..15u32).flat_map(|card| {
        (0..11u32).map(move |i| {
            let size = 1 + ((3 + 2 * i % 9) * (card + 3)) % 8;
            let part = share(size, u64::from(1 + (size * 7 + i) % 9) * 100);
            let priority = i32::try_from((card * 5 + i) % 4).expect("a small number");
            pod(&format!("p-{card}-{i}"), priority, &[(card, part)])
        })
    });
    world(name, 15, pods)
}

/// That the pod fits once the victims are gone, and not if one of `needed` stays.
fn assert_right(node: &Node, ask: &Ask, found: &Preemption, needed: impl Fn(&PodUid) -> bool) {
    assert_eq!(found.search, Thoroughness::CutShort);
    let victims: BTreeSet<PodUid> = found.victims.iter().map(|v| v.pod.uid.clone()).collect();
    assert!(placement::fit(&node.without(&victims), ask).is_ok());
    for stays in victims.iter().filter(|uid| needed(uid)) {
        let mut others = victims.clone();
        others.remove(stays);
        assert!(placement::fit(&node.without(&others), ask).is_err(), "{stays} could stay");
    }
}

#[test]
fn a_search_without_end_still_gives_a_set_of_which_nobody_can_stay() {
    let request = wants(&[(7, share(90, 9200))]);
    let mut node = crowd("node-a");
    let snapshot = snapshot(vec![node.clone()]);
    let ask = Ask::new(&snapshot, &request, Policy::default());
    let found = placement::preempt(&snapshot, &ask, &[]).unwrap();
    assert_right(&node, &ask, &found, |_| true);
    assert!(found.to_string().ends_with("; not every way was tried"));
    // Of one card nobody may go, of another two, so others must.
    let of_card = |card: u32| (0..11).map(move |i| uid(&format!("p-{card}-{i}"))).collect();
    let budgets =
        [Budget { pods: of_card(0), allowed: 0 }, Budget { pods: of_card(1), allowed: 2 }];
    let found = placement::preempt(&snapshot, &ask, &budgets).unwrap();
    assert_right(&node, &ask, &found, |_| true);
    for budget in &budgets {
        let evicted = found.victims.iter().filter(|v| budget.pods.contains(&v.pod.uid)).count();
        assert!(evicted <= budget.allowed as usize, "{found}");
    }
    let few = Budget { pods: (0..15).flat_map(of_card).collect::<BTreeSet<_>>(), allowed: 20 };
    assert_eq!(
        placement::preempt(&snapshot, &ask, &[few]).unwrap_err().to_string(),
        "too many ways to make room to try them all"
    );
    // What kube-scheduler needs for reasons of its own is not given back.
    node.count(Arc::new(altered(pod("plain", 9, &[]), |pod| pod.claim = Claim::Nothing)));
    let snapshot = crate::build::snapshot(vec![node.clone()]);
    let proposed = [uid("plain")].into();
    let found = placement::preempt_on(&snapshot, &node.name, &ask, &[], &proposed).unwrap();
    assert_eq!(found.victims[0].pod.name, "plain");
    assert_right(&node, &ask, &found, |uid| uid.as_str() != "plain");
}

#[test]
fn another_node_s_smaller_set_beats_one_that_was_not_searched_to_the_end() {
    let request = wants(&[(7, share(90, 9200))]);
    let evicted = |nodes: Vec<Node>| {
        let snapshot = snapshot(nodes);
        let ask = Ask::new(&snapshot, &request, Policy::default());
        let found = placement::preempt(&snapshot, &ask, &[]).unwrap();
        (found.node.to_string(), found.victims.len())
    };
    let pods = (0..56).map(|i| pod(&format!("q-{i}"), 0, &[(i / 8, percent(12))]));
    let even = world("node-b", 7, pods);
    assert_eq!(evicted(vec![crowd("node-a")]), ("node-a".into(), 64));
    assert_eq!(evicted(vec![crowd("node-a"), even]), ("node-b".into(), 56));
}
