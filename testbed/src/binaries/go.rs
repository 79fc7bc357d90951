//! Building a program from its Go modules.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};

use super::packages;
use super::progress::Progress;
use super::table::{Module, Recipe};

/// Older ones cannot fetch the one a module asks for by themselves.
const OLDEST: (u32, u32) = (1, 21);

const INSTALL: &str = "Kubernetes is built with Go, 1.21 or newer (it fetches the version it needs by itself). \
    On Debian 13 or Ubuntu 24.04: `apt-get install golang-go`; on Fedora: `dnf install golang`; \
    elsewhere see go.dev/doc/install. Or point NANOGPU_TESTBED_ASSETS at a folder with ready programs";

/// Sees to it that there is a Go that will do.
pub(super) fn prepare(progress: &Progress) -> anyhow::Result<()> {
    match installed()? {
        Some(version) if version >= OLDEST => Ok(()),
        Some((major, minor)) => bail!("the `go` in PATH is {major}.{minor}. {INSTALL}"),
        None if packages::offers("golang-go").and_then(|text| version(&text)) >= Some(OLDEST) => {
            progress.say("installing Go: apt-get install golang-go");
            packages::apt(&["install"], &["golang-go"]).context("installing Go failed")?;
            installed()?.map(drop).context("there is still no `go` in PATH")
        }
        None => bail!("there is no `go` in PATH. {INSTALL}"),
    }
}

/// The version of the Go in PATH.
fn installed() -> anyhow::Result<Option<(u32, u32)>> {
    let output = match Command::new("go").arg("version").output() {
        Ok(output) => output,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).context("cannot run `go version`"),
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    match version(&text) {
        Some(version) => Ok(Some(version)),
        None => bail!("`go version` answered `{}`. {INSTALL}", text.trim()),
    }
}

/// The first `1.N` in a text: `go version go1.26.8 linux/amd64` and a package's `2:1.24~2` alike.
fn version(text: &str) -> Option<(u32, u32)> {
    let (_, rest) = text.split_once("1.")?;
    let minor: String = rest.chars().take_while(char::is_ascii_digit).collect();
    Some((1, minor.parse().ok()?))
}

/// Lays out the module's files below `scratch`, once.
pub(super) fn lay_out(module: &Module, scratch: &Path) -> anyhow::Result<PathBuf> {
    let folder = scratch.join(module.name);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    for (name, text) in module.files {
        fs::write(folder.join(name), text)
            .with_context(|| format!("cannot write {name} in {}", folder.display()))?;
    }
    Ok(folder)
}

/// Builds into `scratch` and moves the finished program to `target`, so that the cache never holds
/// half of one.
pub(super) fn build(
    recipe: &Recipe,
    scratch: &Path,
    target: &Path,
    progress: &mut Progress,
) -> anyhow::Result<()> {
    let folder = lay_out(recipe.module, scratch)?;
    // Not by its own name: the module's folder may have that one, and go would write into it.
    let made = scratch.join(format!("{}.made", recipe.file));
    let log = scratch.join(format!("{}.log", recipe.file));
    let output = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    let mut child = Command::new("go")
        .args(["build", "-mod=readonly", "-trimpath", "-ldflags"])
        .arg(recipe.module.linker_flags())
        .arg("-o")
        .arg(&made)
        .arg(recipe.package)
        .current_dir(&folder)
        .env("CGO_ENABLED", "0")
        // Flags of the person's own could change what is built.
        .env_remove("GOFLAGS")
        .env_remove("GOOS")
        .env_remove("GOARCH")
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .spawn()
        .context("cannot run `go build`")?;
    let name = format!("building {}", recipe.file);
    let status = loop {
        if let Some(status) = child.try_wait().context("cannot wait for `go build`")? {
            break status;
        }
        progress.tick(&name);
        thread::sleep(Duration::from_millis(200));
    };
    if !status.success() {
        let text = fs::read_to_string(&log).unwrap_or_default();
        bail!("{}", failure(recipe, &text));
    }
    let into = target.parent().context("a program lies in a folder")?;
    fs::create_dir_all(into).with_context(|| format!("cannot make {}", into.display()))?;
    fs::rename(&made, target).with_context(|| format!("cannot write {}", target.display()))
}

/// What went wrong, in the order a person would ask: the disk, the network, the rest.
fn failure(recipe: &Recipe, log: &str) -> String {
    let lines: Vec<&str> =
        log.lines().filter(|line| !line.starts_with("go: downloading")).collect();
    let last = lines[lines.len().saturating_sub(12)..].join("\n  ");
    let program = recipe.file;
    if log.contains("no space left on device") {
        return format!(
            "the disk is full: {program} could not be built. It takes about 6 GB, most of it in \
             Go's own caches (`go env GOCACHE GOMODCACHE`). Nothing half-made was kept"
        );
    }
    let network =
        ["dial tcp", "GOPROXY", "proxy", "checksum mismatch", "unexpected EOF", "connection reset"];
    if network.iter().any(|sign| last.contains(sign)) {
        return format!(
            "the sources of {program} could not be fetched; run it again when the network is back. \
             Nothing half-made was kept. Go said:\n  {last}"
        );
    }
    format!("{program} could not be built. Go said:\n  {last}")
}

#[cfg(test)]
mod tests {
    use super::super::table::Program;
    use super::*;

    #[test]
    fn go_versions_are_read() {
        assert_eq!(version("go version go1.26.8 linux/amd64\n"), Some((1, 26)));
        assert_eq!(version("go version go1.19 linux/arm64"), Some((1, 19)));
        assert_eq!(version("2:1.24~2"), Some((1, 24)));
        assert_eq!(version("something else"), None);
    }

    #[test]
    fn failures_say_what_to_do() {
        let recipe = Program::Etcd.recipe();
        let disk = failure(&recipe, "x\nwrite /tmp/a: no space left on device\n");
        assert!(disk.starts_with("the disk is full: etcd could not be built"), "{disk}");
        let network =
            failure(&recipe, "go: downloading a v1\ngo: b: dial tcp: lookup x: no such host");
        assert!(network.starts_with("the sources of etcd could not be fetched"), "{network}");
        assert!(!network.contains("downloading"), "{network}");
        assert_eq!(failure(&recipe, "boom"), "etcd could not be built. Go said:\n  boom");
    }
}
