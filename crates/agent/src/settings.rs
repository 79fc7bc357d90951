//! What the administrator decided for a node.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use model::NodeName;

use crate::metrics::Originals;
use crate::probing::Handing;
use crate::rungs::Rung;

/// A folder as we see it and as the host does: in a container the two differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folder {
    /// The path for us.
    pub here: PathBuf,
    /// The path for the kubelet and the container runtime.
    pub host: PathBuf,
}

/// A text that names no folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a folder is an absolute path, or two with '=' between: as seen here, and on the host")]
pub struct BadFolder;

impl Folder {
    /// The same path on both sides.
    pub fn same(path: impl Into<PathBuf>) -> Self {
        let here = path.into();
        Self { host: here.clone(), here }
    }

    /// The host's path of a file that is below this folder here; its own if it is elsewhere.
    pub fn on_host(&self, file: &Path) -> PathBuf {
        match file.strip_prefix(&self.here) {
            Ok(rest) if rest.as_os_str().is_empty() => self.host.clone(),
            Ok(rest) => self.host.join(rest),
            Err(_) => file.to_owned(),
        }
    }
}

impl FromStr for Folder {
    type Err = BadFolder;

    fn from_str(text: &str) -> Result<Self, BadFolder> {
        let (here, host) = text.split_once('=').unwrap_or((text, text));
        let folder = Self { here: here.into(), host: host.into() };
        if folder.here.is_absolute() && folder.host.is_absolute() {
            Ok(folder)
        } else {
            Err(BadFolder)
        }
    }
}

/// A file or folder of the host that every container with a GPU gets, read-only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extra {
    /// On the host.
    pub host: PathBuf,
    /// In the container.
    pub container: PathBuf,
}

impl FromStr for Extra {
    type Err = BadFolder;

    fn from_str(text: &str) -> Result<Self, BadFolder> {
        let Folder { here, host } = text.parse()?;
        Ok(Self { host: here, container: host })
    }
}

/// Everything that is decided before the agent starts.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The node we run on.
    pub node: NodeName,
    /// Where our Lease is.
    pub namespace: String,
    /// What the dialects mean, and which are spoken.
    pub dialects: dialect::Settings,
    /// Who brings devices and driver files into a container.
    pub mode: dialect::NodeMode,
    /// How shares are enforced.
    pub rung: Rung,
    /// The kubelet's folder of device plugins.
    pub plugins: PathBuf,
    /// The kubelet's `PodResources` socket.
    pub pod_resources: PathBuf,
    /// The runtime's folder of CDI specs.
    pub cdi: PathBuf,
    /// How devices come into containers.
    pub handing: Handing,
    /// Our folder of pages.
    pub pages: Folder,
    /// Where the driver is.
    pub driver: Folder,
    /// Where device nodes are.
    pub dev: Folder,
    /// Our limiter.
    pub limiter: Folder,
    /// What else every container with a GPU gets.
    pub extras: Vec<Extra>,
    /// The host's `/proc`.
    pub proc: PathBuf,
    /// Where metrics are served.
    pub listen: SocketAddr,
    /// How often the Lease is renewed.
    pub beat: Duration,
    /// How often cards are looked at.
    pub look: Duration,
    /// How long a leaving holder is waited for before a start is refused.
    pub patience: Duration,
    /// How long a card must be well before it takes new work again.
    pub probation: Duration,
    /// Whether containers with more memory than they were given are evicted.
    pub evict: bool,
    /// Whether the original systems' metrics are told too.
    pub originals: Originals,
    /// Where gpu-manager's limiter is served, if it is.
    pub vcuda: Option<Folder>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_seen_from_two_sides() {
        let folder: Folder = "/host/dev=/dev".parse().unwrap();
        assert_eq!(folder.on_host(Path::new("/host/dev/nvidia0")), Path::new("/dev/nvidia0"));
        assert_eq!(folder.on_host(Path::new("/host/dev")), Path::new("/dev"));
        assert_eq!(folder.on_host(Path::new("/other/x")), Path::new("/other/x"));
        assert_eq!("/dev".parse(), Ok(Folder::same("/dev")));
        assert_eq!("dev".parse::<Folder>(), Err(BadFolder));
    }
}
