//! nanogpu on the cluster: its images on the nodes, and its chart installed by helm.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context as _, bail, ensure};
use serde_json::{Value, json};
use testbed::{Cluster, Made, Parts, Program};

use crate::nodes::{NODES, SIM};

/// Where nanogpu is installed.
pub(crate) const SYSTEM: &str = "nanogpu-system";
/// All dialects, also those that an administrator must ask for.
const DIALECTS: [&str; 10] = [
    "nano-gpu",
    "nano-gpu.io",
    "elasticgpu.io",
    "elasticgpu.com",
    "tencent.com",
    "inspur.com",
    "nvidia.com/vcuda",
    "aliyun.com",
    "hami",
    "vgpu-manager",
];

/// The programs a person has on their `PATH`, with the cluster they are used on.
pub(crate) struct Tools {
    /// kubectl's folder and ours, in which the plugin is.
    pub(crate) folders: [PathBuf; 2],
    kubectl: PathBuf,
    helm: PathBuf,
    kubeconfig: PathBuf,
    path: String,
}

impl Tools {
    /// `helm` is one of the testbed's.
    pub(crate) fn new(cluster: &Cluster, programs: &Path, helm: PathBuf) -> Self {
        let kubectl = cluster.binaries().path(Program::Kubectl);
        let beside = kubectl.parent().unwrap_or(Path::new("/")).to_owned();
        let folders = [beside, programs.to_owned()];
        let before = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{}:{before}", folders[0].display(), folders[1].display());
        Self { folders, kubectl, helm, kubeconfig: cluster.layout().kubeconfig(), path }
    }

    /// What kubectl prints, or why it does not.
    pub(crate) fn kubectl(&self, words: &[&str]) -> anyhow::Result<String> {
        said(&self.run(&self.kubectl, words, None)?, "kubectl", words)
    }

    /// The error that kubectl is expected to end with.
    pub(crate) fn refusal(&self, words: &[&str]) -> anyhow::Result<String> {
        let output = self.run(&self.kubectl, words, None)?;
        ensure!(!output.status.success(), "kubectl {} was not refused", words.join(" "));
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// Makes something so, in a namespace.
    pub(crate) fn apply(&self, namespace: &str, object: &Value) -> anyhow::Result<()> {
        let words = ["-n", namespace, "apply", "-f", "-"];
        said(&self.run(&self.kubectl, &words, Some(object))?, "kubectl", &words).map(drop)
    }

    fn helm(&self, words: &[&str]) -> anyhow::Result<String> {
        said(&self.run(&self.helm, words, None)?, "helm", words)
    }

    fn run(&self, program: &Path, words: &[&str], input: Option<&Value>) -> anyhow::Result<Output> {
        let mut command = Command::new(program);
        command.args(words).env("KUBECONFIG", &self.kubeconfig).env("PATH", &self.path);
        // So that people can give our paths to their own shell.
        command.current_dir(root());
        // A file, so that a program that says much before it reads cannot wait for us.
        let mut file = tempfile::tempfile()?;
        if let Some(input) = input {
            use std::io::{Seek as _, Write as _};
            file.write_all(input.to_string().as_bytes())?;
            file.rewind()?;
        }
        command.stdin(file);
        command.output().with_context(|| format!("cannot run {}", program.display()))
    }
}

fn said(output: &Output, program: &str, words: &[&str]) -> anyhow::Result<String> {
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {}: {}", words.join(" "), error.trim());
    Ok(String::from_utf8(output.stdout.clone())?)
}

/// Writes the images that the demo needs into `folder`.
pub(crate) fn images(
    cluster: &Cluster,
    programs: &Path,
    folder: &Path,
) -> anyhow::Result<Vec<Made>> {
    let ready = programs.join("libnanogpu.so");
    let limiter = if ready.is_file() { ready } else { testbed::built_limiter()? };
    let mut parts = Parts::of(programs.to_owned(), limiter);
    parts.wanted = vec!["scheduler", "agent"];
    let mut made = testbed::product_images(&parts, folder)?;
    made.push(testbed::kube_scheduler_image(cluster.binaries(), folder)?);
    Ok(made)
}

/// Gives every node the images, and one for tenants that has a loader and a C library.
pub(crate) fn load(cluster: &Cluster, made: &[Made], folder: &Path) -> anyhow::Result<()> {
    testbed::write_images(cluster.binaries(), folder)?;
    let tenants = folder.join("debian.tar");
    for played in &NODES {
        for archive in made.iter().map(|image| &image.archive).chain([&tenants]) {
            cluster.load_image(played.node, archive)?;
        }
    }
    Ok(())
}

/// What a person would write into their values: no registry, and where the simulated driver is.
pub(crate) fn values() -> Value {
    json!({
        "image": {"registry": "localhost", "pullPolicy": "Never"},
        "dialects": DIALECTS,
        "kubeScheduler": {"image": {"repository": "localhost/nanogpu/kube-scheduler"}},
        "agent": {
            "driverRoot": format!("{SIM}/driver"),
            "devRoot": format!("{SIM}/dev"),
            "extraArgs": ["--look=1000"],
            "extraVolumes": [{"name": "machine", "hostPath": {"path": format!("{SIM}/m")}}],
            "extraVolumeMounts": [{"name": "machine", "mountPath": "/run/nanogpu-simgpu"}],
        },
    })
}

/// This very tree.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// Our chart, in it.
const CHART: &str = "deploy/chart/nanogpu";

/// Installs the chart and waits until everything in it is ready.
pub(crate) fn install(tools: &Tools, folder: &Path) -> anyhow::Result<()> {
    let file = folder.join("values.json");
    fs::write(&file, values().to_string())?;
    let file = file.display().to_string();
    let what = ["upgrade", "--install", "nanogpu", CHART, "--namespace", SYSTEM];
    let how = ["--create-namespace", "--values", &file, "--wait", "--timeout", "3m"];
    let Err(error) = tools.helm(&[&what[..], &how].concat()) else { return Ok(()) };
    // Helm says only that it waited in vain.
    let pods = tools.kubectl(&["-n", SYSTEM, "get", "pods", "-o", "wide"]).unwrap_or_default();
    let events = tools.kubectl(&["-n", SYSTEM, "events", "--types=Warning"]).unwrap_or_default();
    let logs = ["logs", "-n", SYSTEM, "--all-containers", "--tail=10", "--prefix"];
    let of = |app: &str| {
        let label = format!("app.kubernetes.io/name={app}");
        tools.kubectl(&[&logs[..], &["-l", &label]].concat()).unwrap_or_default()
    };
    let logs = [of("nanogpu-scheduler"), of("nanogpu-agent")].concat();
    bail!("{error:#}\n{pods}\n{events}\n{logs}")
}

/// Waits until the webhook is believed and both nodes offer all their cards.
pub(crate) fn ready(tools: &Tools) -> anyhow::Result<()> {
    let answer = |words: &[&str]| tools.kubectl(words);
    let bundle = "jsonpath={.webhooks[0].clientConfig.caBundle}";
    let webhook = ["get", "mutatingwebhookconfiguration", "nanogpu-scheduler", "-o", bundle];
    let mut outcome = until("the webhook has no certificate", || Ok(!answer(&webhook)?.is_empty()));
    for played in &NODES {
        let offers = "jsonpath={.status.allocatable.nano-gpu/gpu-percent}";
        let told = "jsonpath={.metadata.annotations.nano-gpu/inventory}";
        let cards = (100 * played.cards).to_string();
        let missing = format!("{} does not offer its {} cards", played.node, played.cards);
        outcome = outcome.and_then(|()| {
            until(&missing, || {
                let node = |path| answer(&["get", "node", played.node, "-o", path]);
                Ok(node(offers)? == cards && !node(told)?.is_empty())
            })
        });
    }
    outcome.map_err(|error| {
        let doctor = answer(&["nanogpu", "doctor"]).unwrap_or_else(|error| format!("{error:#}"));
        error.context(format!("nanogpu is installed, but not all is well:\n{doctor}"))
    })
}

/// Asks until it is so, for a minute and a half.
pub(crate) fn until(
    otherwise: &str,
    mut is_so: impl FnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let started = std::time::Instant::now();
    loop {
        let seen = is_so();
        if matches!(seen, Ok(true)) {
            return Ok(());
        }
        if started.elapsed() > std::time::Duration::from_secs(90) {
            seen?;
            bail!("{otherwise}, after 90 s");
        }
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_demo_asks_for_is_in_the_chart() {
        let text = fs::read_to_string(root().join(CHART).join("values.yaml")).unwrap();
        for key in ["registry:", "pullPolicy:", "driverRoot:", "devRoot:", "extraVolumeMounts:"] {
            assert!(text.contains(key), "{key}");
        }
    }
}
