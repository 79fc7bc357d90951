//! The protocol of the published evaluations, fact by fact.

use model::{Node, PolicyName};
use sim::arrival::{Order, arrivals};
use sim::baseline::Scoring;
use sim::replay::{Decider, Run, run};
use sim::trace::TracePod;
use sim::world::World;

use crate::build::{in_order, near, node, pod, row};

fn pods(count: u32, milli: u32) -> Vec<TracePod> {
    (0..count).map(|i| pod(&format!("p{i:03}"), milli)).collect()
}

fn come(order: Order, seed: u64, pods: &[TracePod]) -> Vec<usize> {
    arrivals(pods, order, 10_000, 130, &mut fastrand::Rng::with_seed(seed))
}

#[test]
fn each_pod_is_tried_once() {
    let nodes = [node("a", 64, 1, "T4")];
    let pods = [pod("p0", 600), pod("p1", 600), pod("p2", 300), pod("p3", 1000)];
    let outcome = run(&nodes, &pods, Run { to: 250, ..in_order() }, 1);
    assert_eq!(outcome.came, 4);
    assert_eq!(outcome.nanos.len(), 4);
    // The second share finds no room and is not tried again, the third does.
    assert_eq!(outcome.failed, [("one-card", 1), ("share", 1)].into());
    near(outcome.steps[&250].allocated, 90.0);
}

#[test]
fn shuffled_pods_come_in_an_order_of_their_seed() {
    let pods = pods(20, 1000);
    assert_ne!(come(Order::Shuffled, 1, &pods), come(Order::Shuffled, 2, &pods));
    assert_eq!(come(Order::Shuffled, 1, &pods), come(Order::Shuffled, 1, &pods));
    // The file's own order does not matter: pods are sorted by name before.
    let mut turned = pods.clone();
    turned.reverse();
    let names = |pods: &[TracePod]| -> Vec<String> {
        let come = come(Order::Shuffled, 1, pods);
        come.into_iter().map(|i| pods[i].request.pod.name.clone()).collect()
    };
    assert_eq!(names(&pods), names(&turned));
}

#[test]
fn traced_pods_come_as_they_stand() {
    assert_eq!(come(Order::Trace, 1, &pods(20, 1000)), (0..13).collect::<Vec<_>>());
}

#[test]
fn a_list_that_ends_goes_on_with_pods_drawn_from_it() {
    let pods = pods(10, 470);
    let come = come(Order::Shuffled, 7, &pods);
    let mut listed = come[..10].to_vec();
    listed.sort_unstable();
    assert_eq!(listed, (0..10).collect::<Vec<_>>(), "first every pod once");
    // 13,000 thousandths are 27.7 pods: with the last the goal is reached, not before.
    assert_eq!(come.len(), 28);
    assert!(come.iter().all(|i| *i < 10));
}

#[test]
fn nodes_stand_in_an_order_of_the_seed() {
    let nodes: Vec<Node> = (0..9).map(|i| node(&format!("n{i}"), 8, 1, "T4")).collect();
    let pods = pods(1, 1000);
    let taken = |seed| {
        let world = World::new(&nodes, &pods, in_order(), fastrand::Rng::with_seed(seed));
        world.nodes()[0].devices[0].device.id.to_string()
    };
    assert_eq!(taken(1), taken(1));
    assert!((2..10).any(|seed| taken(seed) != taken(1)));
}

#[test]
fn where_an_order_is_given_nothing_is_left_to_chance() {
    let nodes: Vec<Node> = (0..9).map(|i| node(&format!("n{i}"), 8, 1, "T4")).collect();
    let pods = pods(13, 1000);
    assert_eq!(come(Order::Given, 1, &pods), (0..13).collect::<Vec<_>>());
    let given = Run { order: Order::Given, ..in_order() };
    for seed in 1..5 {
        let world = World::new(&nodes, &pods, given, fastrand::Rng::with_seed(seed));
        let ids = world.nodes().iter().map(|node| node.devices[0].device.id.to_string());
        assert_eq!(
            ids.collect::<Vec<_>>(),
            (0..9).map(|i| format!("GPU-n{i}-0")).collect::<Vec<_>>()
        );
    }
}

#[test]
fn results_are_means_within_the_rounded_percent() {
    // Two cards: each pod is half a percent, so two fall into each rounded one.
    let outcome = run(&[node("a", 64, 2, "T4")], &pods(8, 10), Run { to: 2, ..in_order() }, 1);
    assert_eq!(outcome.steps.keys().collect::<Vec<_>>(), [&1, &2]);
    near(outcome.steps[&1].allocated, 0.75);
    near(outcome.steps[&2].allocated, 1.75);
}

#[test]
fn where_a_pod_skips_percents_all_is_as_before() {
    let outcome = run(&[node("a", 64, 4, "T4")], &pods(8, 1000), Run { to: 75, ..in_order() }, 1);
    for (percent, expected) in [(24, 0.0), (25, 25.0), (26, 25.0), (49, 25.0), (50, 50.0)] {
        near(outcome.steps[&percent].allocated, expected);
    }
}

#[test]
fn fragmentation_is_what_typical_pods_cannot_use() {
    let nodes = [node("a", 64, 2, "T4")];
    let pods = [pod("share", 500), pod("whole", 1000), pod("cpu", 0)];
    let mut world = World::new(&nodes, &pods, in_order(), fastrand::Rng::with_seed(1));
    let third = 100.0 / 3.0;
    // All is of use to the first two, nothing to the pod without a card.
    near(world.fragmented(), third);
    // Half a card is left: the whole pod cannot use it, the pod without a card neither.
    world.arrive(0);
    near(world.fragmented(), third * 0.25 + third * 0.75);
    world.arrive(1);
    near(world.fragmented(), third * 0.25 + third * 0.25);
}

#[test]
fn fragmentation_minds_cpu_models_and_memory() {
    let pods = |change: fn(&mut sim::trace::PodRow)| {
        let mut row = row("p", 500);
        change(&mut row);
        vec![row.pod().unwrap()]
    };
    let useless = |pods: &[TracePod]| {
        let nodes = [node("a", 8, 1, "T4"), node("b", 8, 1, "V100")];
        World::new(&nodes, pods, in_order(), fastrand::Rng::with_seed(1)).fragmented()
    };
    near(useless(&pods(|_| ())), 0.0);
    near(useless(&pods(|row| row.gpu_spec = "T4".into())), 50.0);
    near(useless(&pods(|row| row.cpu_milli = 9000)), 100.0);
    near(useless(&pods(|row| row.gpu_mem_mib = Some(32_768))), 0.0);
    near(useless(&pods(|row| row.gpu_mem_mib = Some(32_769))), 100.0);
}

#[test]
fn as_extender_pods_without_a_card_go_where_kube_scheduler_says() {
    let nodes = [node("a", 16, 4, "T4"), node("b", 16, 4, "T4")];
    let pods = pods(2, 0);
    let used = |as_extender| {
        let run = Run { as_extender, ..in_order() };
        let mut world = World::new(&nodes, &pods, run, fastrand::Rng::with_seed(1));
        world.arrive(0);
        world.arrive(1);
        let mut free: Vec<u64> = world.nodes().iter().map(|node| node.free.cpu.0).collect();
        free.sort_unstable();
        free
    };
    assert_eq!(used(Some(Scoring::LeastAllocated)), [15_000, 15_000], "kube-scheduler levels");
    assert_eq!(used(Some(Scoring::MostAllocated)), [14_000, 16_000], "or packs");
    assert_eq!(used(None), [14_000, 16_000], "stranding packs");
}

#[test]
fn as_extender_pods_with_cards_go_where_we_say() {
    let scene = crate::build::made();
    let with_cards: Vec<TracePod> = scene.pods.into_iter().filter(|pod| pod.milli > 0).collect();
    let outcome = |as_extender| {
        let how = Run { as_extender, order: Order::Shuffled, ..in_order() };
        run(&scene.nodes, &with_cards, how, 3)
    };
    for scoring in [Scoring::LeastAllocated, Scoring::MostAllocated] {
        assert_eq!(outcome(Some(scoring)).nodes, outcome(None).nodes);
    }
}

#[test]
fn random_is_ours_and_any_fit_is_the_literatures() {
    let scene = crate::build::made();
    let nodes = |name: &str| {
        let how = Run { decider: Decider::parse(name).unwrap(), ..in_order() };
        run(&scene.nodes, &scene.pods, how, 3).nodes
    };
    assert_eq!(Decider::parse("random"), Some(Decider::Ours(PolicyName::Random)));
    assert_ne!(nodes("random"), nodes("any-fit"));
    assert_eq!(nodes("any-fit"), nodes("Any-Fit"), "by chance, but of the seed");
}
