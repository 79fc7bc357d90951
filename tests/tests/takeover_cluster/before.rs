//! What was there before us: device plugins of three systems, and pods as their schedulers left them.

use std::sync::Arc;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::PostParams;
use kube::{Api, ResourceExt as _};
use kubelet::devices::{Device, DeviceList, IdSet};
use kubelet::plugin::{self, Allocation, Config, DevicePlugin, Running};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::bed::{Bed, NODE};
use crate::pods::{container, pod};

/// What their plugins offered for four cards of 15 GiB.
const OFFERED: [(&str, usize); 4] = [
    ("nano-gpu/gpu-percent", 400),
    ("tencent.com/vcuda-core", 400),
    ("tencent.com/vcuda-memory", 240),
    ("aliyun.com/gpu-mem", 60),
];

/// A plugin of another system: it counts, and gives containers a variable.
struct Theirs(watch::Sender<DeviceList>);

impl DevicePlugin for Theirs {
    fn devices(&self) -> watch::Receiver<DeviceList> {
        self.0.subscribe()
    }

    async fn allocate(&self, ids: IdSet) -> Result<Allocation, kubelet::Status> {
        Ok(Allocation {
            envs: [("THEIRS".to_owned(), ids.len().to_string())].into(),
            ..Allocation::default()
        })
    }
}

/// All their plugins.
pub(crate) struct Plugins(Vec<Running>);

impl Plugins {
    /// Starts them, and waits until the node offers what they offer.
    pub(crate) async fn start(bed: &Bed) -> Result<Self> {
        let folder = bed.cluster.layout().on_node(NODE, "/var/lib/kubelet/device-plugins");
        let mut all = Vec::new();
        for (index, (resource, count)) in OFFERED.into_iter().enumerate() {
            let devices = (0..count).map(|n| Device::healthy(format!("theirs-{n}")));
            let plugin = Arc::new(Theirs(watch::Sender::new(DeviceList::new(devices)?)));
            let config = Config::new(&folder, format!("theirs-{index}.sock"), resource)?;
            all.push(plugin::start(config, plugin));
        }
        for (resource, count) in OFFERED {
            bed.offered(resource, count).await?;
        }
        Ok(Self(all))
    }

    /// They are removed, as `kubectl delete daemonset` would.
    pub(crate) async fn stop(self) {
        for plugin in self.0 {
            plugin.stop().await;
        }
    }
}

/// Their pods: name, what it asks, what the scheduler of its system wrote on it. Device nodes are
/// named, each system in its own words.
pub(crate) fn pods() -> [(&'static str, Value, Value); 3] {
    [
        (
            "gpushare",
            json!({"aliyun.com/gpu-mem": "3"}),
            json!({
                "ALIYUN_COM_GPU_MEM_IDX": "0", "ALIYUN_COM_GPU_MEM_POD": "3",
                "ALIYUN_COM_GPU_MEM_DEV": "15", "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1767225600000000000",
                "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
            }),
        ),
        (
            "gpu-manager",
            json!({"tencent.com/vcuda-core": "200", "tencent.com/vcuda-memory": "60"}),
            json!({
                "tencent.com/predicate-time": "1767225600000000000",
                "tencent.com/predicate-node": NODE, "tencent.com/predicate-gpu-idx-0": "2,1",
                "tencent.com/gpu-assigned": "true",
            }),
        ),
        (
            "nano",
            json!({"nano-gpu/gpu-percent": "30"}),
            json!({"nano-gpu/assume": "true", "nano-gpu/container-main": "3"}),
        ),
    ]
}

/// Creates a pod with annotations and binds it, as the scheduler of another system does.
pub(crate) async fn bind(
    bed: &Bed,
    namespace: &str,
    name: &str,
    limits: &Value,
    said: &Value,
) -> Result<()> {
    let says = "n=0; while :; do n=$((n+1)); echo step $n; sleep 1; done";
    let mut one = pod(name, &[], &[container("main", limits, says)]);
    one["metadata"]["annotations"] = said.clone();
    let one: Pod = serde_json::from_value(one)?;
    let one = bed.pods(namespace).create(&PostParams::default(), &one).await?;
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding",
        "metadata": {"name": name, "namespace": namespace, "uid": one.uid()},
        "target": {"apiVersion": "v1", "kind": "Node", "name": NODE},
    });
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}/binding");
    let request = http::Request::post(path)
        .header("content-type", "application/json")
        .body(serde_json::to_vec(&binding)?)?;
    bed.session.client().request::<Value>(request).await?;
    Ok(())
}

/// What must not change of a pod: its version, which any write raises, its annotations, and which
/// container runs, started how often.
pub(crate) async fn traits(bed: &Bed, namespace: &str, name: &str) -> Result<Value> {
    let pod = bed.pods(namespace).get(name).await?;
    let status = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    let status = status.and_then(|all| all.first()).context("a container")?;
    Ok(json!({
        "version": pod.resource_version(), "annotations": pod.annotations(), "labels": pod.labels(),
        "container": status.container_id, "restarts": status.restart_count,
    }))
}

/// What the node offers of a resource.
pub(crate) async fn offers(bed: &Bed, resource: &str) -> Result<Option<String>> {
    let nodes: Api<Node> = Api::all(bed.session.client());
    let node = nodes.get(NODE).await?;
    let all = node.status.and_then(|status| status.allocatable);
    Ok(all.and_then(|all| all.get(resource).map(|quantity| quantity.0.clone())))
}
