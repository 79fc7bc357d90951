//! What is measured has the names that our dashboards and alerts ask for.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use testbed::Session;

use crate::bed::SYSTEM;

const ASKING: [&str; 4] = [
    "dashboards/cluster.json",
    "dashboards/node.json",
    "dashboards/tenant.json",
    "files/alerts.yaml",
];
/// What has nothing to tell here: nobody is of a higher priority than others, or turned away.
const SILENT: [&str; 2] = ["nanogpu_scheduler_preemptions", "nanogpu_scheduler_turned_away"];
const PREFIX: &str = "nanogpu_";

pub(crate) async fn are_as_dashboards_and_alerts_name_them(session: &Session) -> Result<()> {
    let mut told = BTreeSet::new();
    for (app, port) in [("nanogpu-scheduler", 8080), ("nanogpu-agent", 9445)] {
        let pods: Api<Pod> = Api::namespaced(session.client(), SYSTEM);
        let of = ListParams::default().labels(&format!("app.kubernetes.io/name={app}"));
        for pod in pods.list(&of).await? {
            let name = pod.name_any();
            let path = format!("/api/v1/namespaces/{SYSTEM}/pods/{name}:{port}/proxy/metrics");
            let request = http::Request::get(path).body(Vec::new())?;
            let text = session.client().request_text(request).await?;
            let names = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
            told.extend(names.filter_map(|line| line.split(' ').next()).map(str::to_owned));
            if text.contains("nanogpu_device_in_service{") {
                explained(&text)?;
            }
        }
    }
    let mut missing = BTreeSet::new();
    for file in ASKING {
        let asked = names(&std::fs::read_to_string(testbed::chart().join(file))?);
        ensure!(!asked.is_empty(), "{file} asks for nothing");
        // Of a counter and of a histogram the name without its ending is told.
        let plain = |name: &str| {
            let plain = name.strip_suffix("_total").or_else(|| name.strip_suffix("_bucket"));
            plain.unwrap_or(name).to_owned()
        };
        missing.extend(asked.iter().map(|name| plain(name)).filter(|name| !told.contains(name)));
    }
    missing.retain(|name| !SILENT.contains(&name.as_str()));
    ensure!(missing.is_empty(), "asked for, and not told: {missing:#?}; told: {told:#?}");
    Ok(())
}

/// The agent of the node with cards knows whose processes are on them.
fn explained(text: &str) -> Result<()> {
    let strange = "nanogpu_device_unexplained_memory_bytes{";
    let used = |line: &&str| {
        line.starts_with("nanogpu_container_memory_used_bytes{") && line.contains("\"team-")
    };
    let zero = |line: &&str| line.ends_with(" 0");
    for line in text.lines().filter(|line| line.starts_with(strange)) {
        ensure!(zero(&line), "memory of nobody we know: {line}");
    }
    let used: Vec<&str> = text.lines().filter(used).collect();
    ensure!(used.len() == 2 && !used.iter().any(zero), "what tenants use is not known: {used:#?}");
    Ok(())
}

/// The names of metrics in a text.
fn names(text: &str) -> BTreeSet<String> {
    let word =
        |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
    text.split(|letter| !word(letter))
        .filter(|name| name.starts_with(PREFIX))
        .map(str::to_owned)
        .collect()
}
