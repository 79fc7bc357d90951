//! Pods from the API, read through the model's own door.

use model::pod::{Affinity, PodError, PodTerm, WrittenPod};
use model::{NameError, NodeName, Pod, PodId};

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
    /// Which pods it would rather have near or far, once it is on a node.
    pub minds: Minds,
    /// The runtime's IDs of its containers that run or ran last, with their names.
    pub containers: Vec<(String, String)>,
    /// Its containers that wait, with what the kubelet says about it.
    pub waiting: Vec<(String, String)>,
}

/// Which pods a pod would rather have near or far. kube-scheduler heeds that also when such a pod comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Minds {
    /// None.
    #[default]
    Nobody,
    /// Pods of its own namespace at most.
    Namespace,
    /// Pods of other namespaces, too.
    Everybody,
}

impl Minds {
    fn of(affinity: Affinity) -> Self {
        let Affinity { pod_affinity, pod_anti_affinity } = affinity;
        let (near, far) = (pod_affinity.unwrap_or_default(), pod_anti_affinity.unwrap_or_default());
        let preferred = near.preferred.into_iter().chain(far.preferred).flatten();
        // Whom it must be near to attracts it as well; whom it must be far from is no wish but a rule.
        let terms = preferred.map(|term| term.pod_affinity_term);
        let terms = terms.chain(near.required.into_iter().flatten());
        let beyond = |term: PodTerm| {
            term.namespace_selector.is_some() || term.namespaces.is_some_and(|all| !all.is_empty())
        };
        terms.fold(Self::Nobody, |minds, term| match minds {
            Self::Everybody => minds,
            _ if beyond(term) => Self::Everybody,
            _ => Self::Namespace,
        })
    }
}

impl SeenPod {
    /// Reads a pod as the API server prints it.
    pub fn from_json(text: &str) -> Result<Self, PodError> {
        let written: WrittenPod = serde_json::from_str(text)?;
        Ok(Self::new(written)?)
    }

    pub(crate) fn new(mut written: WrittenPod) -> Result<Self, NameError> {
        let version = written.metadata.resource_version.take().unwrap_or_default();
        let may_preempt = written.spec.preemption_policy.as_deref() != Some("Never");
        let minds = Minds::of(written.spec.affinity.take().unwrap_or_default());
        let status = &mut written.status;
        let nominated = status.nominated_node_name.take();
        let init = status.init_container_statuses.take().unwrap_or_default();
        let apps = status.container_statuses.take().unwrap_or_default();
        let (mut containers, mut waiting) = (Vec::new(), Vec::new());
        for one in init.into_iter().chain(apps) {
            if let Some((_runtime, id)) = one.id.split_once("://") {
                containers.push((id.to_owned(), one.name.clone()));
            }
            if let Some(message) = one.state.waiting.and_then(|waiting| waiting.message) {
                waiting.push((one.name, message));
            }
        }
        Ok(Self {
            pod: written.try_into()?,
            version,
            nominated: nominated.and_then(|name| NodeName::parse(&name).ok()),
            may_preempt,
            minds,
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

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &str = r#"{"kind":"Pod","apiVersion":"v1",
        "metadata":{"name":"a","namespace":"team","uid":"u-1","resourceVersion":"7",
            "creationTimestamp":"2026-01-02T03:04:05Z","deletionTimestamp":"2026-01-02T03:04:06Z",
            "labels":{"app":"b"},"annotations":{"k":"v"},
            "managedFields":[{"manager":"x","operation":"Update","fieldsV1":{"f:a":{}}}]},
        "spec":{"preemptionPolicy":"Never","schedulerName":"nanogpu",
            "containers":[{"name":"c","resources":{"limits":{"x/y":"20"}}}]},
        "status":{"phase":"Pending","nominatedNodeName":"n-1","containerStatuses":[
            {"name":"c","containerID":"containerd://4f0c"},{"name":"d","containerID":""},
            {"name":"e","state":{"waiting":{"message":"pulling"}}}]}}"#;

    #[test]
    fn a_pod_is_read_with_what_a_scheduler_and_an_agent_want_to_know() {
        let seen = SeenPod::from_json(POD).unwrap();
        assert_eq!((seen.version.as_str(), seen.may_preempt), ("7", false));
        assert_eq!(seen.nominated.unwrap().as_str(), "n-1");
        assert_eq!(seen.pod.id.to_string(), "team/a");
        assert_eq!(seen.pod.scheduler, "nanogpu");
        assert_eq!(seen.containers, [("4f0c".to_owned(), "c".to_owned())]);
        assert_eq!(seen.waiting, [("e".to_owned(), "pulling".to_owned())]);
        assert_eq!(seen.pod.labels["app"], "b");
        assert_eq!(seen.pod.annotations["k"], "v");
        assert!(seen.pod.terminating);
    }

    #[test]
    fn a_pod_of_the_minimum_may_preempt_and_is_promised_nothing() {
        let text = r#"{"metadata":{"name":"a","uid":"u"},"spec":{"containers":[]}}"#;
        let seen = SeenPod::from_json(text).unwrap();
        assert!(seen.may_preempt && seen.nominated.is_none() && seen.version.is_empty());
        assert_eq!(seen.minds, Minds::Nobody);
    }

    #[test]
    fn whom_a_pod_would_be_near_to_or_far_from_is_known_by_namespace() {
        let (near, far) = ("podAffinity", "podAntiAffinity");
        let (must, rather) = ("required", "preferred");
        let own = r#""topologyKey":"zone","labelSelector":{"matchLabels":{"app":"b"}}"#;
        let named = r#""topologyKey":"zone","namespaces":["other"]"#;
        let chosen = r#""topologyKey":"zone","namespaceSelector":{"matchLabels":{"a":"b"}}"#;
        for (kind, how, terms, minds) in [
            (near, rather, vec![own], Minds::Namespace),
            (near, must, vec![own], Minds::Namespace),
            (far, rather, vec![own], Minds::Namespace),
            // What it may not be near to is refused, not weighed.
            (far, must, vec![own, named], Minds::Nobody),
            (near, rather, vec![named], Minds::Everybody),
            (near, must, vec![chosen, own], Minds::Everybody),
            (far, rather, vec![own, chosen], Minds::Everybody),
            (far, rather, vec![], Minds::Nobody),
        ] {
            let term = |term: &str| match how {
                "preferred" => format!(r#"{{"weight":1,"podAffinityTerm":{{{term}}}}}"#),
                _ => format!("{{{term}}}"),
            };
            let list = terms.iter().map(|it| term(it)).collect::<Vec<_>>().join(",");
            let text = format!(
                r#"{{"metadata":{{"name":"a","uid":"u"}},"spec":{{"containers":[],"affinity":{{
                    "nodeAffinity":{{"{how}DuringSchedulingIgnoredDuringExecution":[]}},
                    "{kind}":{{"{how}DuringSchedulingIgnoredDuringExecution":[{list}]}}}}}}}}"#
            );
            assert_eq!(SeenPod::from_json(&text).unwrap().minds, minds, "{kind} {how} {terms:?}");
        }
    }
}
