//! Whether the container runtime resolves CDI devices, by what it does and not by its version.
//!
//! No right is needed for it. A runtime that resolves a device has read its spec before it made the
//! container; so when the API shows a container whose spec nobody has read, the runtime ignores CDI,
//! and the container runs without its card. A runtime that reads specs elsewhere says in the
//! container's status that it cannot resolve the device. What a runtime does stays as it is until
//! its process is started anew, which the host's `/proc` shows.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kubeapi::Told;
use kubelet::cdi::Specs;
use telemetry::Stopping;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::identity::HeldBy;
use crate::metrics::Metrics;
use crate::pods::Pods;
use crate::refusal::Refusal;
use crate::starting::STEM;
use crate::watching::NodeWord;

/// A runtime learns of a spec a moment after it was written, and the kubelet tries again by itself;
/// who cannot resolve it after so many looks never will. It is half a minute by default.
const LATE: u32 = 10;

/// How a runtime says that it cannot resolve a device: `unresolvable CDI devices nano-gpu/alloc=...`.
const UNRESOLVED: &str = "unresolvable CDI devices";

/// Runtimes, as their processes are called.
const RUNTIMES: [&str; 4] = ["containerd", "crio", "dockerd", "cri-dockerd"];

/// What is known of the runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Cdi {
    /// Nothing yet: no container was made since it started.
    #[default]
    Unknown,
    /// It resolves our devices.
    Resolved,
    /// It makes containers without them.
    Ignored,
    /// It looks for specs elsewhere.
    Missed,
}

/// How devices come into containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Handing {
    /// By CDI, and by folders where the runtime ignores that.
    #[default]
    Auto,
    /// By CDI.
    Cdi,
    /// By folders.
    Folders,
}

/// Not the name of a way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("devices come by auto, cdi or folders")]
pub struct NoSuchWay;

impl FromStr for Handing {
    type Err = NoSuchWay;

    fn from_str(text: &str) -> Result<Self, NoSuchWay> {
        match text {
            "auto" => Ok(Self::Auto),
            "cdi" => Ok(Self::Cdi),
            "folders" => Ok(Self::Folders),
            _ => Err(NoSuchWay),
        }
    }
}

/// How devices come into containers on this node, for people: the Lease carries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// By CDI, as far as is known.
    Untried,
    /// By CDI.
    Cdi,
    /// By folders.
    Folders,
    /// By CDI, which the runtime ignores.
    Ignored,
    /// By CDI, in a folder where the runtime does not look.
    Missed,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Untried => "untried",
            Self::Cdi => "cdi",
            Self::Folders => "folders",
            Self::Ignored => "cdi-ignored",
            Self::Missed => "cdi-missed",
        })
    }
}

/// A container whose spec was just written.
#[derive(Debug)]
struct Open {
    held: HeldBy,
    /// The runtime's IDs of this container that were known before.
    before: BTreeSet<String>,
    since: Instant,
}

/// What is known, and what is still to be seen.
#[derive(Debug)]
pub struct Prober {
    handing: Handing,
    /// Whether we may make device nodes.
    may_make_nodes: bool,
    specs: Specs,
    pods: Pods,
    proc: PathBuf,
    /// Says whose runtime ignores CDI, for the next agent: one container without its card is enough.
    mark: PathBuf,
    known: watch::Sender<Cdi>,
    open: Mutex<Vec<Open>>,
}

impl Prober {
    /// Nothing is known but what an agent before us found out about the same runtime.
    pub fn new(
        handing: Handing,
        may_make_nodes: bool,
        specs: Specs,
        pods: Pods,
        proc: PathBuf,
        mark: PathBuf,
    ) -> Self {
        let known = watch::Sender::new(Cdi::Unknown);
        let open = Mutex::default();
        let prober = Self { handing, may_make_nodes, specs, pods, proc, mark, known, open };
        // A runtime whose process is not seen could have been started anew unnoticed.
        let is_of_this = |of: String| !of.is_empty() && of == prober.runtime();
        if fs::read_to_string(&prober.mark).is_ok_and(is_of_this) {
            prober.known.send_replace(Cdi::Ignored);
        }
        prober
    }

    /// What is known of the runtime.
    pub fn cdi(&self) -> Cdi {
        *self.known.borrow()
    }

    /// How devices come into containers that are admitted now.
    pub fn way(&self) -> Way {
        match (self.handing, self.cdi()) {
            (Handing::Folders, _) => Way::Folders,
            (Handing::Auto, Cdi::Ignored) if self.may_make_nodes => Way::Folders,
            (_, Cdi::Unknown) => Way::Untried,
            (_, Cdi::Resolved) => Way::Cdi,
            (_, Cdi::Ignored) => Way::Ignored,
            (_, Cdi::Missed) => Way::Missed,
        }
    }

    /// Why a container that was promised a CDI device may not start: it would run without its card.
    pub fn refusal(&self) -> Option<Refusal> {
        let by_folders = self.way() == Way::Folders;
        (self.cdi() == Cdi::Ignored).then_some(Refusal::NoCdi { by_folders })
    }

    /// Remembers that the spec of a container was written.
    pub fn wrote(&self, held: &HeldBy) {
        let before = self.ids(held);
        let one = Open { held: held.clone(), before, since: Instant::now() };
        self.open.lock().unwrap_or_else(PoisonError::into_inner).push(one);
    }

    /// Looks at what became of containers whose specs were written, until it is asked to stop.
    pub(crate) async fn run(
        self: Arc<Self>,
        every: Duration,
        metrics: Arc<Metrics>,
        tell: mpsc::Sender<Told>,
        tell_node: mpsc::Sender<NodeWord>,
        mut stopping: Stopping,
    ) {
        let mut told = None;
        loop {
            for held in self.look(every * LATE) {
                let note = "the container runs without its GPU, because this node's container runtime \
                            ignores CDI devices; delete the pod so that it is made anew";
                let pod = self.pods.all().get(&held.pod).map(|pod| pod.id.clone());
                let told = pod.map(|pod| Told {
                    pod,
                    reason: "GpuMissing",
                    note: note.to_owned(),
                    warning: true,
                });
                // A queue that is full of events loses this one; the node's has it too.
                let _ = told.map(|told| tell.try_send(told));
            }
            let way = self.way();
            metrics.way(self.cdi(), way);
            if told != Some(way) {
                let word = word(way);
                match &word {
                    Some(word) if word.warning => tracing::warn!(%way, "{}", word.note),
                    _ => tracing::info!(%way, "how devices come into containers"),
                }
                // That all is well is news only where it was not.
                let news = word.filter(|word| word.warning || told.is_some_and(is_trouble));
                let _ = news.map(|news| tell_node.try_send(news));
                told = Some(way);
            }
            tokio::select! {
                () = stopping.asked() => return,
                () = tokio::time::sleep(every) => {}
            }
        }
    }

    /// Judges what can be judged now, and says which containers run without their cards. A runtime
    /// that cannot resolve a device for longer than `late` looks elsewhere.
    fn look(&self, late: Duration) -> Vec<HeldBy> {
        self.forget_another_runtime();
        let known = self.pods.all();
        let mut without = Vec::new();
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|one| {
            if !known.contains_key(&one.held.pod) {
                return false;
            }
            if self.ids(&one.held).is_subset(&one.before) {
                let late = one.since.elapsed() > late;
                if late && self.pods.waits(&one.held.pod, one.held.container.as_str(), UNRESOLVED) {
                    self.found(Cdi::Missed);
                }
                return true;
            }
            match self.specs.was_read(&format!("{STEM}{}", one.held.name)) {
                Ok(Some(true)) => self.found(Cdi::Resolved),
                Ok(Some(false)) => {
                    self.found(Cdi::Ignored);
                    without.push(one.held.clone());
                }
                Ok(None) | Err(_) => {}
            }
            false
        });
        without
    }

    fn found(&self, now: Cdi) {
        let changed = self.known.send_if_modified(|known| std::mem::replace(known, now) != now);
        if changed && now == Cdi::Ignored {
            // Without the mark the next agent finds out by itself.
            let _ = fs::write(&self.mark, self.runtime());
        }
    }

    /// A runtime that was started anew may have been told to do otherwise.
    fn forget_another_runtime(&self) {
        if self.cdi() == Cdi::Ignored
            && fs::read_to_string(&self.mark).is_ok_and(|of| of != self.runtime())
        {
            tracing::info!("the container runtime was started anew; what it does is not known");
            let _ = fs::remove_file(&self.mark);
            self.known.send_replace(Cdi::Unknown);
        }
    }

    /// The runtime's IDs of a container, as the API shows them.
    fn ids(&self, held: &HeldBy) -> BTreeSet<String> {
        let names = self.pods.container_names();
        let of_pod = names.get(&held.pod).into_iter().flatten();
        let own = of_pod.filter(|(_, name)| name.as_str() == held.container.as_str());
        own.map(|(id, _)| id.clone()).collect()
    }

    /// The processes of container runtimes, with the times at which they were started.
    fn runtime(&self) -> String {
        let mut all: Vec<String> = fs::read_dir(&self.proc)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
                let (before, after) = stat.rsplit_once(')')?;
                let (pid, name) = before.split_once(" (")?;
                // The 22nd field of all.
                let started = after.split_whitespace().nth(19)?;
                RUNTIMES.contains(&name).then(|| format!("{name} {pid} {started}\n"))
            })
            .collect();
        all.sort_unstable();
        all.concat()
    }
}

const fn is_trouble(way: Way) -> bool {
    matches!(way, Way::Ignored | Way::Missed)
}

/// What the node's event says.
fn word(way: Way) -> Option<NodeWord> {
    let (reason, note, warning) = match way {
        Way::Untried => return None,
        Way::Cdi => ("GpuCdiWorks", "the container runtime resolves CDI devices", false),
        Way::Folders => (
            "GpuByFolders",
            "devices come into containers by folders and not by CDI: variables that depend on the pod are not set",
            true,
        ),
        Way::Ignored => (
            "GpuCdiIgnored",
            "the container runtime ignores CDI devices, so no container with a GPU starts here: set enable_cdi = true \
             in containerd's section of the CRI and restart it, or start the agent with --devices-by folders and \
             the capability MKNOD",
            true,
        ),
        Way::Missed => (
            "GpuCdiMissed",
            "the container runtime looks for CDI specs elsewhere: the agent's --cdi must be one of its cdi_spec_dirs",
            true,
        ),
    };
    Some(NodeWord { reason, note: note.to_owned(), warning })
}

#[cfg(test)]
mod tests {
    use kubelet::cdi::{ContainerEdits, Device, Kind, Spec};
    use model::{ContainerName, Pod, PodUid};

    use super::*;
    use crate::starting::KIND;

    /// Nothing here is late.
    const LONG: Duration = Duration::from_mins(10);

    struct Bench {
        root: tempfile::TempDir,
        specs: Specs,
        pod: Pod,
    }

    impl Bench {
        fn new() -> Self {
            let root = tempfile::tempdir().unwrap();
            let specs = Specs::open(root.path().join("cdi")).unwrap();
            let text = r#"{"metadata":{"name":"a","namespace":"team","uid":"u-1"},
                "spec":{"containers":[{"name":"main"}]}}"#;
            let bench = Self { root, specs, pod: Pod::from_json(text).unwrap() };
            bench.runtime(100);
            bench
        }

        /// A runtime that was started then.
        fn runtime(&self, started: u32) {
            let folder = self.root.path().join("proc/7");
            fs::create_dir_all(&folder).unwrap();
            let text = format!("7 (containerd) S 1 {}{started} 0\n", "0 ".repeat(17));
            fs::write(folder.join("stat"), text).unwrap();
        }

        fn prober(&self, handing: Handing, made: bool) -> Prober {
            let ids: &[(&str, &str)] = if made { &[("id-1", "main")] } else { &[] };
            let pods = Pods::fixed_with([self.pod.clone()], ids);
            let (proc, mark) = (self.root.path().join("proc"), self.root.path().join("mark"));
            Prober::new(handing, true, self.specs.clone(), pods, proc, mark)
        }

        fn held() -> HeldBy {
            HeldBy {
                pod: PodUid::parse("u-1").unwrap(),
                container: ContainerName::parse("main").unwrap(),
                name: "d-1".into(),
                promise: None,
            }
        }

        /// A spec that was written before the container was made.
        fn open(&self, prober: &Prober) {
            let device = Device::new(
                "d-1",
                ContainerEdits { env: vec!["A=b".into()], ..ContainerEdits::default() },
            );
            let spec = Spec::new(Kind::parse(KIND).unwrap(), [device.unwrap()]).unwrap();
            let _ = self.specs.remove("nano-gpu-d-1");
            self.specs.write("nano-gpu-d-1", &spec).unwrap();
            let (held, before) = (Self::held(), BTreeSet::new());
            prober.open.lock().unwrap().push(Open { held, before, since: Instant::now() });
        }
    }

    #[test]
    fn a_container_whose_spec_nobody_read_runs_without_its_card() {
        let bench = Bench::new();
        let prober = bench.prober(Handing::Auto, true);
        bench.open(&prober);
        // That we read it ourselves says nothing.
        assert!(bench.specs.read("nano-gpu-d-1").unwrap().is_some());
        assert_eq!(prober.look(LONG), [Bench::held()]);
        assert_eq!((prober.cdi(), prober.way()), (Cdi::Ignored, Way::Folders));
        assert!(matches!(prober.refusal(), Some(Refusal::NoCdi { by_folders: true })));
        assert_eq!(prober.look(LONG), [], "it is told once");
        // The next agent knows, until the runtime is started anew.
        assert_eq!(bench.prober(Handing::Cdi, true).way(), Way::Ignored);
        bench.runtime(200);
        assert_eq!(bench.prober(Handing::Auto, true).way(), Way::Untried);
        assert_eq!(prober.look(LONG), []);
        assert_eq!((prober.cdi(), prober.refusal()), (Cdi::Unknown, None));
    }

    #[test]
    fn of_a_runtime_that_is_not_seen_the_next_agent_knows_nothing() {
        let bench = Bench::new();
        fs::remove_dir_all(bench.root.path().join("proc")).unwrap();
        let prober = bench.prober(Handing::Cdi, true);
        bench.open(&prober);
        assert_eq!(prober.look(LONG), [Bench::held()]);
        assert_eq!(prober.look(LONG), [], "this one keeps to it");
        assert_eq!(prober.way(), Way::Ignored);
        assert_eq!(bench.prober(Handing::Cdi, true).way(), Way::Untried);
    }

    #[test]
    fn a_runtime_that_reads_specs_resolves_devices() {
        let bench = Bench::new();
        let prober = bench.prober(Handing::Auto, true);
        bench.open(&prober);
        fs::read(bench.specs.folder().join("nano-gpu-d-1.json")).unwrap();
        assert_eq!(prober.look(LONG), []);
        assert_eq!((prober.cdi(), prober.way()), (Cdi::Resolved, Way::Cdi));
    }

    #[test]
    fn a_container_that_was_not_made_yet_says_nothing() {
        let bench = Bench::new();
        let prober = bench.prober(Handing::Auto, false);
        bench.open(&prober);
        assert_eq!(prober.look(LONG), []);
        assert_eq!((prober.cdi(), prober.way()), (Cdi::Unknown, Way::Untried));
        // Nor does one that was made before the spec was written: after a reboot.
        let prober = bench.prober(Handing::Auto, true);
        bench.open(&prober);
        prober.open.lock().unwrap()[0].before = prober.ids(&Bench::held());
        assert_eq!(prober.look(LONG), []);
        assert_eq!(prober.cdi(), Cdi::Unknown);
    }

    #[test]
    fn a_runtime_that_cannot_resolve_a_device_for_long_looks_elsewhere() {
        let bench = Bench::new();
        let said = "failed to generate spec: unresolvable CDI devices nano-gpu/alloc=d-1";
        let mut prober = bench.prober(Handing::Auto, false);
        prober.pods = Pods::fixed([bench.pod.clone()]).waiting("main", said);
        bench.open(&prober);
        assert_eq!((prober.look(LONG), prober.way()), (vec![], Way::Untried), "it may not be late");
        assert_eq!((prober.look(Duration::ZERO), prober.way()), (vec![], Way::Missed));
        assert_eq!(prober.refusal(), None, "it is tried again");
        let word = word(prober.way()).unwrap();
        assert!(word.warning && word.note.contains("--cdi"), "{word:?}");
        // It finds it at last: somebody told it where to look.
        prober.pods = Pods::fixed_with([bench.pod.clone()], &[("id-1", "main")]);
        fs::read(bench.specs.folder().join("nano-gpu-d-1.json")).unwrap();
        assert_eq!((prober.look(LONG), prober.way()), (vec![], Way::Cdi));
        // Whoever waits for something else says nothing of it.
        let mut prober = bench.prober(Handing::Auto, false);
        prober.pods = Pods::fixed([bench.pod.clone()]).waiting("main", "ImagePullBackOff");
        bench.open(&prober);
        assert_eq!((prober.look(Duration::ZERO), prober.way()), (vec![], Way::Untried));
    }
}
