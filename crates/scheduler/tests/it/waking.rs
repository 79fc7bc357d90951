//! Refused pods are woken once for what they can use, and for nothing else.

use kubeapi::Seen;
use ledger::{Event, Quota};
use model::{Moment, NodeName};
use placement::Policy;
use serde_json::json;

use crate::build::{World, filter_body, pod, read};

/// A node whose two cards are held by x and y, 60 of each.
async fn full() -> World {
    let world = World::new(1).await;
    for (name, card) in [("x", 0), ("y", 1)] {
        let mut held = pod(name, "60");
        held["spec"]["nodeName"] = json!("n-0");
        let placement = format!("v1;n-0;c=GPU-n-0-{card}:60%+9830Mi");
        held["metadata"]["annotations"] = json!({"nano-gpu/placement": placement});
        world.store.put(&held);
    }
    world.settle().await;
    world
}

fn wakes(world: &World, now: u64) -> Vec<String> {
    let picture = world.handle.picture();
    let woken = world.service.waiting.wakes(&picture, Policy::default(), Moment(now));
    woken.into_iter().map(|pod| pod.name).collect()
}

async fn refused(world: &World, name: &str, percent: &str) {
    world.store.put(&pod(name, percent));
    world.settle().await;
    let answer = world.service.filter(&filter_body(&pod(name, percent), &world.names()), false);
    assert_eq!(read(&answer)["NodeNames"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_wakes_who_fits_then_and_nobody_else() {
    let world = full().await;
    refused(&world, "half", "50").await;
    refused(&world, "whole", "200").await;
    assert!(wakes(&world, 10_000).is_empty(), "nothing was released");
    world.store.remove("x");
    world.settle().await;
    assert_eq!(wakes(&world, 20_000), ["half"]);
    assert!(wakes(&world, 30_000).is_empty(), "once");
    world.store.remove("y");
    world.settle().await;
    assert_eq!(wakes(&world, 40_000), ["half", "whole"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_between_the_look_and_the_note_is_not_missed() {
    let world = full().await;
    world.store.put(&pod("half", "50"));
    world.settle().await;
    // Filter looks at the picture before; the release is published while it works.
    let before = world.handle.picture();
    world.store.remove("x");
    world.settle().await;
    let asked = world.handle.pods.pending_named("team", "half").unwrap().asked.clone().unwrap();
    let refused = [NodeName::parse("n-0").unwrap()].into();
    let waits = scheduler::waking::Waits::new(asked, refused, true, before, Moment(0));
    world.service.waiting.refused(waits);
    assert_eq!(wakes(&world, 10_000), ["half"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn at_most_one_wake_a_second_and_none_is_lost_by_that() {
    let world = full().await;
    refused(&world, "half", "50").await;
    world.store.remove("x");
    world.settle().await;
    assert_eq!(wakes(&world, 10_000), ["half"]);
    world.store.remove("y");
    world.settle().await;
    assert!(wakes(&world, 10_500).is_empty());
    assert_eq!(wakes(&world, 11_000), ["half"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn quota_that_grows_wakes() {
    let world = World::new(1).await;
    let quota = |cards: u32| {
        let text = format!(r#"{{"team":{{"quota":{{"T4":{cards}}}}}}}"#);
        Seen::Ledger(Event::Quota(Quota::from_gpu_admission(&text).unwrap()))
    };
    world.tell(quota(0)).await;
    world.settle().await;
    refused(&world, "a", "30").await;
    assert!(wakes(&world, 10_000).is_empty());
    world.tell(quota(1)).await;
    world.settle().await;
    assert_eq!(wakes(&world, 20_000), ["a"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_refused_before_our_watch_shows_it_is_woken() {
    let world = full().await;
    let waiting = &world.service.waiting;
    // kube-scheduler is ahead of our watch.
    let body = filter_body(&pod("half", "50"), &world.names());
    assert_eq!(read(&world.service.filter(&body, false))["NodeNames"], json!([]));
    let asked_at = world.clock.now();
    waiting.tidy(&world.handle.pods, asked_at.after(20_000));
    world.store.remove("x");
    world.settle().await;
    assert_eq!(wakes(&world, 10_000), ["half"]);
    // A pod that never shows is forgotten, and one that is on a node at once.
    waiting.tidy(&world.handle.pods, asked_at.after(31_000));
    assert!(waiting.is_empty());
    drop(world.service.filter(&filter_body(&pod("y", "50"), &["nowhere".into()]), false));
    assert_eq!(waiting.len(), 1);
    waiting.tidy(&world.handle.pods, asked_at);
    assert!(waiting.is_empty(), "y is on a node");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_standby_refused_is_woken_by_a_leader_that_has_room() {
    let world = World::new(1).await;
    world.store.put(&pod("a", "30"));
    world.settle().await;
    let body = filter_body(&pod("a", "30"), &world.names());
    let answer = read(&world.service.refused_elsewhere(&body));
    assert_eq!(answer["NodeNames"], json!(["n-0"]), "it fits here");
    assert_eq!(wakes(&world, 10_000), ["a"], "but kube-scheduler was told no");
    assert!(wakes(&world, 20_000).is_empty(), "once");
    // One that we refuse too waits for a change.
    world.store.put(&pod("b", "300"));
    world.settle().await;
    let body = filter_body(&pod("b", "300"), &world.names());
    assert_eq!(read(&world.service.refused_elsewhere(&body))["NodeNames"], json!([]));
    assert_eq!(world.service.waiting.len(), 2);
    assert!(wakes(&world, 30_000).is_empty());
}
