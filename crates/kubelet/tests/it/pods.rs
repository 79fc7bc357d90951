//! What the kubelet says of pods: asked once for many, again when it refuses, never older than asked.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kubelet::pods::{NoAnswer, PodResources, PodsError};
use kubelet::wire::pod_resources as wire;
use kubelet::{Code, Status};
use tokio::net::UnixListener;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response};
use wire::pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer};

use super::soon;

/// A kubelet that answers each `Get` when it is let, after refusing some.
struct Kubelet {
    refusals: Mutex<Vec<Status>>,
    gets: AtomicUsize,
    arrived: mpsc::UnboundedSender<usize>,
    let_go: Semaphore,
}

#[tonic::async_trait]
impl PodResourcesLister for Kubelet {
    async fn get(
        &self,
        request: Request<wire::GetPodResourcesRequest>,
    ) -> Result<Response<wire::GetPodResourcesResponse>, Status> {
        let number = self.gets.fetch_add(1, Ordering::SeqCst) + 1;
        let refusal = self.refusals.lock().unwrap().pop();
        if let Some(refusal) = refusal {
            return Err(refusal);
        }
        let request = request.into_inner();
        self.arrived.send(number).unwrap();
        self.let_go.acquire().await.unwrap().forget();
        let containers = vec![holds("main", &number.to_string())];
        let pod = wire::PodResources {
            name: request.pod_name,
            namespace: request.pod_namespace,
            containers,
        };
        Ok(Response::new(wire::GetPodResourcesResponse { pod_resources: Some(pod) }))
    }

    async fn list(
        &self,
        _: Request<wire::ListPodResourcesRequest>,
    ) -> Result<Response<wire::ListPodResourcesResponse>, Status> {
        let pod = wire::PodResources {
            name: "a".into(),
            namespace: "default".into(),
            containers: vec![holds("main", "toy-1")],
        };
        Ok(Response::new(wire::ListPodResourcesResponse { pod_resources: vec![pod] }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<wire::AllocatableResourcesRequest>,
    ) -> Result<Response<wire::AllocatableResourcesResponse>, Status> {
        // One entry a device, as kubelets of today do it.
        let devices = ["toy-1", "toy-2", "GPU-1"].map(|id| devices("example.com/toy", id));
        let mut devices = Vec::from(devices);
        devices.push(devices_of_another());
        Ok(Response::new(wire::AllocatableResourcesResponse { devices, ..Default::default() }))
    }
}

fn devices_of_another() -> wire::ContainerDevices {
    devices("example.com/other", "x")
}

fn devices(resource: &str, id: &str) -> wire::ContainerDevices {
    wire::ContainerDevices {
        resource_name: resource.into(),
        device_ids: vec![id.into()],
        topology: None,
    }
}

fn holds(container: &str, id: &str) -> wire::ContainerResources {
    let devices = vec![devices("example.com/toy", id)];
    wire::ContainerResources { name: container.into(), devices, ..Default::default() }
}

/// Starts a kubelet with `refusals` for its first calls and `free` answers it may give.
fn start(
    path: &Path,
    refusals: Vec<Status>,
    free: usize,
) -> (Arc<Kubelet>, mpsc::UnboundedReceiver<usize>) {
    let (arrived, arrivals) = mpsc::unbounded_channel();
    let kubelet = Arc::new(Kubelet {
        refusals: Mutex::new(refusals),
        gets: AtomicUsize::new(0),
        arrived,
        let_go: Semaphore::new(free),
    });
    let listener = UnixListener::bind(path).unwrap();
    let service = PodResourcesListerServer::from_arc(kubelet.clone());
    tokio::spawn(
        tonic::transport::Server::builder()
            .add_service(service)
            .serve_with_incoming(UnixListenerStream::new(listener)),
    );
    (kubelet, arrivals)
}

fn client(path: &Path) -> PodResources {
    PodResources::new(path, Duration::from_secs(50)).unwrap()
}

/// The number of the call that answered.
async fn ask(pods: PodResources, name: &'static str) -> String {
    let holdings = pods.get("default", name).await.unwrap().unwrap();
    assert_eq!(holdings.name, name);
    holdings.containers[0].devices[0].device_ids[0].clone()
}

#[tokio::test]
async fn a_pod_is_found_and_another_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubelet.sock");
    let gone = Status::unknown("pod b in namespace default not found");
    let (_kubelet, _arrivals) = start(&path, vec![gone], 1);
    let pods = client(&path);
    assert_eq!(pods.get("default", "b").await.unwrap(), None);
    assert_eq!(ask(pods, "a").await, "2");
}

#[tokio::test]
async fn a_kubelet_with_too_much_to_do_is_asked_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubelet.sock");
    let refusals = vec![Status::resource_exhausted("rejected by rate limit"); 4];
    let (_kubelet, _arrivals) = start(&path, refusals, 1);
    assert_eq!(soon("an answer", ask(client(&path), "a")).await, "5");
}

#[tokio::test]
async fn a_kubelet_that_is_not_there_yet_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubelet.sock");
    let pods = client(&path);
    let asked = tokio::spawn(ask(pods, "a"));
    tokio::task::yield_now().await;
    let (_kubelet, _arrivals) = start(&path, vec![], 1);
    assert_eq!(soon("an answer", asked).await.unwrap(), "1");
}

#[tokio::test]
async fn errors_that_will_not_pass_are_told_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubelet.sock");
    let refusals = vec![
        Status::permission_denied("no"),
        Status::unimplemented("unknown method Get"),
        Status::unknown("PodResources API Get method disabled"),
    ];
    let (kubelet, _arrivals) = start(&path, refusals, 0);
    let pods = client(&path);
    for _ in 0..2 {
        let disabled = pods.get("default", "a").await.unwrap_err();
        assert!(matches!(disabled, PodsError::GetDisabled), "{disabled}");
    }
    let Err(PodsError::Refused(status)) = pods.get("default", "a").await else {
        panic!("not refused")
    };
    assert_eq!(status.code(), Code::PermissionDenied);
    assert_eq!(kubelet.gets.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn patience_ends() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubelet.sock");
    let refusals = vec![Status::resource_exhausted("rejected by rate limit"); 1000];
    let (_kubelet, _arrivals) = start(&path, refusals, 0);
    let pods = PodResources::new(&path, Duration::from_millis(100)).unwrap();
    let Err(PodsError::TimedOut { last, .. }) = soon("an end", pods.get("default", "a")).await
    else {
        panic!("not timed out")
    };
    assert_eq!(last, NoAnswer::TooManyCalls);
    // A kubelet that accepts and says nothing.
    let silent = dir.path().join("silent.sock");
    let (_kubelet, _arrivals) = start(&silent, vec![], 0);
    let pods = PodResources::new(&silent, Duration::from_millis(100)).unwrap();
    let Err(PodsError::TimedOut { last, .. }) = soon("an end", pods.get("default", "a")).await
    else {
        panic!("not timed out")
    };
    assert_eq!(last, NoAnswer::Silence);
}

#[tokio::test]
async fn equal_questions_share_a_call_that_is_not_older_than_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubelet.sock");
    let (kubelet, mut arrivals) = start(&path, vec![], 0);
    let pods = client(&path);
    let first = tokio::spawn(ask(pods.clone(), "a"));
    assert_eq!(soon("the first call", arrivals.recv()).await, Some(1));
    // The first call is on its way, and may know nothing of what these ask for.
    let mut later = tokio::task::JoinSet::new();
    for _ in 0..50 {
        later.spawn(ask(pods.clone(), "a"));
    }
    // Another pod is another question, and does not wait.
    let other = tokio::spawn(ask(pods.clone(), "b"));
    assert_eq!(soon("the other call", arrivals.recv()).await, Some(2));
    kubelet.let_go.add_permits(3);
    assert_eq!(first.await.unwrap(), "1");
    assert_eq!(other.await.unwrap(), "2");
    while let Some(answer) = soon("the shared answer", later.join_next()).await {
        assert_eq!(answer.unwrap(), "3");
    }
    assert_eq!(kubelet.gets.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn whoever_stops_asking_takes_nobody_along() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubelet.sock");
    let (kubelet, mut arrivals) = start(&path, vec![], 0);
    let pods = client(&path);
    let first = tokio::spawn(ask(pods.clone(), "a"));
    soon("the first call", arrivals.recv()).await;
    let second = tokio::spawn(ask(pods.clone(), "a"));
    let third = tokio::spawn(ask(pods.clone(), "a"));
    tokio::task::yield_now().await;
    first.abort();
    second.abort();
    kubelet.let_go.add_permits(2);
    assert!(matches!(soon("the answer", third).await.unwrap().as_str(), "2" | "3"));
    // The table holds nothing back: a new question is a new call.
    kubelet.let_go.add_permits(1);
    soon("a later answer", ask(pods, "a")).await;
}

#[tokio::test]
async fn strangers_on_a_resource_are_seen() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubelet.sock");
    let (_kubelet, _arrivals) = start(&path, vec![], 0);
    let pods = client(&path);
    let all = pods.allocatable("example.com/toy").await.unwrap();
    assert_eq!(all.iter().collect::<Vec<_>>(), ["GPU-1", "toy-1", "toy-2"]);
    let ours = |id: &str| id.starts_with("toy-");
    let strangers = pods.strangers("example.com/toy", ours).await.unwrap();
    assert_eq!(strangers.iter().collect::<Vec<_>>(), ["GPU-1"]);
    assert!(pods.strangers("example.com/none", ours).await.unwrap().is_empty());
    assert_eq!(pods.list().await.unwrap()[0].containers[0].name, "main");
}
