//! The little of a Kubernetes pod that matters here, read from the API's own JSON.
//!
//! `wire` mirrors the API and stays in this file; [`Pod::from_json`] is the only door.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::ids::{ContainerName, NameError, NodeName, PodId, PodUid};
use crate::node::Host;
use crate::peak::{Peaks, peak};
use crate::quantity::Quantity;
use crate::request::Role;
use crate::units::{Bytes, MilliCpu};

/// A pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// Who it is.
    pub id: PodId,
    /// Where it is bound, if it is.
    pub node: Option<NodeName>,
    /// Which scheduler it asked for.
    pub scheduler: String,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its containers in the order in which they start: init containers and sidecars, then apps.
    pub containers: Vec<Container>,
    /// CPU and memory asked for the pod as a whole, where that replaces the containers' sum.
    pub pod_level: BTreeMap<String, String>,
    /// CPU and memory its sandbox costs.
    pub overhead: BTreeMap<String, String>,
    /// How far it is.
    pub phase: Phase,
    /// Whether it is being deleted.
    pub terminating: bool,
    /// Its priority.
    pub priority: i32,
    /// When it was bound, as the API wrote it (RFC 3339, UTC), if it was.
    pub scheduled_at: Option<String>,
}

/// A container of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// Its name.
    pub name: ContainerName,
    /// When it runs.
    pub role: Role,
    /// Its place in its own list of the spec (init containers and sidecars share one).
    pub position: usize,
    /// Resource limits as written.
    pub limits: BTreeMap<String, String>,
    /// Resource requests as written.
    pub requests: BTreeMap<String, String>,
}

/// How far a pod is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phase {
    /// Not all its containers have started.
    #[default]
    Pending,
    /// At work, or no longer known.
    Running,
    /// Its containers have ended for good, well or badly.
    Ended,
}

/// Why a text is no pod.
#[derive(Debug, thiserror::Error)]
pub enum PodError {
    /// Not the JSON of a pod.
    #[error("not a pod")]
    Json(#[from] serde_json::Error),
    /// A name the API server would not have accepted.
    #[error("not a valid pod")]
    Name(#[from] NameError),
}

impl Pod {
    /// Reads a pod as `kubectl get pod -o json` prints it, or as a manifest written in JSON.
    /// A manifest without a UID gets its name for one.
    pub fn from_json(text: &str) -> Result<Self, PodError> {
        let wire: wire::Pod = serde_json::from_str(text)?;
        Ok(wire.into_pod()?)
    }

    /// The host CPU and memory the pod asks, by Kubernetes' own rule.
    pub fn host(&self) -> Host {
        let summed = peak(self.containers.iter().map(|c| (c.role, host(&c.requests, &c.limits))));
        let level = host(&self.pod_level, &BTreeMap::new());
        let pick = |key| self.pod_level.contains_key(key);
        let asked = Host {
            cpu: if pick("cpu") { level.cpu } else { summed.cpu },
            memory: if pick("memory") { level.memory } else { summed.memory },
        };
        asked.plus(&host(&self.overhead, &BTreeMap::new()))
    }

    /// Whether it holds nothing any more.
    pub fn has_ended(&self) -> bool {
        self.phase == Phase::Ended
    }
}

impl Container {
    /// How much of `resource` it asks, as written: the limit, else the request.
    pub fn asks(&self, resource: &str) -> Option<&str> {
        self.limits.get(resource).or_else(|| self.requests.get(resource)).map(String::as_str)
    }
}

fn host(requests: &BTreeMap<String, String>, limits: &BTreeMap<String, String>) -> Host {
    // The API server has checked these; a text it would refuse counts as nothing.
    let quantity = |key: &str| {
        let text = requests.get(key).or_else(|| limits.get(key))?;
        Quantity::parse(text).ok()
    };
    Host {
        cpu: MilliCpu(quantity("cpu").map_or(0, Quantity::milli)),
        memory: Bytes(quantity("memory").map_or(0, Quantity::ceil)),
    }
}

mod wire {
    use super::{BTreeMap, Container, ContainerName, Deserialize, NameError, NodeName, Phase};
    use super::{PodId, PodUid, Role};

    #[derive(Deserialize)]
    pub(super) struct Pod {
        metadata: Metadata,
        #[serde(default)]
        spec: Spec,
        #[serde(default)]
        status: Status,
    }

    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata {
        name: String,
        namespace: Option<String>,
        uid: Option<String>,
        annotations: Option<BTreeMap<String, String>>,
        labels: Option<BTreeMap<String, String>>,
        deletion_timestamp: Option<String>,
    }

    #[derive(Deserialize, Default)]
    #[serde(rename_all = "camelCase", default)]
    struct Spec {
        node_name: Option<String>,
        scheduler_name: Option<String>,
        containers: Vec<WireContainer>,
        init_containers: Option<Vec<WireContainer>>,
        priority: Option<i32>,
        overhead: Option<BTreeMap<String, WireQuantity>>,
        resources: Option<Resources>,
    }

    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct WireContainer {
        name: String,
        resources: Option<Resources>,
        restart_policy: Option<String>,
    }

    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Resources {
        limits: Option<BTreeMap<String, WireQuantity>>,
        requests: Option<BTreeMap<String, WireQuantity>>,
    }

    /// Manifests may write a quantity as a bare number.
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum WireQuantity {
        Text(String),
        Number(serde_json::Number),
    }

    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Status {
        phase: Option<String>,
        conditions: Option<Vec<Condition>>,
    }

    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Condition {
        r#type: String,
        status: String,
        last_transition_time: Option<String>,
    }

    impl Pod {
        pub(super) fn into_pod(self) -> Result<super::Pod, NameError> {
            let Self { metadata, spec, status } = self;
            let namespace = metadata.namespace.unwrap_or_else(|| "default".to_owned());
            let uid = metadata.uid.unwrap_or_else(|| format!("{namespace}/{}", metadata.name));
            let node = spec.node_name.filter(|name| !name.is_empty());
            let mut containers = Vec::new();
            for (position, container) in spec.init_containers.into_iter().flatten().enumerate() {
                let stays = container.restart_policy.as_deref() == Some("Always");
                let role = if stays { Role::Sidecar } else { Role::Init };
                containers.push(container.into_container(role, position)?);
            }
            for (position, container) in spec.containers.into_iter().enumerate() {
                containers.push(container.into_container(Role::App, position)?);
            }
            let bound = |c: &Condition| c.r#type == "PodScheduled" && c.status == "True";
            Ok(super::Pod {
                id: PodId { namespace, name: metadata.name, uid: PodUid::parse(&uid)? },
                node: node.as_deref().map(NodeName::parse).transpose()?,
                scheduler: spec.scheduler_name.unwrap_or_else(|| "default-scheduler".to_owned()),
                annotations: metadata.annotations.unwrap_or_default(),
                labels: metadata.labels.unwrap_or_default(),
                containers,
                pod_level: texts(spec.resources.and_then(|resources| resources.requests)),
                overhead: texts(spec.overhead),
                phase: match status.phase.as_deref() {
                    Some("Succeeded" | "Failed") => Phase::Ended,
                    Some("Running" | "Unknown") => Phase::Running,
                    _ => Phase::Pending,
                },
                terminating: metadata.deletion_timestamp.is_some(),
                priority: spec.priority.unwrap_or(0),
                scheduled_at: status
                    .conditions
                    .into_iter()
                    .flatten()
                    .find(bound)
                    .and_then(|condition| condition.last_transition_time),
            })
        }
    }

    impl WireContainer {
        fn into_container(self, role: Role, position: usize) -> Result<Container, NameError> {
            let resources = self.resources.unwrap_or_default();
            Ok(Container {
                name: ContainerName::parse(&self.name)?,
                role,
                position,
                limits: texts(resources.limits),
                requests: texts(resources.requests),
            })
        }
    }

    fn texts(quantities: Option<BTreeMap<String, WireQuantity>>) -> BTreeMap<String, String> {
        let text = |quantity| match quantity {
            WireQuantity::Text(text) => text,
            WireQuantity::Number(number) => number.to_string(),
        };
        quantities.unwrap_or_default().into_iter().map(|(key, q)| (key, text(q))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &str = r#"{
        "metadata": {"name": "train", "namespace": "team-a", "uid": "u-1", "deletionTimestamp": "t"},
        "spec": {
            "nodeName": "gpu-1", "priority": 7, "overhead": {"cpu": "250m"},
            "initContainers": [
                {"name": "fetch", "resources": {"requests": {"cpu": "3", "memory": "1Gi"}}},
                {"name": "log", "restartPolicy": "Always", "resources": {"requests": {"cpu": 1}}}
            ],
            "containers": [{"name": "main", "resources": {"limits": {"cpu": "1500m", "x/y": 20}}}]
        },
        "status": {"phase": "Running", "conditions": [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}
    }"#;

    #[test]
    fn a_pod_is_read_from_the_api_s_json() {
        let pod = Pod::from_json(POD).unwrap();
        let roles: Vec<Role> = pod.containers.iter().map(|c| c.role).collect();
        assert_eq!(roles, [Role::Init, Role::Sidecar, Role::App]);
        assert_eq!(pod.containers[2].asks("x/y"), Some("20"));
        assert_eq!((pod.priority, pod.terminating, pod.phase), (7, true, Phase::Running));
        assert_eq!(pod.scheduled_at.as_deref(), Some("2026-01-01T00:00:00Z"));
        // max(init 3000m, sidecar 1000m + app 1500m) + overhead 250m
        assert_eq!(pod.host(), Host { cpu: MilliCpu(3250), memory: Bytes(1 << 30) });
    }

    #[test]
    fn pod_level_requests_replace_the_sum() {
        let text = r#"{"metadata": {"name": "a"}, "spec": {
            "resources": {"requests": {"cpu": "8"}},
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "1", "memory": "5"}}}]}}"#;
        let pod = Pod::from_json(text).unwrap();
        assert_eq!(pod.host(), Host { cpu: MilliCpu(8000), memory: Bytes(5) });
        assert_eq!(pod.id.uid.as_str(), "default/a");
    }

    #[test]
    fn what_is_no_pod_is_an_error() {
        for text in ["", "[]", "{}", r#"{"metadata": {"name": "a"}, "spec": {"nodeName": "A b"}}"#]
        {
            assert!(Pod::from_json(text).is_err(), "{text}");
        }
    }
}
