//! Settings of the whole machine that a kubelet writes: kept before, restored after.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::layout::{root, write};

/// Those outside any namespace. Network settings are the namespace's own and go with it.
const NAMES: &[&str] = &[
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
];

fn file() -> PathBuf {
    root().join("sysctls.json")
}

/// Remembers the settings, unless a cluster before us did.
pub(crate) fn keep() -> anyhow::Result<()> {
    if file().exists() {
        return Ok(());
    }
    let values: BTreeMap<&str, String> = NAMES
        .iter()
        .filter_map(|name| Some((*name, fs::read_to_string(path(name)).ok()?.trim().to_owned())))
        .collect();
    write(&file(), &serde_json::to_vec_pretty(&values)?)
}

/// Puts the settings back. For when the last cluster is gone.
pub(crate) fn restore() -> anyhow::Result<()> {
    let text = match fs::read(file()) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).context("cannot read the settings kept before"),
    };
    let values: BTreeMap<String, String> =
        serde_json::from_slice(&text).with_context(|| format!("{} is torn", file().display()))?;
    for (name, value) in values {
        let now = fs::read_to_string(path(&name)).unwrap_or_default();
        if now.trim() != value {
            fs::write(path(&name), &value)
                .with_context(|| format!("cannot set {name} back to {value}"))?;
        }
    }
    fs::remove_file(file()).context("cannot forget the settings kept before")
}

fn path(name: &str) -> PathBuf {
    Path::new("/proc/sys").join(name)
}
