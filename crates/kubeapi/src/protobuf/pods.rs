//! Pods in protobuf.

use std::collections::BTreeMap;

use model::pod::{self, Quantities, WrittenContainer, WrittenPod};
use model::{NodeName, PodId, PodUid};
use prost::Message;
use prost::bytes::Bytes;

use super::{Time, some};
use crate::pods::{SeenPod, UnreadPod};

/// Reads a pod, or says what can be said of it. Nothing: not even that, and it is left out.
pub(crate) fn read_pod(raw: &Bytes) -> Option<Result<SeenPod, UnreadPod>> {
    let read = Pod::decode(raw.clone()).map_err(|error| error.to_string());
    let seen = read.and_then(|pod| {
        SeenPod::new(pod.written()).map_err(|error| format!("not a valid pod: {error}"))
    });
    let why = match seen {
        Ok(seen) => return Some(Ok(seen)),
        Err(why) => why,
    };
    let unread = Who::of(raw).and_then(|who| who.unread(&why));
    match &unread {
        Some(UnreadPod { pod, node: Some(node), why }) => {
            tracing::warn!(%pod, %node, why, "pod cannot be read; its node takes nothing new");
        }
        Some(UnreadPod { pod, why, .. }) => tracing::warn!(%pod, why, "pod left out"),
        None => tracing::warn!(why, "pod left out"),
    }
    unread.map(Err)
}

/// The UID of a pod.
pub(crate) fn uid_of(raw: &Bytes) -> Option<String> {
    some(Who::of(raw)?.metadata?.uid)
}

/// Who a pod is and where, whatever the rest of it says.
#[derive(Clone, PartialEq, Message)]
struct Who {
    #[prost(message, optional, tag = "1")]
    metadata: Option<Called>,
    #[prost(message, optional, tag = "2")]
    spec: Option<Where>,
}

#[derive(Clone, PartialEq, Message)]
struct Called {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "3")]
    namespace: String,
    #[prost(string, tag = "5")]
    uid: String,
}

#[derive(Clone, PartialEq, Message)]
struct Where {
    #[prost(string, tag = "10")]
    node_name: String,
}

impl Who {
    fn of(raw: &Bytes) -> Option<Self> {
        Self::decode(raw.clone()).ok()
    }

    fn unread(self, why: &str) -> Option<UnreadPod> {
        let Called { name, namespace, uid } = self.metadata?;
        let uid = PodUid::parse(&uid).ok()?;
        let node = self.spec.and_then(|spec| NodeName::parse(&spec.node_name).ok());
        Some(UnreadPod { pod: PodId { namespace, name, uid }, node, why: why.to_owned() })
    }
}

#[derive(Clone, PartialEq, Message)]
struct Pod {
    #[prost(message, optional, tag = "1")]
    metadata: Option<Metadata>,
    #[prost(message, optional, tag = "2")]
    spec: Option<Spec>,
    #[prost(message, optional, tag = "3")]
    status: Option<Status>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Metadata {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "3")]
    pub(super) namespace: String,
    #[prost(string, tag = "5")]
    pub(super) uid: String,
    #[prost(string, tag = "6")]
    pub(super) resource_version: String,
    #[prost(message, optional, tag = "9")]
    pub(super) deletion_timestamp: Option<Time>,
    #[prost(btree_map = "string, string", tag = "11")]
    pub(super) labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "12")]
    pub(super) annotations: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
struct Spec {
    #[prost(message, repeated, tag = "2")]
    containers: Vec<Container>,
    #[prost(string, tag = "10")]
    node_name: String,
    #[prost(message, optional, tag = "18")]
    affinity: Option<Affinity>,
    #[prost(string, tag = "19")]
    scheduler_name: String,
    #[prost(message, repeated, tag = "20")]
    init_containers: Vec<Container>,
    #[prost(int32, optional, tag = "25")]
    priority: Option<i32>,
    #[prost(string, tag = "31")]
    preemption_policy: String,
    #[prost(btree_map = "string, message", tag = "32")]
    overhead: BTreeMap<String, Quantity>,
    #[prost(message, optional, tag = "40")]
    resources: Option<Resources>,
}

#[derive(Clone, PartialEq, Message)]
struct Affinity {
    #[prost(message, optional, tag = "2")]
    pod_affinity: Option<PodTerms>,
    #[prost(message, optional, tag = "3")]
    pod_anti_affinity: Option<PodTerms>,
}

#[derive(Clone, PartialEq, Message)]
struct PodTerms {
    #[prost(message, repeated, tag = "1")]
    required: Vec<PodTerm>,
    #[prost(message, repeated, tag = "2")]
    preferred: Vec<WeighedPodTerm>,
}

#[derive(Clone, PartialEq, Message)]
struct WeighedPodTerm {
    #[prost(message, optional, tag = "2")]
    pod_affinity_term: Option<PodTerm>,
}

#[derive(Clone, PartialEq, Message)]
struct PodTerm {
    #[prost(string, repeated, tag = "2")]
    namespaces: Vec<String>,
    #[prost(message, optional, tag = "4")]
    namespace_selector: Option<NamespaceSelector>,
}

#[derive(Clone, PartialEq, Message)]
struct NamespaceSelector {}

#[derive(Clone, PartialEq, Message)]
struct Container {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "8")]
    resources: Option<Resources>,
    #[prost(string, tag = "24")]
    restart_policy: String,
}

#[derive(Clone, PartialEq, Message)]
struct Resources {
    #[prost(btree_map = "string, message", tag = "1")]
    limits: BTreeMap<String, Quantity>,
    #[prost(btree_map = "string, message", tag = "2")]
    requests: BTreeMap<String, Quantity>,
}

#[derive(Clone, PartialEq, Message)]
struct Quantity {
    #[prost(string, tag = "1")]
    text: String,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(string, tag = "1")]
    phase: String,
    #[prost(message, repeated, tag = "2")]
    conditions: Vec<Condition>,
    #[prost(message, repeated, tag = "8")]
    container_statuses: Vec<ContainerStatus>,
    #[prost(message, repeated, tag = "10")]
    init_container_statuses: Vec<ContainerStatus>,
    #[prost(string, tag = "11")]
    nominated_node_name: String,
}

#[derive(Clone, PartialEq, Message)]
struct Condition {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(string, tag = "2")]
    status: String,
    #[prost(message, optional, tag = "4")]
    last_transition_time: Option<Time>,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerStatus {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    state: Option<State>,
    #[prost(string, tag = "8")]
    id: String,
}

#[derive(Clone, PartialEq, Message)]
struct State {
    #[prost(message, optional, tag = "1")]
    waiting: Option<Waiting>,
}

#[derive(Clone, PartialEq, Message)]
struct Waiting {
    #[prost(string, tag = "2")]
    message: String,
}

impl Pod {
    fn written(self) -> WrittenPod {
        let metadata = self.metadata.unwrap_or_default();
        WrittenPod {
            metadata: pod::Metadata {
                name: metadata.name,
                namespace: some(metadata.namespace),
                uid: some(metadata.uid),
                resource_version: some(metadata.resource_version),
                annotations: Some(metadata.annotations),
                labels: Some(metadata.labels),
                deletion_timestamp: metadata
                    .deletion_timestamp
                    .map(|time| time.written().unwrap_or_default()),
            },
            spec: self.spec.unwrap_or_default().written(),
            status: self.status.unwrap_or_default().written(),
        }
    }
}

impl Spec {
    fn written(self) -> pod::Spec {
        let containers = |all: Vec<Container>| all.into_iter().map(Container::written).collect();
        pod::Spec {
            node_name: some(self.node_name),
            scheduler_name: some(self.scheduler_name),
            containers: containers(self.containers),
            init_containers: Some(containers(self.init_containers)),
            priority: self.priority,
            preemption_policy: some(self.preemption_policy),
            overhead: Some(quantities(self.overhead)),
            resources: self.resources.map(Resources::written),
            affinity: self.affinity.map(|affinity| pod::Affinity {
                pod_affinity: affinity.pod_affinity.map(PodTerms::written),
                pod_anti_affinity: affinity.pod_anti_affinity.map(PodTerms::written),
            }),
        }
    }
}

impl PodTerms {
    fn written(self) -> pod::PodTerms {
        let term = |term: PodTerm| pod::PodTerm {
            namespaces: Some(term.namespaces),
            namespace_selector: term.namespace_selector.map(|_| pod::NamespaceSelector {}),
        };
        let weighed = |weighed: WeighedPodTerm| pod::WeighedPodTerm {
            pod_affinity_term: term(weighed.pod_affinity_term.unwrap_or_default()),
        };
        pod::PodTerms {
            required: Some(self.required.into_iter().map(term).collect()),
            preferred: Some(self.preferred.into_iter().map(weighed).collect()),
        }
    }
}

impl Container {
    fn written(self) -> WrittenContainer {
        WrittenContainer {
            name: self.name,
            resources: self.resources.map(Resources::written),
            restart_policy: some(self.restart_policy),
        }
    }
}

impl Resources {
    fn written(self) -> pod::Resources {
        pod::Resources {
            limits: Some(quantities(self.limits)),
            requests: Some(quantities(self.requests)),
        }
    }
}

fn quantities(all: BTreeMap<String, Quantity>) -> Quantities {
    Quantities(all.into_iter().map(|(name, quantity)| (name, quantity.text)).collect())
}

impl Status {
    fn written(self) -> pod::Status {
        let statuses = |all: Vec<ContainerStatus>| {
            Some(all.into_iter().map(ContainerStatus::written).collect())
        };
        let conditions = self.conditions.into_iter().map(|condition| pod::Condition {
            r#type: condition.kind,
            status: condition.status,
            last_transition_time: condition.last_transition_time.and_then(|time| time.written()),
        });
        pod::Status {
            phase: some(self.phase),
            conditions: Some(conditions.collect()),
            nominated_node_name: some(self.nominated_node_name),
            init_container_statuses: statuses(self.init_container_statuses),
            container_statuses: statuses(self.container_statuses),
        }
    }
}

impl ContainerStatus {
    fn written(self) -> pod::ContainerStatus {
        let waiting = self.state.and_then(|state| state.waiting);
        let waiting = waiting.map(|waiting| pod::Waiting { message: some(waiting.message) });
        pod::ContainerStatus {
            name: self.name,
            id: self.id,
            state: pod::ContainerState { waiting },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::Minds;

    fn quantity(name: &str, text: &str) -> BTreeMap<String, Quantity> {
        [(name.to_owned(), Quantity { text: text.to_owned() })].into()
    }

    fn container(name: &str, restart_policy: &str) -> Container {
        let resources =
            Resources { limits: quantity("x/y", "20"), requests: quantity("cpu", "1500m") };
        let (name, restart_policy) = (name.to_owned(), restart_policy.to_owned());
        Container { name, restart_policy, resources: Some(resources) }
    }

    fn pod() -> Pod {
        let text = str::to_owned;
        Pod {
            metadata: Some(Metadata {
                name: text("a"),
                namespace: text("team"),
                uid: text("u-1"),
                resource_version: text("7"),
                deletion_timestamp: Some(Time { seconds: 1_767_323_046, nanos: 0 }),
                labels: [(text("app"), text("b"))].into(),
                annotations: [(text("k"), text("v"))].into(),
            }),
            spec: Some(Spec {
                containers: vec![container("c", "")],
                node_name: text("n-1"),
                affinity: Some(Affinity {
                    pod_affinity: None,
                    pod_anti_affinity: Some(PodTerms {
                        required: Vec::new(),
                        preferred: vec![WeighedPodTerm {
                            pod_affinity_term: Some(PodTerm {
                                namespaces: Vec::new(),
                                namespace_selector: Some(NamespaceSelector {}),
                            }),
                        }],
                    }),
                }),
                scheduler_name: text("nanogpu"),
                init_containers: vec![container("i", ""), container("s", "Always")],
                priority: Some(-3),
                preemption_policy: text("Never"),
                overhead: quantity("cpu", "250m"),
                resources: Some(Resources {
                    requests: quantity("memory", "1Gi"),
                    ..<_>::default()
                }),
            }),
            status: Some(Status {
                phase: text("Pending"),
                conditions: vec![Condition {
                    kind: text("PodScheduled"),
                    status: text("True"),
                    last_transition_time: Some(Time { seconds: 1_767_323_045, nanos: 0 }),
                }],
                container_statuses: vec![ContainerStatus {
                    name: text("c"),
                    state: Some(State { waiting: Some(Waiting { message: text("pulling") }) }),
                    id: String::new(),
                }],
                init_container_statuses: vec![ContainerStatus {
                    name: text("i"),
                    state: None,
                    id: text("containerd://4f0c"),
                }],
                nominated_node_name: text("n-2"),
            }),
        }
    }

    /// The same pod as the API writes it in JSON.
    const POD: &str = r#"{
        "metadata":{"name":"a","namespace":"team","uid":"u-1","resourceVersion":"7",
            "deletionTimestamp":"2026-01-02T03:04:06Z","labels":{"app":"b"},"annotations":{"k":"v"}},
        "spec":{"nodeName":"n-1","schedulerName":"nanogpu","priority":-3,"preemptionPolicy":"Never",
            "affinity":{"podAntiAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[
                {"weight":5,"podAffinityTerm":{"topologyKey":"zone","namespaceSelector":{}}}]}},
            "overhead":{"cpu":"250m"},"resources":{"requests":{"memory":"1Gi"}},
            "containers":[{"name":"c","resources":{"limits":{"x/y":"20"},"requests":{"cpu":"1500m"}}}],
            "initContainers":[
                {"name":"i","resources":{"limits":{"x/y":"20"},"requests":{"cpu":"1500m"}}},
                {"name":"s","restartPolicy":"Always",
                    "resources":{"limits":{"x/y":"20"},"requests":{"cpu":"1500m"}}}]},
        "status":{"phase":"Pending","nominatedNodeName":"n-2",
            "conditions":[{"type":"PodScheduled","status":"True",
                "lastTransitionTime":"2026-01-02T03:04:05Z"}],
            "containerStatuses":[{"name":"c","state":{"waiting":{"message":"pulling"}}}],
            "initContainerStatuses":[{"name":"i","containerID":"containerd://4f0c"}]}}"#;

    #[test]
    fn both_forms_of_a_pod_say_the_same() {
        let raw = pod().encode_to_vec().into();
        let seen = read_pod(&raw).unwrap().unwrap();
        assert_eq!(seen, SeenPod::from_json(POD).unwrap());
        assert_eq!(seen.minds, Minds::Everybody);
        assert_eq!(uid_of(&raw).unwrap(), "u-1");
        let least = Pod {
            metadata: Some(Metadata {
                name: "a".to_owned(),
                uid: "u".to_owned(),
                ..<_>::default()
            }),
            ..Pod::default()
        };
        let seen = read_pod(&least.encode_to_vec().into()).unwrap().unwrap();
        let json = r#"{"metadata":{"name":"a","uid":"u"},"spec":{"containers":[]}}"#;
        assert_eq!(seen, SeenPod::from_json(json).unwrap());
    }

    #[test]
    fn of_a_pod_that_cannot_be_read_who_and_where_is_known() {
        let mut unnamed = pod();
        unnamed.spec.as_mut().unwrap().containers[0].name = "No Name".to_owned();
        // Containers of another kind of field, after all that can be read.
        let strange = [&pod().encode_to_vec()[..], &[0x12, 3, 0x12, 1, 0x08]].concat();
        for raw in [unnamed.encode_to_vec(), strange] {
            let unread = read_pod(&raw.into()).unwrap().unwrap_err();
            assert_eq!(unread.pod.to_string(), "team/a");
            assert_eq!(unread.node.unwrap().as_str(), "n-1");
            assert!(!unread.why.is_empty());
        }
        assert!(read_pod(&Bytes::from_static(b"\xff")).is_none());
    }
}
