//! The little of a Kubernetes pod that matters here, read from the API's own JSON.
//!
//! [`WrittenPod`] is what the API writes; from there to a [`Pod`] is the only door.

mod written;

use std::collections::BTreeMap;

use crate::ids::{ContainerName, NameError, NodeName, PodId};
use crate::node::Host;
use crate::peak::{Peaks, peak};
use crate::quantity::Quantity;
use crate::request::Role;
use crate::units::{Bytes, MilliCpu};

pub use written::{
    Affinity, Condition, ContainerState, ContainerStatus, Metadata, NamespaceSelector, PodTerm,
    PodTerms, Quantities, Resources, Spec, Status, Waiting, WeighedPodTerm, WrittenContainer,
    WrittenPod,
};

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
        let written: WrittenPod = serde_json::from_str(text)?;
        Ok(written.try_into()?)
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
    fn amounts_are_texts_whether_written_as_one_or_as_a_number() {
        let text = r#"{"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c",
            "resources": {"limits": {"a": "1Gi", "b": 7, "c": -7, "d": 1.5, "e": 2.0}}}]}}"#;
        let pod = Pod::from_json(text).unwrap();
        let amounts: Vec<&str> = pod.containers[0].limits.values().map(String::as_str).collect();
        assert_eq!(amounts, ["1Gi", "7", "-7", "1.5", "2.0"]);
        assert!(Pod::from_json(&text.replace("-7", "[7]")).is_err());
    }

    #[test]
    fn what_is_no_pod_is_an_error() {
        for text in ["", "[]", "{}", r#"{"metadata": {"name": "a"}, "spec": {"nodeName": "A b"}}"#]
        {
            assert!(Pod::from_json(text).is_err(), "{text}");
        }
    }
}
