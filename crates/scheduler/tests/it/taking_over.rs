//! A new leader makes old Bindings fail, and counts what it has not been shown yet.

use std::sync::Arc;

use dialect::Settings;
use kubeapi::{Alone, Binding, BindingOutcome, Outside as _};
use model::NodeName;
use scheduler::taking_over::TakingOver;
use serde_json::json;

use crate::build::{World, pod};

fn taking_over(world: &World) -> TakingOver {
    TakingOver {
        handle: world.handle.clone(),
        outside: world.store.clone(),
        leadership: Arc::new(Alone),
        settings: Arc::new(Settings::default()),
        schedulers: vec!["nanogpu".into()],
        clock: world.clock,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_binding_of_the_leader_before_can_only_fail() {
    let world = World::new(1).await;
    world.store.put(&pod("a", "30"));
    let mut foreign = pod("foreign", "30");
    foreign["spec"]["schedulerName"] = json!("another");
    world.store.put(&foreign);
    world.settle().await;
    let seen = world.store.seen("a").unwrap();
    let late = Binding {
        pod: seen.pod.id.clone(),
        version: seen.version,
        node: NodeName::parse("n-0").unwrap(),
        annotations: [].into(),
        labels: [].into(),
    };
    assert_eq!(taking_over(&world).prepare().await, Ok(1), "only ours are touched");
    assert!(matches!(world.store.bind(late).await, BindingOutcome::Conflict(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_bound_unseen_is_counted() {
    let world = World::new(1).await;
    world.store.put(&pod("a", "30"));
    world.settle().await;
    // Bound by the leader before, and our watch is late.
    let watch = world.store.watch.lock().unwrap().take();
    let mut bound = pod("a", "30");
    bound["spec"]["nodeName"] = json!("n-0");
    bound["metadata"]["annotations"] =
        json!({"nano-gpu/placement": "v1;n-0;c=GPU-n-0-0:30%+4915Mi"});
    world.store.put(&bound);
    assert_eq!(world.free("n-0"), 200);
    assert_eq!(taking_over(&world).prepare().await, Ok(0));
    assert_eq!(world.free("n-0"), 170);
    *world.store.watch.lock().unwrap() = watch;
    // Then it is gone, and stays so.
    world.store.remove("a");
    world.settle().await;
    assert_eq!(world.free("n-0"), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decision_without_a_bind_is_taken_back() {
    let world = World::new(1).await;
    let mut predicated = pod("a", "30");
    predicated["metadata"]["annotations"] =
        json!({"nano-gpu/placement": "v1;n-0@1700000000000000000;c=GPU-n-0-0:30%+4915Mi"});
    world.store.put(&predicated);
    world.settle().await;
    assert_eq!(taking_over(&world).prepare().await, Ok(1));
    let seen = world.store.seen("a").unwrap();
    assert!(!seen.pod.annotations.contains_key("nano-gpu/placement"));
}
