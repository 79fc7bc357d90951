//! The tenants of the story.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use testbed::{BASE, Session};

use crate::bed::SIM;

/// A pod that says which device nodes it has, and uses its card as programs do: through the
/// `libcuda.so.1` that its loader finds. It names no scheduler.
pub(crate) fn tenant(name: &str, limits: &Value) -> Value {
    let load =
        "/opt/simgpu/nanogpu-simgpu --machine /run/nanogpu-simgpu load --seconds 0 --memory 256MiB";
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "main",
                "image": "localhost/nanogpu-debian:1", "imagePullPolicy": "Never",
                "command": ["sh", "-c", format!("ls /dev/nvidia*; exec {load}")],
                "resources": {"limits": limits},
                "volumeMounts": [
                    {"name": "machine", "mountPath": "/run/nanogpu-simgpu"},
                    {"name": "bin", "mountPath": "/opt/simgpu", "readOnly": true},
                ],
            }],
            "volumes": [
                {"name": "machine", "hostPath": {"path": format!("{SIM}/m")}},
                {"name": "bin", "hostPath": {"path": format!("{SIM}/bin")}},
            ],
        },
    })
}

/// A pod without a card.
pub(crate) fn ordinary(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": BASE, "command": ["sleep", "3600"]}],
        },
    })
}

/// Creates a pod. While the webhook is not trusted yet, which lasts seconds after an installation,
/// that is tried again, as a controller would.
pub(crate) async fn create(session: &Session, namespace: &str, pod: &Value) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(session.client(), namespace);
    let pod: Pod = serde_json::from_value(pod.clone())?;
    let started = Instant::now();
    loop {
        match pods.create(&PostParams::default(), &pod).await {
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(status)) if status.message.contains("failed calling webhook") => {
                ensure!(started.elapsed() < Duration::from_secs(40), "{}", status.message);
            }
            Err(error) => return Err(error).with_context(|| pod.name_any()),
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

/// Waits until a tenant uses one card, and no more than one.
pub(crate) async fn uses_one_card(session: &Session, namespace: &str, name: &str) -> Result<()> {
    session.running(namespace, name).await?;
    let said =
        session.says(namespace, name, "main", |said| said.contains("through libcuda.so.1")).await?;
    let is_card = |line: &&str| {
        line.strip_prefix("/dev/nvidia").is_some_and(|rest| rest.parse::<u32>().is_ok())
    };
    ensure!(said.lines().filter(is_card).count() == 1, "{name} has {said}");
    Ok(())
}

/// The container of each pod, by its ID, with its restarts: whoever was disturbed has another.
pub(crate) async fn containers(
    session: &Session,
    namespace: &str,
) -> Result<BTreeMap<String, (String, i32)>> {
    let pods: Api<Pod> = Api::namespaced(session.client(), namespace);
    let mut found = BTreeMap::new();
    for pod in pods.list(&kube::api::ListParams::default()).await? {
        let status = pod.status.clone().context("a status")?;
        ensure!(
            status.phase.as_deref() == Some("Running"),
            "{} is {:?}",
            pod.name_any(),
            status.phase
        );
        for container in status.container_statuses.into_iter().flatten() {
            ensure!(container.ready, "{} is not ready", pod.name_any());
            let id = container.container_id.context("a container")?;
            found.insert(pod.name_any(), (id, container.restart_count));
        }
    }
    Ok(found)
}
