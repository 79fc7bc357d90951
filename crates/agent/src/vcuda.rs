//! The contract of gpu-manager with its own limiter, for containers that bring that limiter along.
//!
//! A folder for each pod, mounted read-only at `/etc/vcuda`, has a socket. When a process begins to
//! use a card, the limiter calls it, and finds in the container's folder who it is (`pids.config`,
//! processes as the host numbers them) and what it may use (`vcuda.config`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use dialect::Dialect;
use gpu::Driver;
use kubelet::vcuda::{Caller, Registers, Socket};
use kubelet::{SocketError, Status};
use model::{Inventory, PodUid, Portion};
use tokio::sync::{Mutex, watch};

use crate::living::Processes;
use crate::pods::Pods;
use crate::records::{Record, Records};
use crate::settings::Folder;

/// Where containers see their pod's folder.
pub const SEEN_AT: &str = "/etc/vcuda";
const SOCKET: &str = "vcuda.sock";
/// How long the API server may take to show a container that has begun to run.
const SHOWN: Duration = Duration::from_secs(10);
/// The length of `vcuda.config`.
const SIZE: usize = 8240;

/// Whether pods of this dialect bring that limiter.
pub fn speaks(dialect: Dialect) -> bool {
    matches!(dialect, Dialect::Tencent | Dialect::Inspur | Dialect::NvidiaVcuda)
}

/// What `vcuda.config` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config<'a> {
    /// The pod.
    pub pod: &'a str,
    /// The container.
    pub container: &'a str,
    /// The card's address.
    pub bus: &'a str,
    /// Memory it may use, in bytes.
    pub memory: u64,
    /// Compute it has, in percent.
    pub cores: u32,
    /// Compute it may have while the card is idle, if that is more.
    pub burst: Option<u32>,
    /// The driver's version.
    pub driver: (u32, u32),
}

impl Config<'_> {
    /// As the limiter reads it: a C struct of fixed fields, little endian.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; SIZE];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        // Texts end with a zero, so the last byte of each field stays free.
        put(0, cut(self.pod, 47));
        put(48, &self.burst.unwrap_or(0).min(100).to_le_bytes());
        put(4096, cut(self.container, 4095));
        put(8192, cut(self.bus, 15));
        put(8208, &self.memory.to_le_bytes());
        put(8216, &self.cores.to_le_bytes());
        put(8220, &u32::from(self.burst.is_none()).to_le_bytes());
        put(8224, &self.driver.0.to_le_bytes());
        put(8228, &self.driver.1.to_le_bytes());
        put(8232, &u32::from(self.cores < 100).to_le_bytes());
        bytes
    }
}

fn cut(text: &str, most: usize) -> &[u8] {
    &text.as_bytes()[..text.len().min(most)]
}

/// The folders and sockets of all pods that speak so.
#[derive(Debug)]
pub struct Vcuda {
    folder: Folder,
    who: Arc<Answers>,
    // Held while a socket is made, so that two containers of a pod do not both make it.
    sockets: Mutex<BTreeMap<PodUid, Socket>>,
}

/// Why a pod's folder cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum VcudaError {
    /// The system refused.
    #[error("cannot make {}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What it said.
        #[source]
        source: io::Error,
    },
    /// Its socket cannot be made.
    #[error(transparent)]
    Socket(#[from] SocketError),
}

impl Vcuda {
    /// Folders below `folder`.
    pub fn new(
        folder: Folder,
        records: Records,
        pods: Pods,
        processes: Processes,
        inventory: watch::Receiver<Arc<Inventory>>,
        driver: Driver,
    ) -> Self {
        let here = folder.here.clone();
        let who = Arc::new(Answers { folder: here, records, pods, processes, inventory, driver });
        Self { folder, who, sockets: Mutex::default() }
    }

    /// Makes the pod's folder ready, and serves its socket.
    pub async fn ready(&self, pod: &PodUid) -> Result<(), VcudaError> {
        let mut sockets = self.sockets.lock().await;
        if sockets.get(pod).is_some_and(Socket::in_place) {
            return Ok(());
        }
        sockets.remove(pod);
        let path = self.folder.here.join(pod.as_str());
        let made = fs::DirBuilder::new().recursive(true).mode(0o755).create(&path);
        made.map_err(|source| VcudaError::Folder { path: path.clone(), source })?;
        let of_pod = OfPod { pod: pod.clone(), answers: self.who.clone() };
        let socket = Socket::serve(&path.join(SOCKET), Arc::new(of_pod)).await?;
        sockets.insert(pod.clone(), socket);
        Ok(())
    }

    /// Serves the pods that have records, and removes the folders of others.
    pub async fn keep(&self, living: &BTreeSet<PodUid>) {
        for entry in fs::read_dir(&self.folder.here).into_iter().flatten().flatten() {
            let Some(pod) = entry.file_name().to_str().and_then(|name| PodUid::parse(name).ok())
            else {
                continue;
            };
            if living.contains(&pod) {
                if let Err(error) = self.ready(&pod).await {
                    tracing::warn!(%pod, %error, "vcuda not served");
                }
                self.who.forget_ended(&pod, &entry.path());
            } else {
                self.sockets.lock().await.remove(&pod);
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

/// What is known to answer with.
#[derive(Debug)]
struct Answers {
    folder: PathBuf,
    records: Records,
    pods: Pods,
    processes: Processes,
    inventory: watch::Receiver<Arc<Inventory>>,
    driver: Driver,
}

/// The socket of one pod: whoever calls it is in that pod, whatever it says.
struct OfPod {
    pod: PodUid,
    answers: Arc<Answers>,
}

impl Registers for OfPod {
    async fn register(&self, caller: Caller) -> Result<(), Status> {
        if !caller.pod.is_empty() && caller.pod != self.pod.as_str() {
            return Err(Status::permission_denied("this socket is another pod's"));
        }
        match self.answer(&caller).await? {
            Answered::Written => Ok(()),
            Answered::WhichOne if self.answers.pods.shown(&self.pod, &caller.id, SHOWN).await => {
                match self.answer(&caller).await? {
                    Answered::Written => Ok(()),
                    Answered::WhichOne => Err(unknown()),
                }
            }
            Answered::WhichOne => Err(unknown()),
        }
    }
}

impl OfPod {
    async fn answer(&self, caller: &Caller) -> Result<Answered, Status> {
        let (answers, pod, caller) = (self.answers.clone(), self.pod.clone(), caller.clone());
        let written = tokio::task::spawn_blocking(move || answers.answer(&pod, &caller)).await;
        written.map_err(|_| Status::internal("cannot answer"))?
    }
}

/// How a call went.
enum Answered {
    /// The container's files are there.
    Written,
    /// Which of the pod's containers called is not known, or not yet.
    WhichOne,
}

fn unknown() -> Status {
    Status::not_found("no container of this pod has a share")
}

impl Answers {
    fn answer(&self, pod: &PodUid, caller: &Caller) -> Result<Answered, Status> {
        let names = self.pods.container_names();
        let of_pod = names.get(pod);
        let id = || of_pod?.iter().find(|(_, name)| **name == caller.container).map(|(id, _)| id);
        let name_of = || of_pod?.get(&caller.id).cloned();
        let records = self.records.list().map_err(|error| Status::internal(error.to_string()))?;
        let of = |name: &str| {
            records.iter().find(|one| one.pod == *pod && one.container.as_str() == name)
        };
        let own = || records.iter().filter(|record| record.pod == *pod);
        // A name that is told wins over the ID, as it does there. A container that the API server
        // does not show yet is the only one, or it is waited for.
        let record = of(&caller.container)
            .or_else(|| of(&name_of()?))
            .or_else(|| own().next().filter(|_| own().count() == 1));
        let Some(record) = record else { return Ok(Answered::WhichOne) };
        let id = if caller.id.is_empty() {
            id().cloned().unwrap_or_default()
        } else {
            caller.id.clone()
        };
        let folder = if caller.id.is_empty() { record.container.as_str() } else { id.as_str() };
        if !folder.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
            return Err(Status::invalid_argument("that is no container"));
        }
        let pids = self.processes.of_container(pod, &id);
        // Whoever calls lives. Without this a pod could fill the node's disk with folders.
        if pids.is_empty() && !caller.id.is_empty() {
            return Err(Status::not_found("no process of this pod is in that container"));
        }
        let path = self.folder.join(pod.as_str()).join(folder);
        self.write(&path, pod, record, &pids, &caller.bus)
            .map_err(|error| Status::internal(error.to_string()))?;
        Ok(Answered::Written)
    }

    /// Removes the folders of containers that have ended: a pod whose container restarts again and
    /// again has one for each.
    fn forget_ended(&self, pod: &PodUid, folder: &Path) {
        let is_id = |name: &str| name.len() == 64 && name.bytes().all(|b| b.is_ascii_hexdigit());
        let names = fs::read_dir(folder).into_iter().flatten().flatten();
        let names = names.filter_map(|entry| entry.file_name().into_string().ok());
        let ids: Vec<String> = names.filter(|name| is_id(name)).collect();
        if ids.len() < 2 {
            return;
        }
        // Looked for after the folders: whoever made one since then lives.
        let living = self.processes.containers();
        for id in ids.iter().filter(|id| living.get(pod).is_none_or(|own| !own.contains(*id))) {
            let _ = fs::remove_dir_all(folder.join(id));
        }
    }

    fn write(
        &self,
        path: &Path,
        pod: &PodUid,
        record: &Record,
        pids: &[u32],
        bus: &str,
    ) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(path)?;
        let bytes: Vec<u8> = pids.iter().flat_map(|pid| pid.to_le_bytes()).collect();
        replace(path, "pids.config", &bytes)?;
        if path.join("vcuda.config").exists() {
            return Ok(());
        }
        let inventory = self.inventory.borrow().clone();
        let grants = record.placement.grants(record.container.as_str());
        let shares = grants.iter().filter_map(|grant| {
            let device = inventory.devices.iter().find(|device| device.id == grant.device)?;
            match grant.portion {
                Portion::Share(share) => Some((device, share)),
                Portion::Whole => None,
            }
        });
        let mut shares: Vec<_> = shares.collect();
        // The card that was named, where there are several.
        shares.sort_by_key(|(device, _)| !bus.to_ascii_lowercase().ends_with(&device.bus));
        let Some((device, share)) = shares.first() else { return Ok(()) };
        let config = Config {
            pod: pod.as_str(),
            container: record.container.as_str(),
            bus: &device.bus,
            memory: share.memory.0.saturating_mul(1 << 20),
            cores: share.cores.0,
            burst: self.burst(pod),
            driver: version(&self.driver),
        };
        replace(path, "vcuda.config", &config.bytes())
    }

    /// What the pod's annotation allows on an idle card.
    fn burst(&self, pod: &PodUid) -> Option<u32> {
        let pods = self.pods.all();
        let keys = &pods.get(pod)?.annotations;
        let (_, value) = keys.iter().find(|(key, _)| key.ends_with("/vcuda-core-limit"))?;
        value.parse().ok()
    }
}

/// The driver's version, by the name of its library.
fn version(driver: &Driver) -> (u32, u32) {
    let files = driver.files();
    let version = files.iter().find_map(|file| file.name.strip_prefix("libcuda.so."));
    let versions = files.iter().filter_map(|file| file.name.strip_prefix("libcuda.so."));
    let longest = versions.max_by_key(|text| text.len()).or(version).unwrap_or_default();
    let mut numbers = longest.split('.').filter_map(|text| text.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// A file that appears whole.
fn replace(folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let new = folder.join(format!(".{name}"));
    fs::write(&new, bytes)?;
    fs::rename(new, folder.join(name))
}

#[cfg(test)]
mod tests {
    use model::codec::decode_placement;
    use model::{ContainerName, Pod, Profile};

    use super::*;

    fn number(bytes: &[u8], at: usize) -> u32 {
        u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    #[test]
    fn the_file_has_the_layout_that_limiters_read() {
        let config = Config {
            pod: "u-1",
            container: "main",
            bus: "0000:3b:00.0",
            memory: 4 << 30,
            cores: 30,
            burst: Some(60),
            driver: (550, 163),
        };
        let bytes = config.bytes();
        assert_eq!(bytes.len(), 8240);
        assert!(bytes.starts_with(b"u-1\0") && bytes[4096..].starts_with(b"main\0"));
        assert!(bytes[8192..].starts_with(b"0000:3b:00.0\0"));
        assert_eq!(bytes[8208..8216], (4u64 << 30).to_le_bytes());
        let numbers: Vec<u32> =
            [48, 8216, 8220, 8224, 8228, 8232].map(|at| number(&bytes, at)).into();
        assert_eq!(numbers, [60, 30, 0, 550, 163, 1]);
        let hard = Config { burst: None, cores: 100, ..config }.bytes();
        assert_eq!((number(&hard, 48), number(&hard, 8220), number(&hard, 8232)), (0, 1, 0));
    }

    #[tokio::test]
    async fn a_limiter_registers_and_finds_what_it_may_use() {
        let root = tempfile::tempdir().unwrap();
        let records = Records::open(root.path().join("pages")).unwrap();
        let uid = PodUid::parse("0c8a3f1e-9d50-4a77-8c1b-5e2f60b7a1d2").unwrap();
        let record = Record {
            name: "x-1".into(),
            pod: uid.clone(),
            pod_name: "team/a".into(),
            container: ContainerName::parse("main").unwrap(),
            placement: decode_placement("v1;n1;main=GPU-1:30%+4096Mi").unwrap(),
        };
        records.write(&record, &[]).unwrap();
        let id = "4f".repeat(32);
        let proc = root.path().join("proc/77");
        fs::create_dir_all(&proc).unwrap();
        fs::write(proc.join("cgroup"), format!("1:cpu:/kubepods/pod{uid}/{id}\n")).unwrap();
        let pod = format!(
            r#"{{"metadata":{{"name":"a","namespace":"team","uid":"{uid}"}},"spec":{{"containers":[]}}}}"#
        );
        let pods = Pods::fixed([Pod::from_json(&pod).unwrap()]);
        let inventory = Profile::named("t4x4").unwrap().inventory("GPU").unwrap();
        let vcuda = Vcuda::new(
            Folder::same(root.path().join("vm")),
            records,
            pods,
            Processes::below(root.path().join("proc")),
            watch::channel(Arc::new(inventory)).1,
            Driver::below("/nowhere"),
        );
        vcuda.ready(&uid).await.unwrap();
        vcuda.ready(&uid).await.unwrap();
        let folder = root.path().join("vm").join(uid.as_str());
        let socket = folder.join(SOCKET);
        let caller = Caller { pod: uid.to_string(), id: id.clone(), ..Caller::default() };
        kubelet::vcuda::register(&socket, caller.clone()).await.unwrap();
        assert_eq!(fs::read(folder.join(&id).join("pids.config")).unwrap(), 77i32.to_le_bytes());
        let config = fs::read(folder.join(&id).join("vcuda.config")).unwrap();
        assert_eq!((config.len(), number(&config, 8216)), (SIZE, 30));

        let other = Caller { pod: "another".into(), ..caller.clone() };
        assert!(kubelet::vcuda::register(&socket, other).await.is_err());
        for id in ["../../x".to_owned(), "5e".repeat(32)] {
            let outside = Caller { id, ..caller.clone() };
            assert!(kubelet::vcuda::register(&socket, outside).await.is_err(), "nobody's");
        }
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2, "its socket and its own folder");

        // One of before, which ended.
        fs::create_dir(folder.join("00".repeat(32))).unwrap();
        vcuda.keep(&[uid.clone()].into()).await;
        assert!(socket.exists() && folder.join(&id).exists());
        assert!(!folder.join("00".repeat(32)).exists());
        vcuda.keep(&BTreeSet::new()).await;
        assert!(!folder.exists());
    }
}
