//! Pods that must not start, and what they are told.

use anyhow::Result;
use serde_json::json;

use crate::bed::{Bed, MANIFESTS, SMALL};
use crate::pods::simple;

#[tokio::test(flavor = "multi_thread")]
async fn pods_without_a_right_placement_never_start() -> Result<()> {
    let bed = Bed::new().await?;
    let _agent = bed.agent(SMALL).await?;
    let ns = bed.session.namespace("story-refused").await?;
    let id = bed.inventory(SMALL).await?.devices[0].id.to_string();
    let cases = [
        ("none", None, "so no GPU was chosen for it"),
        ("elsewhere", Some(format!("v1;node1;main={id}:10%+1Mi")), "were chosen on node node1"),
        (
            "unknown",
            Some(format!("v1;{SMALL};main=GPU-none:10%+1Mi")),
            "which this node does not have",
        ),
        ("large", Some(format!("v1;{SMALL};main={id}:101%+1Mi")), "more of device"),
        ("other", Some(format!("v1;{SMALL};side={id}:10%+1Mi")), "no GPU although it asks for one"),
        ("torn", Some("v1;nod".to_owned()), "cannot be read"),
    ];
    for (name, placement, _) in &cases {
        bed.place(&ns, &simple(name, 10), SMALL, placement.as_deref()).await?;
    }
    for (name, _, sentence) in &cases {
        bed.told(&ns, name, sentence).await?;
        let pod = bed.pods(&ns).get(name).await?;
        let started = pod.status.and_then(|s| s.container_statuses).unwrap_or_default();
        assert!(started.iter().all(|s| s.container_id.is_none()), "{name} started");
    }

    // By hand, past any scheduler.
    let mut by_hand = simple("by-hand", 10);
    by_hand["spec"]["nodeName"] = json!(SMALL);
    bed.session.apply(&ns, &by_hand.to_string()).await?;
    bed.told(&ns, "by-hand", "leave spec.nodeName empty").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_static_pod_never_starts_and_is_told_why() -> Result<()> {
    let bed = Bed::new().await?;
    let _agent = bed.agent(SMALL).await?;
    let ns = bed.session.namespace("story-static").await?;
    let folder = bed.cluster.layout().on_node(SMALL, MANIFESTS);
    std::fs::create_dir_all(&folder)?;
    let mut pod = simple("static", 10);
    pod["metadata"]["namespace"] = json!(ns);
    let file = folder.join("static.json");
    std::fs::write(&file, pod.to_string())?;
    let name = format!("static-{SMALL}");
    let told = bed.told(&ns, &name, "static pods cannot have a GPU").await;
    let seen = bed.pods(&ns).get(&name).await;
    std::fs::remove_file(&file)?;
    told?;
    let started = seen?.status.and_then(|s| s.container_statuses).unwrap_or_default();
    assert!(started.iter().all(|s| s.container_id.is_none()), "{name} started");
    bed.session.gone::<k8s_openapi::api::core::v1::Pod>(&ns, &name).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_card_that_is_held_is_waited_for() -> Result<()> {
    let bed = Bed::new().await?;
    let _agent = bed.agent_with(SMALL, &["--patience", "3"]).await?;
    let ns = bed.session.namespace("story-held").await?;
    let inventory = bed.inventory(SMALL).await?;
    let id = &inventory.devices[1].id;
    bed.place(&ns, &simple("first", 60), SMALL, Some(&format!("v1;{SMALL};main={id}:60%+9000Mi")))
        .await?;
    bed.session.running(&ns, "first").await?;
    // Somebody else bound it onto the same card: there is not enough of it.
    bed.place(&ns, &simple("second", 60), SMALL, Some(&format!("v1;{SMALL};main={id}:60%+9000Mi")))
        .await?;
    bed.told(&ns, "second", "is still held by pod").await?;
    bed.delete(&ns, "first").await?;
    bed.session.running(&ns, "second").await?;
    bed.got_its_own(&ns, "second", "main", &inventory).await
}
