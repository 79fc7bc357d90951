//! Two nodes that believe they have cards: a simulated driver where a driver would be.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};
use serde_json::Value;
use testbed::Cluster;

/// A node, the machine it plays, and what it offers.
pub(crate) struct Played {
    pub(crate) node: &'static str,
    profile: &'static str,
    pub(crate) cards: u64,
}

/// What the nodes play.
pub(crate) const NODES: [Played; 2] = [
    Played { node: "node1", profile: "dgx-a100", cards: 8 },
    Played { node: "node2", profile: "t4x4", cards: 4 },
];
/// The node whose cards are shared in front of the audience.
pub(crate) const SHARED: &str = "node2";
/// Where a node has its simulated driver, as the node sees it.
pub(crate) const SIM: &str = "/var/lib/simgpu";

/// The simulated machines of a cluster.
pub(crate) struct Machines<'a> {
    cluster: &'a Cluster,
    program: PathBuf,
}

impl<'a> Machines<'a> {
    pub(crate) fn new(cluster: &'a Cluster, programs: &Path) -> Self {
        Self { cluster, program: programs.join("nanogpu-simgpu") }
    }

    /// Gives each node its cards, unless it has them.
    pub(crate) fn make(&self) -> anyhow::Result<()> {
        for played in &NODES {
            let folder = self.cluster.layout().on_node(played.node, SIM);
            if folder.join("bin/nanogpu-simgpu").is_file() {
                continue;
            }
            fs::create_dir_all(folder.join("bin"))
                .with_context(|| format!("cannot make {}", folder.display()))?;
            let text = |path: PathBuf| path.display().to_string();
            let machine = text(self.machine(played.node));
            let about = ["--profile", played.profile, "--name", played.node, "--host-pids"];
            self.run(played.node, &[&["create", machine.as_str()][..], &about].concat())?;
            let driver = text(folder.join("driver"));
            self.run(played.node, &["install", "--driver-root", &driver])?;
            self.run(played.node, &["nodes", &text(folder.join("dev"))])?;
            fs::copy(&self.program, folder.join("bin/nanogpu-simgpu"))
                .context("cannot copy nanogpu-simgpu")?;
            self.play_the_kernel(played.node)?;
        }
        Ok(())
    }

    /// A driver's part in the kernel knows every process by its number on the host; the simulated one
    /// learns that only from a process of the host that looks. So one looks, as long as the cluster is.
    fn play_the_kernel(&self, node: &str) -> anyhow::Result<()> {
        let look = "while :; do \"$0\" --machine \"$1\" usage --json > /dev/null; sleep 0.5; done";
        let (program, machine) = (self.program.display(), self.machine(node));
        let (program, machine) = (program.to_string(), machine.display().to_string());
        let words = ["-c", look, &program, &machine];
        self.cluster.beside(&format!("kernel-{node}"), Path::new("/bin/sh"), &words)
    }

    /// Busy time of these processes and the time of the card they use, in nanoseconds, as the card
    /// itself counts them.
    pub(crate) fn busy(&self, node: &str, pids: &[i32]) -> anyhow::Result<(u64, u64)> {
        let (mut busy, mut until) = (0, 0);
        for line in self.run(node, &["usage", "--json"])?.lines() {
            let line: Value = serde_json::from_str(line)?;
            let pid = line["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
            if pid.is_some_and(|pid| pids.contains(&pid)) {
                busy += line["busy_ns"].as_u64().context("a time")?;
                until = line["until_ns"].as_u64().context("a time")?;
            }
        }
        ensure!(until > 0, "the card of {node} knows none of the processes {pids:?}");
        Ok((busy, until))
    }

    fn machine(&self, node: &str) -> PathBuf {
        self.cluster.layout().on_node(node, &format!("{SIM}/m"))
    }

    fn run(&self, node: &str, words: &[&str]) -> anyhow::Result<String> {
        let output = Command::new(&self.program)
            .arg("--machine")
            .arg(self.machine(node))
            .args(words)
            .output()
            .context("cannot run nanogpu-simgpu")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "nanogpu-simgpu {}: {}", words.join(" "), said.trim());
        Ok(String::from_utf8(output.stdout)?)
    }
}
