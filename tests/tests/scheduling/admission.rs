//! What a tenant may not write is refused by the API server itself, and what can never run is
//! refused when it is created.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::{Value, json};
use stories::shipped::{self, SECOND};

use crate::bed::{Bed, OURS, Scheduler, annotation, asks, percent};

/// A client in the name of `user`, with that user's rights; of an administrator if nobody's.
async fn client(bed: &Bed, user: Option<&str>) -> Result<Client> {
    let config = Kubeconfig::read_from(bed.cluster.layout().kubeconfig())?;
    let mut config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
    config.auth_info.impersonate = user.map(str::to_owned);
    Ok(Client::try_from(config)?)
}

fn placed(mut pod: Value) -> Value {
    pod["metadata"]["annotations"] =
        json!({"nano-gpu/placement": "v1;gpu-00000;main=GPU-gpu-00000-0:whole"});
    pod
}

#[tokio::test(flavor = "multi_thread")]
async fn only_nanogpu_writes_placements() -> Result<()> {
    let bed = Bed::new().await?;
    let namespace = bed.session.namespace("policy").await?;
    let tenant: Api<Pod> = Api::namespaced(client(&bed, None).await?, &namespace);
    let ours: Api<Pod> = Api::namespaced(client(&bed, Some(OURS)).await?, &namespace);
    let params = PostParams::default();
    // The API server takes a moment to compile a policy.
    let started = std::time::Instant::now();
    let mut tries = 0;
    loop {
        tries += 1;
        let pod = serde_json::from_value(placed(percent(&format!("copied-{tries}"), 20)))?;
        match tenant.create(&params, &pod).await {
            Err(kube::Error::Api(status)) if status.message.contains("by nanogpu only") => break,
            Err(error) => bail!("{error}"),
            Ok(_) => {
                ensure!(started.elapsed() < Duration::from_secs(30), "a tenant wrote a placement");
            }
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let mut plain = percent("plain", 20);
    plain["spec"]["schedulerName"] = json!("nobody");
    tenant.create(&params, &serde_json::from_value(plain)?).await?;
    let patch = Patch::Merge(json!({"metadata": {"annotations": {"nano-gpu/placement": "v1;x"}}}));
    let denied = |outcome: kube::Result<Pod>| match outcome {
        Err(kube::Error::Api(status)) => status.message.contains("by nanogpu only"),
        _ => false,
    };
    let merge = PatchParams::default();
    ensure!(denied(tenant.patch("plain", &merge, &patch).await), "on the pod");
    ensure!(denied(tenant.patch_status("plain", &merge, &patch).await), "on its status");
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding",
        "metadata": {"name": "plain", "annotations": {"nano-gpu/placement": "v1;x"}},
        "target": {"kind": "Node", "name": "gpu-00000"},
    });
    let bound: kube::Result<Value> =
        tenant.create_subresource("binding", "plain", &params, &binding).await;
    let message = bound.err().context("a tenant bound with a placement")?.to_string();
    ensure!(message.contains("by nanogpu only"), "{message}");
    // What is not a placement is nobody's business, and ours we may write.
    let other = Patch::Merge(json!({"metadata": {"annotations": {"team": "a"}}}));
    tenant.patch("plain", &merge, &other).await?;
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding",
        "metadata": {"name": "plain", "annotations": {"nano-gpu/placement": "v1;gpu-00000;main=GPU-gpu-00000-0:20%+3276Mi"}},
        "target": {"kind": "Node", "name": "gpu-00000"},
    });
    ours.create_subresource::<_, Value>("binding", "plain", &params, &binding).await?;
    // A bound pod's placement stays as it is, and the rest of it can still be changed.
    ensure!(denied(tenant.patch("plain", &merge, &patch).await), "after it was bound");
    let other = Patch::Merge(json!({"metadata": {"annotations": {"team": "b"}}}));
    tenant.patch("plain", &merge, &other).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_never_run_is_not_created() -> Result<()> {
    let bed = Bed::new().await?;
    let api = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let listener = bed.cluster.listen("127.0.0.1:0")?;
    let inside = listener.local_addr()?;
    crate::bed::relay(listener, std::sync::Arc::new(std::sync::Mutex::new(api)));
    let mut webhook: Value = bed.yaml(&shipped::parts(SECOND, &["scheduler/webhook.yaml"]))?;
    webhook["webhooks"][0]["clientConfig"] = json!({"url": format!("https://{inside}/admission")});
    bed.session.apply("default", &webhook.to_string()).await?;
    let scheduler = Scheduler::start(
        bed.cluster,
        &["--api-address", &api.to_string(), "--set-scheduler-name", "gpu-scheduler"],
    )?;
    bed.point_at(&scheduler);
    scheduler.ready().await?;
    let namespace = bed.session.namespace("webhook").await?;
    let refused = |outcome: Result<()>| outcome.err().map(|error| format!("{error:#}"));
    // Until the webhook's configuration is known everywhere.
    let started = std::time::Instant::now();
    let mut number = 0;
    loop {
        number += 1;
        let why = refused(bed.create(&namespace, &percent(&format!("wrong-{number}"), 150)).await);
        if why.as_ref().is_some_and(|why| why.contains("must be 1 to 99")) {
            break;
        }
        ensure!(started.elapsed() < Duration::from_secs(30), "{why:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let large = asks("large", &json!({"aliyun.com/gpu-mem": "10G"}));
    let why = refused(bed.create(&namespace, &large).await).context("10G was created")?;
    ensure!(why.contains("which is more than any node has"), "{why}");
    let mut copied = placed(percent("copied", 20));
    copied["spec"].as_object_mut().context("a spec")?.remove("schedulerName");
    bed.create(&namespace, &copied).await?;
    let bound = bed.bound(&namespace, "copied").await?;
    let placement = annotation(&bound, "nano-gpu/placement").context("a placement")?;
    ensure!(!placement.contains("whole"), "{placement}");
    ensure!(bound.spec.context("a spec")?.scheduler_name.as_deref() == Some("gpu-scheduler"));
    // With all of ours down, ordinary pods are created all the same.
    scheduler.kill();
    bed.create(&namespace, &asks("ordinary", &json!({"cpu": "1"}))).await?;
    let why = refused(bed.create(&namespace, &percent("card", 20)).await).context("created")?;
    ensure!(why.contains("pods.nano-gpu.io"), "{why}");
    remove(&bed, "mutatingwebhookconfigurations", "nanogpu-scheduler").await
}

async fn remove(bed: &Bed, resource: &str, name: &str) -> Result<()> {
    let path = format!("/apis/admissionregistration.k8s.io/v1/{resource}");
    let now = kube::api::DeleteParams::default();
    let request = kube::core::Request::new(path).delete(name, &now)?;
    bed.session.client().request_text(request).await?;
    Ok(())
}
