//! A cluster of four nodes with four cards each, and nanogpu-scheduler beside it as a process.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod, ServiceAccount};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use model::codec::decode_placement;
use model::{Cores, Mebibytes, Portion};
use serde_json::{Value, json};
use stories::shipped::{self, SECOND};
use testbed::{Cluster, FakeNodes, Options, Session};
use tokio::sync::{Mutex as AsyncMutex, MutexGuard};
use tokio::time::MissedTickBehavior;

pub(crate) const NODES: usize = 4;
pub(crate) const CARDS: usize = 4;
pub(crate) const CARD_MIB: u64 = 16_384;
pub(crate) const NAMESPACE: &str = "nanogpu-system";
/// Where kube-scheduler finds the extender, inside the cluster.
pub(crate) const EXTENDER: &str = "127.0.0.1:39999";
pub(crate) const OURS: &str = "system:serviceaccount:nanogpu-system:nanogpu-scheduler";
pub(crate) const CONFIG: &str = include_str!("../../../deploy/kube-scheduler/own-scheduler.yaml");

/// The cluster, and what runs beside it.
pub(crate) struct Bed {
    pub(crate) cluster: &'static Cluster,
    pub(crate) session: Session,
    target: Arc<Mutex<SocketAddr>>,
    silenced: Arc<Mutex<BTreeSet<String>>>,
    _turn: MutexGuard<'static, ()>,
}

/// Stories come one after another: each looks at the whole cluster.
static TURN: AsyncMutex<()> = AsyncMutex::const_new(());

type Shared = (Arc<Mutex<SocketAddr>>, Arc<Mutex<BTreeSet<String>>>);

impl Bed {
    pub(crate) async fn new() -> Result<Self> {
        static SHARED: OnceLock<Shared> = OnceLock::new();
        let turn = TURN.lock().await;
        let cluster = tokio::task::spawn_blocking(cluster).await??;
        let session = cluster.session()?;
        if SHARED.get().is_none() {
            rights(cluster, &session).await?;
            let target = Arc::new(Mutex::new(SocketAddr::from(([127, 0, 0, 1], 9))));
            let silenced = Arc::new(Mutex::new(BTreeSet::new()));
            relay(cluster.listen(EXTENDER)?, target.clone());
            agents(session.clone(), silenced.clone(), names(), Duration::from_secs(2));
            let _ = SHARED.set((target, silenced));
        }
        let (target, silenced) = SHARED.get().context("made above")?.clone();
        let bed = Self { cluster, session, target, silenced, _turn: turn };
        bed.clear().await?;
        Ok(bed)
    }

    /// Starts nanogpu-scheduler and waits until it is ready.
    pub(crate) async fn scheduler(&self) -> Result<Scheduler> {
        let scheduler = Scheduler::start(self.cluster, &[])?;
        *self.target.lock().unwrap() = scheduler.address;
        scheduler.ready().await?;
        Ok(scheduler)
    }

    /// kube-scheduler talks to this replica from now on.
    pub(crate) fn point_at(&self, scheduler: &Scheduler) {
        *self.target.lock().unwrap() = scheduler.address;
    }

    /// Reads YAML.
    #[expect(clippy::unused_self, reason = "stories ask the bed for everything")]
    pub(crate) fn yaml(&self, text: &str) -> Result<Value> {
        Ok(serde_saphyr::from_str(text)?)
    }

    pub(crate) fn pods(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.session.client(), namespace)
    }

    pub(crate) async fn create(&self, namespace: &str, pod: &Value) -> Result<()> {
        let pod: Pod = serde_json::from_value(pod.clone())?;
        self.pods(namespace).create(&PostParams::default(), &pod).await?;
        Ok(())
    }

    pub(crate) async fn bound(&self, namespace: &str, pod: &str) -> Result<Pod> {
        let has_node = |pod: &Pod| node_of(pod).is_some();
        self.session.wait(namespace, pod, "bound", has_node).await
    }

    /// Waits until an event of the pod has `text`.
    pub(crate) async fn told(&self, namespace: &str, pod: &str, text: &str) -> Result<()> {
        let started = Instant::now();
        let mut events = Vec::new();
        while started.elapsed() < Duration::from_secs(40) {
            events = self.session.events(namespace, pod).await?;
            if events.iter().any(|event| event.contains(text)) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        bail!("pod {pod} was never told: {text}\nbut: {events:#?}")
    }

    pub(crate) async fn delete(&self, namespace: &str, pod: &str) -> Result<()> {
        self.pods(namespace).delete(pod, &DeleteParams::default().grace_period(0)).await?;
        Ok(())
    }

    /// A node's agent falls silent, or speaks again.
    pub(crate) fn silence(&self, node: &str, silent: bool) {
        let mut silenced = self.silenced.lock().unwrap();
        if silent {
            silenced.insert(node.to_owned());
        } else {
            silenced.remove(node);
        }
    }

    /// Gives a node another inventory.
    pub(crate) async fn inventory(&self, node: &str, health: &str) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.session.client());
        let text = inventory(health).replace("{node}", node);
        let patch = json!({"metadata": {"annotations": {"nano-gpu/inventory": text}}});
        nodes.patch(node, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// Cordons a node as `kubectl cordon` does, or lifts that.
    pub(crate) async fn cordon(&self, node: &str, cordoned: bool) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.session.client());
        let patch = json!({"spec": {"unschedulable": cordoned}});
        nodes.patch(node, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// Deletes all pods of earlier stories.
    async fn clear(&self) -> Result<()> {
        let all: Api<Pod> = Api::all(self.session.client());
        let started = Instant::now();
        loop {
            let pods = all.list(&ListParams::default()).await?;
            if pods.items.is_empty() {
                break;
            }
            ensure!(started.elapsed() < Duration::from_mins(1), "pods do not go away");
            for pod in pods {
                let (Some(name), Some(namespace)) = (pod.metadata.name, pod.metadata.namespace)
                else {
                    continue;
                };
                let now = DeleteParams::default().grace_period(0);
                let _ = self.pods(&namespace).delete(&name, &now).await;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        self.silenced.lock().unwrap().clear();
        for node in names() {
            self.inventory(&node, "healthy").await?;
            self.cordon(&node, false).await?;
        }
        Ok(())
    }

    /// No card is sold twice, told from the pods alone. Returns how many are bound.
    pub(crate) async fn nothing_sold_twice(&self) -> Result<usize> {
        let all: Api<Pod> = Api::all(self.session.client());
        let mut sold: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        let mut bound = 0;
        for pod in all.list(&ListParams::default()).await? {
            let Some(node) = node_of(&pod) else { continue };
            bound += 1;
            let text = annotation(&pod, "nano-gpu/placement").context("bound without placement")?;
            let placement = decode_placement(text)?;
            ensure!(placement.node().as_str() == node, "placed on {text}, bound to {node}");
            for grant in placement.containers().iter().flat_map(|container| &container.grants) {
                let (cores, memory) = match grant.portion {
                    Portion::Whole => (100, CARD_MIB),
                    Portion::Share(share) => (u64::from(share.cores.0), share.memory.0),
                };
                let sum = sold.entry(grant.device.to_string()).or_default();
                *sum = (sum.0 + cores, sum.1 + memory);
            }
        }
        for (card, (cores, memory)) in sold {
            ensure!(
                cores <= u64::from(Cores::CARD.0) && Mebibytes(memory) <= Mebibytes(CARD_MIB),
                "{card} is sold twice: {cores} %, {memory} MiB"
            );
        }
        Ok(bound)
    }
}

pub(crate) fn names() -> Vec<String> {
    names_of(NODES)
}

/// The names of so many nodes of cards.
pub(crate) fn names_of(count: usize) -> Vec<String> {
    (0..count).map(|index| format!("gpu-{index:05}")).collect()
}

pub(crate) fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

pub(crate) fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// A pod of one container that asks for this, by our own scheduler name.
pub(crate) fn asks(name: &str, limits: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "schedulerName": "nanogpu", "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "none", "resources": {"limits": limits}}],
        },
    })
}

/// The same for a share of nano-gpu's percents.
pub(crate) fn percent(name: &str, percent: u32) -> Value {
    asks(name, &json!({"nano-gpu/gpu-percent": percent.to_string()}))
}

pub(crate) fn inventory(health: &str) -> String {
    let card = |index: usize| {
        json!({
            "id": format!("GPU-{{node}}-{index}"), "index": index, "minor": index,
            "model": "NVIDIA A100-PCIE-16GB", "mem": CARD_MIB, "health": health,
        })
    };
    json!({"v": 1, "devices": (0..CARDS).map(card).collect::<Vec<_>>()}).to_string()
}

fn cluster() -> Result<&'static Cluster> {
    let cards = CARDS as u64;
    let mut nodes = FakeNodes::new(NODES)
        .prefix("gpu-")
        .annotation("nano-gpu/inventory", &inventory("healthy"));
    for resource in [
        "nano-gpu/gpu-percent",
        "nano-gpu.io/gpu-core",
        "elasticgpu.io/gpu-core",
        "tencent.com/vcuda-core",
        "inspur.com/vcuda-core",
        "nvidia.com/vcuda-core",
    ] {
        nodes = nodes.capacity(resource, &(100 * cards).to_string());
    }
    for (resource, unit) in [
        ("nano-gpu.io/gpu-memory", 1024),
        ("elasticgpu.io/gpu-memory", 1),
        ("aliyun.com/gpu-mem", 1024),
    ] {
        // No more tickets than an agent serves: of a resource that is measured instead, pods that ask
        // for memory alone are refused.
        let tickets = (CARD_MIB / unit * cards).min(50_000);
        nodes = nodes.capacity(resource, &tickets.to_string());
    }
    Cluster::for_tests(Options::new("sched").nodes(0).fake(nodes).scheduler(CONFIG))
}

/// Where the kubeconfig is with which nanogpu-scheduler has its own rights and no others.
fn ours(cluster: &Cluster) -> PathBuf {
    cluster.layout().kubeconfig().with_extension("ours")
}

/// A copy of the kubeconfig `from` with nanogpu-scheduler's rights: where it is.
pub(crate) fn as_ours(from: &Path) -> Result<PathBuf> {
    let text = std::fs::read_to_string(from)?;
    let mut config: Value = serde_saphyr::from_str(&text)?;
    config["users"][0]["user"]["as"] = json!(OURS);
    let to = from.with_extension("ours");
    std::fs::write(&to, config.to_string())?;
    Ok(to)
}

/// The same with nanogpu-scheduler's own token, as a pod of it has one. To act as somebody else, as above,
/// costs the API server more.
pub(crate) async fn with_our_token(from: &Path, session: &Session) -> Result<PathBuf> {
    let text = std::fs::read_to_string(from)?;
    let mut config: Value = serde_saphyr::from_str(&text)?;
    let token = token(session, NAMESPACE, "nanogpu-scheduler").await?;
    config["users"][0]["user"] = json!({"token": token});
    let to = from.with_extension("token");
    std::fs::write(&to, config.to_string())?;
    Ok(to)
}

/// A token of a service account.
pub(crate) async fn token(session: &Session, namespace: &str, account: &str) -> Result<String> {
    let accounts: Api<ServiceAccount> = Api::namespaced(session.client(), namespace);
    let request = TokenRequest::default();
    let answer = accounts.create_token_request(account, &PostParams::default(), &request).await?;
    Ok(answer.status.context("no token")?.token)
}

/// How many connections were taken to a replica so far.
pub(crate) static RELAYED: AtomicUsize = AtomicUsize::new(0);

/// Takes connections in the cluster to whichever replica is meant.
pub(crate) fn relay(listener: TcpListener, target: Arc<Mutex<SocketAddr>>) {
    thread::spawn(move || {
        for inside in listener.incoming().flatten() {
            let target = *target.lock().unwrap();
            RELAYED.fetch_add(1, Ordering::Relaxed);
            thread::spawn(move || {
                let Ok(outside) = TcpStream::connect(target) else { return };
                // Else the second piece of a message waits for the other end's late word on the first.
                for end in [&inside, &outside] {
                    let _ = end.set_nodelay(true);
                }
                let pairs = [
                    (inside.try_clone(), outside.try_clone()),
                    (outside.try_clone(), inside.try_clone()),
                ];
                for (from, to) in pairs {
                    let (Ok(mut from), Ok(mut to)) = (from, to) else { return };
                    thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(std::net::Shutdown::Both);
                    });
                }
            });
        }
    });
}

/// Gives nanogpu-scheduler its rights, and the cluster the policy that keeps everyone else from
/// writing placements.
pub(crate) async fn rights(cluster: &Cluster, session: &Session) -> Result<()> {
    let policy = shipped::parts(SECOND, &["scheduler/placement-policy.yaml"]);
    session.apply("default", &policy).await?;
    account(cluster, session).await
}

/// Gives nanogpu-scheduler its rights.
pub(crate) async fn account(cluster: &Cluster, session: &Session) -> Result<()> {
    let rights = shipped::parts(SECOND, &[shipped::NAMESPACE, "scheduler/rbac.yaml"]);
    session.apply("default", &rights).await?;
    as_ours(&cluster.layout().kubeconfig())?;
    Ok(())
}

/// Plays the agents of these nodes: at first all beat at once, then each once in `period` and evenly over
/// that time, as agents do that were not all started together.
pub(crate) fn agents(
    session: Session,
    silenced: Arc<Mutex<BTreeSet<String>>>,
    nodes: Vec<String>,
    period: Duration,
) {
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let leases: Api<Lease> = Api::namespaced(session.client(), NAMESPACE);
            let each = period / u32::try_from(nodes.len().max(1)).unwrap_or(u32::MAX);
            let mut beats = tokio::time::interval(each);
            beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
            for round in 0_u64.. {
                for node in &nodes {
                    if round > 0 {
                        beats.tick().await;
                    }
                    if silenced.lock().unwrap().contains(node) {
                        continue;
                    }
                    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
                    let lease = json!({
                        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                        "metadata": {"name": node, "labels": {"nano-gpu/agent": ""}},
                        "spec": {"holderIdentity": node, "renewTime": now},
                    });
                    let params = PatchParams::apply("agents").force();
                    let _ = leases.patch(node, &params, &Patch::Apply(lease)).await;
                }
            }
        });
    });
}

/// One replica.
pub(crate) struct Scheduler {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Scheduler {
    /// One that lets everyone read, with these options besides.
    pub(crate) fn start(cluster: &Cluster, more: &[&str]) -> Result<Self> {
        Self::start_for_tokens(cluster, &[&["--anonymous-read"], more].concat())
    }

    /// The same, built for speed: for measuring.
    pub(crate) async fn start_fast(cluster: &Cluster, more: &[&str]) -> Result<Self> {
        let program = fast_program().await?;
        Self::start_program(&program, cluster, &[&["--anonymous-read"], more].concat(), &[])
    }

    /// One that lets everyone read, with these variables in its environment.
    pub(crate) fn start_in(cluster: &Cluster, env: &[(&str, &Path)]) -> Result<Self> {
        Self::start_program(&program()?, cluster, &["--anonymous-read"], env)
    }

    /// One whose API wants a token of those who read.
    pub(crate) fn start_for_tokens(cluster: &Cluster, more: &[&str]) -> Result<Self> {
        Self::start_program(&program()?, cluster, more, &[])
    }

    fn start_program(
        program: &Path,
        cluster: &Cluster,
        more: &[&str],
        env: &[(&str, &Path)],
    ) -> Result<Self> {
        let free = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(cluster.layout().log("nanogpu-scheduler"))?;
        let child = Command::new(program)
            .arg("--kubeconfig")
            .arg(ours(cluster))
            .args(["--address", &free.to_string(), "--namespace", NAMESPACE])
            .args(["--lease-seconds", "2", "--log-form", "plain"])
            .args(more)
            .env_remove("KUBECONFIG")
            .env_remove("PORT")
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()?;
        Ok(Self { child, address: free })
    }

    pub(crate) async fn ready(&self) -> Result<()> {
        let started = Instant::now();
        while started.elapsed() < Duration::from_mins(1) {
            if let Ok((200, _)) = self.get("/readyz").await {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        bail!("nanogpu-scheduler is not ready")
    }

    /// The memory it has now and the most it ever had, in MiB.
    pub(crate) fn memory(&self) -> Result<(u64, u64)> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let of = |name: &str| -> Result<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).context("a line")?;
            let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
            Ok(kib >> 10)
        };
        Ok((of("VmRSS:")?, of("VmHWM:")?))
    }

    /// Asks it to stop, as a kubelet does, and waits until it has. True if it ended well.
    pub(crate) async fn terminate(&mut self) -> Result<bool> {
        let pid = self.child.id().to_string();
        ensure!(Command::new("kill").args(["-TERM", &pid]).status()?.success(), "not asked");
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status.success());
            }
            ensure!(started.elapsed() < Duration::from_mins(1), "it does not stop");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Ends it with SIGKILL.
    pub(crate) fn kill(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// A plain GET: status and body.
    pub(crate) async fn get(&self, path: &str) -> Result<(u16, String)> {
        self.get_as(path, None).await
    }

    /// A GET with a token.
    pub(crate) async fn get_as(&self, path: &str, token: Option<&str>) -> Result<(u16, String)> {
        get(self.address, path, token).await
    }

    /// A POST of JSON.
    pub(crate) async fn post(&self, path: &str, body: &str) -> Result<(u16, String)> {
        let length = body.len();
        self.send(format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        ))
        .await
    }

    /// A POST of JSON whose answer is waited for later.
    pub(crate) fn asking(&self, path: &str, body: &str) -> Asking {
        let length = body.len();
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        sent(self.address, request)
    }

    async fn send(&self, request: String) -> Result<(u16, String)> {
        sent(self.address, request).await?
    }

    /// Why a pod waits, as JSON.
    pub(crate) async fn why(&self, namespace: &str, pod: &str) -> Result<Value> {
        let (_, body) = self.get(&format!("/api/v1/why/{namespace}/{pod}")).await?;
        // The body may come in chunks; the JSON is between the first and the last brace.
        let json = body.find('{').zip(body.rfind('}')).map(|(from, to)| &body[from..=to]);
        Ok(serde_json::from_str(json.context("no JSON")?)?)
    }
}

/// An answer on its way.
pub(crate) type Asking = tokio::task::JoinHandle<Result<(u16, String)>>;

/// A GET of a replica, with a token or without.
pub(crate) async fn get(
    address: SocketAddr,
    path: &str,
    token: Option<&str>,
) -> Result<(u16, String)> {
    let token = token.map_or_else(String::new, |t| format!("Authorization: Bearer {t}\r\n"));
    let request = format!("GET {path} HTTP/1.1\r\n{token}Host: x\r\nConnection: close\r\n\r\n");
    sent(address, request).await?
}

fn sent(address: SocketAddr, request: String) -> Asking {
    tokio::task::spawn_blocking(move || {
        use std::io::{Read as _, Write as _};
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.write_all(request.as_bytes())?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let status = text.split(' ').nth(1).context("no answer")?.parse()?;
        let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        Ok((status, body.to_owned()))
    })
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// nanogpu-scheduler, built from this tree.
pub(crate) fn program() -> Result<PathBuf> {
    Ok(testbed::built()?.join("nanogpu-scheduler"))
}

/// The same, built for speed.
pub(crate) async fn fast_program() -> Result<PathBuf> {
    let built = tokio::task::spawn_blocking(|| testbed::built_for_speed("scheduler")).await??;
    Ok(built.join("nanogpu-scheduler"))
}
