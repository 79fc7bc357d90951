//! The plain manifests: our chart, rendered for people without helm.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::binaries::{Binaries, Program, Progress};

/// The two files, and the mode of the chart each is.
const FILES: [(&str, &str); 2] =
    [("second-scheduler.yaml", "second"), ("default-scheduler.yaml", "default")];

/// kube-scheduler's version in them. helm would ask the cluster.
const KUBERNETES: &str = "v1.36.3";

/// Our chart.
pub fn chart() -> PathBuf {
    deploy().join("chart/nanogpu")
}

/// Each plain manifest as it should be, by the path it belongs to.
pub fn manifests(progress: &mut Progress) -> anyhow::Result<Vec<(PathBuf, String)>> {
    let helm = Binaries::apart(Program::Helm, progress)?;
    let render = |(file, mode): (&str, &str)| {
        let set = format!("namespace.create=true,scheduler.mode={mode}");
        let text = rendered(&helm, &["--set", &set])?;
        Ok((deploy().join("manifests").join(file), format!("{}{text}", heading(mode))))
    };
    FILES.into_iter().map(render).collect()
}

/// What `helm template` makes of our chart in the usual namespace, with more on its command line.
pub fn rendered(helm: &Path, more: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(helm)
        .args(["template", "nanogpu"])
        .arg(chart())
        .args(["--namespace", "nanogpu-system", "--kube-version", KUBERNETES])
        .args(more)
        .output()
        .context("cannot run helm")?;
    if !output.status.success() {
        bail!("helm template: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    String::from_utf8(output.stdout).context("helm wrote no text")
}

fn heading(mode: &str) -> String {
    format!(
        "# @generated from deploy/chart/nanogpu by `cargo xtask cluster manifests`; do not edit.\n\
         # All of nanogpu, in scheduler mode `{mode}`: kubectl apply -f THIS. docs/install.md says more.\n"
    )
}

/// In the checkout we were built in.
fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("deploy")
}
