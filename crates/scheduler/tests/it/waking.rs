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
    let refused = vec![NodeName::parse("n-0").unwrap()];
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
