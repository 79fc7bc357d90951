//! The folder of pages: one folder for each answer we gave, with whom it is for and the files the
//! container maps. With the kubelet's checkpoint and the pods it is all an agent needs to know
//! after it was killed.
//!
//! A folder appears whole, by a rename, or not at all, and goes the same way. What is no record is
//! set aside and never believed. What cannot be read just now, since the disk or the table of open
//! files is full, stays where it is: whoever asked does nothing and asks again.
//!
//! Nothing waits for the disk. A machine that loses its power has no containers left; before one starts
//! again its record and its pages are read, and what the disk has only in part is written anew.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::mem::offset_of;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use model::codec::decode_placement;
use model::{ContainerName, Placement, PodUid};
use page::{Limits, write_counters, write_limits};
use rustix::fs::{AtFlags, Mode, OFlags};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::laying::Laid;
use crate::rungs::{PRELOAD, PRELOADED};

/// The version of the record's text.
const VERSION: u32 = 1;
const FILE: &str = "holder.json";
const LARGEST: u64 = 512 * 1024;
const ASIDE: &str = ".aside-";
const UNFINISHED: &str = ".new-";
const GONE: &str = ".gone-";
/// So many of those set aside are kept, the newest.
const MOST_ASIDE: usize = 32;
const DOORS: &str = ".doors";
/// The clock of a folder may stand still for so long while things happen in it.
const COARSE: Duration = Duration::from_millis(100);

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
    // What was listed last, for all clones. Exchanged as a whole.
    known: Arc<Mutex<Arc<Known>>>,
    came: Arc<Notify>,
}

/// What a list was made of. Records are not changed, so most of a list is what it was before.
#[derive(Debug, Default)]
struct Known {
    /// When a record had last come or gone, if that was long enough ago to be told from now.
    at: Option<SystemTime>,
    /// When the files were last looked at.
    looked: Option<Instant>,
    records: Arc<Vec<Record>>,
    /// By their names, what the files were like.
    files: BTreeMap<String, (Stamp, SystemTime)>,
}

/// For so long a folder in which nothing came or went is taken at its word. Nobody but us writes below
/// it; what a disk does to a file is seen after this.
const TAKEN: Duration = Duration::from_secs(30);

/// Which writing of a file it is: inode, length, and when it was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp(u64, u64, (i64, i64));

impl Stamp {
    /// That of a plain file, through no link, and when the file was written.
    fn of(path: &Path) -> Option<(Self, SystemTime)> {
        let seen = fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file)?;
        let stamp = Self(seen.ino(), seen.len(), (seen.ctime(), seen.ctime_nsec()));
        Some((stamp, seen.modified().ok()?))
    }
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
    /// What has a record's name is none: torn, of another version, or a link.
    #[error("{} is no record of this version", path.display())]
    Foreign {
        /// The folder.
        path: PathBuf,
    },
    /// A file could not be written or read just now.
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
        Ok(Self { folder, known: Arc::default(), came: Arc::default() })
    }

    /// Removes what an agent that was killed left half-made or half-removed. Only for the one that
    /// has the node's lock.
    pub fn tidy(&self) {
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with(UNFINISHED) || name.starts_with(GONE) {
                // What stays behind is replaced when that name is written.
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        self.forget_aside();
    }

    /// Writes a record with its pages, unless it is there.
    pub fn write(&self, record: &Record, limits: &[Limits]) -> Result<(), RecordsError> {
        self.write_with(record, limits, None)
    }

    /// The same with what the container gets by a folder.
    pub fn write_with(
        &self,
        record: &Record,
        limits: &[Limits],
        laid: Option<&Laid>,
    ) -> Result<(), RecordsError> {
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
                put_counters(&new.join(format!("{place}.counters")))?;
                fs::hard_link(
                    self.door(limits.device.as_str())?,
                    new.join(format!("{place}.door")),
                )?;
            }
            if !limits.is_empty() {
                put(&new.join(PRELOAD), PRELOADED.as_bytes(), 0o444)?;
            }
            if let Some(laid) = laid {
                laid.make(&new)?;
            }
            put(&new.join(FILE), &serde_json::to_vec(&wire)?, 0o600)?;
            fs::rename(&new, &path)
        })();
        self.came.notify_one();
        written.map_err(failed)
    }

    /// Returns when a record was written by one of us since the last call.
    pub async fn came(&self) {
        self.came.notified().await;
    }

    /// The door of a card, by which its processes wake the referee: one file, which every
    /// container on the card has under a name of its own.
    fn door(&self, device: &str) -> io::Result<PathBuf> {
        let doors = self.folder.join(DOORS);
        fs::DirBuilder::new().recursive(true).mode(0o755).create(&doors)?;
        let plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
        let door = doors.join(device.replace(|letter| !plain(letter), "_"));
        turns::make_door(&door)?;
        Ok(door)
    }

    /// All records. What is none is set aside; if one cannot be read just now, nothing is said of
    /// any, because who is missing from the list would be taken for gone.
    pub fn list(&self) -> Result<Arc<Vec<Record>>, RecordsError> {
        let failed = |source| RecordsError::File { path: self.folder.clone(), source };
        let before = self.known().clone();
        let at = self.changed_before_now();
        if at.is_some() && at == before.at && before.looked.is_some_and(|it| it.elapsed() < TAKEN) {
            return Ok(before.records.clone());
        }
        let (mut records, mut files) = (Vec::new(), BTreeMap::new());
        for entry in fs::read_dir(&self.folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            if name.starts_with('.') {
                continue;
            }
            // Before it is read: what is changed meanwhile is read again the next time.
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let file = Stamp::of(&self.folder.join(&name).join(FILE)).filter(|_| is_folder);
            let same = file.filter(|file| before.files.get(&name) == Some(file));
            let found = || before.records.binary_search_by(|one| one.name.cmp(&name)).ok();
            let known = same.and_then(|_| before.records.get(found()?).cloned());
            let record = match known.map_or_else(|| self.read(&name), |known| Ok(Some(known))) {
                Ok(record) => record,
                Err(RecordsError::Foreign { .. }) => {
                    self.set_aside(&name);
                    continue;
                }
                Err(error) => return Err(error),
            };
            records.extend(record);
            files.extend(file.map(|file| (name, file)));
        }
        records.sort_by(|a, b| a.name.cmp(&b.name));
        let records = Arc::new(records);
        let known = Known { at, looked: Some(Instant::now()), records: records.clone(), files };
        *self.known() = Arc::new(known);
        Ok(records)
    }

    fn known(&self) -> MutexGuard<'_, Arc<Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One record, if it is there.
    pub fn read(&self, name: &str) -> Result<Option<Record>, RecordsError> {
        let folder = self.folder.join(name);
        let foreign = || RecordsError::Foreign { path: folder.clone() };
        let failed = |source| RecordsError::File { path: folder.clone(), source };
        match fs::symlink_metadata(&folder) {
            Ok(seen) if seen.is_dir() => {}
            Ok(_) => return Err(foreign()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        }
        let bytes = match read_plain(&folder.join(FILE), LARGEST) {
            Ok(bytes) => bytes,
            // It was removed while we looked, or it has never been one.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return if folder.exists() { Err(foreign()) } else { Ok(None) };
            }
            Err(error) if is_no_plain_file(&error) => return Err(foreign()),
            Err(error) => return Err(failed(error)),
        };
        let wire = serde_json::from_slice(&bytes).ok().filter(|wire: &Wire| wire.v == VERSION);
        let wire = wire.ok_or_else(foreign)?;
        let placement = decode_placement(&wire.placement).map_err(|_| foreign())?;
        Ok(Some(Record {
            name: name.to_owned(),
            pod: wire.pod,
            pod_name: wire.pod_name,
            container: wire.container,
            placement,
        }))
    }

    /// Whether a record has pages for `limits` that our library reads: an agent of another version
    /// may have written others, and one without isolation none.
    pub fn has_pages(&self, name: &str, limits: &[Limits]) -> bool {
        let folder = self.folder.join(name);
        let length =
            |file: String| fs::symlink_metadata(folder.join(file)).map_or(0, |it| it.len());
        let is_read = |place: usize| {
            let bytes = fs::read(folder.join(format!("{place}.limits")));
            bytes.is_ok_and(|bytes| page::read_limits(&bytes).is_ok())
                && length(format!("{place}.counters")) >= page::CountersPage::SIZE as u64
                && length(format!("{place}.door")) > 0
        };
        let preloads = || fs::read(folder.join(PRELOAD)).is_ok_and(|it| it == PRELOADED.as_bytes());
        limits.is_empty() || (preloads() && (0..limits.len()).all(is_read))
    }

    /// When a record came or went last, by the folder's own clock.
    pub fn changed(&self) -> io::Result<SystemTime> {
        fs::metadata(&self.folder)?.modified()
    }

    /// The same, if that was long enough ago to be told from now.
    pub fn changed_before_now(&self) -> Option<SystemTime> {
        self.changed().ok().filter(|at| at.elapsed().is_ok_and(|age| age > COARSE))
    }

    /// Copies what is used of the counters that the container writes, for its device at `place`,
    /// into `bytes`: how the file begins, and its seats up to the highest that was ever taken. The
    /// rest of `bytes` is of no meaning, and nobody reads it.
    pub fn counters(&self, name: &str, place: usize, bytes: &mut Vec<u8>) -> io::Result<()> {
        let (file, seen) =
            open_seen(&self.counters_file(name, place), OpenOptions::new().read(true))?;
        let whole = page::CountersPage::SIZE;
        let length = usize::try_from(seen.len()).unwrap_or(usize::MAX).min(whole);
        bytes.resize(length, 0);
        let (seats, seat) = (offset_of!(page::CountersPage, seats), size_of::<page::Seat>());
        let Some(begins) = bytes.get_mut(..seats) else {
            return file.read_exact_at(bytes, 0);
        };
        file.read_exact_at(begins, 0)?;
        let high = begins.get(offset_of!(page::CountersPage, high)..);
        let high = high.and_then(|at| at.first_chunk()).map_or(0, |raw| u32::from_le_bytes(*raw));
        let used = usize::try_from(high).unwrap_or(usize::MAX).min(page::SEATS) * seat;
        let end = (seats + used).min(length);
        file.read_exact_at(&mut bytes[seats..end], seats as u64)
    }

    /// Cuts those of these files of counters that have grown back to the length they were made with,
    /// and says which: a container could fill the node's disk by it. The files are told by their paths
    /// below the folder, which is opened once, since on a full node there are hundreds of them.
    pub fn cut_back<'a>(&self, files: impl Iterator<Item = &'a str>) -> BTreeSet<&'a str> {
        let most = page::CountersPage::SIZE as u64;
        let (flags, none) = (OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let Ok(folder) = rustix::fs::open(&self.folder, flags, none) else {
            return BTreeSet::new();
        };
        let has_grown = |file: &&str| {
            let seen = rustix::fs::statat(&folder, *file, AtFlags::SYMLINK_NOFOLLOW);
            seen.is_ok_and(|seen| u64::try_from(seen.st_size).is_ok_and(|length| length > most))
        };
        let cut = |file: &&str| {
            let opened = open_plain(&self.folder.join(file), OpenOptions::new().write(true));
            opened.and_then(|file| file.set_len(most)).is_ok()
        };
        files.filter(has_grown).filter(cut).collect()
    }

    fn counters_file(&self, name: &str, place: usize) -> PathBuf {
        self.folder.join(counters_below(name, place))
    }

    /// How long ago a record that was listed was made.
    pub fn age(&self, name: &str) -> Option<Duration> {
        let listed = self.known().files.get(name).map(|(_, made)| *made);
        let made = listed.or_else(|| Some(Stamp::of(&self.folder.join(name).join(FILE))?.1));
        made?.elapsed().ok()
    }

    /// Removes a record and its pages. Whoever lists meanwhile sees it whole or not at all.
    pub fn remove(&self, name: &str) -> Result<(), RecordsError> {
        let path = self.folder.join(name);
        let gone = self.folder.join(format!("{GONE}{name}"));
        let removed = (|| {
            if gone.exists() {
                fs::remove_dir_all(&gone)?;
            }
            fs::rename(&path, &gone)?;
            fs::remove_dir_all(&gone)
        })();
        match removed {
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
        let free = |number: u32| {
            let more = if number == 0 { String::new() } else { format!(".{number}") };
            self.folder.join(format!("{ASIDE}{name}{more}"))
        };
        let Some(aside) = (0..100).map(free).find(|path| fs::symlink_metadata(path).is_err())
        else {
            return;
        };
        let moved = fs::rename(self.folder.join(name), &aside);
        tracing::warn!(name, aside = %aside.display(), moved = moved.is_ok(), "record set aside: it cannot be read");
        self.forget_aside();
    }

    /// Keeps the newest of those set aside: they are for people, who look at the last ones.
    fn forget_aside(&self) {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let aside = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(ASIDE));
        let mut aside: Vec<(SystemTime, PathBuf)> = aside
            .filter_map(|entry| {
                let changed = entry.metadata().and_then(|seen| seen.modified()).ok()?;
                Some((changed, entry.path()))
            })
            .collect();
        aside.sort();
        let too_many = aside.len().saturating_sub(MOST_ASIDE);
        for (_, path) in aside.into_iter().take(too_many) {
            // A link is removed as such.
            let _ = fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path));
        }
    }
}

/// Where the counters of a record are below the folder of pages, for its device at `place`.
pub fn counters_below(name: &str, place: usize) -> String {
    format!("{name}/{place}.counters")
}

/// Whether this says that there is something else than a plain file, rather than that it cannot be
/// read just now.
pub(crate) fn is_no_plain_file(error: &io::Error) -> bool {
    let link = error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error());
    link || matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::NotADirectory)
}

pub(crate) fn put(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    create(path, mode)?.write_all(bytes)
}

/// Makes a file of counters. All of it has its place on the disk: a process that counts in a hole of
/// it would die of a disk that is full. Nothing but its beginning is written, for there is nothing.
fn put_counters(path: &Path) -> io::Result<()> {
    let mut file = create(path, 0o666)?;
    let bytes = write_counters();
    let (begins, rest) = bytes.split_at(offset_of!(page::CountersPage, seats));
    file.write_all(begins)?;
    let none = rustix::fs::FallocateFlags::empty();
    match rustix::fs::fallocate(&file, none, 0, bytes.len() as u64) {
        // Not on every filesystem.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => file.write_all(rest),
        done => Ok(done?),
    }
}

fn create(path: &Path, mode: u32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let flags = OFlags::NOFOLLOW.bits().cast_signed();
    let file = options.write(true).create_new(true).custom_flags(flags).open(path)?;
    // Whatever the umask is.
    rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
    Ok(file)
}

/// Opens a plain file, through no link.
fn open_plain(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    open_seen(path, options).map(|(file, _)| file)
}

/// The same, and what was seen of it.
fn open_seen(path: &Path, options: &mut OpenOptions) -> io::Result<(File, fs::Metadata)> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = options.custom_flags(flags).open(path)?;
    let seen = file.metadata()?;
    if seen.is_file() { Ok((file, seen)) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

/// Reads at most `most` bytes of a plain file, through no link.
pub(crate) fn read_plain(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_plain(path, OpenOptions::new().read(true))?.take(most).read_to_end(&mut bytes)?;
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
        assert_eq!(*again.list().unwrap(), [record("x-1")]);
        let bytes = fs::read(again.folder_of("x-1").join("0.limits")).unwrap();
        assert_eq!(page::read_limits(&bytes), Ok(limits()));
        let mut counters = Vec::new();
        again.counters("x-1", 0, &mut counters).unwrap();
        assert_eq!(counters, write_counters());
        again.remove("x-1").unwrap();
        again.remove("x-1").unwrap();
        assert_eq!(*again.list().unwrap(), []);
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
        assert_eq!(*records.list().unwrap(), []);
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
        let gone = folder.path().join("pages/.gone-x-2");
        fs::create_dir(&gone).unwrap();
        let records = Records::open(folder.path().join("pages")).unwrap();
        assert!(left.exists(), "another agent may be writing it");
        records.tidy();
        assert!(!left.exists() && !gone.exists());
        records.write(&record("x-1"), &[]).unwrap();
    }

    #[test]
    fn who_lists_while_records_are_removed_takes_none_for_torn() {
        let (folder, records) = opened();
        let (own, end) = (records.clone(), std::sync::atomic::AtomicBool::new(false));
        let done = std::sync::atomic::Ordering::Relaxed;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !end.load(done) {
                    own.list().unwrap();
                }
            });
            for _ in 0..200 {
                records.write(&record("x-1"), &[limits()]).unwrap();
                records.remove("x-1").unwrap();
            }
            end.store(true, done);
        });
        let left: Vec<_> = fs::read_dir(folder.path().join("pages"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.starts_with(ASIDE))
            .collect();
        assert_eq!(left, Vec::<String>::new());
    }

    #[test]
    fn only_the_newest_of_those_set_aside_are_kept() {
        let (folder, records) = opened();
        let pages = folder.path().join("pages");
        for number in 0..40 {
            fs::create_dir(pages.join(format!("torn-{number:02}"))).unwrap();
            assert_eq!(*records.list().unwrap(), []);
        }
        // The same name again does not replace what was set aside before.
        fs::create_dir(pages.join("torn-39")).unwrap();
        assert_eq!(*records.list().unwrap(), []);
        assert!(pages.join(".aside-torn-39").is_dir() && pages.join(".aside-torn-39.1").is_dir());
        let aside = fs::read_dir(&pages).unwrap().count();
        assert_eq!(aside, MOST_ASIDE);
    }

    fn cut(records: &Records) -> BTreeSet<&'static str> {
        records.cut_back(["x-1/0.counters", "x-2/0.counters"].into_iter())
    }

    #[test]
    fn a_file_of_counters_that_grew_is_cut_back_through_no_link() {
        let (folder, records) = opened();
        records.write(&record("x-1"), &[limits()]).unwrap();
        assert!(cut(&records).is_empty());
        let path = records.folder_of("x-1").join("0.counters");
        OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
        assert_eq!(cut(&records).into_iter().collect::<Vec<_>>(), ["x-1/0.counters"]);
        assert_eq!(fs::read(&path).unwrap(), write_counters());
        let other = folder.path().join("other");
        fs::write(&other, vec![7; page::CountersPage::SIZE + 1]).unwrap();
        fs::remove_file(&path).unwrap();
        symlink(&other, &path).unwrap();
        let _ = cut(&records);
        assert_eq!(fs::read(&other).unwrap().len(), page::CountersPage::SIZE + 1);
    }

    #[test]
    fn what_is_used_of_the_counters_is_copied() {
        let (_folder, records) = opened();
        records.write(&record("x-1"), &[limits()]).unwrap();
        let path = records.folder_of("x-1").join("0.counters");
        let mut said = write_counters();
        let (high, seat) = (offset_of!(page::CountersPage, high), size_of::<page::Seat>());
        let seats = offset_of!(page::CountersPage, seats);
        said[high] = 2;
        said[seats..seats + 3 * seat].fill(9);
        fs::write(&path, said).unwrap();
        let mut bytes = Vec::new();
        records.counters("x-1", 0, &mut bytes).unwrap();
        assert_eq!(bytes[..seats + 2 * seat], said[..seats + 2 * seat]);
        assert!(bytes[seats + 2 * seat..].iter().all(|byte| *byte == 0), "never read");
        // A mark beyond all seats is a tenant's joke.
        said[high..high + 4].fill(0xff);
        fs::write(&path, said).unwrap();
        records.counters("x-1", 0, &mut bytes).unwrap();
        assert_eq!(bytes, said);
    }

    #[test]
    fn hostile_counters_are_only_bytes() {
        let (_folder, records) = opened();
        records.write(&record("x-1"), &[limits()]).unwrap();
        let path = records.folder_of("x-1").join("0.counters");
        fs::write(&path, b"short").unwrap();
        let mut bytes = Vec::new();
        records.counters("x-1", 0, &mut bytes).unwrap();
        assert_eq!(bytes, b"short");
        fs::remove_file(&path).unwrap();
        symlink("/dev/zero", &path).unwrap();
        assert!(records.counters("x-1", 0, &mut bytes).is_err());
    }
}
