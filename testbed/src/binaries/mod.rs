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
                build(&missing, cache.path(), progress)?;
            }
        }
        progress.finish();
        Ok(binaries)
    }

    /// One of [`Program::APART`], built if it is missing. It needs nothing of a cluster.
    pub fn apart(program: Program, progress: &mut Progress) -> anyhow::Result<PathBuf> {
        let cache = Cache::open()?;
        let assets = std::env::var_os(ASSETS).map(PathBuf::from);
        let file = place(assets.as_deref(), cache.path(), program);
        if !file.is_file() {
            let _lock = cache.lock()?;
            if !file.is_file() {
                build(&[(program, file.clone())], cache.path(), progress)?;
                progress.finish();
            }
        }
        Ok(file)
    }

    /// Where `program` is, or will be.
    pub fn path(&self, program: Program) -> PathBuf {
        place(self.assets.as_deref(), &self.cache, program)
    }

    /// Which version of a program it is, such as `v1.36.3`.
    pub fn version(&self, program: Program) -> &'static str {
        program.recipe().module.version
    }

    /// A busybox that needs no library, for images.
    pub fn busybox(&self) -> PathBuf {
        self.system.busybox.clone()
    }

    fn missing(&self) -> Vec<(Program, PathBuf)> {
        let all = Program::ALL.into_iter().map(|program| (program, self.path(program)));
        all.filter(|(_, file)| !file.is_file()).collect()
    }
}

/// Where a program is, or will be: ready among the assets, or in the cache.
fn place(assets: Option<&Path>, cache: &Path, program: Program) -> PathBuf {
    let recipe = program.recipe();
    let ready = assets.map(|folder| folder.join(recipe.file));
    ready
        .filter(|file| file.is_file())
        .unwrap_or_else(|| cache.join(recipe.module.folder()).join(recipe.file))
}

fn build(
    missing: &[(Program, PathBuf)],
    cache: &Path,
    progress: &mut Progress,
) -> anyhow::Result<()> {
    go::prepare(progress)?;
    let free = free_bytes(cache)?;
    let kubernetes = missing.iter().any(|(program, _)| *program == Program::ApiServer);
    if free < ROOM && kubernetes {
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
    progress.expect(missing.iter().map(|(program, _)| program.recipe().seconds).sum());
    for (index, (program, file)) in missing.iter().enumerate() {
        let recipe = program.recipe();
        let name = format!(
            "building {} {} ({} of {})",
            recipe.file,
            recipe.module.version,
            index + 1,
            missing.len()
        );
        progress.step(&name, recipe.seconds);
        go::build(&recipe, scratch.path(), file, progress)?;
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
