//! The kubelet's `PodResources` API: what it says a pod holds.
//!
//! A second opinion beside the checkpoint: it knows no UIDs and no plain init containers. The kubelet
//! refuses more than a hundred calls a second from all callers together, so equal questions are
//! asked once, few at a time, and a refusal is tried again.
//!
//! [`get`](PodResources::get) is the one to use. [`list`](PodResources::list) makes the kubelet free
//! the devices of pods it believes gone, which can hand one ID out twice; it is for kubelets before
//! 1.34 and for people.

mod sharing;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::devices::IdSet;
use crate::wire::pod_resources as wire;
use sharing::Sharing;
use wire::pod_resources_lister_client::PodResourcesListerClient;

/// What a pod holds, container by container.
pub use wire::PodResources as Holdings;

/// The path of the socket under the kubelet's root folder.
pub const SOCKET: &str = "pod-resources/kubelet.sock";

/// The kubelet's limiter starts with ten free calls; this leaves some for others.
const CALLS_AT_ONCE: usize = 4;

const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Why the kubelet gave no answer about pods.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PodsError {
    /// The path cannot be dialled at all.
    #[error("{} cannot be the path of a socket", path.display())]
    BadPath {
        /// What was given.
        path: PathBuf,
    },
    /// Not in time, however often it was asked.
    #[error("the kubelet did not answer about pods within {} s: {last}", after.as_secs_f32())]
    TimedOut {
        /// How long it was tried.
        after: Duration,
        /// What it said last.
        last: NoAnswer,
    },
    /// This kubelet has `Get` turned off.
    #[error("this kubelet answers no questions about one pod: turn KubeletPodResourcesGet on")]
    GetDisabled,
    /// It answered with an error that will not pass.
    #[error("the kubelet refused to tell about pods: {}", .0.message())]
    Refused(Status),
}

/// What was heard last of a kubelet that gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    /// Nothing.
    #[error("it was silent")]
    Silence,
    /// Its rate limit was used up.
    #[error("too many calls")]
    TooManyCalls,
    /// It could not be reached.
    #[error("it cannot be reached; is it running?")]
    Unreachable,
}

/// A client of the `PodResources` API. Cheap to clone; clones share their calls.
#[derive(Debug, Clone)]
pub struct PodResources(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    channel: Channel,
    patience: Duration,
    calls: Arc<Semaphore>,
    gets: Sharing<(String, String), Result<Option<Holdings>, PodsError>>,
}

impl PodResources {
    /// A client of the socket at `path`, which need not be there yet. Each call is given up
    /// after `patience`. Must be called in a tokio runtime.
    pub fn new(path: impl Into<PathBuf>, patience: Duration) -> Result<Self, PodsError> {
        let path = path.into();
        let channel = path
            .to_str()
            .and_then(|text| Endpoint::from_shared(format!("unix://{text}")).ok())
            .ok_or(PodsError::BadPath { path })?
            .connect_lazy();
        let calls = Arc::new(Semaphore::new(CALLS_AT_ONCE));
        Ok(Self(Arc::new(Inner { channel, patience, calls, gets: Sharing::default() })))
    }

    /// What the pod holds, or nothing if the kubelet has no such pod.
    ///
    /// The answer is never older than the question: callers share a call only if it was not yet on
    /// its way when they asked.
    pub async fn get(&self, namespace: &str, name: &str) -> Result<Option<Holdings>, PodsError> {
        let inner = self.0.clone();
        let key = (namespace.to_owned(), name.to_owned());
        self.0.gets.ask(key, move |(namespace, name)| inner.get(namespace, name)).await
    }

    /// What all pods hold. See the module's text before using it.
    pub async fn list(&self) -> Result<Vec<Holdings>, PodsError> {
        let ask = |mut client: Client| -> Asking<wire::ListPodResourcesResponse> {
            Box::pin(async move { client.list(wire::ListPodResourcesRequest {}).await })
        };
        Ok(self.0.patiently(ask).await.map_err(PodsError::from)?.pod_resources)
    }

    /// The healthy devices of `resource` on this node; empty if no plugin serves it.
    pub async fn allocatable(&self, resource: &str) -> Result<IdSet, PodsError> {
        let ask = |mut client: Client| -> Asking<wire::AllocatableResourcesResponse> {
            Box::pin(async move {
                client.get_allocatable_resources(wire::AllocatableResourcesRequest {}).await
            })
        };
        let devices = self.0.patiently(ask).await.map_err(PodsError::from)?.devices;
        let of_resource = devices.into_iter().filter(|one| one.resource_name == resource);
        Ok(of_resource.flat_map(|one| one.device_ids).collect())
    }

    /// The healthy devices of `resource` that are none of ours: if there are any, another plugin
    /// serves that resource now.
    pub async fn strangers(
        &self,
        resource: &str,
        is_ours: impl Fn(&str) -> bool,
    ) -> Result<IdSet, PodsError> {
        let ids = self.allocatable(resource).await?;
        Ok(ids.iter().filter(|id| !is_ours(id)).collect())
    }
}

type Client = PodResourcesListerClient<Channel>;
type Asking<T> = BoxFuture<'static, Result<tonic::Response<T>, Status>>;

/// What one question ended in, before it is known what it means for the caller.
enum Failure {
    Status(Status),
    TimedOut(Duration, NoAnswer),
}

impl From<Failure> for PodsError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Status(status) => Self::Refused(status),
            Failure::TimedOut(after, last) => Self::TimedOut { after, last },
        }
    }
}

impl Inner {
    async fn get(
        self: Arc<Self>,
        pod_namespace: String,
        pod_name: String,
    ) -> Result<Option<Holdings>, PodsError> {
        let ask = |mut client: Client| -> Asking<wire::GetPodResourcesResponse> {
            let (pod_name, pod_namespace) = (pod_name.clone(), pod_namespace.clone());
            Box::pin(async move {
                client.get(wire::GetPodResourcesRequest { pod_name, pod_namespace }).await
            })
        };
        match self.patiently(ask).await {
            Ok(answer) => Ok(answer.pod_resources),
            // The kubelet has no codes for these: they are plain errors, told apart by their text.
            Err(Failure::Status(status)) => match (status.code(), status.message()) {
                (Code::NotFound, _) => Ok(None),
                (Code::Unknown, text) if text.ends_with("not found") => Ok(None),
                (Code::Unimplemented, _) => Err(PodsError::GetDisabled),
                (Code::Unknown, text) if text.contains("disabled") => Err(PodsError::GetDisabled),
                _ => Err(PodsError::Refused(status)),
            },
            Err(failure) => Err(failure.into()),
        }
    }

    /// Asks until there is an answer or patience ends.
    async fn patiently<T>(&self, ask: impl Fn(Client) -> Asking<T>) -> Result<T, Failure> {
        let end = Instant::now() + self.patience;
        let mut pause = SHORTEST_PAUSE;
        let mut last = NoAnswer::Silence;
        loop {
            let asked = tokio::time::timeout_at(end, async {
                let _turn = self.calls.acquire().await;
                ask(Client::new(self.channel.clone())).await
            });
            let status = match asked.await {
                Ok(Ok(answer)) => return Ok(answer.into_inner()),
                Ok(Err(status)) => status,
                Err(_) => return Err(Failure::TimedOut(self.patience, last)),
            };
            last = match status.code() {
                Code::ResourceExhausted => NoAnswer::TooManyCalls,
                Code::Unavailable => NoAnswer::Unreachable,
                _ => return Err(Failure::Status(status)),
            };
            if Instant::now() + pause >= end {
                return Err(Failure::TimedOut(self.patience, last));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}
