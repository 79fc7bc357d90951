//! Nodes that only the API server knows. KWOK plays their kubelets.

use std::collections::BTreeMap;

use anyhow::Context;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::PostParams;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::binaries::{Binaries, Program};
use crate::component::{Component, Place, Spec};
use crate::layout::{Layout, write};

/// Marks a node as KWOK's, and keeps pods away that do not tolerate that.
pub(crate) const FAKE: &str = "kwok.x-k8s.io/node";

const STAGES: &str = include_str!("stages.yaml");

/// Some equal nodes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FakeNodes {
    /// Their names are this and a number of five digits.
    pub prefix: String,
    /// How many.
    pub count: usize,
    /// Capacity, which is also what can be allocated.
    pub capacity: BTreeMap<String, String>,
    /// Annotations besides the mark. `{node}` in a value is the node's name.
    pub annotations: BTreeMap<String, String>,
    /// Labels besides the usual ones.
    pub labels: BTreeMap<String, String>,
    /// Whether pods must tolerate the taint `kwok.x-k8s.io/node`, so that none comes by accident.
    pub tainted: bool,
}

impl FakeNodes {
    /// `count` nodes with 64 CPUs, 512 GiB and room for 250 pods.
    pub fn new(count: usize) -> Self {
        let capacity = [("cpu", "64"), ("memory", "512Gi"), ("pods", "250")];
        Self {
            prefix: "fake-".to_owned(),
            count,
            capacity: capacity.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            annotations: BTreeMap::new(),
            labels: BTreeMap::new(),
            tainted: false,
        }
    }

    /// The same with names that begin with `prefix`.
    #[must_use]
    pub fn prefix(mut self, prefix: &str) -> Self {
        prefix.clone_into(&mut self.prefix);
        self
    }

    /// The same with some of a resource.
    #[must_use]
    pub fn capacity(mut self, resource: &str, amount: &str) -> Self {
        self.capacity.insert(resource.to_owned(), amount.to_owned());
        self
    }

    /// The same with an annotation; `{node}` in its value is the node's name.
    #[must_use]
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.annotations.insert(key.to_owned(), value.to_owned());
        self
    }

    /// The same with a label.
    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    /// The same with a taint that pods must tolerate.
    #[must_use]
    pub fn tainted(mut self) -> Self {
        self.tainted = true;
        self
    }

    fn node(&self, index: usize) -> serde_json::Value {
        let name = format!("{}{index:05}", self.prefix);
        let filled = |value: &String| value.replace("{node}", &name);
        let mut annotations: BTreeMap<&str, String> =
            self.annotations.iter().map(|(key, value)| (key.as_str(), filled(value))).collect();
        annotations.insert(FAKE, "fake".to_owned());
        let mut labels: BTreeMap<&str, &str> =
            self.labels.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        labels.extend([
            ("kubernetes.io/hostname", name.as_str()),
            ("kubernetes.io/os", "linux"),
            ("type", "kwok"),
        ]);
        let taints = if self.tainted {
            json!([{"key": FAKE, "value": "fake", "effect": "NoSchedule"}])
        } else {
            json!([])
        };
        json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "annotations": annotations, "labels": labels},
            "spec": {"taints": taints},
            "status": {
                "capacity": self.capacity,
                "allocatable": self.capacity,
                "nodeInfo": {
                    "architecture": "amd64", "operatingSystem": "linux", "kubeletVersion": "fake",
                    "bootID": "", "containerRuntimeVersion": "", "kernelVersion": "",
                    "kubeProxyVersion": "", "machineID": "", "osImage": "", "systemUUID": "",
                },
            },
        })
    }
}

pub(crate) fn kwok(layout: &Layout, binaries: &Binaries) -> anyhow::Result<Spec> {
    let config = layout.config().join("kwok.yaml");
    write(&config, STAGES.as_bytes())?;
    Ok(Spec::new(&Component::Kwok, binaries.path(Program::Kwok), Place::Cluster)
        .file("kubeconfig", &layout.kubeconfig_inside("admin"))
        .file("config", &config)
        .flag("manage-nodes-with-annotation-selector", format!("{FAKE}=fake"))
        .flag("node-lease-duration-seconds", 40)
        .flag("node-ip", crate::control::API_ADDRESS))
}

/// Creates the nodes, several at a time.
pub(crate) async fn create(client: kube::Client, groups: &[FakeNodes]) -> anyhow::Result<()> {
    let api: Api<Node> = Api::all(client);
    let mut nodes = Vec::new();
    for group in groups {
        nodes.extend((0..group.count).map(|index| group.node(index)));
    }
    stream::iter(nodes)
        .map(|node| {
            let api = api.clone();
            async move {
                let node: Node = serde_json::from_value(node)?;
                let name = node.metadata.name.clone().unwrap_or_default();
                match api.create(&PostParams::default(), &node).await {
                    Ok(_) => Ok(()),
                    Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
                    Err(error) => Err(error).with_context(|| format!("cannot create node {name}")),
                }
            }
        })
        .buffer_unordered(16)
        .try_collect::<()>()
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fake_node_has_what_was_asked() {
        let nodes = FakeNodes::new(3)
            .prefix("gpu-")
            .capacity("nano-gpu/gpu-percent", "800")
            .annotation("who", "I am {node}")
            .label("zone", "a");
        let node = nodes.node(2);
        assert_eq!(node["metadata"]["name"], "gpu-00002");
        assert_eq!(node["metadata"]["annotations"]["who"], "I am gpu-00002");
        assert_eq!(node["metadata"]["annotations"][FAKE], "fake");
        assert_eq!(node["metadata"]["labels"]["zone"], "a");
        assert_eq!(node["status"]["allocatable"]["nano-gpu/gpu-percent"], "800");
        let typed: Node = serde_json::from_value(node).unwrap();
        assert!(typed.spec.unwrap().taints.unwrap().is_empty());
    }
}
