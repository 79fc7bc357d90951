//! What must be true of the cluster in the end, whoever decided and whatever came and went.

use model::{Bytes, Host, MilliCpu};
use sim::arrival::Order;
use sim::baseline::Scoring;
use sim::churn::TYPE_BOUND;
use sim::replay::{Decider, Run, run};
use sim::world::World;

use crate::build::{in_order, made};

/// No card and no host is sold twice, and what is allocated is the sum over the cards.
fn check(world: &World, running: &[(usize, usize)], pods: &[sim::trace::TracePod], who: &str) {
    let mut allocated = 0;
    for node in world.nodes() {
        for state in &node.devices {
            let (hold, device) = (&state.used.hold, &state.device);
            assert!(hold.cores <= device.cores, "{who}: {hold:?} of {device:?}");
            assert!(hold.memory <= device.memory, "{who}: {hold:?} of {device:?}");
            assert!(!hold.whole || state.used.holders == 1, "{who}: shared with {}", device.id);
            allocated += u64::from(hold.cores.0) * 10;
        }
        let on = running.iter().filter(|(place, _)| world.nodes()[*place].name == node.name);
        let asked = on.fold(Host::default(), |sum, (_, pod)| {
            let host = pods[*pod].request.host;
            Host { cpu: sum.cpu + host.cpu, memory: sum.memory + host.memory }
        });
        assert_eq!(asked.cpu + node.free.cpu, node.allocatable.cpu, "{who}");
        assert_eq!(asked.memory + node.free.memory, node.allocatable.memory, "{who}");
        assert!(node.free != Host { cpu: MilliCpu::MAX, memory: Bytes::MAX });
    }
    assert_eq!(allocated, running.iter().map(|(_, pod)| pods[*pod].milli).sum::<u64>(), "{who}");
    #[expect(clippy::cast_precision_loss, reason = "a few cards")]
    let percent = allocated as f64 * 100.0 / world.capacity() as f64;
    assert!(
        (world.allocated() - percent).abs() < 1e-9,
        "{who}: {} is {percent}",
        world.allocated()
    );
    assert!((0.0..=100.0 - percent + 1e-6).contains(&world.fragmented()), "{who}");
}

#[test]
fn nothing_is_sold_twice_by_any_policy() {
    let scene = made();
    for decider in Decider::all() {
        for as_extender in [None, Some(Scoring::LeastAllocated), Some(Scoring::MostAllocated)] {
            let how = Run { decider, as_extender, ..in_order() };
            let rng = fastrand::Rng::with_seed(9);
            let mut world = World::new(&scene.nodes, &scene.pods, how, rng);
            let mut running = Vec::new();
            let mut leaving = fastrand::Rng::with_seed(4);
            for event in 0..600 {
                let pod = event % scene.pods.len();
                running.extend(world.arrive(pod).place.map(|place| (place, pod)));
                if event > 200 && !running.is_empty() {
                    let (place, pod) = running.swap_remove(leaving.usize(..running.len()));
                    world.leave(place, pod);
                }
                if event % 100 == 99 {
                    check(&world, &running, &scene.pods, decider.as_str());
                }
            }
            for (place, pod) in std::mem::take(&mut running) {
                world.leave(place, pod);
            }
            check(&world, &running, &scene.pods, decider.as_str());
            assert!(world.nodes().iter().all(|node| node.free == node.allocatable));
        }
    }
}

#[test]
fn churn_brings_the_same_pods_to_every_policy_and_counts_them_apart() {
    let scene = made();
    let churned = |name: &str| {
        let decider = Decider::parse(name).unwrap();
        let how = Run { decider, order: Order::Shuffled, churn: 400, ..in_order() };
        run(&scene.nodes, &scene.pods, how, 5).churn.unwrap()
    };
    let (ours, spread) = (churned("stranding"), churned("spread"));
    assert_eq!(ours.came, spread.came);
    assert_eq!(ours, churned("stranding"));
    // Half of the events count, each with 1.3 arrivals on average.
    let classes = ours.came.iter().filter(|(class, _)| **class != TYPE_BOUND);
    let came: u64 = classes.map(|(_, count)| count).sum();
    assert!((230..=290).contains(&came), "{came}");
    assert!(ours.came[TYPE_BOUND] > 0 && ours.came["several-cards"] > 0);
    assert!(ours.rejected.iter().all(|(class, count)| *count <= ours.came[class]));
    assert!((50.0..=100.0).contains(&ours.allocated), "{}", ours.allocated);
}

#[test]
fn without_churn_nothing_is_said_of_it() {
    let scene = made();
    assert_eq!(run(&scene.nodes, &scene.pods, in_order(), 1).churn, None);
}
