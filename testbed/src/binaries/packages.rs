//! Programs that come with the distribution: runc, the CNI plugins, iptables, busybox.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use super::progress::Progress;

/// What the distribution provides, where it was found.
#[derive(Debug, Clone)]
pub(crate) struct System {
    /// The low-level runtime.
    pub(crate) runc: PathBuf,
    /// The folder of the CNI plugins.
    pub(crate) cni: PathBuf,
    /// A busybox that needs no library, for images.
    pub(crate) busybox: PathBuf,
}

/// Something that must be there, and the packages that bring it.
struct Need {
    name: &'static str,
    found: fn() -> Option<PathBuf>,
    debian: &'static str,
    fedora: &'static str,
}

const NEEDS: &[Need] = &[
    Need { name: "runc", found: || program("runc"), debian: "runc", fedora: "runc" },
    Need {
        name: "the CNI plugins",
        found: cni,
        debian: "containernetworking-plugins",
        fedora: "containernetworking-plugins",
    },
    Need { name: "a static busybox", found: busybox, debian: "busybox-static", fedora: "busybox" },
    Need { name: "ip", found: || program("ip"), debian: "iproute2", fedora: "iproute" },
    // kube-proxy and the portmap plugin call these.
    Need {
        name: "iptables",
        found: || program("iptables"),
        debian: "iptables",
        fedora: "iptables-nft",
    },
    Need {
        name: "conntrack",
        found: || program("conntrack"),
        debian: "conntrack",
        fedora: "conntrack-tools",
    },
];

/// Finds what the distribution provides, and installs what is missing where we may.
pub(super) fn prepare(progress: &mut Progress) -> anyhow::Result<System> {
    let missing: Vec<&Need> = NEEDS.iter().filter(|need| (need.found)().is_none()).collect();
    if !missing.is_empty() {
        install(&missing, progress)?;
    }
    let [runc, cni, busybox, ..] = NEEDS else { bail!("the list of packages is short") };
    let find = |need: &Need| (need.found)().with_context(|| format!("{} is not there", need.name));
    Ok(System { runc: find(runc)?, cni: find(cni)?, busybox: find(busybox)? })
}

fn install(missing: &[&Need], progress: &mut Progress) -> anyhow::Result<()> {
    let names: Vec<&str> = missing.iter().map(|need| need.name).collect();
    let command = advice(missing, program("apt-get").is_some());
    if program("apt-get").is_none() || !rustix::process::geteuid().is_root() {
        bail!("{} missing on this machine. Install: `{command}`", names.join(", "));
    }
    progress.say(&format!("installing {}: {command}", names.join(", ")));
    let packages: Vec<&str> = missing.iter().map(|need| need.debian).collect();
    // A list of packages that is old or was never fetched is the usual reason for a failure.
    if apt(&["install"], &packages).is_err() {
        apt(&["update"], &[])?;
        apt(&["install"], &packages)
            .with_context(|| format!("installing {} failed; try `{command}`", names.join(", ")))?;
    }
    if let Some(need) = missing.iter().find(|need| (need.found)().is_none()) {
        bail!("{} is not there although `{command}` succeeded", need.name);
    }
    Ok(())
}

fn advice(missing: &[&Need], debian: bool) -> String {
    let (tool, packages): (_, Vec<&str>) = if debian {
        (
            "apt-get install --no-install-recommends",
            missing.iter().map(|need| need.debian).collect(),
        )
    } else {
        ("dnf install", missing.iter().map(|need| need.fedora).collect())
    };
    format!("{tool} {}", packages.join(" "))
}

/// The version of a package that could be installed here, if we may install.
pub(super) fn offers(package: &str) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let output = Command::new("apt-cache").args(["policy", package]).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().find_map(|line| line.trim().strip_prefix("Candidate: ")).map(str::to_owned)
}

pub(super) fn apt(verb: &[&str], packages: &[&str]) -> anyhow::Result<()> {
    let output = Command::new("apt-get")
        .args(["-q", "-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300"])
        .args(verb)
        .args(packages)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .output()
        .context("cannot run apt-get")?;
    if !output.status.success() {
        bail!("apt-get said: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// A program in PATH, or where system programs are even if PATH does not say so.
fn program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    env::split_paths(&path)
        .chain(system)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

fn cni() -> Option<PathBuf> {
    ["/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"]
        .map(PathBuf::from)
        .into_iter()
        .find(|folder| folder.join("bridge").is_file() && folder.join("portmap").is_file())
}

fn busybox() -> Option<PathBuf> {
    program("busybox").filter(|file| is_static(file))
}

/// Whether an ELF file names no loader.
fn is_static(file: &Path) -> bool {
    fs::read(file).is_ok_and(|bytes| !names_a_loader(&bytes))
}

/// Looks for a program header of type `PT_INTERP` in a 64-bit little-endian ELF file.
fn names_a_loader(bytes: &[u8]) -> bool {
    const PT_INTERP: [u8; 4] = 3_u32.to_le_bytes();
    let number = |at: usize, size: usize| -> Option<usize> {
        let mut value = 0;
        for byte in bytes.get(at..at + size)?.iter().rev() {
            value = value << 8 | usize::from(*byte);
        }
        Some(value)
    };
    let headers = || Some((number(32, 8)?, number(54, 2)?, number(56, 2)?));
    let Some((start, size, count)) = headers() else { return false };
    (0..count).any(|index| {
        let at = start.saturating_add(index.saturating_mul(size));
        bytes.get(at..at.saturating_add(4)) == Some(PT_INTERP.as_slice())
    })
}

/// Adds the folders of system programs to a PATH.
pub(crate) fn full_path() -> std::ffi::OsString {
    let mut path = env::var_os("PATH").unwrap_or_default();
    path.push(OsStr::new(":/usr/sbin:/sbin:/usr/bin:/bin"));
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_this_system_names_its_loader() {
        let shell = fs::read("/proc/self/exe").unwrap();
        assert!(names_a_loader(&shell), "test programs are linked dynamically");
        assert!(!names_a_loader(b"#!/bin/sh"));
        assert!(!names_a_loader(&[]));
    }

    #[test]
    fn what_is_missing_is_named_with_its_command() {
        let missing: Vec<&Need> = NEEDS.iter().take(2).collect();
        assert_eq!(
            advice(&missing, true),
            "apt-get install --no-install-recommends runc containernetworking-plugins"
        );
        assert_eq!(advice(&missing, false), "dnf install runc containernetworking-plugins");
    }
}
