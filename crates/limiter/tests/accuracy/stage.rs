//! A machine with one card, containers on it, a referee, and the truth.

use std::io::{self, BufRead as _, BufReader};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, Once, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use machine::{Choices, Clock, Description, Machine, TAG_VARIABLE, VARIABLE};
use turns::{Pages, Referee, Rules, make_door};

use crate::processors::{Part, Processors, waited};
use crate::tenant::{SEED, WAITS, WORK};

/// The library, built once as it ships; another one for comparison if `LIMITER_LIBRARY` names it.
fn library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        if let Some(other) = std::env::var_os("LIMITER_LIBRARY") {
            return other.into();
        }
        let built = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(["build", "--quiet", "--package", "limiter", "--profile", "limiter"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .unwrap();
        assert!(built.success(), "cargo build --package limiter --profile limiter");
        let exe = std::env::current_exe().unwrap();
        exe.ancestors().nth(3).unwrap().join("limiter/liblimiter.so")
    })
}

/// A container to be: its share and burst in percent, and the work of each of its processes.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) cores: u32,
    pub(crate) burst: u32,
    pub(crate) works: Vec<String>,
}

/// A container with a hard share and one process.
pub(crate) fn hard(cores: u32, work: &str) -> Asked {
    Asked { cores, burst: cores, works: vec![work.to_owned()] }
}

/// What has a thread, and all that it starts, run before everything else on the machine; for the soak.
const REALTIME: &str = "LIMITER_REALTIME";

/// What has the referee, and nobody else, run before everything else on the machine: what a real-time class
/// would bring an agent that may have one.
const FIRST: &str = "LIMITER_REFEREE_FIRST";

/// How the kernel runs this thread from now on, and those that it starts.
fn schedule(class: i32, priority: i32) {
    let priority = libc::sched_param { sched_priority: priority };
    // SAFETY: changes nothing but the order in which the kernel runs this thread.
    let code = unsafe { libc::sched_setscheduler(0, class, &raw const priority) };
    assert_eq!(code, 0, "needs root: {}", io::Error::last_os_error());
}

/// What every container requests of the processors, in thousandths of one.
const REQUEST: u64 = 500;
/// What the agent does, in the chart; `LIMITER_AGENT` says another.
const AGENT: u64 = 10;

/// The processors in parts, as on a node, where we may: not with [`REALTIME`], which a kernel with
/// `RT_GROUP_SCHED` grants to the first cgroup only.
fn processors() -> Option<Processors> {
    static SAID: Once = Once::new();
    let none = || Err(io::Error::other("they run at real-time priority"));
    let made = if std::env::var_os(REALTIME).is_some() { none() } else { Processors::new() };
    if let Err(error) = &made {
        SAID.call_once(|| println!("containers have no processor time of their own: {error}"));
    }
    made.ok()
}

/// Has other load of the machine disturb less, where we may: tenants and the referee's thread inherit it.
fn go_first() {
    // SAFETY: changes nothing but the order in which the kernel runs this thread. Who may not stays as is.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) };
    if std::env::var_os(REALTIME).is_some() {
        let priority = libc::sched_param { sched_priority: 10 };
        // SAFETY: as above. Those of one priority take turns.
        let code = unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &raw const priority) };
        assert_eq!(code, 0, "{REALTIME} needs root: {}", io::Error::last_os_error());
    }
}

/// With [`REALTIME`] what this thread starts from now on runs as everything else does: a hostile container
/// then has the card in common with its neighbour, and not the processors.
pub(crate) fn go_as_others() {
    if std::env::var_os(REALTIME).is_some() {
        let ordinary = libc::sched_param { sched_priority: 0 };
        // SAFETY: changes nothing but the order in which the kernel runs this thread.
        unsafe {
            libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const ordinary);
            libc::setpriority(libc::PRIO_PROCESS, 0, 0);
        }
    }
}

/// Whether other stages may be there at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Company {
    /// Two would take each other's processors.
    None,
    /// The caller knows that there is room for several.
    Others,
}

/// Everything. Processes are ended when it goes.
pub(crate) struct Stage {
    _alone: Option<MutexGuard<'static, ()>>,
    folder: tempfile::TempDir,
    machine: &'static Machine,
    referee: Option<Referee>,
    containers: usize,
    processes: Vec<(usize, Child)>,
    /// By container. They go before what they are parts of, and after who is in them.
    parts: Vec<Part>,
    processors: Option<Processors>,
}

impl Drop for Stage {
    fn drop(&mut self) {
        for (_, process) in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Stage {
    pub(crate) fn new(seed: u64, company: Company) -> Self {
        static ONE: Mutex<()> = Mutex::new(());
        let alone =
            (company == Company::None).then(|| ONE.lock().unwrap_or_else(PoisonError::into_inner));
        let processors = processors();
        if let Some(processors) = &processors {
            // The referee's thread inherits it.
            let request = std::env::var("LIMITER_AGENT").ok().and_then(|text| text.parse().ok());
            processors.part("agent", request.unwrap_or(AGENT)).join();
        } else {
            go_first();
        }
        // In memory: on a disk a first write to a page may wait for the disk, with the driver's lock held.
        let memory = Path::new("/dev/shm");
        let folder =
            if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        let folder = folder.unwrap();
        let path = folder.path();
        let choices = Choices { clock: Clock::Real, cards: Some(1), ..Choices::default() };
        let mut description = Description::from_profile("dgx-a100", &choices).unwrap();
        description.dev_root = path.join("dev");
        description.seed = seed;
        // Turns of the hardware from half a millisecond to 3 ms.
        description.quantum_ns = 500_000 * (1 + seed % 6);
        Machine::create(&path.join("machine"), &description).unwrap();
        let genuine = std::env::current_exe().unwrap().parent().unwrap().to_owned();
        for below in ["driver", "lib"] {
            std::fs::create_dir_all(path.join(below)).unwrap();
        }
        for (built, name) in [("libcuda.so", "libcuda.so.1"), ("libnvml.so", "libnvidia-ml.so.1")] {
            symlink(genuine.join(built), path.join("driver").join(name)).unwrap();
            symlink(library(), path.join("lib").join(name)).unwrap();
        }
        make_door(&path.join("door")).unwrap();
        let machine = Machine::open(&path.join("machine")).unwrap();
        let mut stage = Self {
            _alone: alone,
            folder,
            machine,
            referee: None,
            containers: 0,
            processes: Vec::new(),
            parts: Vec::new(),
            processors,
        };
        stage.start_referee();
        stage
    }

    /// A stage with these containers at work.
    pub(crate) fn with(seed: u64, asked: &[Asked]) -> Self {
        let mut stage = Self::new(seed, Company::None);
        for one in asked {
            stage.add(one);
        }
        stage
    }

    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.folder.path().join(below)
    }

    pub(crate) fn start_referee(&mut self) {
        let first = std::env::var_os(FIRST).and(self.processors.as_ref());
        if let Some(processors) = first {
            processors.leave();
            schedule(libc::SCHED_RR, 1);
        }
        let referee = Referee::start(&self.path("door"), Rules::USUAL).unwrap();
        if let Some(processors) = first {
            schedule(libc::SCHED_OTHER, 0);
            processors.part("agent", AGENT).join();
        }
        for container in 0..self.containers {
            referee.seat(&container.to_string(), self.pages(container)).unwrap();
        }
        self.referee = Some(referee);
    }

    /// As if the agent were killed: its pages stay as they are.
    pub(crate) fn kill_referee(&mut self) {
        self.referee.take().unwrap().vanish();
    }

    pub(crate) fn referee(&self) -> &Referee {
        self.referee.as_ref().unwrap()
    }

    fn pages(&self, container: usize) -> Pages {
        let file = |kind| self.path(&format!("{container}/pages/0.{kind}"));
        Pages { limits: file("limits"), counters: file("counters") }
    }

    /// Adds a container and starts its processes.
    pub(crate) fn add(&mut self, asked: &Asked) -> usize {
        let container = self.containers;
        let root = self.path(&container.to_string());
        std::fs::create_dir_all(root.join("pages")).unwrap();
        symlink(self.path("driver"), root.join("driver")).unwrap();
        symlink(self.path("door"), root.join("pages/0.door")).unwrap();
        let pages = self.pages(container);
        std::fs::write(&pages.limits, page::write_limits(&self.limits(asked.cores, asked.burst)))
            .unwrap();
        std::fs::write(&pages.counters, page::write_counters()).unwrap();
        std::fs::write(self.waits(container), "").unwrap();
        self.containers += 1;
        if let Some(processors) = &self.processors {
            self.parts.push(processors.part(&container.to_string(), REQUEST));
        }
        if let Some(referee) = &self.referee {
            referee.seat(&container.to_string(), pages).unwrap();
        }
        for work in &asked.works {
            self.start(container, work);
        }
        container
    }

    fn limits(&self, cores: u32, burst: u32) -> page::Limits {
        let name = |text: &str| page::Name::new(text).unwrap();
        page::Limits {
            device: name(&self.machine.description().cards[0].uuid),
            pod: name("pod"),
            container: name("main"),
            memory: 2 << 30,
            cores,
            burst,
            place: 0,
            granted: 0,
            tenants: 0,
        }
    }

    /// Starts a process in a container; returns when it is at work.
    pub(crate) fn start(&mut self, container: usize, work: &str) -> u32 {
        let mut program = Command::new(std::env::current_exe().unwrap());
        if let Some(part) = self.parts.get(container) {
            part.hold(&mut program);
        }
        let mut process = program
            .args(["tenant::tenant", "--exact", "--nocapture", "--test-threads=1"])
            .env(VARIABLE, self.path("machine"))
            .env("NANOGPU_ROOT", self.path(&container.to_string()))
            .env("LD_LIBRARY_PATH", self.path("lib"))
            .env(TAG_VARIABLE, container.to_string())
            .env(WORK, work)
            .env(WAITS, self.waits(container))
            .env(SEED, (self.machine.description().seed << 8 | container as u64).to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(process.stdout.take().unwrap()).lines();
        let ready = said.map_while(Result::ok).any(|line| line == "ready");
        assert!(ready, "the tenant could not start: {work}");
        let pid = process.id();
        self.processes.push((container, process));
        pid
    }

    /// Whether containers have processor time of their own.
    pub(crate) fn is_parted(&self) -> bool {
        self.processors.is_some()
    }

    /// How long a container's processes and the referee have waited for a processor so far.
    pub(crate) fn waited(&self, container: usize) -> (Duration, Duration) {
        let mine = self.processes.iter().filter(|(of, _)| *of == container);
        let container = mine.map(|(_, process)| waited(process.id(), |_| true)).sum();
        (container, waited(std::process::id(), |name| name == "referee"))
    }

    /// Has the calling thread run as a part of a container.
    pub(crate) fn join(&self, container: usize) {
        if let Some(part) = self.parts.get(container) {
            part.join();
        }
    }

    /// Has the calling thread run as a container without a GPU, which is there besides.
    pub(crate) fn join_further(&self) {
        if let Some(processors) = &self.processors {
            processors.part("further", REQUEST).join();
        }
    }

    /// Ends the processes of a container.
    pub(crate) fn end(&mut self, container: usize) {
        for (_, process) in self.processes.iter_mut().filter(|(of, _)| *of == container) {
            process.kill().unwrap();
            process.wait().unwrap();
        }
        self.processes.retain(|(of, _)| *of != container);
    }

    /// GPU time of each container so far, and device time.
    fn used(&self) -> (Vec<u64>, u64) {
        let mut used = vec![0; self.containers];
        let mut now = 0;
        for usage in self.machine.usage().unwrap() {
            if let Some(used) = usage.tag.parse::<usize>().ok().and_then(|of| used.get_mut(of)) {
                *used += usage.busy;
            }
            now = now.max(usage.until);
        }
        (used, now)
    }

    /// Lets containers work for a while; says what each got, in percent.
    pub(crate) fn measure(&self, time: Duration) -> Vec<f64> {
        let (before, from) = self.used();
        std::thread::sleep(time);
        let (after, to) = self.used();
        #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
        let percent = |used: u64| used as f64 * 100.0 / (to - from) as f64;
        // Of many processes that ended, as a fork bomb's, the machine forgets the oldest.
        let each = after.iter().zip(before);
        each.map(|(after, before)| percent(after.saturating_sub(before))).collect()
    }

    fn waits(&self, container: usize) -> PathBuf {
        self.path(&format!("{container}/waits"))
    }

    /// The longest that a launch of a container took since then; nothing if none took 5 ms.
    pub(crate) fn longest_wait(&self, container: usize, since: SystemTime) -> Duration {
        let since = since.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_micros();
        let text = std::fs::read_to_string(self.waits(container)).unwrap();
        let number = |word: Option<&str>| word.and_then(|word| word.parse::<u64>().ok()).unwrap();
        let waits = text.lines().map(|line| {
            let mut words = line.split(' ');
            (u128::from(number(words.next())), number(words.next()))
        });
        let longest = waits.filter(|(ended, _)| *ended > since).map(|(_, took)| took).max();
        Duration::from_micros(longest.unwrap_or(0))
    }

    /// The page of limits of a container, to be changed.
    pub(crate) fn set_cores(&self, container: usize, cores: u32, burst: u32) {
        use std::os::unix::fs::FileExt as _;
        let file = std::fs::File::options().write(true).open(self.pages(container).limits).unwrap();
        let at = |field: usize| field as u64;
        file.write_all_at(&cores.to_le_bytes(), at(std::mem::offset_of!(page::LimitsPage, cores)))
            .unwrap();
        file.write_all_at(&burst.to_le_bytes(), at(std::mem::offset_of!(page::LimitsPage, burst)))
            .unwrap();
    }

    pub(crate) fn counters(&self, container: usize) -> PathBuf {
        self.pages(container).counters
    }
}
