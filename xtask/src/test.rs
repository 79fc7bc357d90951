//! The two everyday tiers: `test fast` for the loop at the desk, `test` for CI.
//!
//! The second is the first plus what needs a tool or a cluster of its own, so that a green desk
//! rarely turns red in CI.

use std::path::Path;
use std::process::Command;

use crate::steps::{self, Action, Invocation, Step};
use crate::tidy;

/// The cargo-deny that CI runs; `deny.toml` is written for this one.
const DENY_VERSION: &str = "0.20.2";
const DENY: &str = "target/tools/bin/cargo-deny";

/// Cheapest first: a broken rule should not wait for a compiler.
const FAST: &[Step] = &[
    Step { name: "tidy", action: Action::Here { run: tidy::run, again: "cargo xtask tidy" } },
    cargo("fmt", "cargo fmt --all --check"),
    cargo("clippy", "cargo clippy --workspace --all-targets --all-features -- -D warnings"),
    // Targets that need a cluster are no part of `--all-targets`.
    cargo(
        "clippy of stories",
        "cargo clippy --workspace --all-features --test agent --test scheduling --test kubectl --test dashboard \
         --test install --test kubeadm --test takeovers --test cluster --test lifecycle -- -D warnings",
    ),
    cargo("tests", "cargo test --workspace --all-features"),
    Step {
        name: "docs",
        action: Action::Command(Invocation {
            env: &[("RUSTDOCFLAGS", "-D warnings")],
            unset: &[],
            line: "cargo doc --workspace --no-deps",
        }),
    },
];

/// What needs the network the first time: programs of others, kept in the user's cache.
const CLIENTS: &[Step] = &[
    cargo("clients", "cargo test -p simgpu --test it clients -- --ignored --nocapture"),
    // The same programs, which are installed now, with the limiter before the driver.
    cargo("limited clients", "cargo test -p limiter --test it clients -- --ignored"),
];

/// Every order of the steps that processes take in a page they share. A minute, most of it to build.
const ORDERS: &[Step] = &[Step {
    name: "orders",
    action: Action::Command(Invocation {
        env: &[("RUSTFLAGS", "--cfg loom")],
        unset: &[],
        line: "cargo test --release -p page --lib orders --target-dir target/loom",
    }),
}];

const DEPENDENCIES: &[Step] = &[
    // It takes minutes, so only if the pinned version is not there yet.
    Step { name: "tools", action: Action::Unless { done: has_deny, otherwise: INSTALL } },
    // Advisories are left out: they need a database from the internet, and would turn a build
    // red without a change of ours.
    cargo("deny", "target/tools/bin/cargo-deny --locked check bans licenses sources"),
];

/// All programs, as the tests use them.
pub(crate) const BUILD: Invocation = Invocation {
    env: &[],
    unset: &[],
    line: "cargo build --workspace --all-features --lib --bins",
};

/// On a real Kubernetes. Everything is built as the tests above were, with the workspace and all
/// features: a package by itself would have most of its dependencies built once more.
const CLUSTER: &[Step] = &[
    on_a_cluster("build", BUILD.line),
    // Builds the programs of Kubernetes if they are not in the cache.
    on_a_cluster("programs", "target/debug/testbed programs"),
    on_a_cluster(
        "testbed",
        "cargo test --workspace --all-features --test cluster --test lifecycle",
    ),
    // One after another: they break and configure what they share.
    on_a_cluster(
        "scheduling",
        "cargo test --workspace --all-features --test scheduling -- --test-threads=1",
    ),
    on_a_cluster("kubectl", "cargo test --workspace --all-features --test kubectl"),
    // In a Chromium, which is installed if it is missing.
    on_a_cluster(
        "dashboard",
        "cargo test --workspace --all-features --test dashboard -- --test-threads=1",
    ),
    on_a_cluster("agent", "cargo test --workspace --all-features --test agent -- --test-threads=1"),
    // The chart, by a real helm: checked, installed, used, upgraded, taken away.
    on_a_cluster(
        "install",
        "cargo test --workspace --all-features --test install -- --test-threads=1",
    ),
    on_a_cluster("kubeadm", "cargo test --workspace --all-features --test kubeadm"),
    on_a_cluster("takeovers", "cargo test --workspace --all-features --test takeovers"),
    // What the README's first command shows, with every act checked.
    on_a_cluster("demo", "target/debug/nanogpu-demo --once"),
];

const INSTALL: Invocation = Invocation {
    env: &[],
    unset: &[],
    line: "cargo install cargo-deny --version 0.20.2 --locked --root target/tools",
};

/// The everyday loop.
pub(crate) fn fast(root: &Path) -> anyhow::Result<()> {
    steps::run_all(root, FAST)
}

/// What CI runs.
pub(crate) fn all(root: &Path) -> anyhow::Result<()> {
    steps::run_all(
        root,
        FAST.iter().chain(CLIENTS).chain(ORDERS).chain(DEPENDENCIES).chain(CLUSTER),
    )
}

const fn on_a_cluster(name: &'static str, line: &'static str) -> Step {
    let then = Invocation { env: &[], unset: &[], line };
    Step { name, action: Action::Where { possible: can_run_a_cluster, then } }
}

/// Whether this machine can, and if not, why.
pub(crate) fn can_run_a_cluster() -> Result<(), &'static str> {
    if !cfg!(target_os = "linux") {
        return Err("a cluster needs Linux");
    }
    // The owner of our own /proc entry is who we run as.
    let root = std::fs::metadata("/proc/self").is_ok_and(|entry| is_roots(&entry));
    if root { Ok(()) } else { Err("a cluster needs root; run it again with sudo to include this") }
}

#[cfg(unix)]
fn is_roots(entry: &std::fs::Metadata) -> bool {
    std::os::unix::fs::MetadataExt::uid(entry) == 0
}

#[cfg(not(unix))]
fn is_roots(_: &std::fs::Metadata) -> bool {
    false
}

const fn cargo(name: &'static str, line: &'static str) -> Step {
    Step { name, action: Action::Command(Invocation { env: &[], unset: &[], line }) }
}

fn has_deny(root: &Path) -> bool {
    installed_deny(root).is_some_and(|answer| names_version(&answer, DENY_VERSION))
}

/// What the cargo-deny in our tools folder says of itself, if there is one that runs.
fn installed_deny(root: &Path) -> Option<String> {
    let output = Command::new(root.join(DENY)).arg("--version").output().ok()?;
    String::from_utf8(output.stdout).ok()
}

fn names_version(answer: &str, version: &str) -> bool {
    answer.split_whitespace().any(|word| word == version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_version_is_replaced() {
        assert!(names_version("cargo-deny 0.20.2\n", "0.20.2"));
        assert!(!names_version("cargo-deny 0.20.21\n", "0.20.2"));
        assert!(!names_version("", "0.20.2"));
    }

    #[test]
    fn what_is_installed_is_what_is_asked_for() {
        assert!(INSTALL.line.contains(&format!("--version {DENY_VERSION} ")));
        let deny = DEPENDENCIES[1].action.to_string();
        assert!(deny.starts_with(DENY), "{deny}");
    }

    #[test]
    fn a_missing_tool_has_no_version() {
        assert_eq!(installed_deny(Path::new("nowhere")), None);
    }

    #[test]
    fn tidy_comes_before_any_compiler() {
        assert_eq!(FAST[0].name, "tidy");
    }
}
