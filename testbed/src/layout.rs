//! Where a cluster keeps its files.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::options::{Options, check_name};

/// Names another folder for all clusters.
const STATE: &str = "NANOGPU_TESTBED_STATE";

/// Short, because sockets lie below it and their paths may have 108 bytes. Not in /run or /tmp:
/// images and containers want a disk.
const ROOT: &str = "/var/tmp/nanogpu-testbed";

/// The folder of one cluster.
#[derive(Debug, Clone)]
pub struct Layout {
    root: PathBuf,
    name: String,
}

/// What is known about a cluster that was started.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) options: Options,
    /// Whether `up` came to its end.
    pub(crate) ready: bool,
    /// The process that must live for the cluster to be wanted: a test. None for a person's.
    pub(crate) owner: Option<crate::process::Identity>,
    /// The port on 127.0.0.1 that leads to the API server.
    pub(crate) api_port: u16,
}

/// The folder that holds a folder for each cluster.
pub(crate) fn root() -> PathBuf {
    std::env::var_os(STATE).map_or_else(|| PathBuf::from(ROOT), PathBuf::from)
}

/// The names of all clusters that left something here.
pub fn clusters() -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    let root = root();
    let entries = match fs::read_dir(&root) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(names),
        Err(error) => return Err(error).with_context(|| format!("cannot list {}", root.display())),
    };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) && check_name(&name).is_ok() {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

impl Layout {
    /// The files of cluster `name`.
    pub fn of(name: &str) -> anyhow::Result<Self> {
        check_name(name)?;
        Ok(Self { root: root().join(name), name: name.to_owned() })
    }

    /// The cluster's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn exists(&self) -> bool {
        self.root.is_dir()
    }

    /// The lock of this cluster, beside its folder because `down` deletes that.
    pub(crate) fn lock(&self) -> PathBuf {
        self.root.with_extension("lock")
    }

    pub(crate) fn pki(&self) -> PathBuf {
        self.root.join("pki")
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.root.join("config")
    }

    /// Records of what runs.
    pub(crate) fn components(&self) -> PathBuf {
        self.root.join("components")
    }

    pub(crate) fn logs(&self) -> PathBuf {
        self.root.join("log")
    }

    /// The output of a component.
    pub fn log(&self, component: &str) -> PathBuf {
        self.logs().join(format!("{component}.log"))
    }

    /// What the API server wrote down, if it was asked to.
    pub fn audit(&self) -> PathBuf {
        self.logs().join("audit.jsonl")
    }

    pub(crate) fn etcd(&self) -> PathBuf {
        self.root.join("etcd")
    }

    pub(crate) fn images(&self) -> PathBuf {
        self.root.join("images")
    }

    /// What a client inside the cluster's network uses, by its name.
    pub fn kubeconfig_inside(&self, user: &str) -> PathBuf {
        self.config().join(format!("{user}.kubeconfig"))
    }

    /// What people and tests on the host use.
    pub fn kubeconfig(&self) -> PathBuf {
        self.root.join("kubeconfig")
    }

    /// A node's folder: `lib`, `log` and `run` are its `/var/lib`, `/var/log` and `/run`.
    pub fn node(&self, node: &str) -> PathBuf {
        self.root.join(node)
    }

    /// A path as a process on `node` writes it, as the host sees it.
    ///
    /// Only what lies in `/var/lib`, `/var/log` or `/run` is the node's own; the rest is the
    /// host's.
    pub fn on_node(&self, node: &str, path: &str) -> PathBuf {
        let own =
            [("/var/lib/", "lib"), ("/var/log/", "log"), ("/var/run/", "run"), ("/run/", "run")];
        for (prefix, folder) in own {
            if let Some(rest) = path.strip_prefix(prefix) {
                return self.node(node).join(folder).join(rest);
            }
        }
        PathBuf::from(path)
    }

    fn record_file(&self) -> PathBuf {
        self.root.join("cluster.json")
    }

    pub(crate) fn record(&self) -> anyhow::Result<Record> {
        let file = self.record_file();
        let text = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        serde_json::from_slice(&text)
            .with_context(|| format!("{} is not what `up` writes", file.display()))
    }

    pub(crate) fn write_record(&self, record: &Record) -> anyhow::Result<()> {
        write(&self.record_file(), &serde_json::to_vec_pretty(record)?)
    }
}

/// Writes a file whole or not at all.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let attempt = || {
        let folder = path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(folder)?;
        let file = tempfile::NamedTempFile::new_in(folder)?;
        fs::write(file.path(), bytes)?;
        file.persist(path).map_err(|error| error.error)
    };
    attempt().map(drop).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_its_own_state_and_shares_the_rest() {
        let layout = Layout { root: "/s/demo".into(), name: "demo".into() };
        let at = |path| layout.on_node("node1", path).display().to_string();
        assert_eq!(
            at("/var/lib/kubelet/device-plugins"),
            "/s/demo/node1/lib/kubelet/device-plugins"
        );
        assert_eq!(at("/var/run/cdi"), "/s/demo/node1/run/cdi");
        assert_eq!(at("/run/cdi"), "/s/demo/node1/run/cdi");
        assert_eq!(at("/etc/hosts"), "/etc/hosts");
        assert_eq!(layout.lock(), Path::new("/s/demo.lock"));
    }
}
