//! Device plugins: registration, a kubelet that restarts, and who exactly a start is for.
//!
//! The plugin here does in a few lines what the agent's promise rests on: Allocate answers with the
//! name of a CDI device that does not exist yet, and before a container starts, the kubelet's own
//! checkpoint tells which container holds the IDs, so that the spec under that name is written for
//! it and no other.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, ResourceExt};
use kubelet::Status;
use kubelet::cdi::{self, ContainerEdits, Kind, Spec, Specs};
use kubelet::checkpoint::Checkpoint;
use kubelet::devices::{Device, DeviceList, IdSet};
use kubelet::plugin::{self, Allocation, Config, DevicePlugin, Options};
use kubelet::wire::device_plugin::CdiDevice;
use testbed::{BASE, Component, Session};
use tokio::sync::watch;

use crate::shared::{alone, cluster, session};

const NODE: &str = "node2";

struct Tickets {
    resource: String,
    devices: watch::Sender<DeviceList>,
    kind: Kind,
    plugins: PathBuf,
    specs: Specs,
    next: AtomicU32,
}

impl Tickets {
    /// Serves `count` devices as `resource` to the kubelet of the node.
    fn serve(resource: &str, count: usize) -> (Arc<Self>, plugin::Running) {
        let layout = cluster().layout();
        let plugins = layout.on_node(NODE, "/var/lib/kubelet/device-plugins");
        let name = resource.replace(['/', '.'], "-");
        let devices = (0..count).map(|number| Device::healthy(format!("{name}-{number}")));
        let tickets = Arc::new(Self {
            devices: watch::Sender::new(DeviceList::new(devices).unwrap()),
            kind: Kind::parse(resource).unwrap(),
            specs: Specs::open(layout.on_node(NODE, "/run/cdi")).unwrap(),
            next: AtomicU32::new(0),
            plugins: plugins.clone(),
            resource: resource.to_owned(),
        });
        let config = Config::new(plugins, format!("{name}.sock"), resource).unwrap();
        let running = plugin::start(config, tickets.clone());
        (tickets, running)
    }

    /// Writes a spec for every container that holds `ids` and has none yet.
    fn write_specs(&self, ids: &IdSet) -> Result<(), Status> {
        let failed = |error: &dyn std::fmt::Display| Status::internal(error.to_string());
        let checkpoint = Checkpoint::read(&self.plugins).map_err(|error| failed(&error))?;
        for holder in checkpoint.holders(&self.resource, ids) {
            for full in holder.cdi_devices().map_err(|error| failed(&error))? {
                let name =
                    self.kind.device_in(&full).ok_or_else(|| Status::internal("not our name"))?;
                let env = vec![format!("WHO={}/{}", holder.pod, holder.container)];
                let device =
                    cdi::Device::new(name, ContainerEdits { env, ..ContainerEdits::default() });
                let spec = Spec::new(self.kind.clone(), device).map_err(|error| failed(&error))?;
                match self.specs.write(name, &spec) {
                    Ok(_) | Err(cdi::SpecsError::Exists { .. }) => {}
                    Err(error) => return Err(failed(&error)),
                }
            }
        }
        Ok(())
    }
}

impl DevicePlugin for Tickets {
    fn options(&self) -> Options {
        Options { pre_start: true, preference: false }
    }

    fn devices(&self) -> watch::Receiver<DeviceList> {
        self.devices.subscribe()
    }

    async fn allocate(&self, ids: IdSet) -> Result<Allocation, Status> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}-{number:016x}", ids.digest());
        let name = self.kind.device(&name).map_err(|error| Status::internal(error.to_string()))?;
        Ok(Allocation { cdi_devices: vec![CdiDevice { name }], ..Allocation::default() })
    }

    async fn pre_start(&self, ids: IdSet) -> Result<(), Status> {
        self.write_specs(&ids)
    }
}

/// Waits until the node offers `count` of `resource`.
async fn offered(session: &Session, resource: &str, count: usize) {
    let nodes: Api<Node> = Api::all(session.client());
    for _ in 0..600 {
        let node = nodes.get(NODE).await.unwrap();
        let allocatable = node.status.and_then(|status| status.allocatable).unwrap_or_default();
        if allocatable.get(resource).is_some_and(|amount| amount.0 == count.to_string()) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{NODE} does not offer {count} {resource}");
}

fn container(name: &str, resource: &str, amount: u32, after: &str) -> String {
    format!(
        "  - {{name: {name}, image: {BASE}, command: [sh, -c, 'echo $WHO{after}'], \
         resources: {{limits: {{{resource}: {amount}}}}}}}\n"
    )
}

fn pod(name: &str, init: &[(&str, u32)], app: u32, resource: &str) -> String {
    let init: String =
        init.iter().map(|(name, amount)| container(name, resource, *amount, "")).collect();
    let init = if init.is_empty() { String::new() } else { format!("  initContainers:\n{init}") };
    let app = container("app", resource, app, "; sleep 100000");
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 0
{init}  containers:
{app}"
    )
}

/// Every container of the pod was told that it is itself.
async fn all_are_themselves(session: &Session, ns: &str, pod: &Pod) {
    let spec = pod.spec.as_ref().unwrap();
    for container in spec.init_containers.iter().flatten().chain(&spec.containers) {
        let expected = format!("{}/{}\n", pod.uid().unwrap(), container.name);
        let whole = |said: &str| said.ends_with('\n');
        let said = session.says(ns, &pod.name_any(), &container.name, whole).await.unwrap();
        assert_eq!(said, expected, "{} of {}", container.name, pod.name_any());
    }
}

/// Everything a start needs to know who it is for: equal pods at once, and init containers that ask
/// for as much, less and more than the container after them, whose IDs the kubelet hands on.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_is_told_whom_it_is_for() {
    let _alone = alone().await;
    let session = session();
    let resource = "example.com/tickets";
    let (_tickets, running) = Tickets::serve(resource, 12);
    running.watched().await.unwrap();
    offered(&session, resource, 12).await;
    let ns = session.namespace("identity").await.unwrap();
    let pods = [
        pod("equal-1", &[], 1, resource),
        pod("equal-2", &[], 1, resource),
        pod("init-equal", &[("init", 2)], 2, resource),
        pod("init-smaller", &[("init", 1)], 2, resource),
        pod("init-larger", &[("init", 3)], 1, resource),
        pod("init-two", &[("first", 1), ("second", 1)], 1, resource),
    ];
    session.apply(&ns, &pods.join("---\n")).await.unwrap();
    for name in ["equal-1", "equal-2", "init-equal", "init-smaller", "init-larger", "init-two"] {
        let pod = session.running(&ns, name).await.unwrap();
        all_are_themselves(&session, &ns, &pod).await;
    }

    // A container that starts again holds the same IDs and is the same.
    let pods: Api<Pod> = Api::namespaced(session.client(), &ns);
    let status = pods.get("init-two").await.unwrap().status.unwrap().container_statuses.unwrap();
    let id = status[0].container_id.clone().unwrap().replace("containerd://", "");
    for process in cluster().processes_of(&id).unwrap() {
        cluster().kill_process(process).unwrap();
    }
    let again = session
        .wait::<Pod>(&ns, "init-two", "started again", |pod| {
            let status = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
            status.is_some_and(|status| status[0].restart_count == 1 && status[0].ready)
        })
        .await
        .unwrap();
    all_are_themselves(&session, &ns, &again).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_survives_a_kubelet_that_restarts() {
    let _alone = alone().await;
    let session = session();
    let resource = "example.com/survivor";
    let (tickets, running) = Tickets::serve(resource, 2);
    running.watched().await.unwrap();
    offered(&session, resource, 2).await;
    let ns = session.namespace("survive").await.unwrap();
    session.apply(&ns, &pod("before", &[], 1, resource)).await.unwrap();
    let before = session.running(&ns, "before").await.unwrap();

    cluster().restart(&Component::kubelet(NODE)).unwrap();
    let devices = (0..3).map(|number| Device::healthy(format!("example-com-survivor-{number}")));
    // The list it had is not believed after a restart: this one must come from us.
    tickets.devices.send_replace(DeviceList::new(devices).unwrap());
    offered(&session, resource, 3).await;
    session.apply(&ns, &pod("after", &[], 2, resource)).await.unwrap();
    let after = session.running(&ns, "after").await.unwrap();
    all_are_themselves(&session, &ns, &after).await;
    let still = session.running(&ns, "before").await.unwrap();
    let id = |pod: &Pod| {
        pod.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0].container_id.clone()
    };
    assert_eq!(id(&before), id(&still), "its container was left alone");
    running.stop().await;
}
