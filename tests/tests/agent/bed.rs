//! Three nodes with simulated cards, and an agent on each, as a process.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use model::Inventory;
use model::codec::{decode_inventory, decode_placement};
use serde_json::{Value, json};
use stories::shipped::{self, SECOND};
use testbed::{Cluster, Options, Session};
use tokio::sync::{Mutex as AsyncMutex, MutexGuard};

use crate::measuring::value;
use crate::processes::{Agent, is_measured, machine, programs, simgpu};

/// Eight A100.
pub(crate) const BIG: &str = "node1";
/// Four T4.
pub(crate) const SMALL: &str = "node2";
/// Four T4 and a container runtime that ignores CDI.
pub(crate) const OLD: &str = "node3";
const PROFILES: [(&str, &str); 3] = [(BIG, "dgx-a100"), (SMALL, "t4x4"), (OLD, "t4x4")];
/// Where the Leases are.
pub(crate) const NAMESPACE: &str = "nanogpu-system";
/// Where a node has its simulated driver, as the node sees it.
pub(crate) const SIM: &str = "/var/lib/simgpu";
/// Where a node would have NVIDIA's container runtime, for pods of the runtime class `nvidia`.
pub(crate) const TOOLKIT: &str = "/var/lib/toolkit/nvidia-container-runtime";
const CONFIG: &str = include_str!("../../../deploy/kube-scheduler/own-scheduler.yaml");
const OURS: &str = "system:serviceaccount:nanogpu-system:nanogpu-agent";
/// Where a kubelet finds its static pods.
pub(crate) const MANIFESTS: &str = "/var/lib/kubelet/manifests";
/// What the last of a container's words is, when it has looked around.
pub(crate) const LOOKED: &str = "looked around";

/// Stories come one after another: each looks at whole nodes.
static TURN: AsyncMutex<()> = AsyncMutex::const_new(());

/// The cluster, and what runs beside it.
pub(crate) struct Bed {
    pub(crate) cluster: &'static Cluster,
    pub(crate) session: Session,
    _turn: MutexGuard<'static, ()>,
}

impl Bed {
    pub(crate) async fn new() -> Result<Self> {
        let turn = TURN.lock().await;
        let cluster = tokio::task::spawn_blocking(cluster).await??;
        let session = cluster.session()?;
        let rights = shipped::parts(SECOND, &[shipped::NAMESPACE, "agent/rbac.yaml"]);
        session.apply("default", &rights).await?;
        let bed = Self { cluster, session, _turn: turn };
        bed.clear().await?;
        Ok(bed)
    }

    /// Starts an agent on `node` and waits until the kubelet offers its tickets.
    pub(crate) async fn agent(&self, node: &'static str) -> Result<Agent> {
        self.agent_with(node, &[]).await
    }

    /// The same, with more on its command line.
    pub(crate) async fn agent_with(&self, node: &'static str, more: &[&str]) -> Result<Agent> {
        let agent = Agent::start(self.cluster, node, more, &[])?;
        agent.ready().await?;
        let cards = if node == BIG { 800 } else { 400 };
        self.offered(node, "nano-gpu/gpu-percent", cards).await?;
        Ok(agent)
    }

    /// Waits until `node` offers so much of a resource.
    pub(crate) async fn offered(&self, node: &str, resource: &str, amount: u64) -> Result<()> {
        self.node_is(node, &format!("{amount} {resource}"), |node| {
            let status = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
            status.and_then(|all| all.get(resource)).is_some_and(|q| q.0 == amount.to_string())
        })
        .await
    }

    /// Waits until the kubelet reads the agent's tickets: what it offers may still be what it
    /// offered before it was restarted.
    pub(crate) async fn taken_in(&self, agent: &Agent, resource: &str) -> Result<()> {
        let started = Instant::now();
        loop {
            let text = agent.get("/metrics")?;
            let label = format!("resource=\"{resource}\"");
            if value(&text, "nanogpu_agent_plugin_watched", &[&label]) == Some(1.0) {
                return Ok(());
            }
            ensure!(started.elapsed() < Duration::from_mins(1), "{resource} is not read");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until the node is so.
    pub(crate) async fn node_is(
        &self,
        name: &str,
        what: &str,
        is_so: impl Fn(&Node) -> bool,
    ) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.session.client());
        let started = Instant::now();
        while started.elapsed() < Duration::from_mins(1) {
            if is_so(&nodes.get(name).await?) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        bail!("{name} never was: {what}")
    }

    /// The inventory that the agent of `node` published.
    pub(crate) async fn inventory(&self, node: &str) -> Result<Inventory> {
        let nodes: Api<Node> = Api::all(self.session.client());
        let node = nodes.get(node).await?;
        let text = node.annotations().get(model::names::INVENTORY).context("no inventory")?;
        Ok(decode_inventory(text)?)
    }

    pub(crate) fn pods(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.session.client(), namespace)
    }

    /// Creates a pod and binds it to `node`, with a placement if there is one.
    pub(crate) async fn place(
        &self,
        namespace: &str,
        pod: &Value,
        node: &str,
        placement: Option<&str>,
    ) -> Result<()> {
        let pod: Pod = serde_json::from_value(pod.clone())?;
        let pod = self.pods(namespace).create(&PostParams::default(), &pod).await?;
        let annotations = placement.map(|text| json!({model::names::PLACEMENT: text}));
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": {"name": pod.name_any(), "namespace": namespace, "uid": pod.uid(), "annotations": annotations},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        });
        let request = http::Request::post(format!(
            "/api/v1/namespaces/{namespace}/pods/{}/binding",
            pod.name_any()
        ))
        .header("content-type", "application/json")
        .body(serde_json::to_vec(&binding)?)?;
        self.session.client().request::<Value>(request).await?;
        Ok(())
    }

    /// Waits until an event about the object has `text`.
    pub(crate) async fn told(&self, namespace: &str, name: &str, text: &str) -> Result<()> {
        let started = Instant::now();
        let mut events = Vec::new();
        while started.elapsed() < Duration::from_mins(1) {
            events = self.session.events(namespace, name).await?;
            if events.iter().any(|event| event.contains(text)) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        bail!("{name} was never told: {text}\nbut: {events:#?}")
    }

    pub(crate) async fn delete(&self, namespace: &str, pod: &str) -> Result<()> {
        self.pods(namespace).delete(pod, &DeleteParams::default().grace_period(0)).await?;
        Ok(())
    }

    /// Has the kubelet look at a pod now: after a start that failed it waits for ten seconds and more.
    pub(crate) async fn nudge(&self, namespace: &str, pod: &str) -> Result<()> {
        let patch = Patch::Merge(json!({"metadata": {"annotations": {"story": "nudged"}}}));
        self.pods(namespace).patch_metadata(pod, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Removes the pods of earlier stories.
    async fn clear(&self) -> Result<()> {
        let all: Api<Pod> = Api::all(self.session.client());
        let started = Instant::now();
        loop {
            let pods = all.list(&ListParams::default()).await?;
            let ours: Vec<_> = pods
                .iter()
                .filter(|pod| pod.namespace().is_some_and(|ns| ns.starts_with("story-")))
                .collect();
            if ours.is_empty() {
                return Ok(());
            }
            for pod in ours {
                let namespace = pod.namespace().unwrap_or_default();
                let _ = self.delete(&namespace, &pod.name_any()).await;
            }
            ensure!(started.elapsed() < Duration::from_mins(1), "pods of an earlier story stay");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// What a container said when it looked around.
    pub(crate) async fn said(&self, namespace: &str, pod: &str, container: &str) -> Result<String> {
        let all = |said: &str| said.contains(LOOKED);
        self.session.says(namespace, pod, container, all).await
    }

    /// Does something to a node's simulated machine.
    pub(crate) fn simgpu(&self, node: &str, words: &[&str]) -> Result<String> {
        simgpu(&machine(self.cluster, node), words)
    }

    /// The cards that a pod's processes use, as the simulated driver sees it, by their places.
    pub(crate) fn cards_used_by(&self, node: &str, pod: &Pod) -> Result<BTreeSet<u64>> {
        let mut own = BTreeSet::new();
        for id in containers(pod) {
            own.extend(self.cluster.processes_of(&id)?);
        }
        let mut cards = BTreeSet::new();
        for line in self.simgpu(node, &["usage", "--json"])?.lines() {
            let line: Value = serde_json::from_str(line)?;
            let pid = line["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
            if line["alive"] == true && pid.is_some_and(|pid| own.contains(&pid)) {
                cards.extend(line["card"].as_u64());
            }
        }
        Ok(cards)
    }

    /// The same, when they use as many as they should.
    pub(crate) async fn uses_its_own(&self, namespace: &str, name: &str) -> Result<()> {
        let pod = self.pods(namespace).get(name).await?;
        let text = pod.annotations().get(model::names::PLACEMENT).context("no placement")?;
        let placement = decode_placement(text)?;
        let node = placement.node().to_string();
        let inventory = self.inventory(&node).await?;
        let grants = placement.containers().iter().flat_map(|container| &container.grants);
        let device =
            |id: &model::DeviceId| inventory.devices.iter().find(|device| device.id == *id);
        let expected: BTreeSet<u64> =
            grants.filter_map(|grant| Some(u64::from(device(&grant.device)?.index))).collect();
        let started = Instant::now();
        loop {
            let used = self.cards_used_by(&node, &pod)?;
            if used == expected {
                return Ok(());
            }
            let right = used.is_subset(&expected);
            let said = self.session.logs(namespace, name, "main").await.unwrap_or_default();
            ensure!(
                right && started.elapsed() < Duration::from_secs(30),
                "{name} uses cards {used:?} and was given {expected:?}: {said}"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    pub(crate) fn simgpu_command(&self, node: &str) -> Result<Command> {
        let mut command = Command::new(programs()?.join("nanogpu-simgpu"));
        command.arg("--machine").arg(machine(self.cluster, node));
        Ok(command)
    }

    /// Compares what the container printed at its start with what the placement gives it.
    pub(crate) async fn got_its_own(
        &self,
        namespace: &str,
        pod: &str,
        container: &str,
        inventory: &Inventory,
    ) -> Result<()> {
        let seen = self.pods(namespace).get(pod).await?;
        let text = seen.annotations().get(model::names::PLACEMENT).context("no placement")?;
        let placement = decode_placement(text)?;
        let minors = placement.grants(container).iter().filter_map(|grant| {
            let device = inventory.devices.iter().find(|device| device.id == grant.device);
            device.map(|device| device.minor)
        });
        let mut expected: Vec<String> =
            minors.map(|minor| format!("/dev/nvidia{minor} c3:{minor:x}")).collect();
        expected.extend(["/dev/nvidia-uvm c3:fe".into(), "/dev/nvidiactl c3:ff".into()]);
        expected.sort();
        let said = self.said(namespace, pod, container).await?;
        let mut got: Vec<&str> = said.lines().filter(|line| line.starts_with("/dev/")).collect();
        got.sort_unstable();
        ensure!(got == expected, "{pod}/{container}: got {got:?}, placed {expected:?}");
        Ok(())
    }
}

/// The runtime's IDs of a pod's containers.
pub(crate) fn containers(pod: &Pod) -> Vec<String> {
    let status = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    let ids = status.into_iter().flatten().filter_map(|status| status.container_id.as_ref());
    ids.map(|id| id.replace("containerd://", "")).collect()
}

fn cluster() -> Result<&'static Cluster> {
    static MADE: OnceLock<()> = OnceLock::new();
    let mut options = Options::new("agent").nodes(3).scheduler(CONFIG);
    options.without_cdi = vec![OLD.to_owned()];
    options.runtimes = [("nvidia".to_owned(), TOOLKIT.to_owned())].into();
    // Containers that end start again at once, and what the kubelet was told of tickets is in the node's
    // status at once, so that stories need not wait.
    options.kubelet_config = format!(
        "crashLoopBackOff: {{maxContainerRestartPeriod: 1s}}\nstaticPodPath: {MANIFESTS}\nfileCheckFrequency: 1s\n\
         nodeStatusUpdateFrequency: 1s\nnodeStatusReportFrequency: 5s\n"
    );
    let cluster = Cluster::for_tests(options)?;
    if MADE.get().is_none() {
        as_ours(cluster, OURS, "agent")?;
        for (node, profile) in PROFILES {
            let folder = cluster.layout().on_node(node, SIM);
            std::fs::create_dir_all(&folder)?;
            let text = |path: PathBuf| path.display().to_string();
            let m = machine(cluster, node);
            simgpu(
                &m,
                &["create", &text(m.clone()), "--profile", profile, "--name", node, "--host-pids"],
            )?;
            let driver = text(folder.join("driver"));
            let mut install = vec!["install", "--driver-root", &driver];
            let libraries;
            if is_measured() {
                // What is measured is the agent, with a driver that is built as drivers are.
                testbed::built_for_speed("cuda")?;
                libraries = text(testbed::built_for_speed("nvml")?);
                install.extend(["--libraries", &libraries]);
            }
            simgpu(&m, &install)?;
            simgpu(&m, &["nodes", &text(folder.join("dev"))])?;
            std::fs::create_dir_all(folder.join("bin"))?;
            let program = programs()?.join("nanogpu-simgpu");
            std::fs::copy(program, folder.join("bin/nanogpu-simgpu"))?;
        }
        let images = tempfile::tempdir()?;
        testbed::write_images(cluster.binaries(), images.path())?;
        for (node, shape) in [
            (BIG, "debian"),
            (SMALL, "debian"),
            (SMALL, "ubuntu"),
            (SMALL, "rhel"),
            (OLD, "debian"),
        ] {
            cluster.load_image(node, &images.path().join(format!("{shape}.tar")))?;
        }
        let _ = MADE.set(());
    }
    Ok(cluster)
}

/// Writes a kubeconfig with which a program has its own rights and no others.
pub(crate) fn as_ours(cluster: &Cluster, who: &str, name: &str) -> Result<PathBuf> {
    let text = std::fs::read_to_string(cluster.layout().kubeconfig())?;
    let mut config: Value = serde_saphyr::from_str(&text)?;
    config["users"][0]["user"]["as"] = json!(who);
    let path = cluster.layout().kubeconfig().with_extension(name);
    std::fs::write(&path, config.to_string())?;
    Ok(path)
}
