//! Binds against an API server that fails on command: nothing is lost, nothing is sold twice.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kubeapi::{Leadership, Term};
use serde_json::{Value, json};

use crate::build::{Fault, World, bind_body, pod, read};

async fn bind(world: &World, name: &str, node: &str) -> String {
    let (answer, _) = world.service.bind(&bind_body(name, node)).await;
    read(&answer)["Error"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bind_is_one_write_with_the_placement() {
    let world = World::new(1).await;
    world.store.put(&pod("a", "30"));
    world.settle().await;
    assert_eq!(bind(&world, "a", "n-0").await, "");
    let seen = world.store.seen("a").unwrap();
    assert_eq!(seen.pod.node.as_ref().unwrap().as_str(), "n-0");
    assert_eq!(seen.pod.annotations["nano-gpu/placement"], "v1;n-0;c=GPU-n-0-0:30%+4915Mi");
    world.settle().await;
    assert_eq!(world.free("n-0"), 170);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_may_not_be_bound_is_refused_with_a_reason() {
    let world = World::new(1).await;
    let mut bound = pod("bound", "20");
    bound["spec"]["nodeName"] = json!("n-0");
    let mut foreign = pod("foreign", "20");
    foreign["spec"]["schedulerName"] = json!("another");
    let mut ordinary = pod("ordinary", "20");
    ordinary["spec"]["containers"] = json!([{"name": "c"}]);
    for pod in [&bound, &foreign, &ordinary, &pod("fine", "20"), &pod("wrong", "150")] {
        world.store.put(pod);
    }
    world.settle().await;
    let table = [
        ("bound", "n-0", "is already bound to node n-0"),
        ("foreign", "n-0", "belongs to scheduler another"),
        ("ordinary", "n-0", "asks for no resource that nanogpu manages"),
        ("deleted", "n-0", "is gone"),
        ("wrong", "n-0", "it must be 1 to 99"),
        ("fine", "never-seen", "node never-seen is not known"),
        ("fine", "Not A Name", "names no pod and node"),
    ];
    for (name, node, why) in table {
        let error = bind(&world, name, node).await;
        assert!(error.contains(why), "{name}: {error}");
    }
    assert_eq!(*world.store.bindings.lock().unwrap(), 0);
    assert_eq!(bind(&world, "fine", "n-0").await, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_changed_is_read_again_and_bound() {
    let world = World::new(1).await;
    world.store.put(&pod("a", "30"));
    world.settle().await;
    world.store.faults.lock().unwrap().extend([Fault::Changed, Fault::Changed]);
    assert_eq!(bind(&world, "a", "n-0").await, "");
    assert_eq!(*world.store.bindings.lock().unwrap(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_binding_gives_its_share_back() {
    let world = World::new(1).await;
    world.store.put(&pod("a", "30"));
    world.settle().await;
    world.store.faults.lock().unwrap().push_back(Fault::Refused);
    assert!(bind(&world, "a", "n-0").await.contains("not today"));
    assert_eq!(world.free("n-0"), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_binding_lost_before_it_arrived_is_certain_after_a_touch() {
    let world = World::new(1).await;
    world.store.put(&pod("a", "30"));
    world.settle().await;
    world.store.faults.lock().unwrap().push_back(Fault::LostBefore);
    assert!(bind(&world, "a", "n-0").await.contains("its share is kept for it"));
    until(|| world.free("n-0") == 200).await;
    assert_eq!(*world.store.touches.lock().unwrap(), 1);
    until(|| world.service.binder.under_way() == 0).await;
    assert_eq!(bind(&world, "a", "n-0").await, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_binding_that_arrived_unheard_keeps_its_share() {
    let world = World::new(1).await;
    world.store.put(&pod("a", "30"));
    world.settle().await;
    world.store.faults.lock().unwrap().push_back(Fault::LostAfter);
    assert!(bind(&world, "a", "n-0").await.contains("its share is kept for it"));
    until(|| world.service.binder.under_way() == 0).await;
    world.settle().await;
    assert_eq!(world.free("n-0"), 170);
    assert_eq!(*world.store.touches.lock().unwrap(), 0, "a bound pod is not touched");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_bind_joins_the_first() {
    let world = World::new(2).await;
    world.store.put(&pod("a", "30"));
    world.settle().await;
    world.store.faults.lock().unwrap().push_back(Fault::Slow);
    let (first, second) = tokio::join!(bind(&world, "a", "n-0"), bind(&world, "a", "n-0"));
    assert_eq!((first.as_str(), second.as_str()), ("", ""));
    assert_eq!(*world.store.bindings.lock().unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_pods_for_the_last_share_are_one_too_many() {
    let world = World::new(1).await;
    for name in ["a", "b", "c"] {
        world.store.put(&pod(name, "100"));
    }
    world.settle().await;
    let (a, b, c) =
        tokio::join!(bind(&world, "a", "n-0"), bind(&world, "b", "n-0"), bind(&world, "c", "n-0"));
    let errors: Vec<String> = [a, b, c].into_iter().filter(|error| !error.is_empty()).collect();
    assert_eq!(errors, ["node n-0: no card wholly free"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_does_not_lead_binds_nothing() {
    struct Others;
    impl Leadership for Others {
        fn term(&self) -> Term {
            Term::Others { address: None }
        }
    }
    let world = World::led_by(1, Arc::new(Others)).await;
    world.store.put(&pod("a", "30"));
    world.settle().await;
    let (answer, _) = world.service.bind(&bind_body("a", "n-0")).await;
    assert_eq!(answer.status, 503);
    assert!(read(&answer)["Error"].as_str().unwrap().contains("does not lead"));
    assert_eq!(*world.store.bindings.lock().unwrap(), 0);
}

/// A term that ends between the reservation and the Binding: nothing is sent.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_time_is_over_sends_nothing() {
    struct Ending(Instant);
    impl Leadership for Ending {
        fn term(&self) -> Term {
            Term::Ours { until: self.0, number: 1 }
        }
    }
    let world = World::led_by(1, Arc::new(Ending(Instant::now()))).await;
    world.store.put(&pod("a", "30"));
    world.settle().await;
    assert!(bind(&world, "a", "n-0").await.contains("does not lead"));
    assert_eq!(world.free("n-0"), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn predicates_writes_one_node_onto_the_pod() {
    let world = World::new(2).await;
    world.store.put(&pod("a", "30"));
    world.settle().await;
    let mut asked = pod("a", "30");
    asked["metadata"]["resourceVersion"] = json!("1");
    let nodes: Vec<Value> = world
        .names()
        .iter()
        .map(|name| json!({"metadata": {"name": name}, "spec": {"x": 1}}))
        .collect();
    let body = json!({"Pod": asked, "Nodes": {"items": nodes}}).to_string();
    let answer = read(&world.service.predicate(body.as_bytes()).await);
    assert_eq!(answer["Nodes"]["items"].as_array().unwrap().len(), 1, "{answer}");
    assert_eq!(answer["Nodes"]["items"][0]["spec"]["x"], json!(1));
    assert_eq!(answer["FailedNodes"].as_object().unwrap().len(), 1);
    let seen = world.store.seen("a").unwrap();
    let node = answer["Nodes"]["items"][0]["metadata"]["name"].as_str().unwrap();
    assert!(seen.pod.annotations["nano-gpu/placement"].starts_with(&format!("v1;{node}@")));
    assert_eq!(world.free(node), 170);
    // Asked again, it is decided again and held once.
    asked["metadata"]["resourceVersion"] = json!("2");
    let body = json!({"Pod": asked, "Nodes": {"items": nodes}}).to_string();
    let again = read(&world.service.predicate(body.as_bytes()).await);
    assert_eq!(again["Error"], json!(""), "{again}");
    assert_eq!(world.free("n-0") + world.free("n-1"), 370);
}

async fn until(done: impl Fn() -> bool) {
    let hang = Instant::now();
    while !done() {
        assert!(hang.elapsed() < Duration::from_secs(20), "never came");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
