//! The folder of pages: one folder for each answer we gave, with whom it is for and the files the
//! container maps. With the kubelet's checkpoint and the pods it is all an agent needs to know
//! after it was killed.
//!
//! A folder appears whole, by a rename, or not at all. What cannot be read is set aside, never
//! deleted and never believed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use model::codec::decode_placement;
use model::{ContainerName, Placement, PodUid};
use page::{Limits, write_counters, write_limits};
use serde::{Deserialize, Serialize};

/// The version of the record's text.
const VERSION: u32 = 1;
const FILE: &str = "holder.json";
const LARGEST: u64 = 512 * 1024;
const ASIDE: &str = ".aside-";
const UNFINISHED: &str = ".new-";

/// Whom an answer of ours is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The answer's name.
    pub name: String,
    /// The pod.
    pub pod: PodUid,
    /// The pod's name for people.
    pub pod_name: String,
    /// The container.
    pub container: ContainerName,
    /// The pod's placement.
    pub placement: Placement,
}

#[derive(Serialize, Deserialize)]
struct Wire {
    v: u32,
    pod: PodUid,
    pod_name: String,
    container: ContainerName,
    placement: String,
}

/// Our folder.
#[derive(Debug, Clone)]
pub struct Records {
    folder: PathBuf,
}

/// Why the folder, or a part of it, cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordsError {
    /// The folder cannot be made, or is not ours alone.
    #[error("{} cannot be the folder of pages: it must be a folder that only its owner can write", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// What the system said, if it did.
        #[source]
        source: Option<io::Error>,
    },
    /// A file could not be written or read.
    #[error("cannot use {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

impl Records {
    /// The records in `folder`, which is made if it is missing.
    pub fn open(folder: impl Into<PathBuf>) -> Result<Self, RecordsError> {
        let folder = folder.into();
        let bad = |source| RecordsError::Folder { folder: folder.clone(), source };
        let made = fs::DirBuilder::new().recursive(true).mode(0o755).create(&folder);
        made.map_err(|source| bad(Some(source)))?;
        let seen = fs::symlink_metadata(&folder).map_err(|source| bad(Some(source)))?;
        // Whoever else can write here could plant a link.
        if !seen.is_dir() || seen.mode() & 0o022 != 0 {
            return Err(bad(None));
        }
        let records = Self { folder };
        records.remove_unfinished();
        Ok(records)
    }

    /// Writes a record with its pages, unless it is there.
    pub fn write(&self, record: &Record, limits: &[Limits]) -> Result<(), RecordsError> {
        let path = self.folder.join(&record.name);
        if path.is_dir() {
            return Ok(());
        }
        let new = self.folder.join(format!("{UNFINISHED}{}", record.name));
        let failed = |source| RecordsError::File { path: path.clone(), source };
        let wire = Wire {
            v: VERSION,
            pod: record.pod.clone(),
            pod_name: record.pod_name.clone(),
            container: record.container.clone(),
            placement: model::codec::encode_placement(&record.placement),
        };
        let written = (|| {
            if new.exists() {
                fs::remove_dir_all(&new)?;
            }
            fs::DirBuilder::new().mode(0o755).create(&new)?;
            for (place, limits) in limits.iter().enumerate() {
                put(&new.join(format!("{place}.limits")), &write_limits(limits), 0o444)?;
                // Written by the container's processes, whoever they run as; it is mounted there
                // and nowhere else.
                put(&new.join(format!("{place}.counters")), &write_counters(), 0o666)?;
            }
            put(&new.join(FILE), &serde_json::to_vec(&wire)?, 0o600)?;
            File::open(&new)?.sync_all()?;
            fs::rename(&new, &path)?;
            File::open(&self.folder)?.sync_all()
        })();
        written.map_err(failed)
    }

    /// All records that can be read; others are set aside.
    pub fn list(&self) -> Result<Vec<Record>, RecordsError> {
        let failed = |source| RecordsError::File { path: self.folder.clone(), source };
        let mut records = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(failed)? {
            let Ok(name) = entry.map_err(failed)?.file_name().into_string() else { continue };
            if name.starts_with('.') {
                continue;
            }
            match self.read(&name) {
                Some(record) => records.push(record),
                None => self.set_aside(&name),
            }
        }
        records.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(records)
    }

    /// One record, if it is there and can be read.
    pub fn read(&self, name: &str) -> Option<Record> {
        let folder = self.folder.join(name);
        if !fs::symlink_metadata(&folder).ok()?.is_dir() {
            return None;
        }
        let bytes = read_plain(&folder.join(FILE), LARGEST).ok()?;
        let wire: Wire =
            serde_json::from_slice(&bytes).ok().filter(|wire: &Wire| wire.v == VERSION)?;
        Some(Record {
            name: name.to_owned(),
            pod: wire.pod,
            pod_name: wire.pod_name,
            container: wire.container,
            placement: decode_placement(&wire.placement).ok()?,
        })
    }

    /// A copy of the counters that the container writes, for its device at `place`.
    pub fn counters(&self, name: &str, place: usize) -> io::Result<Vec<u8>> {
        let path = self.folder.join(name).join(format!("{place}.counters"));
        read_plain(&path, page::CountersPage::SIZE as u64)
    }

    /// Removes a record and its pages.
    pub fn remove(&self, name: &str) -> Result<(), RecordsError> {
        let path = self.folder.join(name);
        match fs::remove_dir_all(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(RecordsError::File { path, source })
            }
            _ => Ok(()),
        }
    }

    /// Where the pages of `name` are.
    pub fn folder_of(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn set_aside(&self, name: &str) {
        let aside = self.folder.join(format!("{ASIDE}{name}"));
        let moved = fs::rename(self.folder.join(name), &aside);
        tracing::warn!(name, aside = %aside.display(), moved = moved.is_ok(), "record set aside: it cannot be read");
    }

    fn remove_unfinished(&self) {
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
                // What stays behind is replaced when that name is written.
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

fn put(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let flags = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
    let mut file = options.write(true).create_new(true).custom_flags(flags).open(path)?;
    // Whatever the umask is.
    rustix::fs::fchmod(&file, rustix::fs::Mode::from_raw_mode(mode))?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Reads at most `most` bytes of a plain file, through no link.
fn read_plain(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn record(name: &str) -> Record {
        Record {
            name: name.into(),
            pod: PodUid::parse("u-1").unwrap(),
            pod_name: "team/a".into(),
            container: ContainerName::parse("main").unwrap(),
            placement: decode_placement("v1;n1;main=GPU-1:30%+4608Mi").unwrap(),
        }
    }

    fn limits() -> Limits {
        let name = |text| page::Name::new(text).unwrap();
        Limits {
            device: name("GPU-1"),
            pod: name("u-1"),
            container: name("main"),
            memory: 4608 << 20,
            cores: 30,
            burst: 30,
            place: 0,
            granted: 3000,
            tenants: 1,
        }
    }

    fn opened() -> (tempfile::TempDir, Records) {
        let folder = tempfile::tempdir().unwrap();
        let records = Records::open(folder.path().join("pages")).unwrap();
        (folder, records)
    }

    #[test]
    fn what_is_written_is_read_back_after_a_restart() {
        let (folder, records) = opened();
        records.write(&record("x-1"), &[limits()]).unwrap();
        records.write(&record("x-1"), &[limits()]).unwrap();
        let again = Records::open(folder.path().join("pages")).unwrap();
        assert_eq!(again.list().unwrap(), [record("x-1")]);
        let bytes = fs::read(again.folder_of("x-1").join("0.limits")).unwrap();
        assert_eq!(page::read_limits(&bytes), Ok(limits()));
        assert_eq!(again.counters("x-1", 0).unwrap().len(), page::CountersPage::SIZE);
        again.remove("x-1").unwrap();
        again.remove("x-1").unwrap();
        assert_eq!(again.list().unwrap(), []);
    }

    #[test]
    fn torn_newer_and_planted_records_are_set_aside() {
        let (folder, records) = opened();
        let pages = folder.path().join("pages");
        for (name, text) in [("torn", "{\"v\":1,"), ("newer", "{\"v\":2}")] {
            fs::create_dir(pages.join(name)).unwrap();
            fs::write(pages.join(name).join(FILE), text).unwrap();
        }
        symlink("/etc", pages.join("link")).unwrap();
        fs::create_dir(pages.join("inside")).unwrap();
        symlink("/etc/passwd", pages.join("inside").join(FILE)).unwrap();
        assert_eq!(records.list().unwrap(), []);
        assert!(pages.join(".aside-torn").is_dir() && pages.join(".aside-inside").is_dir());
        assert!(Path::new("/etc/passwd").exists());
    }

    #[test]
    fn a_folder_others_can_write_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let open = folder.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(Records::open(&open), Err(RecordsError::Folder { .. })));
        symlink("/tmp", folder.path().join("link")).unwrap();
        assert!(Records::open(folder.path().join("link")).is_err());
    }

    #[test]
    fn what_a_killed_agent_left_unfinished_is_removed() {
        let (folder, _records) = opened();
        let left = folder.path().join("pages/.new-x-1");
        fs::create_dir(&left).unwrap();
        let records = Records::open(folder.path().join("pages")).unwrap();
        assert!(!left.exists());
        records.write(&record("x-1"), &[]).unwrap();
    }

    #[test]
    fn hostile_counters_are_only_bytes() {
        let (_folder, records) = opened();
        records.write(&record("x-1"), &[limits()]).unwrap();
        let path = records.folder_of("x-1").join("0.counters");
        fs::write(&path, b"short").unwrap();
        assert_eq!(records.counters("x-1", 0).unwrap(), b"short");
        fs::remove_file(&path).unwrap();
        symlink("/dev/zero", &path).unwrap();
        assert!(records.counters("x-1", 0).is_err());
    }
}
