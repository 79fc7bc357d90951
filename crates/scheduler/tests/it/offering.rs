//! Of many nodes that can take a pod the best are named to kube-scheduler.

use std::collections::{BTreeMap, BTreeSet};

use dialect::{Settings, read};
use model::Pod;
use placement::{Ask, Policy, rank};
use serde_json::{Value, json};

use crate::build::{OFFER, World, filter_body, pod, read as read_json};

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

/// A pod that kube-scheduler spreads by itself.
fn replica(kind: &str) -> Value {
    let owner =
        json!({"apiVersion": "v1", "kind": kind, "name": "a", "uid": "u", "controller": true});
    let mut asks = pod("asks", "20");
    asks["metadata"]["ownerReferences"] = json!([owner]);
    asks
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_nodes_the_best_are_named_in_the_order_asked() {
    let world = world_of_many().await;
    let asks = replica("ReplicaSet");
    let best = ranked(&world, &asks);
    assert_eq!(best.len(), 20);
    let offered = named(&world, &asks);
    let expected: BTreeSet<_> = best[..OFFER.many].iter().cloned().collect();
    assert_eq!(offered.iter().cloned().collect::<BTreeSet<_>>(), expected);
    assert!(offered.is_sorted_by(|a, b| a > b), "{offered:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_nodes_the_best_alone_is_named_where_no_other_can_win() {
    let world = world_of_many().await;
    let asks = pod("asks", "20");
    assert_eq!(named(&world, &asks), ranked(&world, &asks)[..1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn few_nodes_are_all_named() {
    let world = World::new(OFFER.many).await;
    assert_eq!(named(&world, &pod("asks", "20")).len(), OFFER.many);
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
async fn a_pod_that_kube_scheduler_spreads_is_named_many() {
    let world = world_of_many().await;
    for (kind, count) in [
        ("ReplicaSet", OFFER.many),
        ("StatefulSet", OFFER.many),
        ("ReplicationController", OFFER.many),
        ("Job", OFFER.few),
    ] {
        assert_eq!(named(&world, &replica(kind)).len(), count, "{kind}");
    }
}

/// A pod without a card that is bound and would rather be far from others, of its namespace or of any.
fn minding(name: &str, namespace: &str, everybody: bool) -> Value {
    let mut term = json!({"topologyKey": "zone", "labelSelector": {}});
    if everybody {
        term["namespaceSelector"] = json!({});
    }
    let weighed = json!([{"weight": 1, "podAffinityTerm": term}]);
    json!({
        "metadata": {"name": name, "namespace": namespace, "uid": format!("uid-{name}")},
        "spec": {
            "nodeName": "n-0", "containers": [{"name": "c"}],
            "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": weighed}},
        },
        "status": {"phase": "Running"},
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_about_which_others_have_wishes_is_named_many() {
    let world = world_of_many().await;
    let asks = pod("asks", "20");
    let namespace = asks["metadata"]["namespace"].as_str().unwrap().to_owned();
    let count = async |count: usize, after: &str| {
        world.settle().await;
        assert_eq!(named(&world, &asks).len(), count, "{after}");
    };
    world.store.put(&minding("elsewhere", "kube-system", false));
    count(OFFER.few, "that is about another namespace").await;
    world.store.put(&minding("here", &namespace, false));
    world.store.put(&minding("here-too", &namespace, false));
    count(OFFER.many, "two of its namespace").await;
    world.store.show("here");
    world.store.remove("here");
    count(OFFER.many, "one is left, and was told of twice").await;
    world.store.remove("here-too");
    count(OFFER.few, "none is left").await;
    world.store.put(&minding("strict", "kube-system", true));
    count(OFFER.many, "one of another namespace, about all").await;
    let mut ended = minding("strict", "kube-system", true);
    ended["status"]["phase"] = json!("Succeeded");
    world.store.put(&ended);
    count(OFFER.few, "it has ended").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_to_be_spared_are_named_last() {
    let world = world_of_many().await;
    let asks = replica("ReplicaSet");
    // The best of all, and so many more that the others alone are too few.
    let best = ranked(&world, &asks);
    for name in &best[..15] {
        world.node_that_is(name, true).await;
    }
    world.settle().await;
    let offered: BTreeSet<_> = named(&world, &asks).into_iter().collect();
    let expected: BTreeSet<_> = best[15..].iter().chain(&best[..OFFER.many - 5]).cloned().collect();
    assert_eq!(offered, expected);
    assert_eq!(named(&world, &pod("asks", "20")), best[15..16]);
}

/// The node with the highest score.
fn best(world: &World, asks: &Value, names: &[String]) -> String {
    let answer = world.service.prioritize(&filter_body(asks, names));
    let scores: Value = serde_json::from_slice(&answer.body).unwrap();
    let highest = |score: &&Value| score["Score"] == 10;
    let best: Vec<&Value> = scores.as_array().unwrap().iter().filter(highest).collect();
    assert_eq!(best.len(), 1, "{scores}");
    best[0]["Host"].as_str().unwrap().to_owned()
}

/// Nodes have two cards. Pods of 60 percent come so fast that none is bound before the next is asked about.
#[tokio::test(flavor = "multi_thread")]
async fn pods_in_a_rush_are_not_sent_where_there_is_no_room_for_both() {
    let world = World::new(4).await;
    let names = world.names();
    let sent: Vec<String> =
        (0..9).map(|n| best(&world, &pod(&format!("p{n}"), "60"), &names)).collect();
    for name in &names {
        let here = sent[..8].iter().filter(|other| *other == name).count();
        assert_eq!(here, 2, "{name} of {sent:?}");
    }
    // There is room for no more, as far as is expected; bind will tell. And whoever asks again is not in its own way.
    assert_eq!(sent[8], sent[0]);
    assert_eq!(best(&world, &pod("p7", "60"), &names), sent[7]);
    tokio::time::sleep(std::time::Duration::from_millis(1_100)).await;
    assert_eq!(best(&world, &pod("late", "60"), &names), sent[0], "none of them was bound");
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_rush_each_is_named_a_node_that_has_room_for_it_too() {
    let world = World::new(20).await;
    let names = world.names();
    let mut sent = BTreeMap::new();
    for n in 0..24 {
        let asks = pod(&format!("p{n}"), "60");
        let answer = read_json(&world.service.filter(&filter_body(&asks, &names), false));
        let [node]: [String; 1] = serde_json::from_value(answer["NodeNames"].clone()).unwrap();
        *sent.entry(node).or_insert(0) += 1;
    }
    assert_eq!(sent.into_values().collect::<Vec<_>>(), [2; 12]);
}
