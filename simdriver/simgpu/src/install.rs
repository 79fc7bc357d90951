//! Libraries and device nodes where programs look for a driver's.

use std::collections::HashSet;
use std::ffi::CString;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use machine::{Description, Machine};

use crate::args::{Args, Install};

/// A library as it is built, and what it is installed as.
const LIBRARIES: [(&str, &str); 2] =
    [("libnvml.so", "libnvidia-ml.so"), ("libcuda.so", "libcuda.so")];

#[cfg(target_arch = "aarch64")]
const FOLDER: &str = "usr/lib/aarch64-linux-gnu";
#[cfg(not(target_arch = "aarch64"))]
const FOLDER: &str = "usr/lib/x86_64-linux-gnu";

/// The major number of NVIDIA's device nodes.
const MAJOR: u32 = 195;

/// Lays the libraries out.
pub(crate) fn install(args: &Args, choices: &Install, out: &mut impl Write) -> anyhow::Result<()> {
    let description = Description::read(&args.folder()).context(
        "the version of the driver comes from the machine; name it with --machine, or make one",
    )?;
    let from = match &choices.libraries {
        Some(folder) => folder.clone(),
        None => beside_us()?,
    };
    let folder = choices.driver_root.join(FOLDER);
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    let branch = description.driver_branch().unwrap_or_default();
    let mut installed = 0;
    for (built, name) in LIBRARIES {
        let Some(source) = find(&from, built) else {
            writeln!(out, "left out {name}: there is no {}", from.join(built).display())?;
            continue;
        };
        let versioned = format!("{name}.{}", description.driver);
        let absent: Vec<&str> = match name {
            "libnvidia-ml.so" => nvml::absent_in(branch).collect(),
            _ => cuda::absent_in(description.cuda.number()).collect(),
        };
        copy(&source, &folder.join(&versioned), &absent)?;
        link(&folder.join(format!("{name}.1")), &versioned)?;
        link(&folder.join(name), &format!("{name}.1"))?;
        writeln!(out, "installed {}", folder.join(versioned).display())?;
        installed += 1;
    }
    if installed == 0 {
        bail!(
            "nothing to install in {}; build it with `cargo build -p nvml -p cuda`",
            from.display()
        );
    }
    Ok(())
}

/// Makes device nodes for the cards.
pub(crate) fn nodes(machine: &Machine, folder: &Path, out: &mut impl Write) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    let fixed = [("nvidiactl".to_owned(), 255), ("nvidia-uvm".to_owned(), 254)];
    let cards = machine.description().cards.iter();
    let cards = cards.map(|card| (format!("nvidia{}", card.minor), card.minor));
    for (name, minor) in fixed.into_iter().chain(cards) {
        let path = folder.join(&name);
        if path.exists() {
            continue;
        }
        if !make_node(&path, minor) {
            // Not root: a file is as good for the simulated driver, but not for a runtime.
            fs::write(&path, b"").with_context(|| format!("make {}", path.display()))?;
        }
        writeln!(out, "made {}", path.display())?;
    }
    Ok(())
}

fn make_node(path: &Path, minor: u32) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: the path is a text that ends with a zero; the call keeps nothing of it.
    unsafe { libc::mknod(path.as_ptr(), libc::S_IFCHR | 0o666, libc::makedev(MAJOR, minor)) == 0 }
}

fn beside_us() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().context("find this program")?;
    Ok(program.parent().map(Path::to_owned).unwrap_or_default())
}

/// Cargo leaves libraries that others depend on in a folder of its own, and does not refresh the
/// other copy: the newer of the two is meant.
fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    let places = [folder.join(name), folder.join("deps").join(name)];
    let dated = places.into_iter().filter_map(|path| {
        let changed = fs::metadata(&path).and_then(|file| file.modified()).ok()?;
        Some((changed, path))
    });
    dated.max().map(|(_, path)| path)
}

/// Copies a library without some of its names. It appears whole or not at all: a process that
/// has the old one loaded keeps it.
fn copy(from: &Path, to: &Path, absent: &[&str]) -> anyhow::Result<()> {
    let mut bytes = fs::read(from).with_context(|| format!("read {}", from.display()))?;
    hide(&mut bytes, absent);
    let new = to.with_extension("new");
    fs::write(&new, bytes).with_context(|| format!("write {}", new.display()))?;
    fs::set_permissions(&new, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("make {} executable", new.display()))?;
    fs::rename(&new, to).with_context(|| format!("write {}", to.display()))
}

/// Spells names in the library's tables of names so that nobody finds them: an older driver does
/// not have them. The loader finds a name by its hash and then compares it letter by letter.
fn hide(bytes: &mut [u8], names: &[&str]) {
    let names: HashSet<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
    let mut begin = 0;
    for end in 0..bytes.len() {
        if bytes[end] == 0 {
            if begin > 0 && names.contains(&bytes[begin..end]) {
                bytes[begin] = b'-';
            }
            begin = end + 1;
        }
    }
}

fn link(path: &Path, target: &str) -> anyhow::Result<()> {
    if path.symlink_metadata().is_ok() {
        fs::remove_file(path).with_context(|| format!("replace {}", path.display()))?;
    }
    symlink(target, path).with_context(|| format!("link {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_names_are_hidden() {
        let mut bytes = *b"\0nvmlA\0nvmlAB\0nvmlA\0";
        hide(&mut bytes, &["nvmlA"]);
        assert_eq!(&bytes, b"\0-vmlA\0nvmlAB\0-vmlA\0");
    }
}
