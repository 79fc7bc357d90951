//! What is remembered gives the answers that asking anew would give.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use dialect::{Settings, read};
use model::{NodeName, Pod};
use placement::{Ask, Policy, fit, rank};
use scheduler::verbs::filter::filter;
use scheduler::verbs::memo::Memo;
use scheduler::verbs::wire::sentence;
use serde_json::json;

use crate::build::{World, pod};

#[tokio::test(flavor = "multi_thread")]
async fn remembered_answers_are_those_of_asking_anew() {
    let world = World::new(6).await;
    let memo = Memo::default();
    let mut chance = 1_u64;
    for step in 0..60 {
        // Pods come and go anywhere; now and then a node comes.
        chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let (node, card) = ((chance >> 33) % 6, (chance >> 40) % 2);
        let name = format!("p{}", (chance >> 50) % 12);
        if (chance >> 60).is_multiple_of(3) {
            world.store.remove(&name);
        } else {
            let mut held = pod(&name, "30");
            held["spec"]["nodeName"] = json!(format!("n-{node}"));
            let placement = format!("v1;n-{node};c=GPU-n-{node}-{card}:30%+4915Mi");
            held["metadata"]["annotations"] = json!({"nano-gpu/placement": placement});
            world.store.put(&held);
        }
        if step == 30 {
            world.node("n-3a").await;
        }
        world.settle().await;
        let picture = world.handle.picture();
        for percent in ["20", "50", "100", "200", "two containers"] {
            let mut asks = pod("asks", percent);
            if percent == "two containers" {
                // A question that every node is asked in full.
                asks = pod("asks", "60");
                let mut second = asks["spec"]["containers"][0].clone();
                second["name"] = json!("d");
                asks["spec"]["containers"].as_array_mut().unwrap().push(second);
            }
            let pod = Pod::from_json(&asks.to_string()).unwrap();
            let asked = read(&pod, &Settings::default()).unwrap().unwrap();
            let ask = Ask::new(&picture.snapshot, &asked.request, Policy::default());
            // Now some are asked, now all: what is not asked now is known, or not, from before.
            let count = picture.snapshot.nodes().len();
            memo.ask(&picture.snapshot, &ask, (0..count).filter(|place| chance >> place & 1 == 0));
            let remembered = memo.ask(&picture.snapshot, &ask, 0..count);
            for (place, node) in picture.snapshot.nodes().iter().enumerate() {
                assert_eq!(fit(node, &ask).err(), remembered.refusal(place), "step {step}");
                assert_eq!(memo.places(&picture.snapshot).find(node.name.as_str()), Some(place));
            }
            let ranked: Vec<NodeName> =
                rank(&picture.snapshot, &ask).fitting.iter().map(|n| n.name.clone()).collect();
            let nodes = picture.snapshot.nodes();
            let order = memo.order(&picture.snapshot, &ask);
            let order: Vec<NodeName> =
                order.iter().map(|&n| nodes[n as usize].name.clone()).collect();
            assert_eq!(order, ranked, "step {step}");
            // The verb, for all names and for so few that it does not rank.
            let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
            for names in [&names[..], &names[step % count..][..1]] {
                let filtered = filter(&picture.snapshot, &ask, names, &memo);
                let (later, never) = filtered.reasons(names);
                let mut said: BTreeMap<&str, Cow<str>> = later.into_iter().chain(never).collect();
                for at in &filtered.fits {
                    assert_eq!(nodes[at.node()].name.as_str(), names[at.place()]);
                    assert_eq!(said.insert(names[at.place()], "it fits".into()), None);
                }
                let anew = nodes.iter().filter(|node| names.contains(&node.name.as_str()));
                let anew = anew.map(|node| {
                    let refused = fit(node, &ask).err();
                    let words = refused.map_or("it fits".to_owned(), |refused| {
                        sentence(&refused.reason.to_string())
                    });
                    (node.name.as_str(), Cow::from(words))
                });
                assert_eq!(said, anew.collect(), "step {step}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_beat_and_what_is_told_once_more_change_nothing_that_readers_see() {
    let world = World::new(2).await;
    let mut held = pod("a", "30");
    held["spec"]["nodeName"] = json!("n-0");
    held["metadata"]["annotations"] =
        json!({"nano-gpu/placement": "v1;n-0;c=GPU-n-0-0:30%+4915Mi"});
    world.store.put(&held);
    world.settle().await;
    // What a new pod teaches is learned within half a second, and shown.
    tokio::time::sleep(std::time::Duration::from_millis(1_100)).await;
    let before = world.handle.picture();
    world.beat(&NodeName::parse("n-0").unwrap()).await;
    world.store.show("a");
    world.node("n-1").await;
    world.settle().await;
    assert!(Arc::ptr_eq(&before, &world.handle.picture()));
    world.store.remove("a");
    world.settle().await;
    assert!(!Arc::ptr_eq(&before, &world.handle.picture()));
}
