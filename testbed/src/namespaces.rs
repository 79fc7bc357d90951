//! Network and mount namespaces, and doing things inside them.
//!
//! A namespace lives as long as a process in it, so each is held by one that only sleeps, its
//! anchor. That leaves no mount and no name on the host.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::thread;

use anyhow::Context;

/// The namespaces that a process of the cluster joins.
#[derive(Default)]
pub(crate) struct Namespaces {
    net: Option<File>,
    mount: Option<File>,
}

impl Namespaces {
    /// The network namespace of process `pid`.
    pub(crate) fn net_of(pid: i32) -> anyhow::Result<Self> {
        Ok(Self { net: Some(open(pid, "net")?), mount: None })
    }

    /// The network and the mount namespace of process `pid`.
    pub(crate) fn all_of(pid: i32) -> anyhow::Result<Self> {
        Ok(Self { net: Some(open(pid, "net")?), mount: Some(open(pid, "mnt")?) })
    }

    /// Moves the calling thread in. Only for a thread of one's own, or a child before it runs its
    /// program: it makes system calls and nothing else.
    pub(crate) fn enter(&self) -> io::Result<()> {
        for (file, kind) in [(&self.net, libc::CLONE_NEWNET), (&self.mount, libc::CLONE_NEWNS)] {
            if let Some(file) = file {
                set(file.as_raw_fd(), kind)?;
            }
        }
        Ok(())
    }
}

fn open(pid: i32, kind: &str) -> anyhow::Result<File> {
    let path = format!("/proc/{pid}/ns/{kind}");
    File::open(&path).with_context(|| format!("cannot open {path}: its process is gone"))
}

fn set(fd: RawFd, kind: i32) -> io::Result<()> {
    // SAFETY: a call with two integers; the descriptor is open as long as the file it came from.
    check(unsafe { libc::setns(fd, kind) })
}

/// Leaves the namespaces named by `flags` for new ones.
pub(crate) fn leave(flags: i32) -> io::Result<()> {
    // SAFETY: a call with one integer, which touches no memory of ours.
    check(unsafe { libc::unshare(flags) })
}

/// What a node's mount namespace looks like: some folders are its own.
pub(crate) struct Mounts {
    binds: Vec<(CString, CString)>,
}

impl Mounts {
    /// `binds` are pairs of the folder to show and the place to show it.
    pub(crate) fn new(binds: &[(&Path, &str)]) -> anyhow::Result<Self> {
        let text = |bytes: &[u8]| CString::new(bytes).context("a path holds a zero byte");
        let binds = binds
            .iter()
            .map(|(from, to)| Ok((text(from.as_os_str().as_bytes())?, text(to.as_bytes())?)))
            .collect::<anyhow::Result<_>>()?;
        Ok(Self { binds })
    }

    /// Makes a mount namespace of this look for the calling process. For a child before it runs its
    /// program: it allocates nothing.
    pub(crate) fn make(&self) -> io::Result<()> {
        leave(libc::CLONE_NEWNS)?;
        // First apart from the host, so that nothing below is seen there; then shared again within,
        // because kubelet and containerd pass mounts to one another.
        mount(None, c"/", libc::MS_REC | libc::MS_PRIVATE)?;
        for (from, to) in &self.binds {
            mount(Some(from), to, libc::MS_BIND | libc::MS_REC)?;
        }
        mount(None, c"/", libc::MS_REC | libc::MS_SHARED)
    }
}

fn mount(from: Option<&CString>, to: &std::ffi::CStr, flags: u64) -> io::Result<()> {
    let from = from.map_or(std::ptr::null(), |path| path.as_ptr());
    // SAFETY: both paths end with a zero byte and outlive the call; type and data may be null for
    // these flags.
    check(unsafe { libc::mount(from, to.as_ptr(), std::ptr::null(), flags, std::ptr::null()) })
}

fn check(answer: i32) -> io::Result<()> {
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Runs `work` on a thread that is in the namespaces.
///
/// Sockets stay in the namespace they were made in, so a listener made here can be served from
/// anywhere.
pub(crate) fn within<T: Send>(
    namespaces: &Namespaces,
    work: impl FnOnce() -> T + Send,
) -> anyhow::Result<T> {
    let outcome = thread::scope(|scope| {
        let inside = scope.spawn(|| namespaces.enter().map(|()| work()));
        inside.join()
    });
    match outcome {
        Ok(outcome) => outcome.context("cannot enter the cluster's network namespace"),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}
