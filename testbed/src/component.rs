//! The processes of a cluster: what each is, where it lives, and how to start it again.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use crate::cgroups::Cgroups;
use crate::layout::{Layout, write};
use crate::namespaces::{Mounts, Namespaces};
use crate::process::{Fresh, Identity, Launch};

/// A process of the cluster that a test may stop, kill, pause or restart.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Component {
    /// The store.
    Etcd,
    /// `kube-apiserver`.
    ApiServer,
    /// `kube-controller-manager`.
    ControllerManager,
    /// A `kube-scheduler`, by the name of its process.
    Scheduler(String),
    /// `kube-proxy`.
    KubeProxy,
    /// What plays the fake nodes.
    Kwok,
    /// The kubelet of a node.
    Kubelet(String),
    /// The container runtime of a node.
    Containerd(String),
}

impl Component {
    /// The stock scheduler.
    pub fn scheduler() -> Self {
        Self::Scheduler("kube-scheduler".to_owned())
    }

    /// The kubelet of `node`.
    pub fn kubelet(node: &str) -> Self {
        Self::Kubelet(node.to_owned())
    }

    /// containerd of `node`.
    pub fn containerd(node: &str) -> Self {
        Self::Containerd(node.to_owned())
    }
}

/// The name of its record and its log.
impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Etcd => f.write_str("etcd"),
            Self::ApiServer => f.write_str("kube-apiserver"),
            Self::ControllerManager => f.write_str("kube-controller-manager"),
            Self::Scheduler(name) => f.write_str(name),
            Self::KubeProxy => f.write_str("kube-proxy"),
            Self::Kwok => f.write_str("kwok"),
            Self::Kubelet(node) => write!(f, "kubelet-{node}"),
            Self::Containerd(node) => write!(f, "containerd-{node}"),
        }
    }
}

/// Where a process lives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Place {
    /// The host's namespaces; only the forwarder.
    Host,
    /// The cluster's network.
    Cluster,
    /// The cluster's network and a node's files.
    Node(String),
    /// The anchor of the cluster's network.
    NewNetwork,
    /// The anchor of a node's files.
    NewNode(String),
}

/// All that is needed to start a process, now or again.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub(crate) name: String,
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) place: Place,
}

/// A process that was started.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Running {
    pub(crate) spec: Spec,
    pub(crate) identity: Identity,
}

/// The cgroup of everything but pods.
pub(crate) const SYSTEM: &str = "system";
/// The process that holds the cluster's network.
pub(crate) const ANCHOR: &str = "anchor";

pub(crate) fn anchor_of(node: &str) -> String {
    format!("{ANCHOR}-{node}")
}

impl Spec {
    pub(crate) fn new(name: &impl ToString, program: impl Into<PathBuf>, place: Place) -> Self {
        Self {
            name: name.to_string(),
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            place,
        }
    }

    /// Adds an argument.
    pub(crate) fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds `--name=value`.
    pub(crate) fn flag(self, name: &str, value: impl fmt::Display) -> Self {
        self.arg(format!("--{name}={value}"))
    }

    /// Adds `--name=/path`.
    pub(crate) fn file(self, name: &str, path: &Path) -> Self {
        self.flag(name, path.display())
    }

    /// Starts it and remembers it.
    pub(crate) fn start(self, layout: &Layout) -> anyhow::Result<Running> {
        let log = layout.log(&self.name);
        let launch = Launch {
            program: &self.program,
            args: &self.args,
            env: &self.env,
            log: &log,
            namespaces: self.namespaces(layout)?,
            fresh: self.fresh(layout)?,
            cgroup: Cgroups::of(layout.name())?.door(SYSTEM),
        };
        let identity = launch.start().with_context(|| format!("cannot start {}", self.name))?;
        let running = Running { spec: self, identity };
        write(&record(layout, &running.spec.name), &serde_json::to_vec_pretty(&running)?)?;
        Ok(running)
    }

    fn namespaces(&self, layout: &Layout) -> anyhow::Result<Namespaces> {
        let anchor = |name: &str| Running::of(layout, name).map(|running| running.identity.pid);
        match &self.place {
            Place::Host | Place::NewNetwork => Ok(Namespaces::default()),
            Place::Cluster | Place::NewNode(_) => Namespaces::net_of(anchor(ANCHOR)?),
            Place::Node(node) => Namespaces::all_of(anchor(&anchor_of(node))?),
        }
    }

    fn fresh(&self, layout: &Layout) -> anyhow::Result<Fresh> {
        match &self.place {
            Place::NewNetwork => Ok(Fresh::Net),
            Place::NewNode(node) => {
                let folder = layout.node(node);
                let [lib, log, run] = ["lib", "log", "run"].map(|name| folder.join(name));
                Ok(Fresh::Mount(Mounts::new(&[
                    (&lib, "/var/lib"),
                    (&log, "/var/log"),
                    (&run, "/run"),
                ])?))
            }
            Place::Host | Place::Cluster | Place::Node(_) => Ok(Fresh::None),
        }
    }
}

impl Running {
    /// The process called `name`, dead or alive.
    pub(crate) fn of(layout: &Layout, name: &str) -> anyhow::Result<Self> {
        let file = record(layout, name);
        let text = match fs::read(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                bail!(
                    "cluster `{}` has no {name}; it has: {}",
                    layout.name(),
                    names(layout).join(", ")
                )
            }
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", file.display()));
            }
        };
        serde_json::from_slice(&text).with_context(|| format!("{} is torn", file.display()))
    }

    /// Every process that was started, in order of name.
    pub(crate) fn all(layout: &Layout) -> Vec<Self> {
        names(layout).iter().filter_map(|name| Self::of(layout, name).ok()).collect()
    }

    /// Asks it to end, and makes it end after `grace`.
    pub(crate) fn stop(&self, grace: Duration) {
        // One that is paused hears nothing but SIGKILL.
        self.identity.signal(libc::SIGCONT);
        self.identity.signal(libc::SIGTERM);
        if !self.identity.gone_within(grace) {
            self.kill();
        }
    }

    /// Ends it without asking.
    pub(crate) fn kill(&self) {
        self.identity.signal(libc::SIGKILL);
        self.identity.gone_within(Duration::from_secs(10));
    }
}

fn record(layout: &Layout, name: &str) -> PathBuf {
    layout.components().join(format!("{name}.json"))
}

fn names(layout: &Layout) -> Vec<String> {
    let entries = fs::read_dir(layout.components()).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.file_name().to_str()?.strip_suffix(".json").map(str::to_owned))
        .collect();
    names.sort();
    names
}
