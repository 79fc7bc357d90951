//! The programs under test, as processes.

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use testbed::Cluster;

use crate::bed::{NAMESPACE, SIM};

/// An agent, as a process. It ends with this.
pub(crate) struct Agent {
    child: Child,
    pub(crate) address: SocketAddr,
}

/// How agents of stories run unless the story says otherwise: a flag may be given once only.
const USUAL: [(&str, &str); 4] =
    [("--isolation", "none"), ("--look", "1000"), ("--probation", "2"), ("--heartbeat", "2")];

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
        let cdi = layout.on_node(node, "/run/cdi").display().to_string();
        let usual = USUAL
            .into_iter()
            .chain([("--cdi", cdi.as_str())])
            .filter(|(flag, _)| !more.contains(flag));
        let child = Command::new(agent()?)
            .args(["--node-name", node, "--namespace", NAMESPACE])
            .arg("--kubeconfig")
            .arg(layout.kubeconfig().with_extension("agent"))
            .arg("--plugins")
            .arg(layout.on_node(node, "/var/lib/kubelet/device-plugins"))
            .arg("--pod-resources")
            .arg(layout.on_node(node, "/var/lib/kubelet/pod-resources/kubelet.sock"))
            .args(["--pages", &both("/var/lib/nanogpu/pages")])
            .args(["--driver-root", &sim("driver"), "--dev-root", &sim("dev")])
            .args(["--listen", &address.to_string(), "--log-form", "plain"])
            .args(usual.flat_map(|(flag, value)| [flag, value]))
            .args(more)
            .envs(shipped_env())
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
        ready("nanogpu-agent", self.address).await
    }

    pub(crate) fn get(&self, path: &str) -> Result<String> {
        get(self.address, path)
    }

    /// Its number.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
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

/// nanogpu-scheduler, as a process. It ends with this.
pub(crate) struct Scheduler {
    child: Child,
    address: SocketAddr,
}

impl Scheduler {
    /// Starts it with the rights in `kubeconfig`, and waits until it is ready.
    pub(crate) async fn start(cluster: &Cluster, kubeconfig: &Path) -> Result<Self> {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let log = cluster.layout().log("nanogpu-scheduler");
        let log = OpenOptions::new().create(true).append(true).open(log)?;
        let child = Command::new(programs()?.join("nanogpu-scheduler"))
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(["--address", &address.to_string(), "--namespace", NAMESPACE])
            .args(["--lease-seconds", "2", "--anonymous-read", "--log-form", "plain"])
            .env_remove("KUBECONFIG")
            .env_remove("PORT")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()?;
        let one = Self { child, address };
        ready("nanogpu-scheduler", address).await?;
        Ok(one)
    }

    /// Takes connections of the cluster to it.
    pub(crate) fn behind(&self, listener: TcpListener) -> Result<()> {
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let address = self.address;
        tokio::spawn(async move {
            while let Ok((mut inside, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut outside = tokio::net::TcpStream::connect(address).await?;
                    tokio::io::copy_bidirectional(&mut inside, &mut outside).await
                });
            }
        });
        Ok(())
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn ready(who: &str, address: SocketAddr) -> Result<()> {
    let started = Instant::now();
    let mut last = String::new();
    while started.elapsed() < Duration::from_mins(1) {
        last = get(address, "/readyz").unwrap_or_default();
        if last.starts_with("HTTP/1.1 200") {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    bail!("{who} is not ready: {last}")
}

fn get(address: SocketAddr, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: it\r\nconnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// Where a node's simulated machine is.
pub(crate) fn machine(cluster: &Cluster, node: &str) -> PathBuf {
    cluster.layout().on_node(node, &format!("{SIM}/m"))
}

/// Does something to a simulated machine, and says what it said.
pub(crate) fn simgpu(machine: &Path, words: &[&str]) -> Result<String> {
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
    Ok(String::from_utf8(out.stdout)?)
}

/// The folder of our programs, built from this tree; `NANOGPU_PROGRAMS` names another, whose programs
/// are taken as they are.
pub(crate) fn programs() -> Result<PathBuf> {
    match std::env::var_os("NANOGPU_PROGRAMS") {
        Some(folder) => Ok(folder.into()),
        None => testbed::built(),
    }
}

/// The agent under test: where it is measured, as it ships.
fn agent() -> Result<PathBuf> {
    let folder = if is_measured() { testbed::built_agent() } else { programs() };
    Ok(folder?.join("nanogpu-agent"))
}

/// What its image sets, where it is measured; but for where the image has the limiter.
fn shipped_env() -> impl Iterator<Item = (&'static str, &'static str)> {
    let set = testbed::AGENT_ENV.into_iter().filter(|(name, _)| name.starts_with("MALLOC_"));
    set.filter(|_| is_measured())
}

/// Whether numbers are asked for: `NANOGPU_BENCH`.
pub(crate) fn is_measured() -> bool {
    std::env::var_os("NANOGPU_BENCH").is_some()
}
