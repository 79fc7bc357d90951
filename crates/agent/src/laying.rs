//! Handing out without CDI: Allocate names a folder that is not there yet, and `PreStart` fills it.
//!
//! A device whose path on the host is a folder gives a container every device node in that folder,
//! under the node's own name; so do containerd, CRI-O and docker. A mount whose path on the host is
//! a link gives what the link leads to when the container is made. So an answer that is given before
//! anyone knows for which pod becomes exactly what the pod's placement says: the same edits as a CDI
//! spec has, but for variables that depend on the pod. The folder comes and goes with the record.
//! Until it is there the runtime cannot make the container.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, symlink};
use std::path::{Path, PathBuf};

use dialect::Served;
use gpu::DriverFile;
use kubelet::cdi::ContainerEdits;
use kubelet::plugin::Allocation;
use kubelet::wire::device_plugin::{DeviceSpec, Mount};
use rustix::fs::{CWD, FileType, Mode};

use crate::refusal::Refusal;
use crate::settings::Settings;

/// The annotation of the runtime's container that carries the answer's name, as a CDI device's name
/// does elsewhere.
pub const NAME: &str = "nano-gpu/alloc";

/// The folder of device nodes, in the record's.
const NODES: &str = "dev";
/// The folder of links.
const LINKS: &str = "links";
/// An empty file, for what this container does not get.
const NOTHING: &str = "nothing";

/// The answer for `count` tickets of a resource, with a name never used before.
pub fn answer(
    settings: &Settings,
    served: &Served,
    driver: &[DriverFile],
    name: &str,
    count: usize,
) -> Allocation {
    let folder = settings.pages.host.join(name);
    let mut places = settings.rung.places(driver, served.cards_at_most(count));
    if settings.vcuda.is_some() && crate::vcuda::speaks(served.dialect) {
        places.push((crate::vcuda::SEEN_AT.to_owned(), true));
    }
    let extras = settings.extras.iter();
    places.extend(extras.map(|extra| (extra.container.display().to_string(), true)));
    let link = |number: usize| text(&folder.join(LINKS).join(number.to_string()));
    let mounts = places.into_iter().enumerate().map(|(number, (container_path, read_only))| {
        Mount { container_path, host_path: link(number), read_only }
    });
    let devices = DeviceSpec {
        container_path: "/dev".to_owned(),
        host_path: text(&folder.join(NODES)),
        permissions: "rw".to_owned(),
    };
    Allocation {
        mounts: mounts.collect(),
        devices: vec![devices],
        annotations: [(NAME.to_owned(), name.to_owned())].into(),
        ..Allocation::default()
    }
}

/// What an answer promised: where each mount of the container comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Promise {
    /// The names of links, by the paths that the container sees.
    links: BTreeMap<String, String>,
}

impl Promise {
    /// The name and the promise of an answer, if it is of this kind.
    pub fn of(answer: &Allocation) -> Option<(String, Self)> {
        let name = answer.annotations.get(NAME)?;
        let links = answer.mounts.iter().filter_map(|mount| {
            let link = Path::new(&mount.host_path).file_name()?.to_str()?;
            Some((mount.container_path.clone(), link.to_owned()))
        });
        Some((name.clone(), Self { links: links.collect() }))
    }

    /// What the folder of a container that gets `edits` holds. `dev` has the device nodes, `pages` is
    /// the record's folder as the host sees it.
    pub fn keep(&self, edits: &ContainerEdits, dev: &Path, pages: &str) -> Result<Laid, Refusal> {
        let mut nodes = BTreeMap::new();
        for node in &edits.device_nodes {
            let name = node.path.rsplit('/').next().unwrap_or_default();
            let missing = |why: String| Refusal::Unwritable { what: "device nodes", why };
            let seen = fs::metadata(dev.join(name));
            let seen = seen.map_err(|error| missing(format!("{name}: {error}")))?;
            if !seen.file_type().is_char_device() {
                return Err(missing(format!("{name} is no character device")));
            }
            nodes.insert(name.to_owned(), (seen.rdev(), seen.mode() & 0o777));
        }
        let mut links: BTreeMap<String, String> = BTreeMap::new();
        for mount in &edits.mounts {
            let link = self.links.get(&mount.container_path);
            let link =
                link.ok_or_else(|| Refusal::Outdated { path: mount.container_path.clone() })?;
            links.insert(link.clone(), mount.host_path.clone());
        }
        for link in self.links.values() {
            links.entry(link.clone()).or_insert_with(|| format!("{pages}/{NOTHING}"));
        }
        Ok(Laid { nodes, links })
    }
}

/// What a container's folder holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Laid {
    /// Device nodes: their numbers and who may use them.
    nodes: BTreeMap<String, (u64, u32)>,
    /// Links, and where they lead on the host.
    links: BTreeMap<String, String>,
}

impl Laid {
    /// Makes it in the folder of a record that is not there yet.
    pub fn make(&self, folder: &Path) -> io::Result<()> {
        let (nodes, links) = (folder.join(NODES), folder.join(LINKS));
        for path in [&nodes, &links] {
            fs::DirBuilder::new().mode(0o755).create(path)?;
        }
        for (name, (number, mode)) in &self.nodes {
            let path = nodes.join(name);
            let mode = Mode::from_raw_mode(*mode);
            rustix::fs::mknodat(CWD, &path, FileType::CharacterDevice, mode, *number)?;
            // Whatever the umask is.
            rustix::fs::chmod(&path, mode)?;
        }
        for (name, target) in &self.links {
            symlink(target, links.join(name))?;
        }
        fs::write(folder.join(NOTHING), "")
    }

    /// Whether a record's folder holds exactly this: the numbers of device nodes can be others after
    /// a reboot.
    pub fn is_in(&self, folder: &Path) -> bool {
        let nodes = listed(&folder.join(NODES), |path| {
            let seen = fs::symlink_metadata(path)?;
            Ok((seen.rdev(), seen.mode() & 0o777))
        });
        let links = listed(&folder.join(LINKS), |path| Ok(text(&fs::read_link(path)?)));
        let nothing = folder.join(NOTHING).is_file();
        nothing
            && nodes.is_ok_and(|nodes| nodes == self.nodes)
            && links.is_ok_and(|links| links == self.links)
    }
}

/// Whether we may make device nodes: it takes a capability that only this way of handing out needs.
pub fn may_make_nodes(folder: &Path) -> bool {
    let path = folder.join(".node");
    // Left by one that was killed here.
    let _ = fs::remove_file(&path);
    let null = rustix::fs::makedev(1, 3);
    let made = rustix::fs::mknodat(
        CWD,
        &path,
        FileType::CharacterDevice,
        Mode::from_raw_mode(0o600),
        null,
    );
    let _ = fs::remove_file(&path);
    made.is_ok()
}

fn listed<T>(
    folder: &Path,
    read: impl Fn(&Path) -> io::Result<T>,
) -> io::Result<BTreeMap<String, T>> {
    let entries = fs::read_dir(folder)?;
    let one = |entry: io::Result<fs::DirEntry>| {
        let path: PathBuf = entry?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        Ok((name.unwrap_or_default(), read(&path)?))
    };
    entries.map(one).collect()
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use dialect::Dialect;
    use kubelet::cdi::{DeviceNode, Mount as Bind};

    use super::*;
    use crate::rungs::Rung;
    use crate::settings::Folder;
    use crate::tests::settings;

    fn driver() -> Vec<DriverFile> {
        ["libcuda.so.1", "libcuda.so.550.1", "libnvidia-ml.so.1"]
            .map(|name| DriverFile { name: name.into(), path: Path::new("/drv").join(name) })
            .into()
    }

    fn served() -> Served {
        let enabled = [Dialect::Nano].into();
        dialect::served(&dialect::Settings { enabled, ..dialect::Settings::default() }).remove(0)
    }

    fn limited() -> Settings {
        Settings { rung: Rung::Limiter, pages: Folder::same("/pages"), ..settings() }
    }

    #[test]
    fn an_answer_names_a_folder_of_its_own_and_every_place_that_may_be_filled() {
        let answer = answer(&limited(), &served(), &driver(), "d-1", 30);
        assert_eq!(answer.devices[0].host_path, "/pages/d-1/dev");
        assert_eq!(answer.devices[0].container_path, "/dev");
        assert!(answer.cdi_devices.is_empty());
        let (name, promise) = Promise::of(&answer).unwrap();
        assert_eq!(name, "d-1");
        for path in [
            "/usr/lib64/libcuda.so.1",
            "/usr/lib64/libcuda.so.550.1",
            "/usr/local/nanogpu/driver/libcuda.so.1",
            "/usr/local/nanogpu/pages/0.limits",
            "/etc/ld.so.preload",
        ] {
            assert!(promise.links.contains_key(path), "{path}");
        }
        let sources: std::collections::BTreeSet<_> =
            answer.mounts.iter().map(|mount| &mount.host_path).collect();
        assert_eq!(sources.len(), answer.mounts.len());
        let writable = answer.mounts.iter().filter(|mount| !mount.read_only);
        let writable: Vec<_> = writable.map(|mount| mount.container_path.as_str()).collect();
        assert_eq!(writable, ["/usr/local/nanogpu/pages/0.counters"]);
        assert_eq!(Promise::of(&Allocation::default()), None);
    }

    /// A share of a card, whose node is the null device's.
    fn edits() -> ContainerEdits {
        ContainerEdits {
            device_nodes: vec![DeviceNode::new("/dev/null")],
            mounts: vec![Bind::read_only("/ours.so", "/usr/lib64/libcuda.so.1")],
            ..ContainerEdits::default()
        }
    }

    #[test]
    fn what_was_promised_and_is_not_given_is_nothing() {
        let (_, promise) =
            Promise::of(&answer(&limited(), &served(), &driver(), "d-1", 30)).unwrap();
        let laid = promise.keep(&edits(), Path::new("/dev"), "/pages/d-1").unwrap();
        let at = |path: &str| laid.links[&promise.links[path]].as_str();
        assert_eq!(at("/usr/lib64/libcuda.so.1"), "/ours.so");
        assert_eq!(at("/usr/lib64/libcuda.so.550.1"), "/pages/d-1/nothing");
        assert_eq!(laid.nodes["null"].0, rustix::fs::makedev(1, 3));
    }

    #[test]
    fn what_was_not_promised_cannot_be_given() {
        let (_, promise) = Promise::of(&answer(&settings(), &served(), &[], "d-1", 30)).unwrap();
        let kept = promise.keep(&edits(), Path::new("/dev"), "/pages/d-1");
        assert!(matches!(kept, Err(Refusal::Outdated { .. })), "{kept:?}");
    }

    #[test]
    fn a_folder_that_holds_anything_else_is_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        if !may_make_nodes(folder.path()) {
            // Only root may, and the stories run as root.
            return;
        }
        let (_, promise) =
            Promise::of(&answer(&limited(), &served(), &driver(), "d-1", 30)).unwrap();
        let laid = promise.keep(&edits(), Path::new("/dev"), "/pages/d-1").unwrap();
        assert!(!laid.is_in(folder.path()));
        laid.make(folder.path()).unwrap();
        assert!(laid.is_in(folder.path()));
        // As after a reboot that changed the numbers.
        let node = folder.path().join(NODES).join("null");
        fs::remove_file(&node).unwrap();
        let mode = Mode::from_raw_mode(0o666);
        let zero = rustix::fs::makedev(1, 5);
        rustix::fs::mknodat(CWD, &node, FileType::CharacterDevice, mode, zero).unwrap();
        assert!(!laid.is_in(folder.path()));
    }
}
