//! `simulate`: would this pod fit? The manifest is sent to the scheduler; nothing is created.

use std::fmt::Write as _;

use anyhow::{Context as _, bail};
use model::Portion;
use model::codec::decode_placement;
use serde_json::{Value, json};

use crate::numbers::{counted, grouped};
use crate::wire::{Displaces, Simulated};

/// The pod of a manifest: the pod itself, or the template of what makes pods.
pub fn pod(text: &str, namespace: &str) -> anyhow::Result<Value> {
    let manifest: Value = serde_saphyr::from_str(text).context("the manifest is no YAML")?;
    let kind = manifest["kind"].as_str().unwrap_or("Pod").to_owned();
    let template = match kind.as_str() {
        "Pod" => manifest.clone(),
        "CronJob" => manifest["spec"]["jobTemplate"]["spec"]["template"].clone(),
        _ => manifest["spec"]["template"].clone(),
    };
    if !template["spec"].is_object() {
        bail!("the manifest of kind {kind} has no pod in it");
    }
    let mut pod = template;
    let own = |key: &str| manifest["metadata"][key].as_str().map(str::to_owned);
    let name = own("name").or_else(|| own("generateName")).unwrap_or_else(|| "pod".to_owned());
    pod["apiVersion"] = json!("v1");
    pod["kind"] = json!("Pod");
    pod["metadata"]["name"] = json!(name);
    pod["metadata"]["namespace"] = json!(own("namespace").unwrap_or_else(|| namespace.to_owned()));
    Ok(pod)
}

/// The answer in words.
pub fn page(pod: &Value, answer: &Simulated) -> String {
    let name = format!(
        "{}/{}",
        pod["metadata"]["namespace"].as_str().unwrap_or_default(),
        pod["metadata"]["name"].as_str().unwrap_or_default()
    );
    let (mut text, notes) = match answer {
        Simulated::NotOurs => (
            format!("Pod {name} asks for no card: nanogpu has no say in where it goes.\n"),
            &[][..],
        ),
        Simulated::Refused { reason } => {
            (format!("Pod {name} could never run as it is written.\n\n  {reason}\n"), &[][..])
        }
        Simulated::Fits { nodes, notes } => {
            let many = counted(nodes.len(), "node");
            let most = if nodes.len() >= 20 { "at least " } else { "" };
            let order = if nodes.len() > 1 { "; best first:" } else { ":" };
            let mut text = format!("Pod {name} would fit now, on {most}{many}{order}\n\n");
            for fit in nodes {
                let _ = writeln!(text, "  {}", fit.node);
                text.push_str(&cards(fit.placement.as_deref()));
            }
            (text, &notes[..])
        }
        Simulated::Waits { summary, displaces, notes } => {
            let mut text = format!("Pod {name} would wait.\n\n  {summary}\n\n");
            match displaces {
                Displaces::Pods { node, pods } => {
                    let many = counted(pods.len(), "pod");
                    let _ = writeln!(text, "Unless {many} of lower priority left {node} for it:");
                    for pod in pods {
                        let _ = writeln!(text, "  {pod}");
                    }
                }
                Displaces::Nobody { nobody } => {
                    let _ = writeln!(text, "Evicting other pods: {nobody}.");
                }
            }
            (text, &notes[..])
        }
    };
    for note in notes {
        let _ = write!(text, "\nNote: {note}\n");
    }
    text.push_str("\nNothing was created.\n");
    text
}

fn cards(placement: Option<&str>) -> String {
    let mut text = String::new();
    let Some(placement) = placement.and_then(|text| decode_placement(text).ok()) else {
        return text;
    };
    for container in placement.containers() {
        for grant in &container.grants {
            let what = match grant.portion {
                Portion::Whole => "whole".to_owned(),
                Portion::Share(share) => {
                    format!("{}% compute, {} MiB", share.cores.0, grouped(share.memory.0))
                }
            };
            let _ = writeln!(text, "    {} on {}: {what}", container.name, grant.device);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_pods_is_asked_about_by_its_template() {
        let text = "kind: Deployment\nmetadata: {name: web}\nspec: {template: {metadata: {labels: {a: b}}, spec: {containers: []}}}\n";
        let pod = pod(text, "team").unwrap();
        assert_eq!(pod["metadata"]["name"], "web");
        assert_eq!(pod["metadata"]["namespace"], "team");
        assert_eq!(pod["metadata"]["labels"]["a"], "b");
    }

    #[test]
    fn a_manifest_without_a_pod_is_told_so() {
        let error = pod("kind: ConfigMap\nmetadata: {name: x}\n", "team").unwrap_err();
        assert_eq!(error.to_string(), "the manifest of kind ConfigMap has no pod in it");
    }
}
