//! A new leader makes old Bindings fail, and counts what it has not been shown yet.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dialect::Settings;
use kubeapi::{Alone, Binding, BindingOutcome, Outside as _, Seen, UnreadPod};
use model::{NodeName, PodId, PodUid};
use scheduler::taking_over::TakingOver;
use serde_json::json;

use crate::build::{World, bind_body, filter_body, pod, read};

fn taking_over(world: &World) -> TakingOver {
    TakingOver {
        handle: world.handle.clone(),
        outside: world.store.clone(),
        leadership: Arc::new(Alone),
        settings: Arc::new(Settings::default()),
        schedulers: vec!["nanogpu".into()],
        clock: world.clock,
        held_back: world.held_back.clone(),
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

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_cannot_be_touched_holds_up_nobody_else() {
    let world = World::new(1).await;
    for name in ["a", "b"] {
        world.store.put(&pod(name, "30"));
    }
    world.store.untouchable.lock().unwrap().push("a".into());
    world.settle().await;
    assert_eq!(taking_over(&world).prepare().await, Ok(1));
    let bind = async |name| read(&world.service.bind(&bind_body(name, "n-0")).await.0);
    assert_eq!(bind("b").await["Error"], json!(""));
    let why = bind("a").await["Error"].as_str().unwrap().to_owned();
    assert!(why.contains("could not be touched after a change of leader"), "{why}");
    // Until nothing sent before can arrive any more.
    let uid = PodUid::parse("uid-a").unwrap();
    assert!(world.held_back.holds(&uid, Instant::now() + Duration::from_secs(50)));
    assert!(!world.held_back.holds(&uid, Instant::now() + Duration::from_secs(61)));
    assert_eq!(bind("a").await["Error"], json!(""));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_cannot_be_read_closes_its_node_and_no_other() {
    let world = World::new(2).await;
    let unread = |name: &str, node: Option<&str>| UnreadPod {
        pod: PodId {
            namespace: "team".into(),
            name: name.into(),
            uid: PodUid::parse(&format!("uid-{name}")).unwrap(),
        },
        node: node.map(|name| NodeName::parse(name).unwrap()),
        why: "not a pod".into(),
    };
    world.store.unread.lock().unwrap().extend([unread("x", Some("n-0")), unread("y", None)]);
    assert_eq!(taking_over(&world).prepare().await, Ok(0));
    let fits = || {
        let answer = world.service.filter(&filter_body(&pod("a", "30"), &world.names()), false);
        read(&answer)["NodeNames"].clone()
    };
    assert_eq!(fits(), json!(["n-1"]));
    // The watch shows the like, and when it is gone.
    world.tell(Seen::Unread(Arc::new(unread("z", Some("n-1"))))).await;
    world.settle().await;
    assert_eq!(fits(), json!([]));
    for uid in ["uid-x", "uid-z"] {
        world.tell(Seen::PodGone(PodUid::parse(uid).unwrap())).await;
    }
    world.settle().await;
    assert_eq!(fits(), json!(["n-0", "n-1"]));
}
