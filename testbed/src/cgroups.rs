//! The tree of cgroups that a cluster lives in.
//!
//! It is the kubelets' cgroup root, and it is how we know our processes: everything we start, and
//! everything those start, is in it, also what has left its parent.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};

const MOUNT: &str = "/sys/fs/cgroup";
/// Below the root of each hierarchy, above the clusters.
const OURS: &str = "nanogpu-testbed";

/// The cgroups of one cluster.
pub(crate) struct Cgroups {
    /// Mount points of the hierarchies. With version 2 there is one.
    hierarchies: Vec<PathBuf>,
    /// The hierarchy in which processes are looked for.
    tracker: PathBuf,
    path: PathBuf,
}

impl Cgroups {
    pub(crate) fn of(cluster: &str) -> anyhow::Result<Self> {
        let (hierarchies, tracker) = hierarchies(Path::new(MOUNT))?;
        Ok(Self { hierarchies, tracker, path: Path::new(OURS).join(cluster) })
    }

    /// As a kubelet's `cgroupRoot` names it.
    pub(crate) fn root_of(&self, node: &str) -> String {
        Path::new("/").join(&self.path).join(node).display().to_string()
    }

    /// Makes `leaf` in every hierarchy: the kubelet insists on each.
    pub(crate) fn create(&self, leaf: &str) -> anyhow::Result<()> {
        for hierarchy in &self.hierarchies {
            let mut folder = hierarchy.clone();
            for part in self.path.join(leaf).components() {
                let above = folder.clone();
                folder.push(part);
                fs::create_dir_all(&folder)
                    .with_context(|| format!("cannot make the cgroup {}", folder.display()))?;
                inherit(&above, &folder)
                    .with_context(|| format!("cannot set up the cgroup {}", folder.display()))?;
            }
        }
        Ok(())
    }

    /// The file a process writes itself into to be in `leaf`.
    pub(crate) fn door(&self, leaf: &str) -> PathBuf {
        self.tracker.join(&self.path).join(leaf).join("cgroup.procs")
    }

    /// Every process of the cluster.
    pub(crate) fn processes(&self) -> BTreeSet<i32> {
        let mut found = BTreeSet::new();
        collect(&self.tracker.join(&self.path), &mut found);
        found
    }

    /// The processes in cgroups whose name holds `part`, such as a pod's UID.
    pub(crate) fn processes_of(&self, part: &str) -> Vec<i32> {
        let mut found = BTreeSet::new();
        let mut folders = vec![self.tracker.join(&self.path)];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
                if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    continue;
                }
                if entry.file_name().to_string_lossy().contains(part) {
                    collect(&entry.path(), &mut found);
                } else {
                    folders.push(entry.path());
                }
            }
        }
        found.into_iter().collect()
    }

    /// Kills every process of the cluster, and comes back when none is left.
    pub(crate) fn kill_all(&self) -> anyhow::Result<()> {
        // A process may start another between our look and the signal, so look until it is quiet.
        for _ in 0..200 {
            let processes = self.processes();
            if processes.is_empty() {
                return Ok(());
            }
            for process in processes {
                crate::process::signal(process, libc::SIGKILL);
                crate::process::reap(process);
            }
            thread::sleep(Duration::from_millis(25));
        }
        bail!("processes that do not end after SIGKILL: {:?}", self.processes())
    }

    /// Deletes the tree, which must be empty of processes.
    pub(crate) fn remove(&self) -> anyhow::Result<()> {
        for hierarchy in &self.hierarchies {
            let folder = hierarchy.join(&self.path);
            // The kernel lets go of the last process a little after it ended.
            let mut outcome = Ok(());
            for _ in 0..100 {
                outcome = remove_tree(&folder);
                if outcome.is_ok() {
                    break;
                }
                thread::sleep(Duration::from_millis(20));
            }
            outcome.with_context(|| format!("cannot delete the cgroup {}", folder.display()))?;
            // Another cluster may still use it.
            let _ = fs::remove_dir(hierarchy.join(OURS));
        }
        Ok(())
    }
}

/// Where hierarchies are mounted below `mount`, and the one that knows every process.
fn hierarchies(mount: &Path) -> anyhow::Result<(Vec<PathBuf>, PathBuf)> {
    if mount.join("cgroup.controllers").is_file() {
        return Ok((vec![mount.to_owned()], mount.to_owned()));
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(mount).with_context(|| format!("cannot list {}", mount.display()))? {
        let path = entry?.path();
        // `cpu` and `cpuacct` may be links to one hierarchy; a second name does no harm.
        if path.join("cgroup.procs").is_file() && !path.ends_with("unified") {
            found.push(path);
        }
    }
    found.sort();
    let Some(tracker) = ["pids", "memory", "systemd"]
        .iter()
        .map(|name| mount.join(name))
        .find(|path| found.contains(path))
    else {
        bail!("no cgroups below {}: the kubelet needs them", mount.display());
    };
    Ok((found, tracker))
}

/// Gives a new cgroup what it does not get by itself.
fn inherit(above: &Path, folder: &Path) -> io::Result<()> {
    // Version 1: no process enters a cpuset without CPUs.
    for name in ["cpuset.cpus", "cpuset.mems"] {
        if let Ok(value) = fs::read_to_string(above.join(name))
            && folder.join(name).is_file()
            && fs::read_to_string(folder.join(name)).is_ok_and(|text| text.trim().is_empty())
            && !value.trim().is_empty()
        {
            fs::write(folder.join(name), value.trim())?;
        }
    }
    // Version 2: controllers are switched on from above.
    let switch = above.join("cgroup.subtree_control");
    if switch.is_file() {
        let available = fs::read_to_string(above.join("cgroup.controllers"))?;
        for controller in available.split_whitespace() {
            // One that cannot be switched on here is not needed for pods to run.
            let _ = fs::write(&switch, format!("+{controller}"));
        }
    }
    Ok(())
}

fn collect(folder: &Path, into: &mut BTreeSet<i32>) {
    let text = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    into.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect(&entry.path(), into);
        }
    }
}

fn remove_tree(folder: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path())?;
        }
    }
    fs::remove_dir(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_of_cgroups_are_known() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        };
        assert!(hierarchies(folder.path()).is_err(), "nothing is mounted");
        file("cpu/cgroup.procs");
        file("pids/cgroup.procs");
        file("unified/cgroup.procs");
        let (found, tracker) = hierarchies(folder.path()).unwrap();
        assert_eq!(found, ["cpu", "pids"].map(|name| folder.path().join(name)));
        assert_eq!(tracker, folder.path().join("pids"));
        file("cgroup.controllers");
        let (found, tracker) = hierarchies(folder.path()).unwrap();
        assert_eq!((found.len(), tracker.as_path()), (1, folder.path()));
    }
}
