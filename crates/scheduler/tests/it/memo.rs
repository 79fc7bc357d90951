//! What is remembered gives the answers that asking anew would give.

use dialect::{Settings, read};
use model::{NodeName, Pod};
use placement::{Ask, Policy, fit, rank};
use scheduler::verbs::memo::Memo;
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
        for percent in ["20", "50", "100", "200"] {
            let pod = Pod::from_json(&pod("asks", percent).to_string()).unwrap();
            let asked = read(&pod, &Settings::default()).unwrap().unwrap();
            let ask = Ask::new(&picture.snapshot, &asked.request, Policy::default());
            let remembered = memo.fits(&picture.snapshot, &ask);
            for (node, fits) in picture.snapshot.nodes().iter().zip(remembered) {
                assert_eq!(fit(node, &ask).err(), fits.as_deref().cloned(), "step {step}");
            }
            let ranked: Vec<NodeName> =
                rank(&picture.snapshot, &ask).fitting.iter().map(|n| n.name.clone()).collect();
            assert_eq!(memo.order(&picture.snapshot, &ask), ranked, "step {step}");
        }
    }
}
