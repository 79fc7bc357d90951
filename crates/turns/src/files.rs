//! The files of a card as memory: all that is unsafe stands here.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use page::{LimitsPage, PageError};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::thread::futex;

/// Why a container or a card cannot be refereed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A file cannot be used.
    #[error("cannot use {path}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is no page.
    #[error("{path} is no page to referee")]
    Page {
        /// Which.
        path: PathBuf,
        /// Why.
        source: PageError,
    },
    /// No thread could be started.
    #[error("cannot start the referee's thread")]
    Thread(#[source] io::Error),
    /// The referee has ended.
    #[error("the referee has ended")]
    Gone,
}

/// Makes the door of a card: a file that everybody may read and nobody writes.
pub fn make_door(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt as _;
    if path.metadata().is_ok_and(|known| known.len() >= 64) {
        return Ok(());
    }
    let mut options = std::fs::OpenOptions::new();
    let file = options.create(true).truncate(false).write(true).mode(0o444).open(path)?;
    file.set_len(64)
}

/// A file in memory.
#[derive(Debug)]
struct Mapped {
    at: *mut std::ffi::c_void,
    length: usize,
}

// SAFETY: plain memory; everything in it that changes is atomic.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    fn new(file: &File, length: usize, protection: ProtFlags) -> io::Result<Self> {
        if file.metadata()?.len() < length as u64 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file is too short"));
        }
        // SAFETY: a new mapping touches no memory that is in use.
        let at =
            unsafe { mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, file, 0) }?;
        Ok(Self { at, length })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: ours, and not used after this.
        let _ = unsafe { munmap(self.at, self.length) };
    }
}

/// What processes wake the referee by.
#[derive(Debug)]
pub(crate) struct Door(Mapped);

impl Door {
    pub(crate) fn open(path: &Path) -> Result<Self, OpenError> {
        let opened = File::open(path).and_then(|file| Mapped::new(&file, 64, ProtFlags::READ));
        opened.map(Self).map_err(|source| OpenError::File { path: path.to_owned(), source })
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: a live mapping of 64 bytes, which nobody writes.
        unsafe { &*self.0.at.cast::<AtomicU32>() }
    }

    /// Sleeps until somebody rings, or so many nanoseconds. Whoever rings just before is not heard,
    /// and rings again.
    pub(crate) fn wait(&self, nanoseconds: u64) {
        let time = futex::Timespec {
            tv_sec: i64::try_from(nanoseconds / 1_000_000_000).unwrap_or(1),
            tv_nsec: i64::try_from(nanoseconds % 1_000_000_000).unwrap_or(0),
        };
        let _ = futex::wait(self.word(), futex::Flags::empty(), 0, Some(&time));
    }

    /// Wakes all who wait: every tenant has the door, and could wait there to be woken in our place.
    pub(crate) fn ring(&self) {
        let _ = futex::wake(self.word(), futex::Flags::empty(), i32::MAX.unsigned_abs());
    }
}

/// The limits of a container. Only the agent can write or shorten the file.
#[derive(Debug)]
pub(crate) struct LimitsFile(Mapped);

impl LimitsFile {
    pub(crate) fn open(path: &Path) -> Result<Self, OpenError> {
        let file = |source| OpenError::File { path: path.to_owned(), source };
        let opened = File::options().read(true).write(true).open(path).map_err(file)?;
        let mut begins = [0; 16];
        opened.read_exact_at(&mut begins, 0).map_err(file)?;
        let length = opened.metadata().map_err(file)?.len();
        page::check_limits(&begins, usize::try_from(length).unwrap_or(usize::MAX))
            .map_err(|source| OpenError::Page { path: path.to_owned(), source })?;
        let both = ProtFlags::READ | ProtFlags::WRITE;
        Mapped::new(&opened, LimitsPage::SIZE, both).map(Self).map_err(file)
    }

    pub(crate) fn page(&self) -> &LimitsPage {
        // SAFETY: a live mapping of a whole page of limits, checked; what changes in it is atomic.
        unsafe { &*self.0.at.cast::<LimitsPage>() }
    }

    /// Says that the referee is there.
    pub(crate) fn beat(&self, time: u64) {
        self.page().grants.heartbeat.store(time, Ordering::Release);
    }

    /// Wakes the processes that wait for their turn.
    pub(crate) fn wake(&self) {
        let all = i32::MAX.unsigned_abs();
        let _ = futex::wake(&self.page().grants.turn, futex::Flags::empty(), all);
    }
}

/// Nanoseconds of the monotonic clock, which is the same in all containers.
pub(crate) fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}
