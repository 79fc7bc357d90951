//! Processes that outlive us: started once, found again by pid and start time.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::namespaces::{Mounts, Namespaces};

/// A process, and no other that got its number later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) pid: i32,
    /// In ticks since the machine started.
    pub(crate) started: u64,
}

impl Identity {
    /// The process that calls.
    pub(crate) fn own() -> anyhow::Result<Self> {
        let pid = i32::try_from(std::process::id())?;
        Self::of(pid).context("cannot read our own /proc entry")
    }

    /// Process `pid` as it is now. A zombie is dead.
    pub(crate) fn of(pid: i32) -> Option<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (state, started) = state_and_start(&text)?;
        (!matches!(state, 'Z' | 'X')).then_some(Self { pid, started })
    }

    pub(crate) fn is_alive(&self) -> bool {
        Self::of(self.pid) == Some(*self)
    }

    pub(crate) fn is_stopped(&self) -> bool {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        state_and_start(&text).is_some_and(|(state, _)| state == 'T')
    }

    /// Sends a signal, if it is still this process.
    pub(crate) fn signal(&self, number: i32) -> bool {
        self.is_alive() && signal(self.pid, number)
    }

    /// Waits until it is gone.
    pub(crate) fn gone_within(&self, time: Duration) -> bool {
        let started = Instant::now();
        loop {
            reap(self.pid);
            if !self.is_alive() {
                return true;
            }
            if started.elapsed() >= time {
                return false;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Memory it has in RAM, in bytes.
    pub(crate) fn resident(&self) -> Option<u64> {
        let text = fs::read_to_string(format!("/proc/{}/statm", self.pid)).ok()?;
        let pages: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
        Some(pages * 4096)
    }
}

/// Processor time that process `pid` has used, in seconds, or nothing if there is none.
pub fn processor_seconds(pid: i32) -> Option<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(')')?;
    let mut ticks = rest.split_whitespace().skip(11).map_while(|field| field.parse::<u32>().ok());
    // A hundredth of a second each, on every Linux that Kubernetes runs on.
    Some((f64::from(ticks.next()?) + f64::from(ticks.next()?)) / 100.0)
}

/// The state letter and the start time of `/proc/PID/stat`. The name in parentheses may hold
/// anything, also parentheses.
fn state_and_start(text: &str) -> Option<(char, u64)> {
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

/// Sends a signal; false if there is no such process.
pub(crate) fn signal(pid: i32, number: i32) -> bool {
    // Zero and below would mean whole groups.
    if pid <= 0 {
        return false;
    }
    // SAFETY: a call with two integers.
    unsafe { libc::kill(pid, number) == 0 }
}

/// Takes the exit status of a child of ours that has ended, so that it is no zombie. Harmless for
/// any other process.
pub(crate) fn reap(pid: i32) {
    let mut status = 0;
    // SAFETY: the pointer is to a local; a pid that is not our child is an error we ignore.
    unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) };
}

/// A process to start.
pub(crate) struct Launch<'a> {
    pub(crate) program: &'a Path,
    pub(crate) args: &'a [String],
    pub(crate) env: &'a [(String, String)],
    pub(crate) log: &'a Path,
    pub(crate) namespaces: Namespaces,
    /// Namespaces to make instead of join.
    pub(crate) fresh: Fresh,
    /// The cgroup's door.
    pub(crate) cgroup: PathBuf,
}

/// Namespaces that begin with a process.
pub(crate) enum Fresh {
    None,
    Net,
    Mount(Mounts),
}

impl Launch<'_> {
    /// Starts it in a session of its own, so that no terminal ends it.
    pub(crate) fn start(self) -> anyhow::Result<Identity> {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log)
            .with_context(|| format!("cannot write {}", self.log.display()))?;
        let door = OpenOptions::new()
            .write(true)
            .open(&self.cgroup)
            .with_context(|| format!("cannot open {}", self.cgroup.display()))?;
        let Self { program, args, env, namespaces, fresh, .. } = self;
        let mut command = Command::new(program);
        command
            .args(args)
            .envs(env.iter().map(|(name, value)| (name, value)))
            .env("PATH", crate::binaries::packages::full_path())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        // A proxy of the person's is not for traffic that stays on this machine.
        for name in ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "KUBECONFIG"] {
            command.env_remove(name);
        }
        let inside = move || -> io::Result<()> {
            // SAFETY: a call without arguments.
            unsafe { libc::setsid() };
            // `0` is whoever writes it.
            (&door).write_all(b"0")?;
            namespaces.enter()?;
            match &fresh {
                Fresh::None => Ok(()),
                Fresh::Net => crate::namespaces::leave(libc::CLONE_NEWNET),
                Fresh::Mount(mounts) => mounts.make(),
            }
        };
        // SAFETY: the closure makes system calls with memory prepared before the fork, and neither
        // allocates nor takes a lock.
        unsafe { command.pre_exec(inside) };
        let child =
            command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        let pid = i32::try_from(child.id())?;
        Identity::of(pid).with_context(|| format!("{} ended at once", program.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_process_cannot_confuse_us() {
        let line = "42 (a) Z 1) S 1 42 42 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 777 1 1\n";
        assert_eq!(state_and_start(line), Some(('S', 777)));
        assert_eq!(state_and_start("42 (a"), None);
    }

    #[test]
    fn processor_time_grows_with_work() {
        let own = i32::try_from(std::process::id()).unwrap();
        let before = processor_seconds(own).unwrap();
        let mut number = 0_u64;
        while processor_seconds(own).unwrap() < before + 0.05 {
            number = std::hint::black_box(number.wrapping_add(1));
        }
        assert_eq!(processor_seconds(i32::MAX), None);
    }

    #[test]
    fn a_process_is_known_by_its_start_too() {
        let own = Identity::own().unwrap();
        assert!(own.is_alive());
        assert!(!Identity { started: own.started + 1, ..own }.is_alive());
        assert!(!Identity { pid: i32::MAX, started: 0 }.is_alive());
    }

    #[test]
    #[expect(
        clippy::zombie_processes,
        reason = "that it is reaped by its number is what is tested"
    )]
    fn a_child_that_ended_is_gone() {
        let child = Command::new("true").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let identity = Identity { pid, started: Identity::of(pid).map_or(0, |it| it.started) };
        assert!(identity.gone_within(Duration::from_secs(10)));
    }

    #[test]
    fn groups_of_processes_are_never_signalled() {
        assert!(!signal(0, 0));
        assert!(!signal(-1, 0));
    }
}
