//! One agent a node: the second waits for the first to end, as in a rolling update.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;

/// The right to act on this node. It ends with the process, however that ends.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock in `folder`, or says that another has it.
    pub fn try_take(folder: &Path) -> io::Result<Option<Self>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let flags = (OFlags::NOFOLLOW | OFlags::CLOEXEC).bits().cast_signed();
        let file = options.custom_flags(flags).open(folder.join(".lock"))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self { _file: file })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Waits for the lock in `folder`.
    pub async fn take(folder: &Path) -> io::Result<Self> {
        let mut told = false;
        loop {
            if let Some(lock) = Self::try_take(folder)? {
                return Ok(lock);
            }
            if !told {
                tracing::info!("another agent serves this node; waiting for it to end");
                told = true;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let first = Lock::try_take(folder.path()).unwrap().unwrap();
        assert!(Lock::try_take(folder.path()).unwrap().is_none());
        drop(first);
        assert!(Lock::try_take(folder.path()).unwrap().is_some());
    }
}
