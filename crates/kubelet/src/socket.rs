//! Unix sockets as files: made, recognised, taken away, never someone else's.

use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixStream};

/// Why a socket could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The system refused.
    #[error("cannot make the socket {}", path.display())]
    Bind {
        /// Where it should be.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A living process listens there.
    #[error("another process serves the socket {}; stop it, or choose another name", path.display())]
    InUse {
        /// Where it is.
        path: PathBuf,
    },
    /// Something else has the name.
    #[error("{} is there and is no socket; it is left alone: move it away", path.display())]
    NotASocket {
        /// Where it is.
        path: PathBuf,
    },
}

/// Which file a path led to at a moment.
///
/// Inode numbers are used again at once by many file systems, so the time at which the file was
/// made belongs to it. That is the time of modification: unlike the time of change it stays when
/// someone sets the mode or the label of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
    made: (i64, i64),
}

impl Identity {
    /// The file at `path` itself, if there is one.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let meta = path.symlink_metadata().ok()?;
        let made = (meta.mtime(), meta.mtime_nsec());
        Some(Self { device: meta.dev(), inode: meta.ino(), made })
    }
}

/// A socket file of ours. It goes when this is dropped, unless someone put another in its place.
#[derive(Debug)]
pub(crate) struct Bound {
    path: PathBuf,
    identity: Option<Identity>,
}

impl Bound {
    /// Listens at `path`, in place of a socket that nobody listens at any more.
    pub(crate) async fn make(path: &Path) -> Result<(Self, UnixListener), SocketError> {
        let failed = |source| SocketError::Bind { path: path.to_owned(), source };
        match path.symlink_metadata() {
            Ok(meta) if !meta.file_type().is_socket() => {
                return Err(SocketError::NotASocket { path: path.to_owned() });
            }
            Ok(_) if is_served(path).await => {
                return Err(SocketError::InUse { path: path.to_owned() });
            }
            Ok(_) => match std::fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
                _ => {}
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        let listener = UnixListener::bind(path).map_err(failed)?;
        Ok((Self { path: path.to_owned(), identity: Identity::of(path) }, listener))
    }

    /// Whether the file is still there and still ours.
    pub(crate) fn in_place(&self) -> bool {
        self.identity.is_some() && Identity::of(&self.path) == self.identity
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        if self.in_place() {
            // Nothing to be done about a failure: the next start removes it as a dead socket.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A dead process leaves its socket behind, and connecting to that is refused. Any other outcome,
/// such as a queue that is full, means that someone is there.
async fn is_served(path: &Path) -> bool {
    match UnixStream::connect(path).await {
        Ok(_) => true,
        Err(error) => {
            !matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_left_by_a_dead_process_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        // The standard listener leaves its file when it closes, as a killed process does.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let (bound, _listener) = Bound::make(&path).await.unwrap();
        assert!(bound.in_place());
        drop(bound);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_living_socket_or_another_file_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        let (_bound, _listener) = Bound::make(&path).await.unwrap();
        assert!(matches!(Bound::make(&path).await, Err(SocketError::InUse { .. })));
        let file = dir.path().join("b.sock");
        std::fs::write(&file, "mine").unwrap();
        assert!(matches!(Bound::make(&file).await, Err(SocketError::NotASocket { .. })));
        let link = dir.path().join("c.sock");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(matches!(Bound::make(&link).await, Err(SocketError::NotASocket { .. })));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
    }

    #[tokio::test]
    async fn a_socket_that_took_our_place_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        let (bound, _listener) = Bound::make(&path).await.unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "another's").unwrap();
        assert!(!bound.in_place());
        drop(bound);
        assert!(path.exists());
    }
}
