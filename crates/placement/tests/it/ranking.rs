//! Which nodes, best first.

use model::PolicyName::{Binpack, Random, Spread, Stranding};
use model::arb::node_name;
use model::{Affinity, MilliCpu, Near, Node, Overrides, Part, PolicyName, Workload};
use placement::{Ask, Policy, decide, learn, rank};

use crate::build::{Cards, apps, machine, node, percent, share, snapshot};

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
fn a_node_that_can_give_near_cards_comes_first_where_they_are_preferred() {
    let named = |name: &str, profile: &str, taken: &[usize]| Node {
        name: node_name(name),
        ..machine(profile, taken)
    };
    let first = |nodes: &[Node], affinity, cards, policy| {
        let snapshot = snapshot(nodes.to_vec());
        let mut wanted = apps(&[(cards, Part::Whole)]);
        wanted.affinity = affinity;
        let ask = Ask::new(&snapshot, &wanted, Policy::both(policy));
        let ranking = rank(&snapshot, &ask);
        ranking.fitting.iter().map(|node| node.name.to_string()).collect::<Vec<_>>().concat()
    };
    // On `a` no two free cards are linked (0-5 and 3-6 have no bridge) or on one NUMA node; on `b`
    // 4-5 are on one; on `c` 4-7 are linked and on one.
    let nodes = [
        named("a", "dgx-1v", &[1, 2, 4, 5, 6, 7]),
        named("b", "pcie-x8", &[0, 1, 2, 3, 6, 7]),
        named("c", "dgx-1v", &[0, 1, 2, 3, 5, 6]),
    ];
    for policy in PolicyName::ALL {
        let linked = first(&nodes, Affinity::Prefer(Near::Link), 2, policy);
        assert!(linked.starts_with(['a', 'c']) && linked.ends_with('b'), "{policy}: {linked}");
    }
    // 0 and 3 of `a` are linked; 0 and 5 are neither linked nor on one NUMA node.
    let apart = [named("a", "dgx-1v", &[1, 2, 3, 4, 6, 7]), nodes[1].clone(), nodes[2].clone()];
    for policy in PolicyName::ALL {
        assert_eq!(first(&apart, Affinity::Prefer(Near::Link), 2, policy), "cba", "{policy}");
        let numa = first(&apart, Affinity::Prefer(Near::Numa), 2, policy);
        assert!(numa.ends_with('a'), "{policy}: {numa}");
        // One card is near to itself, and who does not care gets what the policy says.
        let one = first(&apart, Affinity::Prefer(Near::Link), 1, policy);
        assert_eq!(one, first(&apart, Affinity::Any, 1, policy), "{policy}");
    }
    assert_eq!(first(&apart, Affinity::Any, 2, Binpack), "abc");
    assert_eq!(first(&apart, Affinity::Require(Near::Link), 2, Binpack), "c");
}

#[test]
fn near_cards_are_worth_a_little_room_but_not_any() {
    // Cards usually come with 8 CPUs; this pod takes 32 with two. On `a` its cards are linked, on
    // `b` they are on different sockets.
    let mut near = machine("dgx-1v", &[0, 1, 2, 3]);
    near.name = node_name("a");
    let mut apart = machine("pcie-x8", &[0, 1, 2, 4, 5, 6]);
    apart.name = node_name("b");
    let goes_to = |cpu_on_a: u64| {
        let mut nodes = vec![near.clone(), apart.clone()];
        nodes[0].free.cpu = MilliCpu(cpu_on_a);
        let mut wanted = apps(&[(2, Part::Whole)]);
        wanted.host.cpu = MilliCpu(32_000);
        wanted.affinity = Affinity::Prefer(Near::Link);
        let mut usual = apps(&[(1, Part::Whole)]);
        usual.host.cpu = MilliCpu(8_000);
        let mut workload = Workload::default();
        workload.see(&usual);
        let snapshot = snapshot(nodes);
        let statistics = learn(&workload, snapshot.nodes().iter().map(AsRef::as_ref));
        let snapshot = snapshot.with_statistics(statistics.into());
        let ask = Ask::new(&snapshot, &wanted, Policy::both(Stranding));
        decide(&snapshot, &ask).unwrap().node().to_string()
    };
    // With CPU for the other two cards of `a` as well, and with none left for them.
    assert_eq!([goes_to(64_000), goes_to(34_000)], ["a", "b"]);
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
