//! Pods from the API, read through the model's own door.
//!
//! The typed struct of a pod has hundreds of fields of which a dozen matter here, and there are
//! tens of thousands of pods. So the specification and the status are kept as the text they came
//! in, and read once, by [`Pod::from_json`].

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::NamespaceResourceScope;
use model::pod::PodError;
use model::{NodeName, Pod};
use serde::{Deserialize, Serialize};
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
        }
        // Written anew without the field managers, which are half of a pod.
        let metadata = ObjectMeta { managed_fields: None, ..raw.metadata.clone() };
        let metadata = serde_json::to_string(&metadata)?;
        let spec = raw.spec.as_deref().map_or("{}", RawValue::get);
        let status = raw.status.as_deref().map_or("{}", RawValue::get);
        let text = format!("{{\"metadata\":{metadata},\"spec\":{spec},\"status\":{status}}}");
        let pod = Pod::from_json(&text)?;
        let more: Spec = serde_json::from_str(spec)?;
        let nominated: Status = serde_json::from_str(status)?;
        let nominated = nominated.nominated_node_name.filter(|name| !name.is_empty());
        Ok(Self {
            pod,
            version: raw.metadata.resource_version.clone().unwrap_or_default(),
            nominated: nominated.as_deref().and_then(|name| NodeName::parse(name).ok()),
            may_preempt: more.preemption_policy.as_deref() != Some("Never"),
        })
    }
}

/// A pod on the wire.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub(crate) struct RawPod {
    #[serde(default)]
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: Option<Box<RawValue>>,
    pub(crate) status: Option<Box<RawValue>>,
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
        "status":{"phase":"Pending","nominatedNodeName":"n-1"}}"#;

    #[test]
    fn a_watched_pod_is_read_without_its_field_managers() {
        let line = format!(r#"{{"type":"ADDED","object":{POD}}}"#);
        let event: WatchEvent<RawPod> = serde_json::from_str(&line).unwrap();
        let WatchEvent::Added(raw) = event else { panic!("{event:?}") };
        let seen = SeenPod::new(&raw).unwrap();
        assert_eq!(seen, SeenPod::from_json(POD).unwrap());
        assert_eq!((seen.version.as_str(), seen.may_preempt), ("7", false));
        assert_eq!(seen.nominated.unwrap().as_str(), "n-1");
        assert_eq!(seen.pod.id.to_string(), "team/a");
        assert_eq!(seen.pod.scheduler, "nanogpu");
    }

    #[test]
    fn a_pod_of_the_minimum_may_preempt_and_is_promised_nothing() {
        let text = r#"{"metadata":{"name":"a","uid":"u"},"spec":{"containers":[]}}"#;
        let seen = SeenPod::from_json(text).unwrap();
        assert!(seen.may_preempt && seen.nominated.is_none() && seen.version.is_empty());
    }
}
