//! Schemas for kubeconform, made from what the cluster's own API server says of its kinds.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

const DEFINITIONS: &str = "#/definitions/";

/// Writes a schema for each kind in `manifests` as `<group>_<version>_<kind>.json`.
pub(crate) fn write(openapi: &Value, manifests: &[String], folder: &Path) -> Result<()> {
    let definitions = openapi["definitions"].as_object().context("definitions")?;
    let mut kinds = BTreeSet::new();
    for text in manifests {
        for document in serde_saphyr::from_multiple::<Value>(text)? {
            let text = |key: &str| document[key].as_str().map(str::to_owned);
            kinds.extend(text("apiVersion").zip(text("kind")));
        }
    }
    for (version, kind) in kinds {
        let (group, version) = version.split_once('/').unwrap_or(("", &version));
        let is = |definition: &Value| {
            let names = definition["x-kubernetes-group-version-kind"].as_array();
            let wanted = json!({"group": group, "version": version, "kind": kind});
            names.is_some_and(|names| names.contains(&wanted))
        };
        let found = definitions.iter().find(|(_, definition)| is(definition));
        let (root, _) = found.with_context(|| format!("no schema of {group}/{version} {kind}"))?;
        let mut used = Map::new();
        gather(definitions, root, &mut used);
        let schema = json!({"$ref": format!("{DEFINITIONS}{root}"), "definitions": used});
        // kubeconform calls the group without a name by its version.
        let group = if group.is_empty() { version } else { group };
        let file = format!("{group}_{version}_{}.json", kind.to_lowercase());
        std::fs::write(folder.join(file), schema.to_string())?;
    }
    Ok(())
}

/// Takes a definition and all that it refers to.
fn gather(all: &Map<String, Value>, name: &str, into: &mut Map<String, Value>) {
    if into.contains_key(name) {
        return;
    }
    let mut definition = all.get(name).cloned().unwrap_or_default();
    close(&mut definition);
    if name.ends_with(".IntOrString") || name.ends_with(".Quantity") {
        definition = json!({"type": ["string", "number"]});
    }
    let mut references = Vec::new();
    refer(&definition, &mut references);
    into.insert(name.to_owned(), definition);
    for reference in references {
        gather(all, &reference, into);
    }
}

/// Where fields are listed there are no others.
fn close(value: &mut Value) {
    match value {
        Value::Object(map) => {
            let open = map.get("x-kubernetes-preserve-unknown-fields") == Some(&json!(true));
            if map.get("properties").is_some_and(Value::is_object) && !open {
                map.entry("additionalProperties").or_insert(json!(false));
            }
            map.values_mut().for_each(close);
        }
        Value::Array(list) => list.iter_mut().for_each(close),
        _ => {}
    }
}

fn refer(value: &Value, into: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            let reference = map.get("$ref").and_then(Value::as_str);
            into.extend(reference.and_then(|it| it.strip_prefix(DEFINITIONS)).map(str::to_owned));
            map.values().for_each(|value| refer(value, into));
        }
        Value::Array(list) => list.iter().for_each(|value| refer(value, into)),
        _ => {}
    }
}
