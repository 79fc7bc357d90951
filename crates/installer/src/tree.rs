//! The files below `/etc/kubernetes`: read, and written whole or not at all.

use std::fs::{self, File, Metadata, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};

use crate::faults::{Point, reached};
use crate::journal::{Journal, VERSION};

/// Where everything is.
#[derive(Debug, Clone)]
pub struct Tree {
    root: PathBuf,
    /// What the host calls `root`.
    host: String,
}

/// Nobody else works on the tree while this lives.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "the lock is the open folder")] File);

impl Tree {
    /// The tree at `root`, which the host calls `host`.
    pub fn new(root: &Path, host: &str) -> Self {
        Self { root: root.to_owned(), host: host.trim_end_matches('/').to_owned() }
    }

    /// kube-scheduler's manifest.
    pub fn manifest(&self) -> PathBuf {
        self.root.join("manifests/kube-scheduler.yaml")
    }

    /// What kube-scheduler reads.
    pub fn settings(&self) -> PathBuf {
        self.root.join("nanogpu")
    }

    /// The same, as the host calls it.
    pub fn settings_on_host(&self) -> String {
        format!("{}/nanogpu", self.host)
    }

    /// What we read.
    fn own(&self) -> PathBuf {
        self.root.join("nanogpu-install")
    }

    /// The manifest before us.
    pub fn backup(&self) -> PathBuf {
        self.own().join("kube-scheduler.yaml")
    }

    /// The manifest that somebody had changed, and that was given up.
    pub fn given_up(&self) -> PathBuf {
        self.own().join("kube-scheduler.yaml.changed")
    }

    fn journal_file(&self) -> PathBuf {
        self.own().join("journal.json")
    }

    /// A path of the host, as we see it; nothing if it is not below our root.
    pub fn seen(&self, on_host: &str) -> Option<PathBuf> {
        let rest = on_host.strip_prefix(&self.host)?.strip_prefix('/')?;
        let plain = !rest.split('/').any(|part| part == "..");
        plain.then(|| self.root.join(rest))
    }

    /// Keeps others out. It makes no file: the lock is on the folder itself.
    pub fn lock(&self) -> anyhow::Result<Lock> {
        let folder = File::open(&self.root).with_context(|| {
            format!("there is no {}: is this a machine that kubeadm set up?", self.root.display())
        })?;
        match folder.try_lock() {
            Ok(()) => Ok(Lock(folder)),
            Err(fs::TryLockError::WouldBlock) => {
                bail!("another nanogpu-install is at work on {}", self.root.display())
            }
            Err(fs::TryLockError::Error(error)) => Err(error).context("cannot lock the folder"),
        }
    }

    /// The manifest's text and what else is known of its file.
    pub fn read_manifest(&self) -> anyhow::Result<(String, Metadata)> {
        let path = self.manifest();
        let about = match fs::symlink_metadata(&path) {
            Ok(about) => about,
            Err(error) if error.kind() == io::ErrorKind::NotFound => bail!(
                "there is no {}: this is no control-plane node of kubeadm's, or its kube-scheduler is no static pod",
                path.display()
            ),
            Err(error) => return Err(error).context(format!("cannot read {}", path.display())),
        };
        ensure!(about.is_file(), "{} is no plain file; it is left alone", path.display());
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok((text, about))
    }

    /// The journal, if there is one.
    pub fn journal(&self) -> anyhow::Result<Option<Journal>> {
        let path = self.journal_file();
        let Some(bytes) = optional(&path)? else { return Ok(None) };
        let journal: Journal = serde_json::from_slice(&bytes)
            .with_context(|| format!("{} is damaged", path.display()))?;
        ensure!(
            journal.version == VERSION,
            "{} was written by another version of nanogpu-install; use that one",
            path.display()
        );
        Ok(Some(journal))
    }

    /// Writes the journal.
    pub fn write_journal(&self, journal: &Journal) -> anyhow::Result<()> {
        let mut text = serde_json::to_vec_pretty(journal)?;
        text.push(b'\n');
        self.place(&self.journal_file(), &text, None)
    }

    /// Replaces the manifest; its owner and mode stay. The kubelet sees the old one or the new one.
    pub fn replace_manifest(&self, bytes: &[u8], about: &Metadata) -> anyhow::Result<()> {
        self.place(&self.manifest(), bytes, Some(about))
    }

    /// Writes a file of ours.
    pub fn write(&self, path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
        self.place(path, bytes, None)
    }

    /// Written beside our own files and then put in its place, so that nobody reads half of it, and
    /// no file but the manifest is ever seen in the kubelet's folder.
    fn place(&self, path: &Path, bytes: &[u8], like: Option<&Metadata>) -> anyhow::Result<()> {
        let attempt = || -> io::Result<()> {
            let folder = path.parent().unwrap_or(Path::new("/"));
            for made in [&self.own(), folder] {
                make_folder(made)?;
            }
            let new = self.own().join(".new");
            fill(&new, bytes, like)?;
            if like.is_some() {
                reached(Point::Staged);
            }
            match fs::rename(&new, path) {
                // The kubelet's folder is a disk of its own. It passes over names with a dot in front.
                Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
                    fs::remove_file(&new)?;
                    let beside = folder.join(".nanogpu-install.new");
                    fill(&beside, bytes, like)?;
                    fs::rename(&beside, path)?;
                }
                outcome => outcome?,
            }
            File::open(folder)?.sync_all()
        };
        attempt().with_context(|| format!("cannot write {}", path.display()))
    }

    /// Removes kube-scheduler's files.
    pub fn remove_settings(&self) -> anyhow::Result<()> {
        let path = self.settings();
        match fs::remove_dir_all(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", path.display()))
            }
            _ => Ok(()),
        }
    }

    /// Removes our own files, the journal last. What was given up stays.
    pub fn forget(&self) -> anyhow::Result<()> {
        let own = self.own();
        for path in [own.join(".new"), self.backup(), self.journal_file()] {
            if path == self.journal_file() {
                reached(Point::Forgotten);
            }
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(error).with_context(|| format!("cannot remove {}", path.display()));
                }
                _ => {}
            }
        }
        // It stays if something was given up.
        let _ = fs::remove_dir(own);
        Ok(())
    }
}

/// The bytes of a file, if there is one.
pub fn optional(path: &Path) -> anyhow::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

fn make_folder(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(path)?;
    // There are keys in them.
    fs::set_permissions(path, Permissions::from_mode(0o700))
}

fn fill(path: &Path, bytes: &[u8], like: Option<&Metadata>) -> io::Result<()> {
    let _ = fs::remove_file(path);
    let mut file = File::create_new(path)?;
    // Before there is anything in it to read.
    let mode = like.map_or(0o600, |about| about.mode() & 0o777);
    file.set_permissions(Permissions::from_mode(mode))?;
    if let Some(about) = like {
        chown(path, Some(about.uid()), Some(about.gid()))?;
    }
    file.write_all(bytes)?;
    file.sync_all()
}
