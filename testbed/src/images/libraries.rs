//! The shared libraries of this machine that a program needs, copied into the root of an image.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use super::elf;

/// Where loaders look without being told.
pub(super) fn folders() -> [PathBuf; 6] {
    let platform = format!("{}-linux-gnu", std::env::consts::ARCH);
    [
        Path::new("/lib").join(&platform),
        Path::new("/usr/lib").join(&platform),
        "/lib64".into(),
        "/usr/lib64".into(),
        "/lib".into(),
        "/usr/lib".into(),
    ]
}

/// Where this machine has a library.
pub(super) fn find(name: &str) -> anyhow::Result<PathBuf> {
    let folders = folders();
    let found = folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file());
    let Some(found) = found else {
        let all: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
        bail!("{name} is in none of {}", all.join(", "));
    };
    Ok(found)
}

/// Copies everything that `files` and the libraries `besides` need, and what that needs, below `root`,
/// at the paths it has here: that is where a loader of this machine looks. Returns those paths.
pub(super) fn copy(
    files: &[&Path],
    besides: &[&str],
    root: &Path,
) -> anyhow::Result<BTreeSet<PathBuf>> {
    let mut copied = BTreeSet::new();
    let mut open: Vec<PathBuf> = files.iter().map(|file| (*file).to_owned()).collect();
    for name in besides {
        let path = find(name)?;
        if copied.insert(path.clone()) {
            open.push(path);
        }
    }
    while let Some(file) = open.pop() {
        let bytes = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let needs = elf::needs(&bytes).with_context(|| file.display().to_string())?;
        // The loader is already there when a library asks for it by its name.
        let is_loader = |name: &str| name.starts_with("ld-linux");
        copied.extend(needs.loader.map(PathBuf::from));
        for name in needs.libraries.iter().filter(|name| !is_loader(name)) {
            let path = find(name).with_context(|| format!("{} needs it", file.display()))?;
            if copied.insert(path.clone()) {
                open.push(path);
            }
        }
    }
    for path in &copied {
        let to = root.join(path.strip_prefix("/")?);
        fs::create_dir_all(to.parent().unwrap_or(root))?;
        fs::copy(path, &to).with_context(|| format!("cannot copy {}", path.display()))?;
    }
    Ok(copied)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_nowhere_is_named() {
        let told = find("libnothing.so.9").unwrap_err().to_string();
        assert!(told.starts_with("libnothing.so.9 is in none of /lib/"), "{told}");
    }

    #[test]
    fn all_that_is_needed_comes_along() {
        let own = std::env::current_exe().unwrap();
        let root = tempfile::tempdir().unwrap();
        let copied = copy(&[&own], &["libdl.so.2"], root.path()).unwrap();
        let names: Vec<String> = copied.iter().map(|path| path.display().to_string()).collect();
        for part in ["libc.so.6", "libdl.so.2", "ld-linux"] {
            assert!(names.iter().any(|name| name.contains(part)), "{part}: {names:?}");
        }
        assert!(
            copied.iter().all(|path| root.path().join(path.strip_prefix("/").unwrap()).is_file())
        );
    }
}
