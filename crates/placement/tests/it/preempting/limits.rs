//! Whom nothing may evict, and whose leaving is not needed.

use std::sync::Arc;

use model::{
    Agent, Allowance, Amount, Cap, Claim, Cores, Health, Mebibytes, ModelPattern, Node, Part,
    Request, Rule, Snapshot,
};
use placement::{Ask, Budget, Policy};

use super::{BUDGET, NOBODY, altered, altered_node, answer, budget, leaving, pod, wants, world};
use crate::build::{device, percent, share};

#[test]
fn equal_and_higher_priorities_stay() {
    for priority in [10, 11, i32::MAX] {
        let node = world("node-a", 1, [pod("p", priority, &[(0, Part::Whole)])]);
        assert_eq!(answer(vec![node], &wants(&[(1, percent(10))]), &[]), NOBODY);
    }
    let request = Request { priority: i32::MIN, ..wants(&[(1, percent(10))]) };
    let node = world("node-a", 1, [pod("p", i32::MIN, &[(0, Part::Whole)])]);
    assert_eq!(answer(vec![node], &request, &[]), NOBODY);
    // Nobody is evicted in vain beside one who stays.
    let pods = [pod("stays", 10, &[(0, percent(60))]), pod("low", 0, &[(0, percent(40))])];
    assert_eq!(answer(vec![world("node-a", 1, pods)], &wants(&[(1, percent(50))]), &[]), NOBODY);
}

#[test]
fn disruption_budgets_are_kept() {
    let pods = || [0, 1].map(|card| pod(&format!("p{card}"), 0, &[(card, percent(60))]));
    let asks = |budgets: &[Budget], cards| {
        answer(vec![world("node-a", 2, pods())], &wants(&[(cards, percent(50))]), budgets)
    };
    let evicts =
        |pod: &str| format!("evicting 1 pod on node-a makes room: team-b/{pod} (priority 0)");
    assert_eq!(asks(&[budget(&["p0", "p1"], 0)], 1), BUDGET);
    assert_eq!(asks(&[budget(&["p0"], 0)], 1), evicts("p1"));
    // One of two may go: enough for one card, not for two.
    assert_eq!(asks(&[budget(&["p0", "p1"], 1)], 1), evicts("p0"));
    assert_eq!(asks(&[budget(&["p0", "p1"], 1)], 2), BUDGET);
    assert_eq!(
        asks(&[budget(&["p0", "p1"], 2), budget(&["p1", "else"], 1)], 2),
        "evicting 2 pods on node-a makes room: team-b/p0 (priority 0), team-b/p1 (priority 0)"
    );
    // All budgets of a pod must agree.
    assert_eq!(asks(&[budget(&["p0"], 1), budget(&["p0"], 0)], 1), evicts("p1"));
    // A budget that forbids is not to blame where nothing would help.
    let request = Request { priority: 0, ..wants(&[(1, percent(50))]) };
    let nodes = vec![world("node-a", 2, pods())];
    assert_eq!(answer(nodes, &request, &[budget(&["p0", "p1"], 0)]), NOBODY);
}

#[test]
fn pods_that_are_leaving_are_counted_as_gone() {
    let half = wants(&[(1, percent(50))]);
    // The one that leaves is more important than the pod, and leaves all the same.
    let one = world("node-a", 1, [leaving(pod("p", 99, &[(0, Part::Whole)]))]);
    let other = world("node-b", 1, [pod("q", 0, &[(0, Part::Whole)])]);
    assert_eq!(
        answer(vec![one, other.clone()], &half, &[]),
        "waiting: pods that are leaving make room on node-a"
    );
    // Not enough: one more has to go, and the one that leaves is no victim.
    let pods = [leaving(pod("p", 0, &[(0, percent(30))])), pod("q", 3, &[(0, percent(70))])];
    assert_eq!(
        answer(vec![world("node-a", 1, pods)], &wants(&[(1, Part::Whole)]), &[]),
        "evicting 1 pod on node-a makes room: team-b/q (priority 3)"
    );
    let roomy = world("node-c", 1, []);
    assert_eq!(answer(vec![other, roomy], &half, &[]), "no pod has to leave: node-c has room now");
}

/// A snapshot in which team-a may have this much compute and has this much.
fn limited(nodes: Vec<Node>, cap: u32, used: u32) -> Snapshot {
    let rule = Rule {
        model: ModelPattern::new("T4"),
        cap: Cap { cores: Some(Cores(cap)), ..Cap::default() },
        used: Amount { cores: Cores(used), ..Amount::default() },
    };
    let allowance = Allowance { rules: vec![rule], ..Allowance::default() };
    let nodes = nodes.into_iter().map(Arc::new).collect();
    Snapshot::new(nodes, Arc::new([("team-a".to_owned(), allowance)].into()))
}

#[test]
fn victims_of_the_namespace_give_quota_back() {
    let ours = |name: &str, priority, card, size| {
        altered(pod(name, priority, &[(card, percent(size))]), |pod| {
            pod.pod.namespace = "team-a".into();
        })
    };
    let theirs = pod("theirs", 0, &[(0, percent(60))]);
    let answer = |nodes, cap, used| {
        let snapshot = limited(nodes, cap, used);
        let request = wants(&[(1, percent(50))]);
        let ask = Ask::new(&snapshot, &request, Policy::default());
        placement::preempt(&snapshot, &ask, &[]).map_or_else(|n| n.to_string(), |p| p.to_string())
    };
    let evicts = |pod: &str| format!("evicting 1 pod on node-a makes room: {pod}");
    let full = || vec![world("node-a", 2, [theirs.clone(), ours("ours", 5, 1, 60)])];
    // With quota the lower priority goes; without, the namespace pays itself.
    assert_eq!(answer(full(), 200, 60), evicts("team-b/theirs (priority 0)"));
    assert_eq!(answer(full(), 100, 60), evicts("team-a/ours (priority 5)"));
    // The card is free: only quota is short.
    let quota_only = || vec![world("node-a", 2, [ours("ours", 5, 1, 60)])];
    assert_eq!(answer(quota_only(), 100, 60), evicts("team-a/ours (priority 5)"));
    // 60 come back, which is not enough: the rest is held elsewhere.
    assert_eq!(
        answer(full(), 100, 150),
        "namespace team-a has no quota left for this pod, whoever leaves"
    );
    // What leaves on another node gives quota back as well.
    let elsewhere = world("node-b", 1, [leaving(ours("far", 20, 0, 100))]);
    let mut nodes = quota_only();
    nodes.push(elsewhere.clone());
    assert_eq!(answer(nodes, 160, 160), "waiting: pods that are leaving make room on node-a");
    let mut nodes = full();
    nodes.push(altered_node(elsewhere, |node| node.agent = Agent::Stale));
    assert_eq!(answer(nodes, 160, 160), evicts("team-b/theirs (priority 0)"));
}

#[test]
fn sick_silent_and_unreadable_nodes() {
    let half = wants(&[(1, percent(50))]);
    let full = || world("node-a", 1, [pod("p", 0, &[(0, Part::Whole)])]);
    let evicts =
        |pod: &str| format!("evicting 1 pod on node-a makes room: team-b/{pod} (priority 0)");
    let odd = |priority| {
        altered(pod("odd", priority, &[]), |pod| pod.claim = Claim::Unreadable("?".into()))
    };
    let table = [
        (altered_node(full(), |node| node.agent = Agent::Stale), NOBODY.to_owned()),
        (
            altered_node(full(), |node| node.agent = Agent::Never),
            "no node could take this pod, whoever leaves".to_owned(),
        ),
        (altered_node(full(), |node| node.devices[0].contested = true), NOBODY.to_owned()),
        (
            altered_node(full(), |node| device(&mut node.devices[0]).health = Health::Sick),
            NOBODY.to_owned(),
        ),
        // Memory that no pod holds is nobody's to give.
        (
            altered_node(full(), |node| node.devices[0].load.strangers = Mebibytes(9000)),
            NOBODY.to_owned(),
        ),
        // A pod that cannot be read closes the node; without it the node is open.
        (world("node-a", 1, [odd(0)]), evicts("odd")),
        (world("node-a", 1, [odd(10)]), NOBODY.to_owned()),
        (world("node-a", 1, [odd(0), pod("p", 10, &[(0, Part::Whole)])]), NOBODY.to_owned()),
        // Sick cards beside a healthy one: only the healthy one's holder goes.
        (
            altered_node(
                world(
                    "node-a",
                    2,
                    [pod("s", -5, &[(0, percent(60))]), pod("h", 0, &[(1, percent(60))])],
                ),
                |node| device(&mut node.devices[0]).health = Health::Sick,
            ),
            evicts("h"),
        ),
    ];
    for (node, expected) in table {
        let shown = format!("{node:?}");
        assert_eq!(answer(vec![node], &half, &[]), expected, "{shown}");
    }
    assert_eq!(answer(vec![], &half, &[]), "no node could take this pod, whoever leaves");
    let large = wants(&[(1, share(10, 10_001))]);
    assert_eq!(answer(vec![full()], &large, &[]), "no node could take this pod, whoever leaves");
}
