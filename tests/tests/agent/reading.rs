//! Pods are read in protobuf, by numbers of fields. That these are right only a real API server can tell.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, PostParams};
use kubeapi::{Kube, Minds, Outside as _, SeenPod};
use serde_json::{Value, json};

use crate::bed::{Bed, SMALL};
use crate::pods::{container, pod};

/// Pods that have all that is read: an init container, a sidecar, a container that waits, amounts of all
/// kinds, a deletion that does not end, a wish to be polite, and to be near to some and far from others.
fn pods() -> Vec<Value> {
    let all = json!({"cpu": "150m", "memory": "64Mi"});
    let mut sidecar = container("beside", &json!({"memory": "10M"}), "sleep 100000");
    sidecar["restartPolicy"] = json!("Always");
    let init = [container("before", &json!({"cpu": "1"}), "true"), sidecar];
    let mut full = pod("full", &init, &[container("main", &all, "sleep 100000")]);
    full["metadata"]["labels"] = json!({"app": "full", "empty": ""});
    full["metadata"]["annotations"] =
        json!({"note": "with \"quotes\", and more than one line\n", "empty": ""});
    full["spec"]["priorityClassName"] = json!("polite");
    full["spec"]["resources"] = json!({"requests": {"cpu": "2"}, "limits": {"cpu": "3"}});
    let near = json!({"topologyKey": "zone", "labelSelector": {}, "namespaceSelector": {"matchLabels": {"a": "b"}}});
    full["spec"]["affinity"] = json!({"podAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 5, "podAffinityTerm": near}]}});
    let mut waits = pod("waits", &[], &[container("main", &json!({}), "true")]);
    waits["spec"]["containers"][0]["image"] = json!("localhost/none-such:1");
    waits["spec"]["containers"][0]["imagePullPolicy"] = json!("Never");
    let own =
        json!({"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "none-such"}}});
    waits["spec"]["affinity"] = json!({"podAntiAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 5, "podAffinityTerm": own}]}});
    let mut leaves = pod("leaves", &[], &[container("main", &json!({}), "sleep 100000")]);
    leaves["metadata"]["finalizers"] = json!(["nano-gpu/story"]);
    leaves["spec"]["priorityClassName"] = json!("system-node-critical");
    let other = json!({"topologyKey": "zone", "labelSelector": {}, "namespaces": ["other"]});
    leaves["spec"]["affinity"] =
        json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [other]}});
    let pending =
        pod("pending", &[], &[container("main", &json!({"nano-gpu/gpu-percent": 7}), "true")]);
    [full, waits, leaves]
        .into_iter()
        .map(|mut pod| {
            pod["spec"]["nodeName"] = json!(SMALL);
            pod
        })
        .chain([pending])
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_says_the_same_in_protobuf_and_in_json() -> Result<()> {
    let bed = Bed::new().await?;
    let ns = bed.session.namespace("story-forms").await?;
    let polite = json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "polite"},
        "value": -3, "preemptionPolicy": "Never",
    });
    bed.session.apply(&ns, &polite.to_string()).await?;
    let api = bed.pods(&ns);
    for pod in pods() {
        let pod: Pod = serde_json::from_value(pod)?;
        api.create(&PostParams::default(), &pod).await?;
    }
    api.delete("leaves", &DeleteParams::default().grace_period(0)).await?;
    let client = bed.session.client();
    let kube = Kube::new(client.clone(), Duration::from_secs(10));
    let started = Instant::now();
    for (name, shows) in [
        (
            "full",
            (|seen| {
                let polite = seen.pod.priority == -3 && !seen.may_preempt;
                polite && seen.containers.len() == 3 && seen.minds == Minds::Everybody
            }) as fn(&SeenPod) -> bool,
        ),
        ("waits", |seen| !seen.waiting.is_empty() && seen.minds == Minds::Namespace),
        ("leaves", |seen| {
            let critical = seen.pod.priority > 1_000_000_000;
            seen.pod.terminating && critical && seen.minds == Minds::Everybody
        }),
        ("pending", |seen| seen.pod.node.is_none() && seen.minds == Minds::Nobody),
    ] {
        loop {
            let path = format!("/api/v1/namespaces/{ns}/pods/{name}");
            let text = client.request_text(http::Request::get(path).body(Vec::new())?).await?;
            let json = SeenPod::from_json(&text)?;
            let proto = kube.pod(&json.pod.id).await.map_err(anyhow::Error::msg)?;
            let proto = proto.with_context(|| format!("no pod {name}"))?;
            // It may have changed between the two questions.
            if json.version == proto.version {
                ensure!(json == proto, "{name}: {json:?} in JSON, {proto:?} in protobuf");
                if shows(&json) {
                    break;
                }
            }
            ensure!(started.elapsed() < Duration::from_mins(1), "{name} never showed it: {json:?}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
    // And in a list, from which what has ended is left out.
    let listed = kube.pods().await.map_err(anyhow::Error::msg)?;
    ensure!(listed.unread.is_empty(), "{:?}", listed.unread);
    let ours = listed.pods.iter().filter(|seen| seen.pod.id.namespace == ns);
    let names: Vec<&str> = ours.map(|seen| &*seen.pod.id.name).collect();
    ensure!(["full", "waits", "pending"].iter().all(|name| names.contains(name)), "{names:?}");
    let free = json!({"metadata": {"finalizers": null}});
    api.patch("leaves", &kube::api::PatchParams::default(), &kube::api::Patch::Merge(free)).await?;
    Ok(())
}
