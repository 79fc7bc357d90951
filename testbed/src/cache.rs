//! Where built programs are kept between runs: the user's cache folder, keyed by version.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// Our folder in the user's cache.
pub(crate) struct Cache {
    root: PathBuf,
}

impl Cache {
    pub(crate) fn open() -> anyhow::Result<Self> {
        let root = folder(|name| std::env::var_os(name).map(PathBuf::from))?.join("testbed");
        fs::create_dir_all(&root)
            .with_context(|| format!("cannot make the cache folder {}", root.display()))?;
        Ok(Self { root })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.root
    }

    /// Waits until no other process builds into the cache. The lock goes with the file.
    pub(crate) fn lock(&self) -> anyhow::Result<File> {
        let path = self.root.join("lock");
        let file =
            File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
        Ok(file)
    }
}

/// `$XDG_CACHE_HOME/nanogpu`, or `~/.cache/nanogpu`. As the standard asks, a relative path is
/// ignored.
fn folder(variable: impl Fn(&str) -> Option<PathBuf>) -> anyhow::Result<PathBuf> {
    let absolute = |name: &str| variable(name).filter(|path| path.is_absolute());
    if let Some(cache) = absolute("XDG_CACHE_HOME") {
        return Ok(cache.join("nanogpu"));
    }
    match absolute("HOME") {
        Some(home) => Ok(home.join(".cache/nanogpu")),
        None => bail!("there is no cache folder: set HOME or XDG_CACHE_HOME"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)]) -> anyhow::Result<PathBuf> {
        folder(|name| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| PathBuf::from(value))
        })
    }

    #[test]
    fn the_cache_folder_follows_the_standard() {
        assert_eq!(with(&[("HOME", "/h")]).unwrap(), Path::new("/h/.cache/nanogpu"));
        let both = with(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/c")]).unwrap();
        assert_eq!(both, Path::new("/c/nanogpu"));
        let relative = with(&[("HOME", "/h"), ("XDG_CACHE_HOME", "c")]).unwrap();
        assert_eq!(relative, Path::new("/h/.cache/nanogpu"));
        assert!(with(&[]).is_err());
    }
}
