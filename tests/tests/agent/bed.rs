//! Two nodes with simulated cards, and an agent on each, as a process.

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt};
use model::Inventory;
use model::codec::{decode_inventory, decode_placement};
use serde_json::{Value, json};
use testbed::{BASE, Cluster, Options, Session};
use tokio::sync::{Mutex as AsyncMutex, MutexGuard};

/// Eight A100.
pub(crate) const BIG: &str = "node1";
/// Four T4.
pub(crate) const SMALL: &str = "node2";
const PROFILES: [(&str, &str); 2] = [(BIG, "dgx-a100"), (SMALL, "t4x4")];
const NAMESPACE: &str = "nanogpu-system";
/// Where a node has its simulated driver, as the node sees it.
const SIM: &str = "/var/lib/simgpu";

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
        let ours =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        session.apply("default", &ours.to_string()).await?;
        let bed = Self { cluster, session, _turn: turn };
        bed.clear().await?;
        Ok(bed)
    }

    /// Starts an agent on `node` and waits until the kubelet offers its tickets.
    pub(crate) async fn agent(&self, node: &'static str) -> Result<Agent> {
        let agent = Agent::start(self.cluster, node, &[], &[])?;
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

    /// Waits until the node is so.
    pub(crate) async fn node_is(
        &self,
        name: &str,
        what: &str,
        is_so: impl Fn(&Node) -> bool,
    ) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.session.client());
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(60) {
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
        while started.elapsed() < Duration::from_secs(60) {
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
            ensure!(started.elapsed() < Duration::from_secs(60), "pods of an earlier story stay");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Does something to a node's simulated machine.
    pub(crate) fn simgpu(&self, node: &str, words: &[&str]) -> Result<()> {
        simgpu(&machine(self.cluster, node), words)
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
        let said = self.session.logs(namespace, pod, container).await?;
        let mut got: Vec<&str> = said.lines().filter(|line| line.starts_with("/dev/")).collect();
        got.sort_unstable();
        ensure!(got == expected, "{pod}/{container}: got {got:?}, placed {expected:?}");
        Ok(())
    }
}

/// A container that prints its device nodes, their numbers, its environment and mounts.
pub(crate) fn container(name: &str, limits: &Value, then: &str) -> Value {
    let look = "stat -c '%n %t:%T' /dev/nvidia*; env; cat /proc/self/mountinfo";
    json!({
        "name": name,
        "image": BASE,
        "command": ["sh", "-c", format!("{look}; {then}")],
        "resources": {"limits": limits},
    })
}

/// A pod that no scheduler takes.
pub(crate) fn pod(name: &str, init: &[Value], containers: &[Value]) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "schedulerName": "nobody",
            "terminationGracePeriodSeconds": 0,
            "initContainers": init,
            "containers": containers,
        },
    })
}

/// A pod of one container that stays.
pub(crate) fn simple(name: &str, percent: u32) -> Value {
    pod(name, &[], &[container("main", &json!({"nano-gpu/gpu-percent": percent}), "sleep 100000")])
}

/// An agent, as a process. It ends with this.
pub(crate) struct Agent {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Agent {
    pub(crate) fn start(
        cluster: &Cluster,
        node: &str,
        more: &[&str],
        env: &[(&str, &str)],
    ) -> Result<Self> {
        let layout = cluster.layout();
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(layout.log(&format!("nanogpu-agent-{node}")))?;
        let both = |path: &str| format!("{}={path}", layout.on_node(node, path).display());
        let sim = |what: &str| both(&format!("{SIM}/{what}"));
        let child = Command::new(programs()?.join("nanogpu-agent"))
            .args(["--node-name", node, "--namespace", NAMESPACE, "--isolation", "none"])
            .arg("--kubeconfig")
            .arg(layout.kubeconfig())
            .arg("--plugins")
            .arg(layout.on_node(node, "/var/lib/kubelet/device-plugins"))
            .arg("--pod-resources")
            .arg(layout.on_node(node, "/var/lib/kubelet/pod-resources/kubelet.sock"))
            .arg("--cdi")
            .arg(layout.on_node(node, "/run/cdi"))
            .args(["--pages", &both("/var/lib/nanogpu/pages")])
            .args(["--driver-root", &sim("driver"), "--dev-root", &sim("dev")])
            .args(["--extra-mount", &format!("{SIM}/m=/run/nanogpu-simgpu")])
            .args(["--listen", &address.to_string(), "--log-form", "plain"])
            .args(["--look", "1000", "--probation", "2", "--heartbeat", "2"])
            .args(more)
            .envs(env.iter().copied())
            .env("NANOGPU_SIMGPU", machine(cluster, node))
            .env_remove("KUBECONFIG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()?;
        Ok(Self { child, address })
    }

    pub(crate) async fn ready(&self) -> Result<()> {
        let started = Instant::now();
        let mut last = String::new();
        while started.elapsed() < Duration::from_secs(60) {
            last = self.get("/readyz").unwrap_or_default();
            if last.starts_with("HTTP/1.1 200") {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        bail!("nanogpu-agent is not ready: {last}")
    }

    pub(crate) fn get(&self, path: &str) -> Result<String> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        write!(stream, "GET {path} HTTP/1.1\r\nhost: agent\r\nconnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    }

    /// Ends it at once, as a crash would.
    pub(crate) fn kill(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Whether it has ended by itself.
    pub(crate) fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn cluster() -> Result<&'static Cluster> {
    static MADE: OnceLock<()> = OnceLock::new();
    let cluster = Cluster::for_tests(Options::new("agent").nodes(2))?;
    if MADE.get().is_none() {
        for (node, profile) in PROFILES {
            let folder = cluster.layout().on_node(node, SIM);
            std::fs::create_dir_all(&folder)?;
            let text = |path: PathBuf| path.display().to_string();
            let m = machine(cluster, node);
            simgpu(
                &m,
                &["create", &text(m.clone()), "--profile", profile, "--name", node, "--host-pids"],
            )?;
            simgpu(&m, &["install", "--driver-root", &text(folder.join("driver"))])?;
            simgpu(&m, &["nodes", &text(folder.join("dev"))])?;
        }
        let _ = MADE.set(());
    }
    Ok(cluster)
}

fn machine(cluster: &Cluster, node: &str) -> PathBuf {
    cluster.layout().on_node(node, &format!("{SIM}/m"))
}

fn simgpu(machine: &Path, words: &[&str]) -> Result<()> {
    let out = Command::new(programs()?.join("nanogpu-simgpu"))
        .arg("--machine")
        .arg(machine)
        .args(words)
        .output()?;
    ensure!(
        out.status.success(),
        "nanogpu-simgpu {words:?}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    Ok(())
}

/// The folder of our programs, built from this tree.
fn programs() -> Result<PathBuf> {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    if let Some(path) = BUILT.get() {
        return Ok(path.clone());
    }
    let target = std::env::current_exe()?;
    let target = target.ancestors().nth(3).context("not in a target folder")?;
    let mut build = Command::new(env!("CARGO"));
    // What cargo tells a test about its package would make some build scripts run anew, here and
    // at the next build outside.
    for (name, _) in
        std::env::vars().filter(|(name, _)| name.starts_with("CARGO_") && name != "CARGO_HOME")
    {
        build.env_remove(name);
    }
    let built = build
        .args(["build", "--quiet", "-p", "agent", "-p", "simgpu", "-p", "nvml", "-p", "cuda"])
        .arg("--target-dir")
        .arg(target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()?;
    ensure!(built.success(), "the programs cannot be built");
    let path = target.join("debug");
    Ok(BUILT.get_or_init(|| path).clone())
}
