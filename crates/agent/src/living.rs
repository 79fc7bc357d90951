//! What really lives on the node: processes, by the pods and containers of their cgroups.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use model::PodUid;

/// Where a process belongs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Its pod.
    pub pod: PodUid,
    /// The runtime's ID of its container; empty for a process of the pod itself.
    pub container: String,
}

/// What is known of a process by its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Known {
    /// It is a pod's.
    Within(Place),
    /// It lives, and is no pod's.
    Outside,
    /// No such process: it has ended, or cannot be seen from here.
    Unknown,
}

/// The place that the text of `/proc/<pid>/cgroup` tells, whatever the version of cgroups, the
/// driver (cgroupfs, systemd) or the runtime (containerd, CRI-O, docker).
pub fn place(cgroup: &str) -> Option<Place> {
    cgroup.lines().find_map(|line| {
        // `<number>:<controllers>:<path>`
        let path = line.splitn(3, ':').nth(2)?;
        let parts: Vec<&str> = path.split(['/', ':']).filter(|part| !part.is_empty()).collect();
        let (at, pod) = parts.iter().enumerate().find_map(|(at, part)| Some((at, pod(part)?)))?;
        let container = parts[at + 1..].iter().find_map(|part| container(part));
        Some(Place { pod, container: container.unwrap_or_default() })
    })
}

/// The pod in one part of a path: `pod<uid>` or `kubepods-burstable-pod<uid>.slice`.
fn pod(part: &str) -> Option<PodUid> {
    let slice = part.strip_suffix(".slice");
    let uid = match slice {
        Some(slice) => slice.rsplit_once("-pod").map(|(_, uid)| uid.replace('_', "-")),
        None => part.strip_prefix("pod").map(str::to_owned),
    }?;
    // A UID, or the hash that static pods have.
    let hex = |text: &str| text.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    (uid.len() >= 32 && hex(&uid)).then(|| PodUid::parse(&uid).ok())?
}

/// The container in one part: 64 hex digits, perhaps with a runtime's name before and `.scope` after.
fn container(part: &str) -> Option<String> {
    let part = part.strip_suffix(".scope").unwrap_or(part);
    let id = part.rsplit_once('-').map_or(part, |(_, id)| id);
    (id.len() == 64 && id.bytes().all(|b| b.is_ascii_hexdigit())).then(|| id.to_owned())
}

/// The processes of the node, through a `/proc` of the host.
#[derive(Debug, Clone)]
pub struct Processes {
    proc: PathBuf,
}

impl Processes {
    /// Those that `proc` shows.
    pub fn below(proc: impl Into<PathBuf>) -> Self {
        Self { proc: proc.into() }
    }

    /// Where the process with this number belongs; nothing if it is gone or of no pod.
    pub fn place(&self, pid: u32) -> Option<Place> {
        place(&read(&self.proc.join(pid.to_string()).join("cgroup"))?)
    }

    /// What is known of the process with this number.
    pub fn known(&self, pid: u32) -> Known {
        let folder = self.proc.join(pid.to_string());
        match read(&folder.join("cgroup")) {
            Some(text) => place(&text).map_or(Known::Outside, Known::Within),
            None if folder.exists() => Known::Outside,
            None => Known::Unknown,
        }
    }

    /// The pods that have processes, with those processes. Blocks: it reads a file for each process.
    pub fn pods(&self) -> BTreeMap<PodUid, BTreeSet<u32>> {
        let mut pods: BTreeMap<PodUid, BTreeSet<u32>> = BTreeMap::new();
        for pid in self.pids() {
            if let Some(place) = self.place(pid) {
                pods.entry(place.pod).or_default().insert(pid);
            }
        }
        pods
    }

    /// The containers that have processes, by their pods. Blocks: it reads a file for each process.
    pub fn containers(&self) -> BTreeMap<PodUid, BTreeSet<String>> {
        let mut pods: BTreeMap<PodUid, BTreeSet<String>> = BTreeMap::new();
        for place in self.pids().filter_map(|pid| self.place(pid)) {
            pods.entry(place.pod).or_default().insert(place.container);
        }
        pods
    }

    /// The processes of a container. Blocks: it reads a file for each process.
    pub fn of_container(&self, pod: &PodUid, id: &str) -> Vec<u32> {
        let here = |place: &Place| place.pod == *pod && place.container == id;
        let mut pids: Vec<u32> =
            self.pids().filter(|pid| self.place(*pid).is_some_and(|place| here(&place))).collect();
        pids.sort_unstable();
        pids
    }

    fn pids(&self) -> impl Iterator<Item = u32> {
        let names = std::fs::read_dir(&self.proc).into_iter().flatten().flatten();
        names.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
    }
}

fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0c8a3f1e-9d50-4a77-8c1b-5e2f60b7a1d2";
    const CID: &str = "4f0c1d2e3a4b5c6d7e8f90112233445566778899aabbccddeeff001122334455";

    #[test]
    fn places_of_all_versions_drivers_and_runtimes() {
        let under = UID.replace('-', "_");
        let cases = [
            // v1, cgroupfs, containerd
            format!("9:memory:/kubepods/burstable/pod{UID}/{CID}\n"),
            // v1, below a folder of its own
            format!("4:pids:/nanogpu-testbed/x/kubepods/besteffort/pod{UID}/{CID}\n"),
            // v2, systemd, containerd
            format!(
                "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{under}.slice/cri-containerd-{CID}.scope\n"
            ),
            // v2, systemd, guaranteed
            format!("0::/kubepods.slice/kubepods-pod{under}.slice/cri-containerd-{CID}.scope\n"),
            // CRI-O
            format!(
                "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{under}.slice/crio-{CID}.scope/container\n"
            ),
            // docker, v1, systemd
            format!(
                "11:devices:/kubepods.slice/kubepods-pod{under}.slice/docker-{CID}.scope\n0::/\n"
            ),
            // containerd with systemd paths on cgroupfs
            format!(
                "3:cpu:/system.slice/containerd.service/kubepods-burstable-pod{under}.slice:cri-containerd:{CID}\n"
            ),
        ];
        for text in cases {
            let found = place(&text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!((found.pod.as_str(), found.container.as_str()), (UID, CID), "{text}");
        }
    }

    #[test]
    fn what_is_of_no_pod_has_no_place() {
        for text in [
            "",
            "0::/\n",
            "0::/user.slice/session-1.scope\n",
            "1:cpu:/podman/x\n",
            "9:memory:/pods/podium/x\n",
            "garbage",
        ] {
            assert_eq!(place(text), None, "{text}");
        }
    }

    #[test]
    fn static_pods_have_a_hash_for_a_uid() {
        let text = format!("9:memory:/kubepods/burstable/pod{}/{CID}\n", "ab".repeat(16));
        assert_eq!(place(&text).unwrap().pod.as_str(), "ab".repeat(16));
    }

    #[test]
    fn processes_are_found_through_proc() {
        let proc = tempfile::tempdir().unwrap();
        for (pid, text) in
            [("7", format!("1:cpu:/kubepods/pod{UID}/{CID}\n")), ("8", "0::/\n".to_owned())]
        {
            std::fs::create_dir(proc.path().join(pid)).unwrap();
            std::fs::write(proc.path().join(pid).join("cgroup"), text).unwrap();
        }
        std::fs::create_dir(proc.path().join("self")).unwrap();
        let pods = Processes::below(proc.path()).pods();
        assert_eq!(pods, [(PodUid::parse(UID).unwrap(), [7].into())].into());
        let containers = Processes::below(proc.path()).containers();
        assert_eq!(containers, [(PodUid::parse(UID).unwrap(), [CID.to_owned()].into())].into());
        assert!(Processes::below("/nowhere").pods().is_empty());
        let known = |pid| Processes::below(proc.path()).known(pid);
        assert!(matches!(known(7), Known::Within(place) if place.container == CID));
        assert_eq!((known(8), known(9)), (Known::Outside, Known::Unknown));
    }
}
