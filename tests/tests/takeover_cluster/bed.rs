//! A node of four simulated T4, and our programs as processes, which come later.

use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use serde_json::{Value, json};
use stories::shipped::{self, SECOND};
use testbed::{Cluster, Options, Session};

use crate::before::offers;
use crate::processes::{machine, programs, simgpu};

pub(crate) const NODE: &str = "node1";
/// Where the Leases are.
pub(crate) const NAMESPACE: &str = "nanogpu-system";
/// Where a node has its simulated driver, as the node sees it.
pub(crate) const SIM: &str = "/var/lib/simgpu";
/// What the last of a container's words is, when it has looked around.
pub(crate) const LOOKED: &str = "looked around";
/// Where kube-scheduler finds the extender, inside the cluster.
const EXTENDER: &str = "127.0.0.1:39999";
const CONFIG: &str = include_str!("../../../deploy/kube-scheduler/own-scheduler.yaml");
const RIGHTS: [&str; 4] = [
    shipped::NAMESPACE,
    "agent/rbac.yaml",
    "scheduler/rbac.yaml",
    "scheduler/placement-policy.yaml",
];

/// The cluster.
pub(crate) struct Bed {
    pub(crate) cluster: &'static Cluster,
    pub(crate) session: Session,
}

impl Bed {
    pub(crate) async fn new() -> Result<Self> {
        let cluster = tokio::task::spawn_blocking(cluster).await??;
        Ok(Self { cluster, session: cluster.session()? })
    }

    pub(crate) fn pods(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.session.client(), namespace)
    }

    /// Waits until the node offers so much of a resource.
    pub(crate) async fn offered(&self, resource: &str, amount: usize) -> Result<()> {
        let started = Instant::now();
        loop {
            let now = offers(self, resource).await?;
            if now.as_deref() == Some(&amount.to_string()) {
                return Ok(());
            }
            ensure!(
                started.elapsed() < Duration::from_mins(1),
                "{resource}: {now:?}, not {amount}"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Gives our programs their rights and no others.
    pub(crate) async fn rights(&self) -> Result<()> {
        self.session.apply("default", &shipped::parts(SECOND, &RIGHTS)).await?;
        for name in ["agent", "scheduler"] {
            let text = std::fs::read_to_string(self.cluster.layout().kubeconfig())?;
            let mut config: Value = serde_saphyr::from_str(&text)?;
            let account = format!("system:serviceaccount:{NAMESPACE}:nanogpu-{name}");
            config["users"][0]["user"]["as"] = json!(account);
            std::fs::write(self.kubeconfig(name), config.to_string())?;
        }
        Ok(())
    }

    fn kubeconfig(&self, name: &str) -> PathBuf {
        self.cluster.layout().kubeconfig().with_extension(name)
    }
}

/// nanogpu-scheduler.
pub(crate) struct Scheduler {
    child: Child,
    address: SocketAddr,
}

impl Scheduler {
    /// Starts it as one that takes over, and waits until it is ready.
    pub(crate) async fn start(bed: &Bed, took_over_at: &str) -> Result<Self> {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let log = bed.cluster.layout().log("nanogpu-scheduler");
        let log = OpenOptions::new().create(true).append(true).open(log)?;
        let child = Command::new(programs()?.join("nanogpu-scheduler"))
            .arg("--kubeconfig")
            .arg(bed.kubeconfig("scheduler"))
            .args(["--address", &address.to_string(), "--namespace", NAMESPACE])
            .args(["--lease-seconds", "2", "--anonymous-read", "--log-form", "plain"])
            .args(["--took-over-at", took_over_at])
            .env_remove("KUBECONFIG")
            .env_remove("PORT")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()?;
        let one = Self { child, address };
        relay(bed.cluster.listen(EXTENDER)?, address);
        let started = Instant::now();
        while !one.get("/readyz").is_ok_and(|answer| answer.starts_with("HTTP/1.1 200")) {
            ensure!(started.elapsed() < Duration::from_mins(1), "nanogpu-scheduler is not ready");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(one)
    }

    fn get(&self, path: &str) -> Result<String> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    }

    /// What is free of each card, by the number of its device node: percent and MiB.
    pub(crate) fn free(&self) -> Result<Vec<(u64, u64)>> {
        let text = self.get("/api/v1/devices")?;
        let json = text.find('[').zip(text.rfind(']')).map(|(from, to)| &text[from..=to]);
        let mut cards: Vec<Value> = serde_json::from_str(json.context("no JSON")?)?;
        // The simulated cards have their device nodes in their own order.
        cards.sort_by_key(|card| card["index"].as_u64());
        let number = |card: &Value, key: &str| card[key].as_u64().context("a number");
        cards
            .iter()
            .map(|it| Ok((number(it, "coresFree")?, number(it, "memoryFreeMiB")?)))
            .collect()
    }

    /// Waits until so much is free.
    pub(crate) async fn until_free(&self, wanted: &[(u64, u64)]) -> Result<()> {
        let started = Instant::now();
        loop {
            let free = self.free()?;
            if free == wanted {
                return Ok(());
            }
            ensure!(started.elapsed() < Duration::from_mins(1), "free is {free:?}, not {wanted:?}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// What `kubectl nanogpu` prints.
    pub(crate) fn asked(&self, bed: &Bed, words: &[&str]) -> Result<String> {
        let output = Command::new(programs()?.join("kubectl-nanogpu"))
            .arg("--kubeconfig")
            .arg(bed.cluster.layout().kubeconfig())
            .args(["--server", &format!("http://{}", self.address)])
            .args(words)
            .output()?;
        let said = String::from_utf8(output.stdout)?;
        if !output.status.success() {
            bail!("{words:?}: {said}{}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(said)
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn relay(listener: TcpListener, target: SocketAddr) {
    thread::spawn(move || {
        for inside in listener.incoming().flatten() {
            let Ok(outside) = TcpStream::connect(target) else { continue };
            let pairs = [
                (inside.try_clone(), outside.try_clone()),
                (outside.try_clone(), inside.try_clone()),
            ];
            for (from, to) in pairs {
                let (Ok(mut from), Ok(mut to)) = (from, to) else { continue };
                thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Both);
                });
            }
        }
    });
}

fn cluster() -> Result<&'static Cluster> {
    let cluster = Cluster::for_tests(Options::new("takeover").nodes(1).scheduler(CONFIG))?;
    let folder = cluster.layout().on_node(NODE, SIM);
    std::fs::create_dir_all(&folder)?;
    let text = |path: PathBuf| path.display().to_string();
    let m = machine(cluster, NODE);
    simgpu(&m, &["create", &text(m.clone()), "--profile", "t4x4", "--name", NODE, "--host-pids"])?;
    simgpu(&m, &["install", "--driver-root", &text(folder.join("driver"))])?;
    simgpu(&m, &["nodes", &text(folder.join("dev"))])?;
    Ok(cluster)
}
