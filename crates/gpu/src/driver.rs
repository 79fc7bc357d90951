//! The files of a driver: its libraries below a root, and its device nodes.

use std::fs;
use std::path::{Path, PathBuf};

/// The library through which cards are managed.
pub(crate) const LIBRARY: &str = "libnvidia-ml.so.1";

/// Where distributions put libraries, most specific first.
const FOLDERS: &[&str] = &[
    #[cfg(target_arch = "x86_64")]
    "usr/lib/x86_64-linux-gnu",
    #[cfg(target_arch = "x86_64")]
    "lib/x86_64-linux-gnu",
    #[cfg(target_arch = "aarch64")]
    "usr/lib/aarch64-linux-gnu",
    #[cfg(target_arch = "aarch64")]
    "lib/aarch64-linux-gnu",
    "usr/lib64",
    "lib64",
    "usr/lib",
    "usr/local/nvidia/lib64",
];

/// What a program that computes needs of the driver, by the name before `.so`.
const COMPUTE: &[&str] = &[
    "libcuda",
    "libcudadebugger",
    "libnvidia-gpucomp",
    "libnvidia-ml",
    "libnvidia-nvvm",
    "libnvidia-opencl",
    "libnvidia-pkcs11-openssl3",
    "libnvidia-ptxjitcompiler",
];

/// A driver below a root, such as `/` or `/run/nvidia/driver`.
#[derive(Debug, Clone)]
pub struct Driver {
    root: PathBuf,
}

/// A library of the driver that a container may need.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DriverFile {
    /// The name programs ask for, such as `libcuda.so.1`.
    pub name: String,
    /// The file below the root, as seen from here, with links followed.
    pub path: PathBuf,
}

/// A device node of the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its name below `/dev`.
    pub name: String,
    /// Whether every container that has a card needs it.
    pub common: bool,
}

impl Driver {
    /// The driver below `root`.
    pub fn below(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Where it is looked for.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The library through which cards are managed, if it is there.
    pub fn library(&self) -> Option<PathBuf> {
        FOLDERS.iter().map(|folder| self.root.join(folder).join(LIBRARY)).find(|path| path.exists())
    }

    /// The libraries of a computing program, by the names under which programs ask for them.
    pub fn files(&self) -> Vec<DriverFile> {
        let Some(folder) = self.library().and_then(|path| path.parent().map(Path::to_owned)) else {
            return Vec::new();
        };
        let names = fs::read_dir(&folder).into_iter().flatten().flatten();
        let names = names.filter_map(|entry| entry.file_name().into_string().ok());
        let asked_for = names.filter(|name| is_asked_for(name));
        let mut files: Vec<DriverFile> = asked_for
            .filter_map(|name| {
                let path = fs::canonicalize(folder.join(&name)).ok()?;
                Some(DriverFile { name, path })
            })
            .collect();
        files.sort();
        files
    }
}

/// Whether a program asks for `name`: `<known>.so.<version>`, one number or the driver's own.
/// The bare `.so` is for compilers.
fn is_asked_for(name: &str) -> bool {
    name.split_once(".so.").is_some_and(|(stem, version)| {
        COMPUTE.contains(&stem)
            && !version.is_empty()
            && version.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
    })
}

impl Node {
    /// The node of the card with this minor number.
    pub fn card(minor: u32) -> Self {
        Self { name: format!("nvidia{minor}"), common: false }
    }

    /// The nodes that every container with a card needs, as far as they are in `dev`.
    pub fn common(dev: &Path) -> Vec<Self> {
        ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"]
            .into_iter()
            .filter(|name| dev.join(name).exists())
            .map(|name| Self { name: name.to_owned(), common: true })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_is_found_where_distributions_put_it() {
        let root = tempfile::tempdir().unwrap();
        let driver = Driver::below(root.path());
        assert_eq!(driver.library(), None);
        assert_eq!(driver.files(), []);
        let folder = root.path().join("usr/lib64");
        fs::create_dir_all(&folder).unwrap();
        for name in ["libcuda.so.550.1", "libnvidia-ml.so.550.1", "libnvidia-glcore.so.550.1"] {
            fs::write(folder.join(name), name).unwrap();
        }
        std::os::unix::fs::symlink("libnvidia-ml.so.550.1", folder.join(LIBRARY)).unwrap();
        std::os::unix::fs::symlink("libcuda.so.550.1", folder.join("libcuda.so.1")).unwrap();
        std::os::unix::fs::symlink("libcuda.so.1", folder.join("libcuda.so")).unwrap();
        assert_eq!(driver.library(), Some(folder.join(LIBRARY)));
        let names: Vec<_> = driver.files().into_iter().map(|file| file.name).collect();
        assert_eq!(
            names,
            ["libcuda.so.1", "libcuda.so.550.1", "libnvidia-ml.so.1", "libnvidia-ml.so.550.1"]
        );
        let cuda = &driver.files()[0];
        assert!(cuda.path.ends_with("libcuda.so.550.1"), "{cuda:?}");
    }

    #[test]
    fn only_names_that_programs_ask_for_count() {
        for good in ["libcuda.so.1", "libnvidia-ptxjitcompiler.so.550.54.15"] {
            assert!(is_asked_for(good), "{good}");
        }
        for bad in ["libcuda.so", "libc.so.6", "libcuda.so.1.bak", "libcuda.so."] {
            assert!(!is_asked_for(bad), "{bad}");
        }
    }
}
