//! Pods from the API, read through the model's own door.
//!
//! The typed struct of a pod has hundreds of fields of which a dozen matter here, and there are
//! tens of thousands of pods. So the specification and the status are kept as the text they came
//! in, and read once, by [`Pod::from_json`].

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::core::NamespaceResourceScope;
use model::pod::PodError;
use model::{NodeName, Pod, PodId, PodUid};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

/// A pod as a watch or a read shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenPod {
    /// The pod.
    pub pod: Pod,
    /// The version a write must name so that it cannot undo another's.
    pub version: String,
    /// Where it was promised room, if it was.
    pub nominated: Option<NodeName>,
    /// Whether others may be evicted for it.
    pub may_preempt: bool,
    /// The runtime's IDs of its containers that run or ran last, with their names.
    pub containers: Vec<(String, String)>,
    /// Its containers that wait, with what the kubelet says about it.
    pub waiting: Vec<(String, String)>,
}

impl SeenPod {
    /// Reads a pod as the API server prints it.
    pub fn from_json(text: &str) -> Result<Self, PodError> {
        let raw: RawPod = serde_json::from_str(text)?;
        Self::new(&raw)
    }

    pub(crate) fn new(raw: &RawPod) -> Result<Self, PodError> {
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase")]
        struct Spec {
            preemption_policy: Option<String>,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase")]
        struct Status {
            nominated_node_name: Option<String>,
            #[serde(default)]
            init_container_statuses: Vec<Started>,
            #[serde(default)]
            container_statuses: Vec<Started>,
        }
        #[derive(Deserialize)]
        struct Started {
            name: String,
            // As the API spells it.
            #[serde(rename = "containerID", default)]
            id: String,
            #[serde(default)]
            state: State,
        }
        #[derive(Deserialize, Default)]
        struct State {
            waiting: Option<Waiting>,
        }
        #[derive(Deserialize)]
        struct Waiting {
            message: Option<String>,
        }
        let metadata = serde_json::to_string(&raw.metadata)?;
        let spec = raw.spec.as_deref().map_or("{}", RawValue::get);
        let status = raw.status.as_deref().map_or("{}", RawValue::get);
        let text = format!("{{\"metadata\":{metadata},\"spec\":{spec},\"status\":{status}}}");
        let pod = Pod::from_json(&text)?;
        let more: Spec = serde_json::from_str(spec)?;
        let status: Status = serde_json::from_str(status)?;
        let started = || status.init_container_statuses.iter().chain(&status.container_statuses);
        let containers = started().filter_map(|one| {
            let (_runtime, id) = one.id.split_once("://")?;
            Some((id.to_owned(), one.name.clone()))
        });
        let waiting = started().filter_map(|one| {
            Some((one.name.clone(), one.state.waiting.as_ref()?.message.clone()?))
        });
        let (containers, waiting) = (containers.collect(), waiting.collect());
        let nominated = status.nominated_node_name.filter(|name| !name.is_empty());
        Ok(Self {
            pod,
            version: raw.metadata.resource_version.clone().unwrap_or_default(),
            nominated: nominated.as_deref().and_then(|name| NodeName::parse(name).ok()),
            may_preempt: more.preemption_policy.as_deref() != Some("Never"),
            containers,
            waiting,
        })
    }
}

/// A pod that cannot be read: of another version of the API, or written past its checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadPod {
    /// Which pod.
    pub pod: PodId,
    /// Where it is, if it is on a node. What it holds there nobody knows.
    pub node: Option<NodeName>,
    /// Why it cannot be read.
    pub why: String,
}

impl UnreadPod {
    /// What can still be said of `raw`; nothing if not even who it is.
    fn new(raw: &RawPod, error: &PodError) -> Option<Self> {
        let name = raw.metadata.name.clone()?;
        let uid = PodUid::parse(raw.metadata.uid.as_deref()?).ok()?;
        let namespace = raw.metadata.namespace.clone().unwrap_or_default();
        let spec = raw.spec.as_deref().map_or("null", RawValue::get);
        let spec: serde_json::Value = serde_json::from_str(spec).unwrap_or_default();
        let node = spec["nodeName"].as_str().and_then(|name| NodeName::parse(name).ok());
        let why = std::error::Error::source(error)
            .map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"));
        Some(Self { pod: PodId { namespace, name, uid }, node, why })
    }
}

/// Reads a pod, or says what can be said of it. Nothing: not even that, and it is left out.
pub(crate) fn read_pod(raw: &RawPod) -> Option<Result<SeenPod, UnreadPod>> {
    let error = match SeenPod::new(raw) {
        Ok(seen) => return Some(Ok(seen)),
        Err(error) => error,
    };
    let unread = UnreadPod::new(raw, &error);
    match &unread {
        Some(UnreadPod { pod, node: Some(node), why }) => {
            tracing::warn!(%pod, %node, why, "pod cannot be read; its node takes nothing new");
        }
        Some(UnreadPod { pod, why, .. }) => tracing::warn!(%pod, why, "pod left out"),
        None => tracing::warn!(%error, pod = raw.metadata.name, "pod left out"),
    }
    unread.map(Err)
}

/// A pod on the wire.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub(crate) struct RawPod {
    #[serde(default, deserialize_with = "metadata")]
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: Option<Box<RawValue>>,
    pub(crate) status: Option<Box<RawValue>>,
}

/// What matters of a pod's metadata. The field managers above all are passed over: they are half of a
/// pod, and a kubelet writes pods again and again in which nothing has changed.
fn metadata<'de, D: Deserializer<'de>>(from: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata {
        name: Option<String>,
        namespace: Option<String>,
        uid: Option<String>,
        resource_version: Option<String>,
        creation_timestamp: Option<Time>,
        deletion_timestamp: Option<Time>,
        annotations: Option<BTreeMap<String, String>>,
        labels: Option<BTreeMap<String, String>>,
    }
    let read = Metadata::deserialize(from)?;
    Ok(ObjectMeta {
        name: read.name,
        namespace: read.namespace,
        uid: read.uid,
        resource_version: read.resource_version,
        creation_timestamp: read.creation_timestamp,
        deletion_timestamp: read.deletion_timestamp,
        annotations: read.annotations,
        labels: read.labels,
        ..ObjectMeta::default()
    })
}

impl kube::Resource for RawPod {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "Pod".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "pods".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use kube::core::WatchEvent;

    use super::*;

    const POD: &str = r#"{"kind":"Pod","apiVersion":"v1",
        "metadata":{"name":"a","namespace":"team","uid":"u-1","resourceVersion":"7",
            "creationTimestamp":"2026-01-02T03:04:05Z",
            "managedFields":[{"manager":"x","operation":"Update","fieldsV1":{"f:a":{}}}]},
        "spec":{"preemptionPolicy":"Never","schedulerName":"nanogpu",
            "containers":[{"name":"c","resources":{"limits":{"x/y":"20"}}}]},
        "status":{"phase":"Pending","nominatedNodeName":"n-1","containerStatuses":[
            {"name":"c","containerID":"containerd://4f0c"},{"name":"d","containerID":""},{"name":"e"}]}}"#;

    #[test]
    fn a_watched_pod_is_read_without_its_field_managers() {
        let line = format!(r#"{{"type":"ADDED","object":{POD}}}"#);
        let event: WatchEvent<RawPod> = serde_json::from_str(&line).unwrap();
        let WatchEvent::Added(raw) = event else { panic!("{event:?}") };
        assert!(raw.metadata.managed_fields.is_none());
        let seen = SeenPod::new(&raw).unwrap();
        assert_eq!(seen, SeenPod::from_json(POD).unwrap());
        assert_eq!((seen.version.as_str(), seen.may_preempt), ("7", false));
        assert_eq!(seen.nominated.unwrap().as_str(), "n-1");
        assert_eq!(seen.pod.id.to_string(), "team/a");
        assert_eq!(seen.pod.scheduler, "nanogpu");
        assert_eq!(seen.containers, [("4f0c".to_owned(), "c".to_owned())]);
    }

    #[test]
    fn of_a_pod_that_cannot_be_read_who_and_where_is_known() {
        let bound = r#"{"metadata":{"name":"a","namespace":"team","uid":"u-1"},
            "spec":{"nodeName":"n-1","containers":[{"name":7}]}}"#;
        let raw: RawPod = serde_json::from_str(bound).unwrap();
        let unread = read_pod(&raw).unwrap().unwrap_err();
        assert_eq!(unread.pod.to_string(), "team/a");
        assert_eq!(unread.node.unwrap().as_str(), "n-1");
        assert!(unread.why.starts_with("not a pod: invalid type"), "{}", unread.why);
        let nobody: RawPod = serde_json::from_str(r#"{"spec":{"containers":7}}"#).unwrap();
        assert!(read_pod(&nobody).is_none());
    }

    #[test]
    fn a_pod_of_the_minimum_may_preempt_and_is_promised_nothing() {
        let text = r#"{"metadata":{"name":"a","uid":"u"},"spec":{"containers":[]}}"#;
        let seen = SeenPod::from_json(text).unwrap();
        assert!(seen.may_preempt && seen.nominated.is_none() && seen.version.is_empty());
    }
}
