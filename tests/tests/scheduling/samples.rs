//! Sample pods of the systems we replace are scheduled as their authors say, and pods that cannot
//! run say why.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::bed::{Bed, annotation, asks, node_of};

fn sample(name: &str) -> Value {
    let path = format!("{}/pods/{name}.json", env!("CARGO_MANIFEST_DIR"));
    let mut pod: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let metadata = pod["metadata"].as_object_mut().unwrap();
    metadata.retain(|key, _| key == "name" || key == "annotations" || key == "labels");
    for list in ["initContainers", "containers"] {
        for container in pod["spec"][list].as_array_mut().into_iter().flatten() {
            container["image"] = json!("none");
        }
    }
    if pod["spec"]["schedulerName"].is_null() {
        pod["spec"]["schedulerName"] = json!("nanogpu");
    }
    pod
}

#[tokio::test(flavor = "multi_thread")]
async fn sample_pods_are_scheduled_as_their_authors_say() -> Result<()> {
    let bed = Bed::new().await?;
    let _scheduler = bed.scheduler().await?;
    let namespace = bed.session.namespace("samples").await?;
    // Sample, and the keys its own tools read.
    let table: [(&str, &[&str]); 9] = [
        ("nano-percent", &["nano-gpu/assume"]),
        ("vcuda-share", &["tencent.com/predicate-gpu-idx-0", "tencent.com/gpu-assigned"]),
        ("vcuda-whole", &["tencent.com/predicate-gpu-idx-0"]),
        ("inspur-share", &["inspur.com/predicate-gpu-idx-0"]),
        ("gpushare-1", &["ALIYUN_COM_GPU_MEM_IDX", "ALIYUN_COM_GPU_MEM_ASSUME_TIME"]),
        ("gpushare-2", &["ALIYUN_COM_GPU_MEM_IDX"]),
        ("gpushare-3", &["ALIYUN_COM_GPU_MEM_IDX"]),
        ("gpu-admission", &["nvidia.com/predicate-gpu-idx-0"]),
        ("elastic", &["elasticgpu.io/assumed"]),
    ];
    for (name, keys) in table {
        let pod = sample(name);
        let pod_name = pod["metadata"]["name"].as_str().context("a name")?.to_owned();
        bed.create(&namespace, &pod).await.with_context(|| name.to_owned())?;
        let bound = bed.bound(&namespace, &pod_name).await.with_context(|| name.to_owned())?;
        let placement = annotation(&bound, "nano-gpu/placement").context(name)?;
        assert!(placement.contains(node_of(&bound).unwrap()), "{name}: {placement}");
        for key in keys {
            let annotations = bound.metadata.annotations.clone().unwrap_or_default();
            assert!(annotations.contains_key(*key), "{name} has no {key}: {annotations:#?}");
        }
    }
    assert!(bed.nothing_sold_twice().await? >= 9);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn three_small_pods_of_gpushare_share_one_card() -> Result<()> {
    let bed = Bed::new().await?;
    let _scheduler = bed.scheduler().await?;
    let namespace = bed.session.namespace("gpushare").await?;
    let mut cards = Vec::new();
    for name in ["a", "b", "c"] {
        let pod = asks(name, &json!({"aliyun.com/gpu-mem": "2"}));
        bed.create(&namespace, &pod).await?;
        let bound = bed.bound(&namespace, name).await?;
        let placement = annotation(&bound, "nano-gpu/placement").context("a placement")?.to_owned();
        let card = placement.split('=').nth(1).and_then(|grant| grant.split(':').next());
        cards.push(card.context("a card")?.to_owned());
    }
    assert_eq!((&cards[0], &cards[0]), (&cards[1], &cards[2]), "{cards:?}");
    // Fits the node, but no card.
    bed.create(&namespace, &asks("too-big", &json!({"aliyun.com/gpu-mem": "20"}))).await?;
    bed.told(&namespace, "too-big", "no card of 20480 MiB").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_that_cannot_run_say_why_in_one_sentence() -> Result<()> {
    let bed = Bed::new().await?;
    let _scheduler = bed.scheduler().await?;
    let namespace = bed.session.namespace("wrong").await?;
    // The event as kube-scheduler writes it, but for what it says of preemption after that. The same
    // sentence for all four nodes is said once.
    let table = [
        (
            "wrong-150",
            "0/4 nodes are available: 4 container nvidia: tencent.com/vcuda-core is 150; it must be 1 to 99 for a part of a card, or a multiple of 100 for whole cards. ",
        ),
        // 10G of a whole number is ten billion: kube-scheduler is the first to say so. Where the webhook
        // is installed the pod is not even created.
        ("wrong-10g", "0/4 nodes are available: 4 Insufficient aliyun.com/gpu-mem. "),
        (
            "wrong-two-dialects",
            "0/4 nodes are available: 4 the pod asks for both nano-gpu/gpu-percent and aliyun.com/gpu-mem; all containers of a pod must use the names of one system. ",
        ),
    ];
    for (name, sentence) in table {
        let pod = sample(name);
        let pod_name = pod["metadata"]["name"].as_str().context("a name")?.to_owned();
        match bed.create(&namespace, &pod).await {
            Ok(()) => bed.told(&namespace, &pod_name, sentence).await.context(name)?,
            // The API server itself refuses some.
            Err(error) => panic!("{name}: {error:#}"),
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_without_cards_are_none_of_our_business() -> Result<()> {
    let bed = Bed::new().await?;
    // No nanogpu-scheduler at all: ordinary pods do not need it, pods with cards wait and say so.
    let nobody = bed.scheduler().await?;
    nobody.kill();
    let namespace = bed.session.namespace("ordinary").await?;
    bed.create(&namespace, &asks("cpu", &json!({"cpu": "1"}))).await?;
    bed.bound(&namespace, "cpu").await?;
    bed.create(&namespace, &asks("card", &json!({"nano-gpu/gpu-percent": "20"}))).await?;
    bed.told(&namespace, "card", "39999").await?;
    let _scheduler = bed.scheduler().await?;
    bed.bound(&namespace, "card").await?;
    Ok(())
}
