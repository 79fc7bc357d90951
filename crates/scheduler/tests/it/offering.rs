//! Of many nodes that can take a pod the best are named to kube-scheduler.

use std::collections::BTreeSet;

use dialect::{Settings, read};
use model::Pod;
use placement::{Ask, Policy, rank};
use serde_json::{Value, json};

use crate::build::{OFFER, World, filter_body, pod};

/// What filter names of all nodes of `world`, in the order in which it was asked, last name first.
fn named(world: &World, pod: &Value) -> Vec<String> {
    let picture = world.handle.picture();
    let mut names: Vec<String> =
        picture.snapshot.nodes().iter().map(|node| node.name.to_string()).collect();
    names.reverse();
    let answer = world.service.filter(&filter_body(pod, &names), true);
    let answer: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(answer["Error"], "");
    assert_eq!(answer["FailedNodes"], json!({}));
    serde_json::from_value(answer["NodeNames"].clone()).unwrap()
}

/// The nodes of `world` that can take the pod, best first.
fn ranked(world: &World, asks: &Value) -> Vec<String> {
    let pod = Pod::from_json(&asks.to_string()).unwrap();
    let asked = read(&pod, &Settings::default()).unwrap().unwrap();
    let picture = world.handle.picture();
    let ask = Ask::new(&picture.snapshot, &asked.request, Policy::default());
    rank(&picture.snapshot, &ask).fitting.iter().map(|node| node.name.to_string()).collect()
}

/// A world of twenty nodes on some of which something runs, so that they differ in rank.
async fn world_of_many() -> World {
    let world = World::new(20).await;
    for (node, percent) in [(7, 30), (3, 50), (11, 80), (19, 60), (2, 10)] {
        let mut held = pod(&format!("held-{node}"), &percent.to_string());
        held["spec"]["nodeName"] = json!(format!("n-{node}"));
        let placement =
            format!("v1;n-{node};c=GPU-n-{node}-0:{percent}%+{}Mi", 16384 * percent / 100);
        held["metadata"]["annotations"] = json!({"nano-gpu/placement": placement});
        world.store.put(&held);
    }
    world.settle().await;
    world
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_nodes_the_best_are_named_in_the_order_asked() {
    let world = world_of_many().await;
    let asks = pod("asks", "20");
    let best = ranked(&world, &asks);
    assert_eq!(best.len(), 20);
    let offered = named(&world, &asks);
    let expected: BTreeSet<_> = best[..OFFER].iter().cloned().collect();
    assert_eq!(offered.iter().cloned().collect::<BTreeSet<_>>(), expected);
    assert!(offered.is_sorted_by(|a, b| a > b), "{offered:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn few_nodes_are_all_named() {
    let world = World::new(OFFER).await;
    assert_eq!(named(&world, &pod("asks", "20")).len(), OFFER);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_with_wishes_of_its_own_is_named_every_node() {
    let world = world_of_many().await;
    let term = json!({"weight": 1, "preference": {"matchExpressions": []}});
    let near = json!({"weight": 1, "podAffinityTerm": {"topologyKey": "zone"}});
    for (path, wish) in [
        (
            "affinity",
            json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}),
        ),
        (
            "affinity",
            json!({"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [near]}}),
        ),
        ("topologySpreadConstraints", json!([{"maxSkew": 1, "topologyKey": "zone"}])),
    ] {
        let mut asks = pod("asks", "20");
        asks["spec"][path] = wish;
        assert_eq!(named(&world, &asks).len(), 20, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_to_be_spared_are_named_last() {
    let world = world_of_many().await;
    let asks = pod("asks", "20");
    // The best of all, and so many more that the others alone are too few.
    let best = ranked(&world, &asks);
    for name in &best[..15] {
        world.node_that_is(name, true).await;
    }
    world.settle().await;
    let offered: BTreeSet<_> = named(&world, &asks).into_iter().collect();
    let expected: BTreeSet<_> = best[15..].iter().chain(&best[..OFFER - 5]).cloned().collect();
    assert_eq!(offered, expected);
}
