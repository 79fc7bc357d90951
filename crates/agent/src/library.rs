//! Our limiter, put where containers get it: from the agent's own image into a folder of the node.
//!
//! Containers that run have the file mapped. It is never written in place: a new one takes its name,
//! and they keep theirs.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::rungs::LIBRARY;

/// What had to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// The folder has had the same library before.
    Kept,
    /// The folder had none.
    Added,
    /// The folder had another one, which containers that run keep.
    Replaced,
}

impl std::fmt::Display for Put {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Kept => "kept",
            Self::Added => "added",
            Self::Replaced => "replaced",
        })
    }
}

/// Why containers would get no limiter, or not this one.
#[derive(Debug, thiserror::Error)]
pub enum PutError {
    /// There is nothing to put.
    #[error(
        "--limiter-source {path} cannot be read: name the libnanogpu.so of the agent's image, or leave the option out"
    )]
    Unreadable {
        /// Where it should be.
        path: PathBuf,
        /// What the system says.
        #[source]
        error: io::Error,
    },
    /// A file that no loader would take.
    #[error(
        "--limiter-source {path} is no shared library: name the libnanogpu.so of the agent's image"
    )]
    NoLibrary {
        /// The file.
        path: PathBuf,
    },
    /// The node's folder does not take it.
    #[error(
        "the limiter cannot be put into {folder}: mount that folder of the node (--limiter) so that the agent may write"
    )]
    Unwritable {
        /// The folder.
        folder: PathBuf,
        /// What the system says.
        #[source]
        error: io::Error,
    },
}

/// Puts the library `source` into `folder`, whole or not at all. One agent at a time may call it.
pub fn put(source: &Path, folder: &Path) -> Result<Put, PutError> {
    let bytes = fs::read(source)
        .map_err(|error| PutError::Unreadable { path: source.to_owned(), error })?;
    if !bytes.starts_with(b"\x7fELF") {
        return Err(PutError::NoLibrary { path: source.to_owned() });
    }
    replace(&bytes, folder)
        .map_err(|error| PutError::Unwritable { folder: folder.to_owned(), error })
}

fn replace(bytes: &[u8], folder: &Path) -> io::Result<Put> {
    fs::create_dir_all(folder)?;
    let target = folder.join(LIBRARY);
    let before = match fs::read(&target) {
        Ok(before) => Some(before),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    if before.as_deref() == Some(bytes) {
        return Ok(Put::Kept);
    }
    // One name, so that what a killed agent left is overwritten and not left once more.
    let new = folder.join(format!(".{LIBRARY}.new"));
    let _ = fs::remove_file(&new);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&new)?;
    file.write_all(bytes)?;
    // Whoever runs in a container must read it, whatever our umask is.
    file.set_permissions(fs::Permissions::from_mode(0o644))?;
    file.sync_all()?;
    fs::rename(&new, &target)?;
    Ok(if before.is_some() { Put::Replaced } else { Put::Added })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    fn library(text: &str) -> Vec<u8> {
        [b"\x7fELF", text.as_bytes()].concat()
    }

    #[test]
    fn the_library_appears_and_stays_if_it_is_the_same() {
        let root = tempfile::tempdir().unwrap();
        let (source, folder) = (root.path().join("source"), root.path().join("a/limiter"));
        fs::write(&source, library("one")).unwrap();
        assert_eq!(put(&source, &folder).unwrap(), Put::Added);
        let first = fs::metadata(folder.join(LIBRARY)).unwrap();
        assert_eq!(first.mode() & 0o777, 0o644);
        assert_eq!(put(&source, &folder).unwrap(), Put::Kept);
        assert_eq!(fs::metadata(folder.join(LIBRARY)).unwrap().ino(), first.ino());
    }

    #[test]
    fn who_has_the_old_library_keeps_it() {
        let root = tempfile::tempdir().unwrap();
        let source = root.path().join("source");
        fs::write(&source, library("old")).unwrap();
        put(&source, root.path()).unwrap();
        let held = fs::File::open(root.path().join(LIBRARY)).unwrap();
        fs::write(&source, library("new")).unwrap();
        // What an agent that was killed half-way leaves.
        fs::write(root.path().join(format!(".{LIBRARY}.new")), "half").unwrap();
        assert_eq!(put(&source, root.path()).unwrap(), Put::Replaced);
        assert_eq!(fs::read(root.path().join(LIBRARY)).unwrap(), library("new"));
        assert_eq!(io::read_to_string(held).unwrap().into_bytes(), library("old"));
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 2, "the source and the library");
    }

    #[test]
    fn what_cannot_be_put_is_refused_with_what_to_do() {
        let root = tempfile::tempdir().unwrap();
        let told = |source: &Path, folder: &Path| put(source, folder).unwrap_err().to_string();
        let missing = told(Path::new("/nowhere/x.so"), root.path());
        assert!(missing.starts_with("--limiter-source /nowhere/x.so cannot be read"), "{missing}");
        let source = root.path().join("source");
        fs::write(&source, "text").unwrap();
        assert!(told(&source, root.path()).contains("is no shared library"));
        assert!(!root.path().join(LIBRARY).exists());
        fs::write(&source, library("x")).unwrap();
        // A file where the folder should be.
        let refused = told(&source, &source.join("limiter"));
        assert!(refused.contains("mount that folder of the node"), "{refused}");
    }
}
