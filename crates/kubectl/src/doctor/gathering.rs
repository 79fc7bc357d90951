//! Looking at an installation. Nothing is changed, and what may not be seen is told, not skipped.

use dialect::Settings;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1 as core;
use model::codec::decode_inventory;
use model::{Health, Quantity, names};
use serde::Deserialize;
use serde_json::Value;

use super::{Cards, Found, Node, Quota};
use crate::cluster::{Cluster, said};
use crate::observed::{AGENT_LABEL, List, silence};
use crate::options::Place;
use crate::reach::{AskError, SCHEDULER, Scheduler};

/// The policy and its binding have one name.
const POLICY: &str = "nanogpu-placement";

/// Looks at everything.
pub async fn gather(cluster: &Cluster, place: &Place, now: jiff::Timestamp) -> Found {
    let space = &place.system_namespace;
    let (version, schedulers, leader, ready, webhook, policy, nodes, quotas) = futures::join!(
        version(cluster),
        schedulers(cluster, space),
        leader(cluster, space, now),
        ready(cluster, place),
        webhook(cluster),
        policy(cluster),
        nodes(cluster, space, now),
        quotas(cluster, space),
    );
    Found {
        version,
        namespace: space.clone(),
        schedulers,
        leader,
        ready,
        webhook,
        policy,
        nodes,
        quotas,
    }
}

async fn version(cluster: &Cluster) -> Result<String, String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Version {
        git_version: String,
    }
    let version: Version = cluster.get("/version").await.map_err(|error| said(&error))?;
    Ok(version.git_version)
}

async fn schedulers(cluster: &Cluster, space: &str) -> Result<Vec<(String, bool)>, String> {
    let path = format!(
        "/api/v1/namespaces/{space}/pods?labelSelector=app.kubernetes.io%2Fname%3D{SCHEDULER}"
    );
    let pods: List<core::Pod> = cluster.get(&path).await.map_err(|error| said(&error))?;
    let is_ready = |pod: &core::Pod| {
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions.into_iter().flatten().any(|it| it.type_ == "Ready" && it.status == "True")
    };
    let one = |pod: core::Pod| (pod.metadata.name.clone().unwrap_or_default(), is_ready(&pod));
    Ok(pods.items.into_iter().map(one).collect())
}

async fn leader(
    cluster: &Cluster,
    space: &str,
    now: jiff::Timestamp,
) -> Result<Option<(String, u64)>, String> {
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/{space}/leases/{SCHEDULER}");
    let lease: Option<Lease> = cluster.find_one(&path).await.map_err(|error| said(&error))?;
    Ok(lease.map(|lease| {
        let silent = silence(&lease, now).unwrap_or(u64::MAX);
        let holder = lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
        let holder = if holder.is_empty() { "nobody".to_owned() } else { holder };
        (holder, silent)
    }))
}

async fn ready(cluster: &Cluster, place: &Place) -> Result<(String, Result<(), String>), String> {
    let scheduler = Scheduler::find(cluster, place).await.map_err(|error| error.to_string())?;
    let way = scheduler.way();
    match scheduler.text("/readyz").await {
        Ok(_) => {}
        Err(AskError::Refused { error, .. }) => return Ok((way, Err(error))),
        Err(error) => return Err(error.to_string()),
    }
    // Ready, but would it answer us? Who may list no nodes learns that here.
    let asked = scheduler.get("/api/v1/nodes").await;
    Ok((way, asked.map(|_| ()).map_err(|error| error.to_string())))
}

async fn webhook(cluster: &Cluster) -> Result<Option<bool>, String> {
    let path =
        format!("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{SCHEDULER}");
    let found: Option<MutatingWebhookConfiguration> =
        cluster.find_one(&path).await.map_err(|error| said(&error))?;
    Ok(found.map(|found| {
        let webhooks = found.webhooks.unwrap_or_default();
        let trusted = |it: &k8s_openapi::api::admissionregistration::v1::MutatingWebhook| {
            it.client_config.ca_bundle.as_ref().is_some_and(|bundle| !bundle.0.is_empty())
        };
        !webhooks.is_empty() && webhooks.iter().all(trusted)
    }))
}

async fn policy(cluster: &Cluster) -> Result<(bool, bool), String> {
    let base = "/apis/admissionregistration.k8s.io/v1";
    let path = format!("{base}/validatingadmissionpolicies/{POLICY}");
    let policy: Option<Value> = cluster.find_one(&path).await.map_err(|error| said(&error))?;
    let path = format!("{base}/validatingadmissionpolicybindings/{POLICY}");
    let binding: Option<Value> = cluster.find_one(&path).await.map_err(|error| said(&error))?;
    Ok((policy.is_some(), binding.is_some()))
}

async fn nodes(cluster: &Cluster, space: &str, now: jiff::Timestamp) -> Result<Vec<Node>, String> {
    let nodes: List<core::Node> =
        cluster.get("/api/v1/nodes").await.map_err(|error| said(&error))?;
    let path = format!(
        "/apis/coordination.k8s.io/v1/namespaces/{space}/leases?labelSelector={AGENT_LABEL}"
    );
    let leases: List<Lease> = cluster.get(&path).await.map_err(|error| said(&error))?;
    let lease =
        |node: &core::Node| leases.items.iter().find(|it| it.metadata.name == node.metadata.name);
    Ok(nodes.items.iter().map(|node| seen(node, lease(node), now)).collect())
}

fn seen(node: &core::Node, lease: Option<&Lease>, now: jiff::Timestamp) -> Node {
    let name = node.metadata.name.clone().unwrap_or_default();
    let told = lease.and_then(|lease| lease.metadata.annotations.as_ref());
    let system = node.status.as_ref().and_then(|status| status.node_info.as_ref());
    let annotations = node.metadata.annotations.as_ref();
    let inventory = annotations.and_then(|all| all.get(names::INVENTORY)).map(|text| {
        let inventory = decode_inventory(text).map_err(|error| error.to_string())?;
        let count = |health| inventory.devices.iter().filter(|it| it.health == health).count();
        let (sick, cordoned) = (count(Health::Sick), count(Health::Cordoned));
        Ok(Cards { all: inventory.devices.len(), sick, cordoned })
    });
    Node {
        kubelet: system.map(|it| it.kubelet_version.clone()).unwrap_or_default(),
        runtime: system.map(|it| it.container_runtime_version.clone()).unwrap_or_default(),
        inventory,
        silence: lease.and_then(|lease| silence(lease, now)),
        lacks: lease.map(lacks).unwrap_or_default(),
        devices_by: told.and_then(|all| all.get(names::DEVICES_BY)).cloned(),
        sign: sign(node),
        name,
    }
}

/// What the agent says it lacks.
fn lacks(lease: &Lease) -> Vec<String> {
    let text = lease.metadata.annotations.as_ref().and_then(|all| all.get(names::LACKS));
    text.into_iter().flat_map(|text| text.split(',')).map(str::to_owned).collect()
}

/// What else says that a node has cards: a resource of some dialect, or the label by which vendors'
/// tools mark such nodes.
fn sign(node: &core::Node) -> Option<String> {
    let capacity = node.status.as_ref().and_then(|status| status.capacity.as_ref());
    let offered = |resource: &&&str| {
        let quantity = capacity.and_then(|all| all.get(**resource));
        quantity.and_then(|it| Quantity::parse(&it.0).ok()).is_some_and(|it| it.ceil() > 0)
    };
    let all = Settings::all_dialects();
    let mut resources = all.enabled.iter().flat_map(|dialect| dialect.identity_resources());
    if let Some(resource) = resources.find(offered) {
        return Some((*resource).to_owned());
    }
    let labels = node.metadata.labels.iter().flatten();
    let mut marks = labels.filter(|(key, value)| key.ends_with("/gpu.present") && *value == "true");
    marks.next().map(|(key, _)| format!("label {key}"))
}

async fn quotas(cluster: &Cluster, space: &str) -> Vec<(String, Quota)> {
    let texts = [
        (space, "nanogpu-quota", "quota.json", ledger::Quota::from_json as Read),
        ("kube-system", "gpuquota", "gpu_quota", ledger::Quota::from_gpu_admission),
    ];
    let mut found = Vec::new();
    for (space, name, key, read) in texts {
        found.push((format!("{space}/{name}"), quota(cluster, space, name, key, read).await));
    }
    found
}

type Read = fn(&str) -> Result<ledger::Quota, ledger::QuotaError>;

async fn quota(cluster: &Cluster, space: &str, name: &str, key: &str, read: Read) -> Quota {
    let path = format!("/api/v1/namespaces/{space}/configmaps/{name}");
    let map = match cluster.find_one::<core::ConfigMap>(&path).await {
        Ok(Some(map)) => map,
        Ok(None) => return Quota::None,
        Err(error) => return Quota::Unseen(said(&error)),
    };
    let data = map.data.unwrap_or_default();
    match data.get(key).map(|text| read(text)) {
        Some(Ok(_)) => Quota::Sound,
        Some(Err(error)) => Quota::Broken(error.to_string()),
        None => Quota::Broken(format!("it has no {key}")),
    }
}
