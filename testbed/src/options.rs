//! What a cluster is to look like.

use std::collections::BTreeMap;

use anyhow::bail;
use serde::{Deserialize, Serialize};

use crate::fake::FakeNodes;

/// What a cluster is to look like.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Options {
    /// Its name: folders, cgroups and messages carry it.
    pub name: String,
    /// How many real nodes, `node1` and on.
    pub nodes: usize,
    /// Nodes that only the API server knows, in groups of equal ones.
    pub fake_nodes: Vec<FakeNodes>,
    /// The kube-schedulers, by name of the process.
    pub schedulers: Vec<SchedulerSpec>,
    /// Feature gates for every component of Kubernetes.
    pub feature_gates: BTreeMap<String, bool>,
    /// The port on 127.0.0.1 that leads to the API server; 0 for any free one.
    pub api_port: u16,
    /// Lines added to each kubelet's configuration, as YAML.
    pub kubelet_config: String,
    /// Real nodes whose container runtime ignores CDI: an older containerd, told so.
    #[serde(default)]
    pub without_cdi: Vec<String>,
    /// More OCI runtimes that pods can ask for by a `RuntimeClass`: the handler's name, and the program
    /// as the nodes see it, which need not be there before it is used.
    #[serde(default)]
    pub runtimes: BTreeMap<String, String>,
    /// An audit `Policy`, as YAML: what the API server writes down in [`crate::Layout::audit`]. Empty:
    /// nothing.
    #[serde(default)]
    pub audit_policy: String,
}

/// One kube-scheduler.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SchedulerSpec {
    /// What the process is called; the scheduler names that pods ask for are in its configuration.
    pub name: String,
    /// A `KubeSchedulerConfiguration`. How to reach the API server is filled in.
    pub config: String,
}

impl SchedulerSpec {
    /// The scheduler as Kubernetes ships it.
    pub fn stock() -> Self {
        Self { name: "kube-scheduler".to_owned(), config: String::new() }
    }
}

impl Options {
    /// One real node and the stock scheduler.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            nodes: 1,
            fake_nodes: Vec::new(),
            schedulers: vec![SchedulerSpec::stock()],
            feature_gates: BTreeMap::new(),
            api_port: 0,
            kubelet_config: String::new(),
            without_cdi: Vec::new(),
            runtimes: BTreeMap::new(),
            audit_policy: String::new(),
        }
    }

    /// The same with `nodes` real nodes.
    #[must_use]
    pub fn nodes(mut self, nodes: usize) -> Self {
        self.nodes = nodes;
        self
    }

    /// The same with fake nodes added.
    #[must_use]
    pub fn fake(mut self, nodes: FakeNodes) -> Self {
        self.fake_nodes.push(nodes);
        self
    }

    /// The same with this configuration for the one kube-scheduler.
    #[must_use]
    pub fn scheduler(mut self, config: impl Into<String>) -> Self {
        self.schedulers = vec![SchedulerSpec { config: config.into(), ..SchedulerSpec::stock() }];
        self
    }

    pub(crate) fn check(&self) -> anyhow::Result<()> {
        check_name(&self.name)?;
        // Each has an address in 10.88.0.0/24, beside the bridge's own.
        if self.nodes > 50 {
            bail!("{} real nodes are more than one machine can carry; 50 at most", self.nodes);
        }
        for (index, scheduler) in self.schedulers.iter().enumerate() {
            check_name(&scheduler.name)?;
            if self.schedulers[..index].iter().any(|other| other.name == scheduler.name) {
                bail!("two schedulers are called `{}`", scheduler.name);
            }
        }
        Ok(())
    }

    pub(crate) fn node_names(&self) -> Vec<String> {
        (1..=self.nodes).map(|index| format!("node{index}")).collect()
    }

    /// As a flag of Kubernetes has it.
    pub(crate) fn gates(&self) -> Option<String> {
        let gates: Vec<String> =
            self.feature_gates.iter().map(|(name, on)| format!("{name}={on}")).collect();
        (!gates.is_empty()).then(|| gates.join(","))
    }
}

/// Names become folders and parts of socket paths, which must stay short.
pub(crate) fn check_name(name: &str) -> anyhow::Result<()> {
    let plain =
        |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
    if name.is_empty() || name.len() > 24 || !name.chars().all(plain) || name.starts_with('-') {
        bail!("`{name}` is no name for a cluster: 1 to 24 of a-z, 0-9 and -");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_would_leave_their_folder_are_refused() {
        for name in ["", "../x", "a/b", "A", "-x", "x".repeat(25).as_str()] {
            assert!(check_name(name).is_err(), "{name}");
        }
        assert!(check_name("demo-1").is_ok());
    }

    #[test]
    fn gates_are_one_flag() {
        let mut options = Options::new("x");
        assert_eq!(options.gates(), None);
        options.feature_gates.insert("B".into(), false);
        options.feature_gates.insert("A".into(), true);
        assert_eq!(options.gates().as_deref(), Some("A=true,B=false"));
    }

    #[test]
    fn schedulers_have_names_of_their_own() {
        let mut options = Options::new("x");
        options.schedulers.push(SchedulerSpec::stock());
        assert!(options.check().unwrap_err().to_string().contains("two schedulers"));
    }
}
