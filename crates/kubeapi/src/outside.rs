//! Everything nanogpu writes onto pods, and what became of it.
//!
//! A write over a network has three ends: it happened, it did not, or nobody knows. The third is
//! an answer here, never an error among others: a share may be given back only if its Binding
//! certainly failed.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::core::request::Request;
use kube::core::{PartialObjectMeta, Status};
use kube::{Client, Error, Resource as _};
use model::{NodeName, PodId, names};
use serde_json::json;

use crate::pods::{SeenPod, UnreadPod};
use crate::protobuf;

/// What is written when a pod is bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    /// Which pod, by UID too: another of the same name is not bound.
    pub pod: PodId,
    /// The version of the pod the decision was made for. A changed pod is not bound.
    pub version: String,
    /// Where to.
    pub node: NodeName,
    /// Annotations written in the same moment.
    pub annotations: BTreeMap<String, String>,
    /// Labels written in the same moment, by servers from 1.35 on.
    pub labels: BTreeMap<String, String>,
}

/// What became of a Binding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BindingOutcome {
    /// The pod is bound, by this Binding.
    Bound,
    /// The pod is another version, or bound already. This Binding did nothing.
    Conflict(String),
    /// There is no such pod. This Binding did nothing.
    Gone,
    /// The API server refused. This Binding did nothing.
    Refused(String),
    /// It may have happened, or may still happen.
    Unknown(String),
}

/// Annotations to be put onto a pending pod, or taken off (`None`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Annotated {
    /// Which pod, by UID too.
    pub pod: PodId,
    /// Only if it still is this version; nothing means whatever it is.
    pub version: Option<String>,
    /// Key and new value.
    pub annotations: BTreeMap<String, Option<String>>,
}

/// What became of a change of a pod's annotations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TouchOutcome {
    /// It is changed; this is its version now. No Binding for an older one can succeed.
    Changed(String),
    /// It is another version than was meant. Nothing was done.
    Conflict,
    /// There is no such pod, or another has its name.
    Gone,
    /// The API server refused this change of this pod. Nothing was done.
    Refused(String),
    /// Nothing was done, or nobody knows.
    Failed(String),
}

/// All pods, as they are in the store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Listed {
    /// Those that can be read.
    pub pods: Vec<SeenPod>,
    /// Those that cannot.
    pub unread: Vec<UnreadPod>,
}

/// What became of an eviction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EvictionOutcome {
    /// It is on its way out.
    Evicted,
    /// A disruption budget does not allow it now.
    Blocked(String),
    /// It was gone already.
    Gone,
    /// Not done, or nobody knows.
    Failed(String),
}

/// The writes, so that what decides can be tested against faults no real server would make on
/// command. [`Kube`] is the real one.
pub trait Outside: Send + Sync + 'static {
    /// Binds a pod, once.
    fn bind(&self, binding: Binding) -> BoxFuture<'_, BindingOutcome>;
    /// The pod as it is now, read from the store and no cache; nothing if there is none.
    fn pod(&self, pod: &PodId) -> BoxFuture<'_, Result<Option<SeenPod>, String>>;
    /// All pods as they are now, read from the store and no cache.
    fn pods(&self) -> BoxFuture<'_, Result<Listed, String>>;
    /// Changes annotations.
    fn annotate(&self, annotated: Annotated) -> BoxFuture<'_, TouchOutcome>;
    /// Evicts a pod, within its budgets.
    fn evict(&self, pod: &PodId) -> BoxFuture<'_, EvictionOutcome>;
    /// Promises a pod room on a node.
    fn nominate(&self, pod: &PodId, node: &NodeName) -> BoxFuture<'_, TouchOutcome>;

    /// Changes nothing that matters, so that the pod is another version: no Binding that was
    /// sent before can succeed, and kube-scheduler tries the pod again.
    fn touch(&self, pod: &PodId, at: String) -> BoxFuture<'_, TouchOutcome> {
        let annotations = [(names::RETRY.to_owned(), Some(at))].into();
        self.annotate(Annotated { pod: pod.clone(), version: None, annotations })
    }
}

/// The API server.
#[derive(Clone)]
pub struct Kube {
    client: Client,
    patience: Duration,
}

impl std::fmt::Debug for Kube {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kube").field("patience", &self.patience).finish_non_exhaustive()
    }
}

impl Kube {
    /// Writes through `client`, and gives up waiting for an answer after `patience`.
    pub fn new(client: Client, patience: Duration) -> Self {
        Self { client, patience }
    }

    /// Of answers that show a pod only the metadata is read.
    fn pods_of(&self, namespace: &str) -> Api<PartialObjectMeta<Pod>> {
        Api::namespaced(self.client.clone(), namespace)
    }

    async fn within<T>(
        &self,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, Failure> {
        match tokio::time::timeout(self.patience, request).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(Error::Api(status))) => Err(Failure::Told(status)),
            Ok(Err(error)) => Err(Failure::Lost(told(&error))),
            Err(_) => Err(Failure::Lost("the API server did not answer in time".to_owned())),
        }
    }
}

enum Failure {
    /// The API server said so.
    Told(Box<Status>),
    /// No answer that means anything.
    Lost(String),
}

fn told(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let next_text = next.to_string();
        if !text.contains(&next_text) {
            text = format!("{text}: {next_text}");
        }
        cause = next.source();
    }
    text
}

impl Outside for Kube {
    fn bind(&self, binding: Binding) -> BoxFuture<'_, BindingOutcome> {
        Box::pin(async move {
            let pods = Request::new(Pod::url_path(&(), Some(&binding.pod.namespace)));
            match self.within(protobuf::bind(&self.client, &pods, binding)).await {
                Ok(()) => BindingOutcome::Bound,
                Err(Failure::Told(status)) => match status.code {
                    409 => BindingOutcome::Conflict(status.message),
                    404 => BindingOutcome::Gone,
                    400..500 => BindingOutcome::Refused(status.message),
                    _ => BindingOutcome::Unknown(status.message),
                },
                Err(Failure::Lost(why)) => BindingOutcome::Unknown(why),
            }
        })
    }

    fn pod(&self, pod: &PodId) -> BoxFuture<'_, Result<Option<SeenPod>, String>> {
        let pod = pod.clone();
        Box::pin(async move {
            let pods = Request::new(Pod::url_path(&(), Some(&pod.namespace)));
            match self.within(protobuf::get(&self.client, &pods, &pod.name)).await {
                Ok(None) => Ok(None),
                Ok(Some(raw)) => match protobuf::read_pod(&raw) {
                    Some(read) => read.map(Some).map_err(|unread| unread.why),
                    None => Err("the API server's answer is no pod".to_owned()),
                },
                Err(Failure::Told(status)) => Err(status.message),
                Err(Failure::Lost(why)) => Err(why),
            }
        })
    }

    fn pods(&self) -> BoxFuture<'_, Result<Listed, String>> {
        Box::pin(async move {
            let all = Request::new(Pod::url_path(&(), None));
            let fields = "status.phase!=Succeeded,status.phase!=Failed";
            // In one answer: pages of one list are older the later they are asked for.
            let params = ListParams::default().fields(fields);
            match tokio::time::timeout(
                self.patience * 4,
                protobuf::list(&self.client, &all, &params),
            )
            .await
            {
                Ok(Ok(items)) => {
                    let mut listed = Listed::default();
                    for read in items.iter().filter_map(protobuf::read_pod) {
                        match read {
                            Ok(seen) => listed.pods.push(seen),
                            Err(unread) => listed.unread.push(unread),
                        }
                    }
                    Ok(listed)
                }
                Ok(Err(error)) => Err(told(&error)),
                Err(_) => Err("the API server did not list the pods in time".to_owned()),
            }
        })
    }

    fn annotate(&self, annotated: Annotated) -> BoxFuture<'_, TouchOutcome> {
        Box::pin(async move {
            let Annotated { pod, version, annotations } = annotated;
            let mut metadata = json!({"uid": pod.uid, "annotations": annotations});
            if let Some(version) = &version {
                metadata["resourceVersion"] = json!(version);
            }
            let patch = Patch::Merge(json!({"metadata": metadata}));
            let pods = self.pods_of(&pod.namespace);
            let params = PatchParams::default();
            let sent = pods.patch_metadata(&pod.name, &params, &patch);
            touched(self.within(sent).await.map(|meta| meta.metadata), version.is_some())
        })
    }

    fn evict(&self, pod: &PodId) -> BoxFuture<'_, EvictionOutcome> {
        let pod = pod.clone();
        Box::pin(async move {
            let body = json!({
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": pod.name, "namespace": pod.namespace},
                "deleteOptions": {"preconditions": {"uid": pod.uid}},
            });
            let pods = self.pods_of(&pod.namespace);
            let params = PostParams::default();
            let sent = pods.create_subresource::<_, Status>("eviction", &pod.name, &params, &body);
            match self.within(sent).await {
                Ok(_) => EvictionOutcome::Evicted,
                Err(Failure::Told(status)) => match status.code {
                    404 | 409 => EvictionOutcome::Gone,
                    429 => EvictionOutcome::Blocked(status.message),
                    _ => EvictionOutcome::Failed(status.message),
                },
                Err(Failure::Lost(why)) => EvictionOutcome::Failed(why),
            }
        })
    }

    fn nominate(&self, pod: &PodId, node: &NodeName) -> BoxFuture<'_, TouchOutcome> {
        let (pod, node) = (pod.clone(), node.clone());
        Box::pin(async move {
            let patch = Patch::Merge(json!({
                "metadata": {"uid": pod.uid},
                "status": {"nominatedNodeName": node},
            }));
            let pods = self.pods_of(&pod.namespace);
            let params = PatchParams::default();
            let sent = pods.patch_status(&pod.name, &params, &patch);
            touched(self.within(sent).await.map(|pod| pod.metadata), false)
        })
    }
}

fn touched(
    answer: Result<k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta, Failure>,
    with_version: bool,
) -> TouchOutcome {
    match answer {
        Ok(meta) => TouchOutcome::Changed(meta.resource_version.unwrap_or_default()),
        Err(Failure::Told(status)) => match status.code {
            409 if with_version => TouchOutcome::Conflict,
            // Without a version the only precondition is the UID.
            404 | 409 => TouchOutcome::Gone,
            // Too many requests are no fault of the pod's.
            429 => TouchOutcome::Failed(status.message),
            400..500 => TouchOutcome::Refused(status.message),
            _ => TouchOutcome::Failed(status.message),
        },
        Err(Failure::Lost(why)) => TouchOutcome::Failed(why),
    }
}
