//! The folder of spec files: written once and whole, read back, listed, removed.
//!
//! A runtime learns of files in this folder by itself and at any moment, so a file appears complete
//! or not at all and is never changed afterwards. No file is reached through a link: each name is
//! opened in the folder itself.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fd::OwnedFd;
use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, RenameFlags, Timespec, Timestamps, UTIME_OMIT,
};
use rustix::io::Errno;

use super::names::check_device_name;
use super::{Spec, SpecError};

/// No spec of ours comes near this.
const LARGEST: u64 = 4 * 1024 * 1024;

/// How the name of a file ends that is not complete.
const TEMPORARY: &str = ".tmp";

/// How the name of a file ends that was set aside.
const ASIDE: &str = ".aside";

/// When a spec that nobody has read yet was read last: long ago. Most file systems write down only
/// the first reading after a change, which is the one that matters.
const UNREAD: Timestamps = Timestamps {
    last_access: Timespec { tv_sec: 1, tv_nsec: 0 },
    last_modification: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
};

/// A folder of spec files, such as `/var/run/cdi`.
///
/// A file is known by its stem: the name without `.json`, of the grammar of device names.
#[derive(Debug, Clone)]
pub struct Specs {
    folder: PathBuf,
}

/// Why a spec file could not be written, read or removed.
#[derive(Debug, thiserror::Error)]
pub enum SpecsError {
    /// The folder is not there and cannot be made, or cannot be read.
    #[error("cannot use the CDI folder {}", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A spec of that name is there. It stays as it is.
    #[error("the CDI spec {} exists, and specs are never changed; choose a new name", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The system refused to do something with a file.
    #[error("cannot {act} the CDI spec {}", path.display())]
    File {
        /// What was to be done.
        act: Act,
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The file is not JSON, or not of this form.
    #[error("{} is no CDI spec", path.display())]
    NotASpec {
        /// The file.
        path: PathBuf,
        /// Where it goes wrong.
        #[source]
        source: serde_json::Error,
    },
    /// The file's name or content breaks a rule.
    #[error("{} is no valid CDI spec", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Which rule.
        #[source]
        source: SpecError,
    },
}

impl SpecsError {
    /// Whether what is in the file is wrong, rather than that it cannot be read just now.
    pub fn is_in_the_file(&self) -> bool {
        match self {
            Self::NotASpec { .. } | Self::Invalid { .. } => true,
            Self::File { act: Act::Read, source, .. } => {
                let link = source.raw_os_error() == Some(Errno::LOOP.raw_os_error());
                let kind = source.kind();
                link || matches!(kind, io::ErrorKind::InvalidInput | io::ErrorKind::FileTooLarge)
            }
            Self::File { .. } | Self::Folder { .. } | Self::Exists { .. } => false,
        }
    }
}

/// What is done with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Write it.
    Write,
    /// Read it.
    Read,
    /// Remove it.
    Remove,
}

impl std::fmt::Display for Act {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::Remove => "remove",
        })
    }
}

impl Specs {
    /// The specs in `folder`, which is made if it is missing.
    pub fn open(folder: impl Into<PathBuf>) -> Result<Self, SpecsError> {
        let specs = Self { folder: folder.into() };
        if let Err(source) = std::fs::create_dir_all(&specs.folder) {
            return Err(SpecsError::Folder { folder: specs.folder, source });
        }
        specs.handle()?;
        Ok(specs)
    }

    /// Writes a new spec and returns its file. When this returns, it is on the disk.
    pub fn write(&self, stem: &str, spec: &Spec) -> Result<PathBuf, SpecsError> {
        let path = self.path(stem)?;
        spec.check().map_err(|source| SpecsError::Invalid { path: path.clone(), source })?;
        let text = serde_json::to_vec_pretty(spec)
            .map_err(|source| SpecsError::NotASpec { path: path.clone(), source })?;
        let folder = self.handle()?;
        let failed =
            |source: io::Error| SpecsError::File { act: Act::Write, path: path.clone(), source };
        let (temporary, file) = create_temporary(&folder, stem).map_err(failed)?;
        let unread = || rustix::fs::futimens(&file, &UNREAD).map_err(io::Error::from);
        let put = (&file).write_all(&text).and_then(|()| unread()).and_then(|()| {
            file.sync_all()?;
            let name = file_name(stem);
            rustix::fs::renameat_with(&folder, &temporary, &folder, &name, RenameFlags::NOREPLACE)?;
            Ok(())
        });
        if let Err(error) = put {
            // Nothing to be done if this fails too: leftovers are collected at the next start.
            let _ = rustix::fs::unlinkat(&folder, &temporary, AtFlags::empty());
            return Err(if error.kind() == io::ErrorKind::AlreadyExists {
                SpecsError::Exists { path }
            } else {
                failed(error)
            });
        }
        // The name is part of the folder, and lasts when the folder is on the disk.
        rustix::fs::fsync(&folder).map_err(|errno| failed(errno.into()))?;
        Ok(path)
    }

    /// Reads a spec, or nothing if it is not there.
    pub fn read(&self, stem: &str) -> Result<Option<Spec>, SpecsError> {
        let path = self.path(stem)?;
        let failed =
            |source: io::Error| SpecsError::File { act: Act::Read, path: path.clone(), source };
        // A pipe that someone left there must not hold us up.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let folder = self.handle()?;
        let open = |flags| rustix::fs::openat(&folder, file_name(stem), flags, Mode::empty());
        // Our own reading says nothing of others. Where the file is somebody else's, it counts.
        let file = match open(flags | OFlags::NOATIME).or_else(|errno| match errno {
            Errno::PERM => open(flags),
            other => Err(other),
        }) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(failed(errno.into())),
        };
        if !file.metadata().map_err(failed)?.is_file() {
            return Err(failed(io::ErrorKind::InvalidInput.into()));
        }
        let mut text = Vec::new();
        file.take(LARGEST + 1).read_to_end(&mut text).map_err(failed)?;
        if text.len() as u64 > LARGEST {
            return Err(failed(io::ErrorKind::FileTooLarge.into()));
        }
        let spec: Spec = serde_json::from_slice(&text)
            .map_err(|source| SpecsError::NotASpec { path: path.clone(), source })?;
        spec.check().map_err(|source| SpecsError::Invalid { path: path.clone(), source })?;
        Ok(Some(spec))
    }

    /// Whether anybody but us has read a spec since it was written: a runtime that resolves CDI
    /// devices has, before it made the container. Nothing if the spec is gone, or the file system does
    /// not keep such times.
    ///
    /// To be asked once: where nobody has, it is read here, to see that this would have been kept.
    pub fn was_read(&self, stem: &str) -> Result<Option<bool>, SpecsError> {
        let path = self.path(stem)?;
        let failed =
            |source: io::Error| SpecsError::File { act: Act::Read, path: path.clone(), source };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(self.handle()?, file_name(stem), flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(failed(errno.into())),
        };
        let is_unread = || file.metadata().map(|seen| seen.atime() == UNREAD.last_access.tv_sec);
        if !is_unread().map_err(failed)? {
            return Ok(Some(true));
        }
        (&file).read_exact(&mut [0]).map_err(failed)?;
        let is_kept = !is_unread().map_err(failed)?;
        Ok(is_kept.then_some(false))
    }

    /// The stems of all specs that begin with `prefix`, in order. Other people's files are in the
    /// folder too, so the prefix is how one's own are told.
    pub fn list(&self, prefix: &str) -> Result<Vec<String>, SpecsError> {
        let names = self.names()?;
        let stems = names.iter().filter_map(|name| name.strip_suffix(".json"));
        let ours = stems.filter(|stem| stem.starts_with(prefix) && check_device_name(stem).is_ok());
        let mut stems: Vec<String> = ours.map(String::from).collect();
        stems.sort_unstable();
        Ok(stems)
    }

    /// Removes a spec. Says whether there was one.
    pub fn remove(&self, stem: &str) -> Result<bool, SpecsError> {
        let path = self.path(stem)?;
        match rustix::fs::unlinkat(self.handle()?, file_name(stem), AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(SpecsError::File { act: Act::Remove, path, source: errno.into() }),
        }
    }

    /// Gives whatever has the name of a spec another one, under which no runtime reads it, and
    /// returns that. One that was set aside before under this name goes.
    pub fn set_aside(&self, stem: &str) -> Result<PathBuf, SpecsError> {
        let path = self.path(stem)?;
        let (folder, aside) = (self.handle()?, format!(".{stem}{ASIDE}"));
        rustix::fs::renameat(&folder, file_name(stem), &folder, &aside)
            .map_err(|errno| SpecsError::File { act: Act::Remove, path, source: errno.into() })?;
        Ok(self.folder.join(aside))
    }

    /// Removes what a process that was killed while writing left behind of specs that begin with
    /// `prefix`. Says how many. Only for the one process that writes such specs.
    pub fn remove_leftovers(&self, prefix: &str) -> Result<usize, SpecsError> {
        let folder = self.handle()?;
        let begins = format!(".{prefix}");
        let names = self.names()?;
        let leftovers =
            names.iter().filter(|name| name.starts_with(&begins) && name.ends_with(TEMPORARY));
        let mut count = 0;
        for name in leftovers {
            match rustix::fs::unlinkat(&folder, name, AtFlags::empty()) {
                Ok(()) => count += 1,
                Err(Errno::NOENT) => {}
                Err(errno) => {
                    let path = self.folder.join(name);
                    return Err(SpecsError::File { act: Act::Remove, path, source: errno.into() });
                }
            }
        }
        Ok(count)
    }

    /// The names of regular files in the folder.
    fn names(&self) -> Result<Vec<String>, SpecsError> {
        let failed =
            |errno: Errno| SpecsError::Folder { folder: self.folder.clone(), source: errno.into() };
        let mut names = Vec::new();
        for entry in Dir::read_from(self.handle()?).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            // Some file systems do not say the type; a wrong one is found when it is read.
            let regular = matches!(entry.file_type(), FileType::RegularFile | FileType::Unknown);
            if let (true, Ok(name)) = (regular, entry.file_name().to_str()) {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    /// The folder that is at the path now: it may have been made anew since.
    fn handle(&self) -> Result<OwnedFd, SpecsError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(&self.folder, flags, Mode::empty()).map_err(|errno| SpecsError::Folder {
            folder: self.folder.clone(),
            source: errno.into(),
        })
    }

    fn path(&self, stem: &str) -> Result<PathBuf, SpecsError> {
        let path = self.folder.join(file_name(stem));
        check_device_name(stem)
            .map_err(|source| SpecsError::Invalid { path: path.clone(), source })?;
        Ok(path)
    }

    /// Where the specs are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

fn file_name(stem: &str) -> String {
    format!("{stem}.json")
}

/// A new file that no runtime takes for a spec.
fn create_temporary(folder: &OwnedFd, stem: &str) -> io::Result<(String, File)> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o644);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!(".{stem}.{}-{number}{TEMPORARY}", std::process::id());
        match rustix::fs::openat(folder, &name, flags, mode) {
            Ok(file) => return Ok((name, File::from(file))),
            // In a container every process has the same id, so one that was killed may have left it.
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}
