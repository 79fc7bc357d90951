//! Which nodes, best first.

use model::PolicyName::{Binpack, Random, Spread};
use model::{Node, Overrides, Part};
use placement::{Ask, Policy, decide, rank};

use crate::build::{Cards, apps, node, percent, share, snapshot};

fn order(nodes: Vec<Node>, policy: Policy) -> Vec<String> {
    let snapshot = snapshot(nodes);
    let wanted = apps(&[(1, percent(10))]);
    let ranking = rank(&snapshot, &Ask::new(&snapshot, &wanted, policy));
    ranking.fitting.iter().map(|node| node.name.to_string()).collect()
}

#[test]
fn nano_gpu_s_scores_order_nodes() {
    let cards = |name: &str, left: &[u32]| left.iter().fold(node(name), |node, &l| node.left(l));
    // (better, worse) under each policy, from nano-gpu's own tests.
    let binpack: &[(&[u32], &[u32])] = &[(&[20, 40], &[30, 50])];
    let spread: &[(&[u32], &[u32])] =
        &[(&[30, 50], &[20, 40]), (&[90], &[50, 40]), (&[100], &[50, 50]), (&[100, 50], &[100])];
    for (policy, pairs) in [(Binpack, binpack), (Spread, spread)] {
        for (better, worse) in pairs {
            // By name alone the worse one would come first.
            let nodes = vec![cards("a", worse), cards("b", better)];
            assert_eq!(order(nodes, Policy::both(policy)), ["b", "a"], "{policy} {better:?}");
        }
    }
}

#[test]
fn binpack_fills_the_fuller_node_and_then_the_smaller() {
    let nodes = vec![
        node("a").left(100).left(100),
        node("b").left(100).left(40),
        node("c").left(100),
        node("d").left(100),
    ];
    assert_eq!(order(nodes, Policy::both(Binpack)), ["b", "c", "d", "a"]);
}

#[test]
fn memory_leads_where_only_memory_is_asked() {
    let nodes = vec![node("a").free(30, 9000), node("b").free(100, 4000)];
    let snapshot = snapshot(nodes);
    let wanted = apps(&[(1, share(0, 1000))]);
    let ask = Ask::new(&snapshot, &wanted, Policy::both(Binpack));
    assert_eq!(decide(&snapshot, &ask).unwrap().node().as_str(), "b");
}

#[test]
fn equal_nodes_go_by_name() {
    let nodes = ["c", "a", "b"].map(|name| node(name).left(50));
    assert_eq!(order(nodes.to_vec(), Policy::both(Binpack)), ["a", "b", "c"]);
    assert_eq!(order(nodes.to_vec(), Policy::both(Spread)), ["a", "b", "c"]);
}

#[test]
fn node_and_device_policy_are_apart_and_a_pod_may_choose() {
    let nodes = vec![node("a").left(100).left(60), node("b").left(100).left(100)];
    let snapshot = snapshot(nodes);
    let decide = |policy, overrides| {
        let mut wanted = apps(&[(1, percent(10))]);
        wanted.overrides = overrides;
        let placement = decide(&snapshot, &Ask::new(&snapshot, &wanted, policy)).unwrap();
        placement.grants("c0")[0].device.to_string()
    };
    let none = Overrides::default();
    assert_eq!(decide(Policy { node: Binpack, device: Binpack }, none), "GPU-a-1");
    assert_eq!(decide(Policy { node: Binpack, device: Spread }, none), "GPU-a-0");
    let choice = Overrides { node: Some(Spread), device: None };
    assert_eq!(decide(Policy { node: Binpack, device: Spread }, choice), "GPU-b-0");
}

#[test]
fn random_nodes_are_spread_over_pods() {
    let snapshot = snapshot((0..5).map(|i| node(&format!("n{i}")).left(100)).collect());
    let mut first = std::collections::BTreeMap::<String, u32>::new();
    for i in 0..500 {
        let mut wanted = apps(&[(1, Part::Whole)]);
        wanted.pod.uid = model::PodUid::parse(&format!("uid-{i}")).unwrap();
        let ask = Ask::new(&snapshot, &wanted, Policy::both(Random));
        *first.entry(decide(&snapshot, &ask).unwrap().node().to_string()).or_default() += 1;
    }
    assert!(first.len() == 5 && first.values().all(|&n| (60..=140).contains(&n)), "{first:?}");
}
