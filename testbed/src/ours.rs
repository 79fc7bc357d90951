//! The programs and libraries of this workspace, built for a test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, ensure};

/// Builds the workspace, once a process; the folder in which programs and libraries lie.
///
/// All of it with all features, as the tests are built: packages built alone would share other
/// features of their dependencies, and hundreds of those would be built a second time.
pub fn built() -> anyhow::Result<PathBuf> {
    let all = ["--workspace", "--all-features", "--lib", "--bins"];
    Ok(build(&all)?.join("debug"))
}

/// Builds `package` for speed, once a process; the folder in which its programs lie.
pub fn built_for_speed(package: &str) -> anyhow::Result<PathBuf> {
    Ok(build(&["--release", "--package", package])?.join("release"))
}

/// Builds `packages` as they ship, once a process; the folder in which their programs lie. It takes
/// minutes, so cargo shows how far it is.
pub fn built_to_ship(packages: &[&str]) -> anyhow::Result<PathBuf> {
    let mut what = vec!["--release", "--bins"];
    what.extend(packages.iter().flat_map(|package| ["--package", *package]));
    Ok(build(&what)?.join("release"))
}

/// Builds the agent as it ships, once a process; the folder in which it lies.
pub fn built_agent() -> anyhow::Result<PathBuf> {
    Ok(build(&["--profile", "agent", "--package", "agent", "--bins"])?.join("agent"))
}

/// Builds our limiter as it ships, once a process; the library.
pub fn built_limiter() -> anyhow::Result<PathBuf> {
    Ok(build(&["--profile", "limiter", "--package", "limiter"])?.join("limiter/liblimiter.so"))
}

fn build(what: &[&str]) -> anyhow::Result<PathBuf> {
    static BUILT: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let exe = std::env::current_exe().context("cannot tell where this program lies")?;
    let target = target_of(&exe).context("this program lies in no target folder")?;
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    let asked = what.join(" ");
    if !built.contains(&asked) {
        run(what, target)?;
        built.push(asked);
    }
    Ok(target.to_owned())
}

/// Programs lie in the folder of their profile, tests a folder deeper.
fn target_of(exe: &Path) -> Option<&Path> {
    let folder = exe.parent()?;
    let profile = if folder.ends_with("deps") { folder.parent()? } else { folder };
    profile.parent()
}

fn run(what: &[&str], target: &Path) -> anyhow::Result<()> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.arg("build");
    // Who builds to ship waits for minutes and is to see how far it is.
    if !what.contains(&"--release") && !what.contains(&"agent") {
        cargo.arg("--quiet");
    }
    cargo.args(what).arg("--target-dir").arg(target).current_dir(env!("CARGO_MANIFEST_DIR"));
    // What cargo tells a test about its package makes some build scripts run anew, and everything
    // above them is built anew: minutes, here and at the next build by hand.
    for (key, _) in std::env::vars_os() {
        let text = key.to_string_lossy();
        if text.starts_with("CARGO_") && text != "CARGO_HOME" {
            cargo.env_remove(&key);
        }
    }
    let status = cargo.status().context("cannot run cargo")?;
    ensure!(status.success(), "cargo build {} failed", what.join(" "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_and_a_test_build_into_the_same_folder() {
        for exe in ["/x/target/debug/testbed", "/x/target/debug/deps/agent-0123"] {
            assert_eq!(target_of(Path::new(exe)), Some(Path::new("/x/target")), "{exe}");
        }
    }
}
