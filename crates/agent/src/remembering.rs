//! What cards had counted of errors in their memory when they were last well, for the next agent:
//! errors that come while no agent looks are found by it.
//!
//! A card that is out of service keeps its earlier count here. So an agent that dies before it has
//! told anybody of the errors leaves them to the next one to find.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use gpu::MemoryErrors;
use model::DeviceId;
use serde::{Deserialize, Serialize};

use crate::records::{is_no_plain_file, put, read_plain};

/// The version of the file's text.
const VERSION: u32 = 1;
/// In the folder of pages; a name with a dot is no record.
const FILE: &str = ".memory-errors";
const UNFINISHED: &str = ".memory-errors.new";
const ASIDE: &str = ".aside-memory-errors";
/// Far more than any node has cards for.
const LARGEST: u64 = 256 * 1024;

/// What cards counted.
pub type Counts = BTreeMap<DeviceId, MemoryErrors>;

#[derive(Serialize, Deserialize)]
struct Wire {
    v: u32,
    cards: BTreeMap<String, Card>,
}

#[derive(Serialize, Deserialize)]
struct Card {
    uncorrected: u64,
    ever: Option<u64>,
    reset_advised: bool,
}

/// The file, and what is in it.
#[derive(Debug)]
pub struct Memory {
    folder: PathBuf,
    counts: Counts,
    failing: bool,
}

impl Memory {
    /// What the agent before us left in `folder`. A file that is torn, foreign or of another version
    /// is set aside. Blocks; fails where the file cannot be read just now.
    pub fn open(folder: &Path) -> io::Result<Self> {
        let path = folder.join(FILE);
        let counts = match read_plain(&path, LARGEST) {
            Ok(bytes) => parse(&bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Some(Counts::new()),
            Err(error) if is_no_plain_file(&error) => None,
            Err(error) => return Err(error),
        };
        let counts = counts.unwrap_or_else(|| {
            let aside = folder.join(ASIDE);
            let moved = fs::rename(&path, &aside).is_ok();
            tracing::warn!(aside = %aside.display(), moved, "what cards had counted cannot be read and is set aside");
            Counts::new()
        });
        Ok(Self { folder: folder.to_owned(), counts, failing: false })
    }

    /// What is in the file.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Writes what cards have counted now, if that is something else. Blocks. What cannot be written
    /// is tried again the next time.
    pub fn keep(&mut self, now: &Counts) {
        if self.counts == *now {
            return;
        }
        match self.write(now) {
            Ok(()) => {
                self.counts.clone_from(now);
                self.failing = false;
            }
            Err(error) if !self.failing => {
                tracing::warn!(%error, "what cards counted cannot be remembered");
                self.failing = true;
            }
            Err(_) => {}
        }
    }

    fn write(&self, now: &Counts) -> io::Result<()> {
        let card = |(id, errors): (&DeviceId, &MemoryErrors)| {
            let MemoryErrors { uncorrected, ever, reset_advised, .. } = *errors;
            (id.to_string(), Card { uncorrected, ever, reset_advised })
        };
        let wire = Wire { v: VERSION, cards: now.iter().map(card).collect() };
        let new = self.folder.join(UNFINISHED);
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        put(&new, &serde_json::to_vec(&wire)?, 0o600)?;
        // Nothing else tells it after a crash of the node.
        File::open(&new)?.sync_all()?;
        fs::rename(&new, self.folder.join(FILE))?;
        File::open(&self.folder)?.sync_all()
    }
}

fn parse(bytes: &[u8]) -> Option<Counts> {
    let wire: Wire = serde_json::from_slice(bytes).ok()?;
    let card = |(id, card): (&String, &Card)| {
        let Card { uncorrected, ever, reset_advised } = *card;
        let errors = MemoryErrors { uncorrected, ever, reset_advised, ..MemoryErrors::default() };
        Some((DeviceId::parse(id).ok()?, errors))
    };
    (wire.v == VERSION).then(|| wire.cards.iter().map(card).collect())?
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn counts(uncorrected: u64) -> Counts {
        let errors =
            MemoryErrors { uncorrected, ever: Some(uncorrected + 7), ..MemoryErrors::default() };
        [(DeviceId::parse("GPU-1").unwrap(), errors)].into()
    }

    #[test]
    fn the_next_agent_knows_what_cards_had_counted() {
        let folder = tempfile::tempdir().unwrap();
        let mut memory = Memory::open(folder.path()).unwrap();
        assert_eq!(*memory.counts(), Counts::new());
        memory.keep(&counts(3));
        // Left by one that was killed while it wrote.
        fs::write(folder.path().join(UNFINISHED), "{").unwrap();
        assert_eq!(*Memory::open(folder.path()).unwrap().counts(), counts(3));
        memory.keep(&counts(4));
        assert_eq!(*Memory::open(folder.path()).unwrap().counts(), counts(4));
    }

    #[test]
    fn a_bad_file_is_set_aside_and_nothing_is_believed() {
        let folder = tempfile::tempdir().unwrap();
        let (file, aside) = (folder.path().join(FILE), folder.path().join(ASIDE));
        let mut memory = Memory::open(folder.path()).unwrap();
        memory.keep(&counts(3));
        let whole = fs::read_to_string(&file).unwrap();
        let newer = whole.replace("\"v\":1", "\"v\":2");
        let bad_id = whole.replace("GPU-1", "");
        for text in [&whole[..whole.len() / 2], &newer, &bad_id, "[]", ""] {
            fs::write(&file, text).unwrap();
            assert_eq!(*Memory::open(folder.path()).unwrap().counts(), Counts::new(), "{text}");
            assert_eq!(fs::read_to_string(&aside).unwrap(), text);
            assert!(!file.exists());
        }
        // Through a link that somebody planted nothing is read or written.
        fs::write(folder.path().join("theirs"), &whole).unwrap();
        symlink(folder.path().join("theirs"), &file).unwrap();
        let mut memory = Memory::open(folder.path()).unwrap();
        assert_eq!(*memory.counts(), Counts::new());
        memory.keep(&counts(5));
        assert_eq!(fs::read_to_string(folder.path().join("theirs")).unwrap(), whole);
        assert_eq!(*Memory::open(folder.path()).unwrap().counts(), counts(5));
    }

    #[test]
    fn what_cannot_be_written_is_written_later() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("pages");
        let mut memory = Memory::open(&folder).unwrap();
        memory.keep(&counts(1));
        fs::create_dir(&folder).unwrap();
        memory.keep(&counts(1));
        assert_eq!(*Memory::open(&folder).unwrap().counts(), counts(1));
    }
}
