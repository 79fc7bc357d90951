//! A node with simulated cards, one without, our images on both, and helm.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testbed::{Binaries, Cluster, Options, Parts, Program, Progress, Session};
use tokio::sync::{Mutex as AsyncMutex, MutexGuard};

pub(crate) const SYSTEM: &str = "nanogpu-system";
/// The node with four T4.
pub(crate) const CARDS: &str = "node1";
/// The node without cards.
pub(crate) const BARE: &str = "node2";
/// Where a node has its simulated driver, as the node sees it.
pub(crate) const SIM: &str = "/var/lib/simgpu";
/// What our own accounts ask of the API server is written down.
const AUDIT: &str = "
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: Metadata, userGroups: ['system:serviceaccounts:nanogpu-system']}
- {level: None}
";

/// Stories come one after another: there is one nanogpu in a cluster.
static TURN: AsyncMutex<()> = AsyncMutex::const_new(());

/// The cluster, and helm.
pub(crate) struct Bed {
    pub(crate) cluster: &'static Cluster,
    pub(crate) session: Session,
    helm: PathBuf,
    _turn: MutexGuard<'static, ()>,
}

impl Bed {
    pub(crate) async fn new() -> Result<Self> {
        let turn = TURN.lock().await;
        let (cluster, helm) = tokio::task::spawn_blocking(|| {
            let helm = helm()?;
            anyhow::Ok((cluster()?, helm))
        })
        .await??;
        let session = cluster.session()?;
        Ok(Self { cluster, session, helm, _turn: turn })
    }

    /// Runs helm against the cluster; the answer is what it said.
    pub(crate) async fn helm(&self, words: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.helm);
        command.args(words).args(["--namespace", SYSTEM]);
        self.run(command).await
    }

    /// Runs kubectl against the cluster.
    pub(crate) async fn kubectl(&self, words: &[&str]) -> Result<String> {
        let mut command = Command::new(self.cluster.binaries().path(Program::Kubectl));
        command.args(words);
        self.run(command).await
    }

    /// Runs `kubectl nanogpu`.
    pub(crate) async fn nanogpu(&self, words: &[&str]) -> Result<String> {
        let mut command = Command::new(testbed::built()?.join("kubectl-nanogpu"));
        command.args(words);
        self.run(command).await
    }

    async fn run(&self, mut command: Command) -> Result<String> {
        command.env("KUBECONFIG", self.cluster.layout().kubeconfig());
        // What helm keeps for itself is nobody's here.
        for name in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            command.env(name, self.cluster.layout().kubeconfig().with_extension("helm"));
        }
        let line = format!("{command:?}");
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        told(&line, &output)
    }
}

/// What a program said, if it ended well.
pub(crate) fn told(line: &str, output: &Output) -> Result<String> {
    let (said, error) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // Seen with --nocapture, by whoever wants to look.
    println!("$ {line}\n{said}{error}");
    ensure!(output.status.success(), "{line}: {}\n{said}{error}", output.status);
    Ok(said.into_owned())
}

/// helm, built if it is missing.
pub(crate) fn helm() -> Result<PathBuf> {
    Binaries::apart(Program::Helm, &mut Progress::new())
}

/// The values for this cluster: where the images are, and where the driver is.
pub(crate) fn values() -> Value {
    json!({
        "image": {"registry": "localhost", "pullPolicy": "Never"},
        "kubeScheduler": {"image": {"repository": "localhost/nanogpu/kube-scheduler"}},
        "agent": {
            "driverRoot": format!("{SIM}/driver"),
            "devRoot": format!("{SIM}/dev"),
            "extraVolumes": [{
                "name": "machine",
                "hostPath": {"path": format!("{SIM}/m"), "type": "DirectoryOrCreate"},
            }],
            "extraVolumeMounts": [{"name": "machine", "mountPath": "/run/nanogpu-simgpu"}],
            "extraArgs": ["--look=1000", "--heartbeat=2"],
            "maxUnavailable": "100%",
        },
        "scheduler": {"extraArgs": ["--lease-seconds=5"]},
    })
}

fn cluster() -> Result<&'static Cluster> {
    static MADE: OnceLock<()> = OnceLock::new();
    // Built before the cluster is up, so that it waits for no compiler.
    let parts = Parts::built()?;
    let mut options = Options::new("install").nodes(2);
    options.audit_policy = AUDIT.to_owned();
    let cluster = Cluster::for_tests(options)?;
    if MADE.get().is_none() {
        simulate(cluster)?;
        load(cluster, &parts)?;
        let _ = MADE.set(());
    }
    Ok(cluster)
}

/// Gives the first node its cards.
fn simulate(cluster: &Cluster) -> Result<()> {
    let folder = cluster.layout().on_node(CARDS, SIM);
    std::fs::create_dir_all(folder.join("bin"))?;
    let text = |name: &str| folder.join(name).display().to_string();
    let (machine, driver, dev) = (text("m"), text("driver"), text("dev"));
    let program = testbed::built()?.join("nanogpu-simgpu");
    let lines: [&[&str]; 3] = [
        &["create", &machine, "--profile", "t4x4", "--name", CARDS, "--host-pids"],
        &["install", "--driver-root", &driver],
        &["nodes", &dev],
    ];
    for line in lines {
        let mut command = Command::new(&program);
        command.args(["--machine", &machine]).args(line);
        told(&format!("{command:?}"), &command.output()?)?;
    }
    std::fs::copy(program, folder.join("bin/nanogpu-simgpu"))?;
    Ok(())
}

/// Our images and kube-scheduler's go to both nodes, a tenant's to the one with cards.
fn load(cluster: &Cluster, parts: &Parts) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut made = testbed::product_images(parts, folder.path())?;
    made.push(testbed::kube_scheduler_image(cluster.binaries(), folder.path())?);
    for image in &made {
        println!("{} has {:.1} MB", image.name, image.megabytes());
        for node in [CARDS, BARE] {
            cluster.load_image(node, &image.archive)?;
        }
    }
    let all = testbed::write_images(cluster.binaries(), folder.path())?;
    let debian = |file: &&PathBuf| file.file_stem().is_some_and(|stem| stem == "debian");
    cluster.load_image(CARDS, all.iter().find(debian).context("an image")?)
}

/// Writes a file of values.
pub(crate) fn write_values(folder: &Path, values: &Value) -> Result<String> {
    let file = folder.join("values.yaml");
    std::fs::write(&file, values.to_string())?;
    Ok(file.display().to_string())
}
