//! The programs a cluster runs: built once, kept in the user's cache, reused after.

mod go;
pub(crate) mod packages;
mod progress;
mod table;

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::cache::Cache;
pub(crate) use packages::System;
pub use progress::Progress;
pub use table::Program;

/// A folder with ready programs, used before the cache is asked.
const ASSETS: &str = "NANOGPU_TESTBED_ASSETS";

/// Room that a first build needs, most of it for what Go keeps itself.
const ROOM: u64 = 6 << 30;

/// How the folder of a build begins.
const SCRATCH: &str = "build-";

/// Where each program is.
#[derive(Debug, Clone)]
pub struct Binaries {
    assets: Option<PathBuf>,
    cache: PathBuf,
    pub(crate) system: System,
}

impl Binaries {
    /// Finds all programs, and builds or installs what is missing.
    pub fn prepare(progress: &mut Progress) -> anyhow::Result<Self> {
        let cache = Cache::open()?;
        let assets = std::env::var_os(ASSETS).map(PathBuf::from);
        if let Some(folder) = assets.as_deref().filter(|folder| !folder.is_dir()) {
            bail!("{ASSETS} names {}, which is no folder", folder.display());
        }
        let system = packages::prepare(progress)?;
        let binaries = Self { assets, cache: cache.path().to_owned(), system };
        if !binaries.missing().is_empty() {
            let _lock = cache.lock()?;
            // Another process may have built them while we waited.
            let missing = binaries.missing();
            if !missing.is_empty() {
                build(&binaries, &missing, cache.path(), progress)?;
            }
        }
        progress.finish();
        Ok(binaries)
    }

    /// Where `program` is, or will be.
    pub fn path(&self, program: Program) -> PathBuf {
        let recipe = program.recipe();
        let ready = self.assets.as_ref().map(|folder| folder.join(recipe.file));
        ready
            .filter(|file| file.is_file())
            .unwrap_or_else(|| self.cache.join(recipe.module.folder()).join(recipe.file))
    }

    /// A busybox that needs no library, for images.
    pub fn busybox(&self) -> PathBuf {
        self.system.busybox.clone()
    }

    fn missing(&self) -> Vec<Program> {
        Program::ALL.into_iter().filter(|program| !self.path(*program).is_file()).collect()
    }
}

fn build(
    binaries: &Binaries,
    missing: &[Program],
    cache: &Path,
    progress: &mut Progress,
) -> anyhow::Result<()> {
    go::prepare(progress)?;
    let free = free_bytes(cache)?;
    if free < ROOM && missing.contains(&Program::ApiServer) {
        bail!(
            "building Kubernetes takes about {} GB, and {} has {:.1} GB free",
            ROOM >> 30,
            cache.display(),
            gigabytes(free)
        );
    }
    remove_leftovers(cache);
    // In the cache's own folder, so that a finished program is renamed and not copied.
    let scratch = tempfile::Builder::new()
        .prefix(SCRATCH)
        .tempdir_in(cache)
        .with_context(|| format!("cannot make a folder in {}", cache.display()))?;
    progress.expect(missing.iter().map(|program| program.recipe().seconds).sum());
    for (index, program) in missing.iter().enumerate() {
        let recipe = program.recipe();
        let name = format!(
            "building {} {} ({} of {})",
            recipe.file,
            recipe.module.version,
            index + 1,
            missing.len()
        );
        progress.step(&name, recipe.seconds);
        go::build(&recipe, scratch.path(), &binaries.path(*program), progress)?;
    }
    Ok(())
}

/// What builds that were killed left: we hold the lock, so none of it is in use.
fn remove_leftovers(cache: &Path) {
    for entry in std::fs::read_dir(cache).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(SCRATCH) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

fn free_bytes(folder: &Path) -> anyhow::Result<u64> {
    let room = rustix::fs::statvfs(folder)
        .with_context(|| format!("cannot ask for the room left in {}", folder.display()))?;
    Ok(room.f_bavail.saturating_mul(room.f_frsize))
}

#[expect(clippy::cast_precision_loss, reason = "shown with one digit after the point")]
fn gigabytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}
