//! A part of the processors for each container, as kubelet gives it: a cgroup with shares by its request.
//!
//! Without it a container of twelve processes has twelve times the processor time of a container of one,
//! which is no node's way. It takes root and a `cpu` controller of version 1; where that is not to be had the
//! tests run all the same, without parts, and say so.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// What the folders of a test begin with; its number follows.
const NAME: &str = "nanogpu-accuracy-";
/// What a stage has against everything else on the machine: as much as the highest priority (nice -20),
/// so that other load disturbs little.
const ALL: u64 = 88_761;

/// The processors of a stage, to be parted.
#[derive(Debug)]
pub(crate) struct Processors {
    folder: PathBuf,
}

/// The part of one container, or of the agent.
#[derive(Debug)]
pub(crate) struct Part {
    folder: PathBuf,
}

impl Processors {
    /// Those of a new stage.
    pub(crate) fn new() -> io::Result<Self> {
        static STAGES: AtomicU32 = AtomicU32::new(0);
        let base = controller()?;
        sweep(&base);
        let stage = STAGES.fetch_add(1, Ordering::Relaxed);
        let folder = base.join(format!("{NAME}{}-{stage}", std::process::id()));
        let made = make(&folder, ALL);
        if made.is_err() {
            let _ = std::fs::remove_dir(&folder);
        }
        made.map(|()| Self { folder })
    }

    /// A part of them by a request of CPU; the same each time for a name.
    pub(crate) fn part(&self, name: &str, millicores: u64) -> Part {
        let folder = self.folder.join(name);
        // Kubelet's formula.
        make(&folder, (millicores * 1024 / 1000).max(2)).unwrap();
        Part { folder }
    }

    /// Moves the calling thread to where it was before it joined a part.
    pub(crate) fn leave(&self) {
        join(self.folder.parent().unwrap()).unwrap();
    }
}

impl Drop for Processors {
    fn drop(&mut self) {
        // This thread was the agent's, and its folder must be empty. Of a fork bomb that was ended the last
        // may be on their way out.
        if let Some(base) = self.folder.parent() {
            let _ = join(base);
        }
        let end = Instant::now() + Duration::from_secs(5);
        while remove(&self.folder).is_err() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Part {
    /// Moves the calling thread into it, and with it the threads and processes that it starts.
    pub(crate) fn join(&self) {
        join(&self.folder).unwrap();
    }

    /// Has a program start in it.
    pub(crate) fn hold(&self, program: &mut Command) {
        let mut list = File::options().write(true).open(self.folder.join("cgroup.procs")).unwrap();
        // SAFETY: one write to an open file, which a forked child may do.
        unsafe { program.pre_exec(move || list.write_all(b"0")) };
    }
}

/// How long the threads of a process that `which` names have waited for a processor, all together; nothing
/// where the kernel does not count that.
pub(crate) fn waited(process: u32, which: impl Fn(&str) -> bool) -> Duration {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{process}/task")) else {
        return Duration::ZERO;
    };
    let each = threads.flatten().map(|thread| {
        let read = |file| std::fs::read_to_string(thread.path().join(file)).unwrap_or_default();
        let counted =
            if which(read("comm").trim_end()) { read("schedstat") } else { String::new() };
        // Time on a processor, time waiting for one, and how often.
        counted.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0)
    });
    Duration::from_nanos(each.sum())
}

fn join(folder: &Path) -> io::Result<()> {
    std::fs::write(folder.join("tasks"), "0")
}

fn make(folder: &Path, shares: u64) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    std::fs::write(folder.join("cpu.shares"), shares.to_string())
}

/// Our own folder of the `cpu` controller.
fn controller() -> io::Result<PathBuf> {
    let none = || io::Error::new(io::ErrorKind::NotFound, "no cpu controller of version 1");
    let has = |list: &str| list.split(',').any(|one| one == "cpu");
    let own = std::fs::read_to_string("/proc/self/cgroup")?;
    let own = own.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        fields.next().filter(|list| has(list)).and_then(|_| fields.next())
    });
    let own = own.ok_or_else(none)?.trim_start_matches('/').to_owned();
    let mounts = std::fs::read_to_string("/proc/self/mounts")?;
    let mount = mounts.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        let found = fields.get(2) == Some(&"cgroup") && fields.get(3).is_some_and(|list| has(list));
        found.then(|| PathBuf::from(fields[1]))
    });
    Ok(mount.ok_or_else(none)?.join(own))
}

/// Removes what tests left that were killed. Their tenants end after two minutes at most, and what they
/// are still in stays until then.
fn sweep(base: &Path) {
    let Ok(found) = std::fs::read_dir(base) else { return };
    for one in found.flatten() {
        let name = one.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(NAME));
        let Some(number) = number.and_then(|rest| rest.split('-').next()) else { continue };
        if !Path::new("/proc").join(number).exists() {
            let _ = remove(&one.path());
        }
    }
}

/// Removes a folder and those below it.
fn remove(folder: &Path) -> io::Result<()> {
    for below in std::fs::read_dir(folder)?.flatten() {
        if below.file_type()?.is_dir() {
            std::fs::remove_dir(below.path())?;
        }
    }
    std::fs::remove_dir(folder)
}
