//! What the learning policies look at, and how load is respected.

use std::sync::Arc;

use model::PolicyName::{Binpack, Fgd, Spread, Stranding};
use model::{
    Bytes, Host, Mebibytes, MilliCpu, Node, Part, PolicyName, Request, Selector, Snapshot, Workload,
};
use placement::{Ask, Policy, decide, learn};

use crate::build::{Cards, apps, node, percent, share, snapshot};

/// A request that also wants some of the host.
fn with_host(mut request: Request, cpu: u64, gib: u64) -> Request {
    request.host = Host { cpu: MilliCpu(cpu), memory: Bytes(gib << 30) };
    request
}

/// A snapshot that has learned from these pods, each so many times.
fn learned(nodes: Vec<Node>, pods: &[(&Request, u32)]) -> Snapshot {
    let mut workload = Workload::default();
    for (request, times) in pods {
        (0..*times).for_each(|_| workload.see(request));
    }
    let snapshot = snapshot(nodes);
    let statistics = learn(&workload, snapshot.nodes().iter().map(AsRef::as_ref));
    snapshot.with_statistics(Arc::new(statistics))
}

fn goes_to(snapshot: &Snapshot, request: &Request, policy: PolicyName) -> String {
    let ask = Ask::new(snapshot, request, Policy::both(policy));
    let placement = decide(snapshot, &ask).expect("a place");
    placement.grants("c0")[0].device.to_string()
}

#[test]
fn what_is_learned_from_a_workload() {
    let half = with_host(apps(&[(1, percent(50))]), 4000, 8);
    let whole = with_host(apps(&[(2, Part::Whole)]), 4000, 56);
    let snapshot = learned(vec![node("a").left(100).left(100)], &[(&half, 2), (&whole, 1)]);
    let statistics = snapshot.statistics();
    // Three cards' worth of compute came with 12 CPUs and 72 GiB; nine tenths of that count.
    assert_eq!(statistics.cpu_per_card, Some(3600));
    assert_eq!(statistics.memory_per_card, Some(24 * 1024 * 9 / 10));
    // No share fits below half a card, every share fits in what is above.
    let value = |percent: usize| statistics.value[percent];
    assert_eq!([value(49), value(50), value(80), value(100)], [0, 500_000, 800_000, 1_000_000]);
    // Both kinds fit the one shape there is, so its price is all there is, but for rounding.
    assert_eq!(statistics.prices.values().collect::<Vec<_>>(), [&999]);
    assert_eq!(statistics.typical.len(), 2);
}

#[test]
fn nothing_learned_is_no_obstacle() {
    let snapshot = snapshot(vec![node("a").left(100), node("b").left(60)]);
    for policy in PolicyName::ALL {
        assert!(!goes_to(&snapshot, &apps(&[(1, percent(30))]), policy).is_empty());
    }
    assert_eq!(snapshot.statistics().cpu_per_card, None);
}

#[test]
fn stranding_spares_the_host_that_will_run_short() {
    // Pods come with 8 CPUs a card. Node a has CPU for little more than its cards need; a pod
    // that takes much CPU for little of a card would strand the rest there.
    let usual = with_host(apps(&[(1, Part::Whole)]), 8000, 1);
    let hungry = with_host(apps(&[(1, percent(10))]), 10_000, 1);
    let with_cpu = |name: &str, cpu: u64| {
        let mut node = node(name).left(100).left(100);
        node.free.cpu = MilliCpu(cpu);
        node
    };
    let nodes = vec![with_cpu("a", 18_000), with_cpu("b", 40_000)];
    let snapshot = learned(nodes, &[(&usual, 10)]);
    assert_eq!(goes_to(&snapshot, &hungry, Stranding), "GPU-b-0");
    assert_eq!(goes_to(&snapshot, &hungry, Binpack), "GPU-a-0");
}

#[test]
fn stranding_keeps_rare_cards_for_those_who_ask_for_them() {
    let mut picky = apps(&[(1, Part::Whole)]);
    picky.selector = Selector { models: vec![vec!["A100".into()]], ..Selector::default() };
    let easy = apps(&[(1, Part::Whole)]);
    let nodes =
        vec![node("a").model("NVIDIA A100", 40_000), node("b").left(100), node("c").left(100)];
    let snapshot = learned(nodes, &[(&picky, 5), (&easy, 5)]);
    assert_eq!(goes_to(&snapshot, &easy, Stranding), "GPU-b-0");
    assert_eq!(goes_to(&snapshot, &picky, Stranding), "GPU-a-0");
    assert_eq!(goes_to(&snapshot, &easy, Binpack), "GPU-a-0");
}

#[test]
fn stranding_leaves_holes_that_shares_fit_in() {
    // Shares are 30. On the card with 60 left one leaves a hole that another fits in; on the card
    // with 50 left it would leave 20 for nobody.
    let small = apps(&[(1, percent(30))]);
    let snapshot = learned(vec![node("a").left(50).left(60)], &[(&small, 10)]);
    assert_eq!(goes_to(&snapshot, &small, Stranding), "GPU-a-1");
    assert_eq!(goes_to(&snapshot, &small, Binpack), "GPU-a-0");
}

#[test]
fn fgd_leaves_room_that_typical_pods_can_use() {
    let (small, large) = (apps(&[(1, percent(30))]), apps(&[(1, percent(60))]));
    let nodes = vec![node("a").left(50), node("b").left(60)];
    let snapshot = learned(nodes, &[(&small, 5), (&large, 15)]);
    // On b the 60 that most pods want would be gone; a is of no use to them anyway.
    assert_eq!(goes_to(&snapshot, &small, Fgd), "GPU-a-0");
}

#[test]
fn hot_cards_come_last() {
    for policy in PolicyName::ALL {
        let mut nodes = vec![node("a").left(50).left(50), node("b").left(50), node("c").left(50)];
        nodes[0].devices[0].load.hot = true;
        nodes[1].devices[0].load.hot = true;
        let snapshot = snapshot(nodes);
        let card = goes_to(&snapshot, &apps(&[(1, percent(10))]), policy);
        assert!(["GPU-a-1", "GPU-c-0"].contains(&card.as_str()), "{policy}: {card}");
        // Better a hot card than none.
        let two = apps(&[(2, percent(10))]);
        assert_eq!(goes_to(&snapshot, &two, policy), "GPU-a-0", "{policy}");
    }
}

#[test]
fn what_strangers_hold_is_not_sold() {
    let mut nodes = vec![node("a").left(100)];
    nodes[0].devices[0].load.strangers = Mebibytes(7000);
    let snapshot = snapshot(nodes);
    let ask = |request: &Request| {
        let ask = Ask::new(&snapshot, request, Policy::both(Spread));
        decide(&snapshot, &ask).map(|_| ()).map_err(|why| why.to_string())
    };
    assert_eq!(ask(&apps(&[(1, share(10, 3000))])), Ok(()));
    let short = "1 node: 1 short of memory on one card, best has 3,000 MiB of 3,001";
    assert_eq!(ask(&apps(&[(1, share(10, 3001))])), Err(short.into()));
    let whole = "1 node: 1 has too few cards wholly free, best has 0 of 1";
    assert_eq!(ask(&apps(&[(1, Part::Whole)])), Err(whole.into()));
}
