//! A pod as the API writes it, before anything in it is checked: the fields that matter here, whatever
//! the form they came in. JSON is read by [`super::Pod::from_json`]; adapters may fill one from elsewhere.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, Visitor};

use super::{Container, Phase, Pod};
use crate::ids::{ContainerName, NameError, NodeName, PodId, PodUid};
use crate::request::Role;

/// A pod.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct WrittenPod {
    /// Who it is.
    pub metadata: Metadata,
    /// What it asks for.
    #[serde(default)]
    pub spec: Spec,
    /// What became of it.
    #[serde(default)]
    pub status: Status,
}

/// A pod's metadata.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: Option<String>,
    /// Its UID.
    pub uid: Option<String>,
    /// Its version.
    pub resource_version: Option<String>,
    /// Its annotations.
    pub annotations: Option<BTreeMap<String, String>>,
    /// Its labels.
    pub labels: Option<BTreeMap<String, String>>,
    /// When its deletion was asked for.
    pub deletion_timestamp: Option<String>,
}

/// A pod's specification.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    /// Where it is bound.
    pub node_name: Option<String>,
    /// Who shall schedule it.
    pub scheduler_name: Option<String>,
    /// Its containers.
    pub containers: Vec<WrittenContainer>,
    /// Its init containers and sidecars.
    pub init_containers: Option<Vec<WrittenContainer>>,
    /// Its priority.
    pub priority: Option<i32>,
    /// Whether others may be evicted for it.
    pub preemption_policy: Option<String>,
    /// What its sandbox costs.
    pub overhead: Option<Quantities>,
    /// What it asks for as a whole.
    pub resources: Option<Resources>,
    /// Whom it would be near to, or far from.
    pub affinity: Option<Affinity>,
}

/// Whom a pod would be near to, or far from. Nodes are left out: that is between it and kube-scheduler.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Affinity {
    /// Pods it would be near to.
    pub pod_affinity: Option<PodTerms>,
    /// Pods it would be far from.
    pub pod_anti_affinity: Option<PodTerms>,
}

/// Pods that are meant.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct PodTerms {
    /// What must be.
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    pub required: Option<Vec<PodTerm>>,
    /// What would be better.
    #[serde(rename = "preferredDuringSchedulingIgnoredDuringExecution")]
    pub preferred: Option<Vec<WeighedPodTerm>>,
}

/// Pods that are meant, and how much that weighs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WeighedPodTerm {
    /// The pods.
    pub pod_affinity_term: PodTerm,
}

/// In which namespaces pods are meant: in the pod's own if neither is given.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodTerm {
    /// These.
    pub namespaces: Option<Vec<String>>,
    /// And those with certain labels.
    pub namespace_selector: Option<NamespaceSelector>,
}

/// Labels of namespaces. That they are asked for matters, not which.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct NamespaceSelector {}

/// A container.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WrittenContainer {
    /// Its name.
    pub name: String,
    /// What it asks for.
    pub resources: Option<Resources>,
    /// When it is started again; a sidecar is.
    pub restart_policy: Option<String>,
}

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct Resources {
    /// The most it may have.
    pub limits: Option<Quantities>,
    /// The least it must have.
    pub requests: Option<Quantities>,
}

/// Amounts by resource name. Manifests may write one as a bare number; here it is a text.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(from = "BTreeMap<String, Amount>")]
pub struct Quantities(pub BTreeMap<String, String>);

/// A pod's status.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// How far it is.
    pub phase: Option<String>,
    /// What is said of it.
    pub conditions: Option<Vec<Condition>>,
    /// Where it was promised room.
    pub nominated_node_name: Option<String>,
    /// How its init containers do.
    pub init_container_statuses: Option<Vec<ContainerStatus>>,
    /// How its containers do.
    pub container_statuses: Option<Vec<ContainerStatus>>,
}

/// Something said of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// What it is about.
    pub r#type: String,
    /// True, False or Unknown.
    pub status: String,
    /// Since when.
    pub last_transition_time: Option<String>,
}

/// How a container does.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct ContainerStatus {
    /// Which container.
    pub name: String,
    /// The runtime's ID of it, with the runtime's name before it.
    #[serde(rename = "containerID", default)]
    pub id: String,
    /// What it does.
    #[serde(default)]
    pub state: ContainerState,
}

/// What a container does.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct ContainerState {
    /// That it waits.
    pub waiting: Option<Waiting>,
}

/// Why a container waits.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct Waiting {
    /// In the kubelet's words.
    pub message: Option<String>,
}

impl TryFrom<WrittenPod> for Pod {
    type Error = NameError;

    fn try_from(written: WrittenPod) -> Result<Self, NameError> {
        let WrittenPod { metadata, spec, status } = written;
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
        Ok(Self {
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

impl WrittenContainer {
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

fn texts(quantities: Option<Quantities>) -> BTreeMap<String, String> {
    quantities.unwrap_or_default().0
}

impl From<BTreeMap<String, Amount>> for Quantities {
    fn from(amounts: BTreeMap<String, Amount>) -> Self {
        Self(amounts.into_iter().map(|(name, amount)| (name, amount.0)).collect())
    }
}

/// A quantity in JSON.
struct Amount(String);

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = Amount;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Amount, E> {
                Ok(Amount(text.to_owned()))
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Amount, E> {
                Ok(Amount(number.to_string()))
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Amount, E> {
                Ok(Amount(number.to_string()))
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<Amount, E> {
                // As JSON writes it, so that one without a fraction keeps its point.
                serde_json::Number::from_f64(number)
                    .map(|number| Amount(number.to_string()))
                    .ok_or_else(|| E::custom("not a number"))
            }
        }
        from.deserialize_any(Reader)
    }
}
