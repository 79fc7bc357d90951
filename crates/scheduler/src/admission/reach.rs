//! Pods that reach every card of their node, so that a limit would be none.

use std::collections::BTreeSet;

use dialect::Asked;
use serde_json::Value;

/// Folders below `/dev` that lead to cards, beside what is named after their driver.
const SHOW_CARDS: [&str; 2] = ["char", "dri"];

/// Why a limit would be none.
pub(super) fn sees_all_cards(object: &Value, asked: &Asked) -> Option<String> {
    let spec = object.get("spec")?;
    let shares: BTreeSet<&str> = asked.request.containers.iter().map(|c| c.name.as_str()).collect();
    for list in ["initContainers", "containers"] {
        for container in spec.get(list).and_then(Value::as_array).into_iter().flatten() {
            let name = container.get("name").and_then(Value::as_str).unwrap_or_default();
            let privileged = container.pointer("/securityContext/privileged");
            if privileged == Some(&Value::Bool(true)) && shares.contains(name) {
                return Some(format!(
                    "container {name} is privileged and would see every card of its node; a share needs an ordinary container, or whole cards"
                ));
            }
        }
    }
    let volumes = spec.get("volumes").and_then(Value::as_array).into_iter().flatten();
    let paths = volumes.filter_map(|volume| volume.get("hostPath")).map(|host| {
        let path = host.get("path").and_then(Value::as_str).unwrap_or_default();
        normal(path)
    });
    let shown = paths.into_iter().find(|path| shows_cards(path))?;
    Some(format!(
        "the pod mounts {shown} of its node and would reach every card; a share needs a pod without it, or whole cards"
    ))
}

fn shows_cards(path: &str) -> bool {
    if path == "/" || path == "/dev" {
        return true;
    }
    let below = path.strip_prefix("/dev/").and_then(|rest| rest.split('/').next());
    below.is_some_and(|name| SHOW_CARDS.contains(&name) || name.starts_with("nvidia"))
}

/// The path with nothing in it that leads nowhere: `//dev`, `/./dev` and `/x/../dev` are `/dev`.
fn normal(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}
