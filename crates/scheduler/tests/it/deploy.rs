//! The files we ship say what the code means.

use std::collections::BTreeSet;

use dialect::Settings;
use serde_json::{Value, json};

fn shipped(name: &str) -> Value {
    let path = format!("{}/../../deploy/{name}", env!("CARGO_MANIFEST_DIR"));
    serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn shipped_configurations_name_every_resource_and_fail_closed() {
    let settings = Settings::default();
    for (file, first) in [
        ("kube-scheduler/own-scheduler.yaml", "nanogpu"),
        ("kube-scheduler/default-scheduler.yaml", "default-scheduler"),
    ] {
        let config = shipped(file);
        assert_eq!(config["percentageOfNodesToScore"], json!(100), "{file}");
        let extender = &config["extenders"][0];
        assert_eq!(extender["ignorable"], json!(false), "{file}");
        assert_eq!(extender["nodeCacheCapable"], json!(true), "{file}");
        assert_eq!(extender["httpTimeout"], json!("15s"), "{file}");
        let resources = |ignored: bool| -> BTreeSet<&str> {
            let all = extender["managedResources"].as_array().unwrap().iter();
            let is = |r: &&Value| r["ignoredByScheduler"].as_bool().unwrap_or(false) == ignored;
            all.filter(is).map(|r| r["name"].as_str().unwrap()).collect()
        };
        let identities = settings.enabled.iter().flat_map(|d| d.identity_resources()).copied();
        assert_eq!(resources(false), identities.collect(), "{file}");
        let measures = settings.enabled.iter().flat_map(|d| d.measure_resources()).copied();
        assert_eq!(resources(true), measures.collect(), "{file}");
        let profiles: Vec<&str> = config["profiles"]
            .as_array()
            .unwrap()
            .iter()
            .map(|p| p["schedulerName"].as_str().unwrap())
            .collect();
        assert_eq!(profiles[0], first);
        for name in ["nanogpu", "gpu-scheduler", "vgpu-scheduler", "hami-scheduler"] {
            assert!(profiles.contains(&name), "{file}: {name}");
        }
        for profile in config["profiles"].as_array().unwrap() {
            let strategy = &profile["pluginConfig"][0]["args"]["scoringStrategy"]["type"];
            assert_eq!(*strategy, json!("LeastAllocated"), "{file}");
        }
    }
}

#[test]
fn the_webhook_is_asked_about_every_resource_we_read() {
    let path =
        format!("{}/../../deploy/manifests/second-scheduler.yaml", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    let all: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    let webhook = all.iter().find(|it| it["kind"] == "MutatingWebhookConfiguration").unwrap();
    let hook = &webhook["webhooks"][0];
    let condition = hook["matchConditions"][0]["expression"].as_str().unwrap();
    let settings = Settings::default();
    for dialect in &settings.enabled {
        for name in dialect.identity_resources().iter().chain(dialect.measure_resources()) {
            assert!(condition.contains(&format!("\"{name}\"")), "{name}");
        }
    }
    assert_eq!((&hook["failurePolicy"], &hook["timeoutSeconds"]), (&json!("Fail"), &json!(5)));
}

#[test]
fn the_chart_knows_the_names_of_every_dialect() {
    let listed = shipped("chart/nanogpu/files/dialects.yaml");
    let known = dialect::Dialect::ALL.map(|dialect| {
        json!({
            "name": dialect.as_str(),
            "identities": dialect.identity_resources(),
            "measures": dialect.measure_resources(),
        })
    });
    assert_eq!(listed, json!(known));
    let path =
        format!("{}/../../deploy/chart/nanogpu/values.schema.json", env!("CARGO_MANIFEST_DIR"));
    let schema: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let names: Vec<&str> = dialect::Dialect::ALL.iter().map(|dialect| dialect.as_str()).collect();
    assert_eq!(schema["properties"]["dialects"]["items"]["enum"], json!(names));
}
