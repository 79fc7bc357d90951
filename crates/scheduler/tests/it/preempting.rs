//! Nobody is evicted twice for the same pod, whoever asked first.

use kubeapi::Outside as _;
use model::{Moment, NodeName, PodUid};
use placement::NoPreemption;
use scheduler::preempting::Looked;
use scheduler::waking::Waits;
use serde_json::{Value, json};

use crate::build::{World, pod, read};

/// Two nodes, each with both cards held by a pod of low priority.
async fn full() -> World {
    let world = World::new(2).await;
    for node in ["n-0", "n-1"] {
        for card in [0, 1] {
            let mut low = pod(&format!("low-{node}-{card}"), "100");
            low["spec"]["nodeName"] = json!(node);
            low["spec"]["priority"] = json!(-5);
            let placement = format!("v1;{node};c=GPU-{node}-{card}:whole");
            low["metadata"]["annotations"] = json!({"nano-gpu/placement": placement});
            low["status"]["phase"] = json!("Running");
            world.store.put(&low);
        }
    }
    world.store.put(&pod("high", "100"));
    world.settle().await;
    world
}

/// The pod as one that kube-scheduler asked about `nodes` for, and was refused on all.
fn waits(world: &World, nodes: &[&str]) -> Waits {
    let asked = world.handle.pods.pending_named("team", "high").unwrap().asked.clone().unwrap();
    let refused = nodes.iter().map(|name| NodeName::parse(name).unwrap()).collect();
    Waits::new(asked, refused, true, world.handle.picture(), Moment(0))
}

fn preempt(world: &World, node: &str) -> Value {
    let victims = json!({node: {"Pods": [{"UID": format!("uid-low-{node}-0")}]}});
    let body = json!({"Pod": pod("high", "100"), "NodeNameToMetaVictims": victims}).to_string();
    read(&world.service.preempt(body.as_bytes()))["NodeNameToMetaVictims"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leader_evicts_nobody_while_kube_schedulers_victims_leave() {
    let world = full().await;
    let preempting = &world.service.preempting;
    assert_eq!(preempt(&world, "n-0").as_object().unwrap().len(), 1);
    let told_at = world.clock.now();
    // It may be about to evict.
    let waiting = || vec![waits(&world, &["n-1"])];
    assert!(preempting.due(waiting(), told_at.after(4_000)).is_empty());
    // It has, and its own filter leaves that node out while the victim ends.
    let victim = world.store.seen("low-n-0-0").unwrap().pod.id;
    world.store.evict(&victim).await;
    let high = world.store.seen("high").unwrap().pod.id;
    world.store.nominate(&high, &NodeName::parse("n-0").unwrap()).await;
    world.settle().await;
    world.store.evicted.lock().unwrap().clear();
    let later = told_at.after(60_000);
    assert_eq!(preempting.due(waiting(), later).len(), 1);
    let node = NodeName::parse("n-0").unwrap();
    let looked = preempting.look(&waits(&world, &["n-1"]), later).await;
    assert_eq!(looked, Looked::Nobody(NoPreemption::Waiting { node }));
    assert_eq!(preempt(&world, "n-1"), json!({}), "nor does kube-scheduler");
    assert!(world.store.evicted.lock().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_eviction_promises_nothing() {
    let world = full().await;
    world.store.guarded.lock().unwrap().extend(["low-n-1-0", "low-n-1-1"].map(String::from));
    let looked = world.service.preempting.look(&waits(&world, &["n-1"]), Moment(10_000)).await;
    assert!(matches!(&looked, Looked::Stopped(why) if why.contains("its budget is spent")));
    // What comes free there by itself is anyone's.
    world.store.remove("low-n-1-0");
    world.settle().await;
    assert!(world.handle.picture().nominees.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_told_of_a_pod_is_kept_before_our_watch_shows_it_and_not_for_ever() {
    let world = full().await;
    let (preempting, uid) = (&world.service.preempting, PodUid::parse("uid-unseen").unwrap());
    let now = world.clock.now();
    preempting.asked_by_scheduler(&uid, now);
    preempting.told_scheduler(&uid, now);
    preempting.tidy(now.after(1_000));
    assert!(preempting.is_carried_out(&uid, now.after(1_000)));
    preempting.tidy(now.after(10_001));
    assert_eq!(preempting.remembered(), 0);
}
