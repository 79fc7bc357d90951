//! Binds against an API server that fails on command: nothing is lost, nothing is sold twice.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kubeapi::{Leadership, Term};
use serde_json::{Value, json};

use crate::build::{Fault, World, bind_body, filter_body, pod, read};

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
    assert_eq!(world.service.metrics.conflicts.get(), 2);
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
async fn a_quota_is_held_to_the_last_percent_by_many_at_once() {
    let world = World::new(4).await;
    let quota = ledger::Quota::from_json(
        r#"{"version":1,"namespaces":{"team":{"models":{"T4":{"cores":200}}}}}"#,
    );
    world.tell(kubeapi::Seen::Ledger(ledger::Event::Quota(quota.unwrap()))).await;
    // Some are tried again because their pod changes, some are lost and found.
    world.store.faults.lock().unwrap().extend([Fault::Changed, Fault::Slow, Fault::LostBefore]);
    let names: Vec<String> = (0..30).map(|n| format!("p{n}")).collect();
    for name in &names {
        world.store.put(&pod(name, "30"));
    }
    world.settle().await;
    let binds = names.iter().enumerate().map(|(n, name)| {
        let (world, node) = (&world, format!("n-{}", n % 4));
        async move { bind(world, name, &node).await }
    });
    let errors = futures::future::join_all(binds).await;
    until(|| world.service.binder.under_way() == 0).await;
    // A lost one gives its part back once that is certain: it, or another, may have it then.
    for (n, (name, error)) in names.iter().zip(&errors).enumerate() {
        if error.contains("its share is kept for it") {
            bind(&world, name, &format!("n-{}", n % 4)).await;
        }
    }
    world.settle().await;
    let bound = names.iter().filter(|name| world.store.seen(name).unwrap().pod.node.is_some());
    assert_eq!(bound.count(), 6, "six times 30 of 200: {errors:?}");
    let refused = errors.iter().filter(|error| error.contains("quota")).count();
    assert!(refused >= 23, "{errors:?}");
    let picture = world.handle.picture();
    assert_eq!(picture.snapshot.allowance("team").rules[0].used.cores, model::Cores(180));
    assert!(picture.reserved.is_empty());
    // And filter says so of every node.
    let answer = world.service.filter(&filter_body(&pod("more", "30"), &world.names()), false);
    assert_eq!(read(&answer)["NodeNames"], json!([]));
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

/// A call of `/scheduler/predicates` for a pod of this version.
async fn predicate(world: &World, name: &str, percent: &str, version: u64) -> Value {
    let mut asked = pod(name, percent);
    asked["metadata"]["resourceVersion"] = json!(version.to_string());
    let body = json!({"Pod": asked, "NodeNames": world.names()}).to_string();
    read(&world.service.predicate(body.as_bytes()).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn predicates_gives_back_nothing_that_a_bind_holds() {
    let world = World::new(1).await;
    world.store.put(&pod("a", "30"));
    world.settle().await;
    // A Binding of unknown outcome: nobody knows until the pod can be touched.
    world.store.untouchable.lock().unwrap().push("a".into());
    world.store.faults.lock().unwrap().push_back(Fault::LostBefore);
    assert!(bind(&world, "a", "n-0").await.contains("its share is kept for it"));
    let answer = predicate(&world, "a", "30", 1).await;
    assert_eq!(answer["Error"], json!("a binding of pod team/a is under way"));
    assert_eq!(world.free("n-0"), 170);
    // A bind that succeeded, and our watch is late.
    world.store.put(&pod("b", "30"));
    world.settle().await;
    let watch = world.store.watch.lock().unwrap().take();
    assert_eq!(bind(&world, "b", "n-0").await, "");
    let answer = predicate(&world, "b", "30", 1).await;
    assert_eq!(answer["Error"], json!("a binding of pod team/b is under way"));
    assert_eq!(world.free("n-0"), 140);
    assert_eq!(world.service.predicates.decided(), 0);
    *world.store.watch.lock().unwrap() = watch;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decision_that_was_not_written_leaves_nothing_behind() {
    let world = World::new(1).await;
    world.store.put(&pod("a", "30"));
    world.settle().await;
    let answer = predicate(&world, "a", "30", 7).await;
    assert_eq!(answer["Error"], json!("pod team/a has changed; it is tried again"));
    world.store.untouchable.lock().unwrap().push("a".into());
    let answer = predicate(&world, "a", "30", 1).await;
    assert_eq!(
        answer["Error"],
        json!("the decision for pod team/a may not be written: a policy forbids it")
    );
    world.store.untouchable.lock().unwrap().clear();
    assert_eq!((world.service.predicates.decided(), world.free("n-0")), (0, 200));
    // One that was written is taken off the pod again if the next one cannot be.
    assert_eq!(predicate(&world, "a", "30", 1).await["Error"], json!(""));
    assert_eq!((world.service.predicates.decided(), world.free("n-0")), (1, 170));
    assert_ne!(predicate(&world, "a", "30", 1).await["Error"], json!(""), "it has changed");
    until(|| world.service.predicates.decided() == 0).await;
    assert_eq!(world.free("n-0"), 200);
    let seen = world.store.seen("a").unwrap();
    assert!(!seen.pod.annotations.contains_key("nano-gpu/placement"));
}

async fn until(done: impl Fn() -> bool) {
    let hang = Instant::now();
    while !done() {
        assert!(hang.elapsed() < Duration::from_secs(20), "never came");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
