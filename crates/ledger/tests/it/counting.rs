//! Pods, nodes and cards that come, change and go.

use std::sync::Arc;

use ledger::{Event, Ledger, Measured};
use model::arb::node_name;
use model::{
    Agent, Bytes, Claim, Claimed, Cores, DeviceRef, Health, Host, Mebibytes, MemoryAsk, MilliCpu,
    Moment, Part, Portion, Problem, Role,
};

use crate::build::{facts, frees, ledger, node, pod, share, simple, uid};

#[test]
fn init_containers_peak_and_sidecars_add_on_each_card() {
    let mut ledger = ledger(vec![facts("a", 2)]);
    ledger.apply(Event::Pod(pod(
        "p",
        "a",
        &[
            (Role::Init, &[(0, share(80, 800))]),
            (Role::Sidecar, &[(1, share(10, 100))]),
            (Role::App, &[(0, share(40, 400)), (1, share(20, 200))]),
        ],
    )));
    assert_eq!(frees(&ledger, "a"), [(20, 200), (70, 700)]);
    ledger.apply(Event::PodGone(uid("uid-p")));
    assert_eq!(frees(&ledger, "a"), [(100, 1000), (100, 1000)]);
}

#[test]
fn free_cpu_and_memory_count_every_pod() {
    let mut ledger = ledger(vec![facts("a", 1)]);
    let mut plain = simple("plain", "a", 0, 1, 1);
    plain.claim = Claim::Nothing;
    ledger.apply(Event::Pod(plain));
    ledger.apply(Event::Pod(simple("gpu", "a", 0, 10, 10)));
    let expected = Host { cpu: MilliCpu(6000), memory: Bytes((1 << 34) - (2 << 30)) };
    assert_eq!(node(&ledger, "a").free, expected);
}

#[test]
fn a_terminating_pod_holds_until_it_is_gone() {
    // Defect 5 of gpushare: memory came free while containers still ran.
    let mut ledger = ledger(vec![facts("a", 1)]);
    let mut leaving = simple("p", "a", 0, 60, 600);
    leaving.terminating = true;
    ledger.apply(Event::Pod(leaving));
    assert_eq!(frees(&ledger, "a"), [(40, 400)]);
}

#[test]
fn cards_added_lost_and_resized_while_pods_run() {
    // Defect 6 of gpushare: a changed card list went unnoticed.
    let mut ledger = ledger(vec![facts("a", 2)]);
    ledger.apply(Event::Pod(simple("p", "a", 1, 60, 600)));
    ledger.apply(Event::Node(facts("a", 4)));
    assert_eq!(frees(&ledger, "a"), [(100, 1000), (40, 400), (100, 1000), (100, 1000)]);
    ledger.apply(Event::Node(facts("a", 1)));
    assert_eq!(frees(&ledger, "a"), [(100, 1000)]);
    assert_eq!(node(&ledger, "a").missing, ["GPU-a-1 of team-a/p"]);
    let mut smaller = facts("a", 2);
    if let Some(Ok(inventory)) = &mut smaller.inventory {
        Arc::make_mut(&mut inventory.devices[1]).memory = Mebibytes(500);
    }
    ledger.apply(Event::Node(smaller));
    assert_eq!(frees(&ledger, "a"), [(100, 1000), (40, 0)]);
}

#[test]
fn more_held_than_there_is_leaves_nothing_and_never_wraps() {
    // Defect 2 of gpushare: used > total made the free memory huge.
    let mut ledger = ledger(vec![facts("a", 1)]);
    for name in ["p", "q", "r"] {
        ledger.apply(Event::Pod(simple(name, "a", 0, u32::MAX, u64::MAX)));
    }
    assert_eq!(frees(&ledger, "a"), [(0, 0)]);
    ledger.apply(Event::PodGone(uid("uid-p")));
    ledger.apply(Event::PodGone(uid("uid-q")));
    ledger.apply(Event::PodGone(uid("uid-r")));
    assert_eq!(frees(&ledger, "a"), [(100, 1000)]);
}

#[test]
fn pods_of_one_name_and_different_uids_are_different() {
    let mut ledger = ledger(vec![facts("a", 1)]);
    let mut first = simple("p", "a", 0, 30, 300);
    ledger.apply(Event::Pod(first.clone()));
    first.pod.uid = uid("another");
    ledger.apply(Event::Pod(first));
    assert_eq!(frees(&ledger, "a"), [(40, 400)]);
    ledger.apply(Event::PodGone(uid("uid-p")));
    assert_eq!(frees(&ledger, "a"), [(70, 700)]);
}

#[test]
fn a_device_listed_by_two_nodes_is_sold_by_neither() {
    let mut ledger = ledger(vec![facts("a", 1), facts("b", 1)]);
    let mut moved = facts("b", 1);
    let Some(Ok(inventory)) = &mut moved.inventory else { unreachable!() };
    Arc::make_mut(&mut inventory.devices[0]).id = model::arb::device_id("GPU-a-0");
    ledger.apply(Event::Node(moved));
    assert!(!node(&ledger, "a").devices[0].sells() && !node(&ledger, "b").devices[0].sells());
    ledger.apply(Event::Node(facts("b", 1)));
    assert!(node(&ledger, "a").devices[0].sells() && node(&ledger, "b").devices[0].sells());
}

#[test]
fn pods_of_replaced_systems_point_by_number() {
    let mut facts = facts("a", 2);
    let Some(Ok(inventory)) = &mut facts.inventory else { unreachable!() };
    Arc::make_mut(&mut inventory.devices[0]).minor = 1;
    Arc::make_mut(&mut inventory.devices[1]).minor = 0;
    let mut ledger = Ledger::new();
    let part = Part::Share { cores: Cores(50), memory: MemoryAsk::Percent(Cores(50)) };
    for (name, points_at) in [("p", DeviceRef::Minor(0)), ("q", DeviceRef::Index(0))] {
        let mut holder = simple(name, "a", 0, 0, 0);
        let parts = vec![(points_at, part)];
        holder.claim = Claim::Shares(vec![Claimed { role: Role::App, parts }]);
        // The pod may be heard of before its node.
        ledger.apply(Event::Pod(holder));
    }
    ledger.apply(Event::Node(facts));
    assert_eq!(frees(&ledger, "a"), [(50, 500), (50, 500)]);
}

#[test]
fn what_cannot_be_read_closes_the_node() {
    let mut ledger = ledger(vec![facts("a", 1)]);
    let mut odd = simple("p", "a", 0, 1, 1);
    odd.claim = Claim::Unreadable("placement has version \"v9\"".into());
    ledger.apply(Event::Pod(odd));
    let why = "pod team-a/p: placement has version \"v9\"".to_owned();
    assert_eq!(node(&ledger, "a").problem, Some(Problem::Holder(why)));
    let mut broken = facts("b", 1);
    broken.inventory = Some(Err("inventory is not the JSON it should be".into()));
    ledger.apply(Event::Node(broken));
    let problem = node(&ledger, "b").problem;
    assert_eq!(problem, Some(Problem::Inventory("inventory is not the JSON it should be".into())));
}

#[test]
fn tickets_of_pods_that_never_met_our_scheduler_are_counted() {
    let mut ledger = ledger(vec![facts("a", 1)]);
    let mut stranger = simple("p", "a", 0, 0, 0);
    stranger.claim = Claim::Nothing;
    stranger.tickets = vec![("nano-gpu/gpu-percent".into(), 70)];
    ledger.apply(Event::Pod(stranger));
    let mut another = simple("q", "a", 0, 0, 0);
    another.tickets = vec![("nano-gpu/gpu-percent".into(), 20)];
    another.claim = Claim::Nothing;
    ledger.apply(Event::Pod(another));
    let tickets = node(&ledger, "a").tickets["nano-gpu/gpu-percent"];
    assert_eq!((tickets.total, tickets.used, tickets.free()), (100, 90, 10));
    assert_eq!(frees(&ledger, "a"), [(100, 1000)]);
}

#[test]
fn a_silent_agent_becomes_stale_and_comes_back() {
    let mut ledger = ledger(vec![facts("a", 1)]);
    ledger.expire(Moment(40_000));
    assert_eq!(node(&ledger, "a").agent, Agent::Fresh);
    ledger.expire(Moment(40_001));
    assert_eq!(node(&ledger, "a").agent, Agent::Stale);
    ledger.apply(Event::Heartbeat { node: node_name("a"), at: Moment(41_000) });
    assert_eq!(node(&ledger, "a").agent, Agent::Fresh);
    // A clock that steps back changes nothing.
    ledger.expire(Moment(5));
    assert_eq!(node(&ledger, "a").agent, Agent::Fresh);
    ledger.apply(Event::Node(facts("b", 1)));
    assert_eq!(node(&ledger, "b").agent, Agent::Never);
}

#[test]
fn heartbeats_of_nodes_that_never_come_are_forgotten() {
    let mut ledger = Ledger::new();
    ledger.apply(Event::Heartbeat { node: node_name("ghost"), at: Moment(0) });
    assert!(format!("{ledger:?}").contains("ghost"));
    ledger.expire(Moment(40_001));
    assert!(!format!("{ledger:?}").contains("ghost"));
}

#[test]
fn a_node_that_comes_back_finds_its_pods_counted() {
    let mut ledger = ledger(vec![facts("a", 1)]);
    ledger.apply(Event::Pod(pod("p", "a", &[(Role::App, &[(0, Portion::Whole)])])));
    ledger.apply(Event::NodeGone(node_name("a")));
    assert!(ledger.snapshot().nodes().is_empty());
    ledger.apply(Event::Node(facts("a", 1)));
    assert_eq!(frees(&ledger, "a"), [(0, 0)]);
}

#[test]
fn load_beyond_what_was_sold_makes_a_card_hot_and_does_not_flap() {
    let mut ledger = ledger(vec![facts("a", 1)]);
    ledger.apply(Event::Pod(simple("p", "a", 0, 50, 300)));
    let mut measure = |busy, strangers| {
        let measured = Measured { busy: Cores(busy), strangers: Mebibytes(strangers) };
        let devices = vec![(model::arb::device_id("GPU-a-0"), measured)];
        ledger.apply(Event::Load { node: node_name("a"), devices });
        let state = node(&ledger, "a").devices[0].clone();
        (state.load.hot, state.free_memory().0)
    };
    // What its own pod was sold explains 50.
    assert_eq!(measure(79, 0), (false, 700));
    assert_eq!(measure(80, 0), (true, 700));
    assert_eq!(measure(70, 0), (true, 700));
    assert_eq!(measure(65, 0), (false, 700));
    // Strangers' memory is taken off in blocks, and given back calmly.
    assert_eq!(measure(0, 100), (false, 444));
    assert_eq!(measure(0, 300), (false, 188));
    assert_eq!(measure(0, 250), (false, 188));
    assert_eq!(measure(0, 0), (false, 700));
}

#[test]
fn health_closes_a_card_for_new_work_only() {
    let mut ledger = ledger(vec![facts("a", 1)]);
    ledger.apply(Event::Pod(simple("p", "a", 0, 30, 300)));
    let mut sick = facts("a", 1);
    let Some(Ok(inventory)) = &mut sick.inventory else { unreachable!() };
    Arc::make_mut(&mut inventory.devices[0]).health = Health::Sick;
    ledger.apply(Event::Node(sick));
    let device = &node(&ledger, "a").devices[0];
    assert!(!device.sells());
    assert_eq!(device.used.holders, 1);
}

#[test]
fn what_is_told_once_more_changes_nothing() {
    let mut ledger = ledger(vec![facts("a", 2)]);
    let held = simple("p", "a", 0, 60, 600);
    let load = || Event::Load {
        node: node_name("a"),
        devices: vec![(
            model::arb::device_id("GPU-a-0"),
            Measured { busy: Cores(95), strangers: Mebibytes(0) },
        )],
    };
    ledger.apply(Event::Pod(held.clone()));
    ledger.apply(load());
    let (view, changes) = (ledger.node(&node_name("a")).cloned().unwrap(), ledger.changes());
    let again = [
        Event::Heartbeat { node: node_name("a"), at: Moment(10_000) },
        Event::Node(facts("a", 2)),
        Event::Pod(held),
        load(),
        Event::PodGone(uid("nobody")),
        Event::Quota(ledger::Quota::default()),
    ];
    for event in again {
        ledger.apply(event.clone());
        assert!(Arc::ptr_eq(&view, ledger.node(&node_name("a")).unwrap()), "{event:?}");
        assert_eq!(ledger.changes(), changes, "{event:?}");
    }
    // What it says counts all the same: the silence begins anew.
    ledger.expire(Moment(45_000));
    assert_eq!(node(&ledger, "a").agent, Agent::Fresh);
    ledger.expire(Moment(50_001));
    assert_eq!(node(&ledger, "a").agent, Agent::Stale);
    assert!(ledger.changes() > changes);
    ledger.apply(Event::Heartbeat { node: node_name("a"), at: Moment(50_002) });
    assert_eq!(node(&ledger, "a").agent, Agent::Fresh);
}
