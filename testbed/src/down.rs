//! Taking a cluster away, whatever state it is in.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};

use crate::cgroups::Cgroups;
use crate::component::Running;
use crate::layout::{Layout, clusters, root};
use crate::sysctls;

/// Stops what `up` started and deletes what it made. True if there was something.
///
/// It needs nothing but the name: processes are found by their cgroup, so a tool that died half-way
/// leaves nothing that this would miss.
pub fn down(name: &str) -> anyhow::Result<bool> {
    need_root()?;
    let layout = Layout::of(name)?;
    let _lock = lock(&layout)?;
    let found = remove(&layout)?;
    let _ = fs::remove_file(layout.lock());
    Ok(found)
}

/// Takes away a cluster that this very process is bringing up, and so holds the lock of.
///
/// For a process that is about to end: what its other threads still start is found too, because
/// processes are looked for until there are none.
pub fn abandon(name: &str) {
    let Ok(layout) = Layout::of(name) else { return };
    ABANDONED.store(true, Ordering::SeqCst);
    // Twice, because the thread that brings it up goes on until it meets what is gone. Whatever fails
    // here is met again by the next `up` or `down`.
    let _ = remove(&layout);
    let _ = remove(&layout);
    let _ = fs::remove_file(layout.lock());
}

/// Has SIGINT and SIGTERM take that cluster away: an interrupted `up` leaves nothing. The signal may
/// come at any point, so the work is done by a thread that waits for it.
pub fn abandon_on_interrupt(name: &str) -> anyhow::Result<()> {
    let name = name.to_owned();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::spawn(move || {
        let interrupted = runtime.block_on(async {
            let mut term =
                tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
            tokio::select! {
                answer = tokio::signal::ctrl_c() => answer,
                _ = term.recv() => Ok(()),
            }
        });
        if interrupted.is_ok() {
            tell(&format!("\ninterrupted: taking cluster `{name}` down"));
            abandon(&name);
            std::process::exit(130);
        }
    });
    Ok(())
}

#[expect(clippy::print_stderr, reason = "whoever interrupts waits for us")]
fn tell(line: &str) {
    eprintln!("{line}");
}

static ABANDONED: AtomicBool = AtomicBool::new(false);

/// Whether the process is about to end, and failures mean nothing any more.
pub(crate) fn is_abandoned() -> bool {
    ABANDONED.load(Ordering::SeqCst)
}

const LOCK_TRIES: u32 = 50;
const LOCK_PAUSE: Duration = Duration::from_millis(100);

/// Only root may make namespaces and cgroups.
pub(crate) fn need_root() -> anyhow::Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    bail!(
        "a cluster needs root for its namespaces, cgroups and mounts: \
         run it with `sudo --preserve-env=HOME,PATH,XDG_CACHE_HOME`"
    )
}

/// One tool at a time works on a cluster.
///
/// A tool that is killed while it starts a process leaves the lock to that child until it runs its own
/// program, so whoever comes right after it asks for a while.
pub(crate) fn lock(layout: &Layout) -> anyhow::Result<File> {
    let root = root();
    fs::create_dir_all(&root).with_context(|| format!("cannot make {}", root.display()))?;
    let path = layout.lock();
    for _ in 0..LOCK_TRIES {
        let file =
            File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        if file.try_lock().is_ok() && is_at(&file, &path) {
            return Ok(file);
        }
        std::thread::sleep(LOCK_PAUSE);
    }
    bail!("another `up` or `down` of cluster `{}` is at work; wait for it", layout.name());
}

/// Whether this is still the file of that name: whoever had the lock before may have deleted it.
fn is_at(file: &File, path: &Path) -> bool {
    let same = |there: fs::Metadata| Some(there.ino() == file.metadata().ok()?.ino());
    fs::metadata(path).ok().and_then(same).unwrap_or(false)
}

/// Like [`down`], for one who holds the lock.
pub(crate) fn remove(layout: &Layout) -> anyhow::Result<bool> {
    let cgroups = Cgroups::of(layout.name())?;
    let processes = cgroups.processes();
    let found = layout.exists() || !processes.is_empty();
    // Kubelets first, or they would see their containers die and start others.
    for running in Running::all(layout) {
        if running.spec.name.starts_with("kubelet-") {
            running.identity.signal(libc::SIGKILL);
            running.identity.gone_within(Duration::from_secs(5));
        }
    }
    cgroups.kill_all()?;
    cgroups.remove()?;
    if layout.exists() {
        remove_folder(layout)?;
    }
    if clusters()?.is_empty() {
        sysctls::restore()?;
    }
    Ok(found)
}

/// The kernel takes a mount namespace apart a little after its last process, and until then files
/// may still be in use.
fn remove_folder(layout: &Layout) -> anyhow::Result<()> {
    let mut outcome = Ok(());
    for _ in 0..50 {
        outcome = fs::remove_dir_all(layout.root());
        if !layout.exists() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    outcome.with_context(|| format!("cannot delete {}", layout.root().display()))
}

/// Takes away the clusters of tests that ended without doing so.
pub fn sweep() -> anyhow::Result<Vec<String>> {
    let mut swept = Vec::new();
    for name in clusters()? {
        let Ok(record) = Layout::of(&name).and_then(|layout| layout.record()) else { continue };
        if record.owner.is_some_and(|owner| !owner.is_alive()) && down(&name)? {
            swept.push(name);
        }
    }
    Ok(swept)
}
