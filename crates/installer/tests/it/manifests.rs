//! What becomes of kubeadm's manifests, of two versions.

use std::collections::BTreeMap;

use installer::manifest::Manifest;
use installer::planning::{Plan, Sources, plan};
use installer::{settings, yaml};
use serde_json::{Value, json};

use crate::made_up::{NEW, OLD};

fn planned(text: &str) -> (Plan, Value) {
    let original = Manifest::read(text).unwrap();
    let ours = yaml::read(settings::SHIPPED).unwrap();
    let certificates = BTreeMap::from([("ca.crt".to_owned(), b"ca".to_vec())]);
    let folder = "/etc/kubernetes/nanogpu";
    let sources = Sources {
        original: &original,
        ours: &ours,
        theirs: None,
        certificates: &certificates,
        folder,
    };
    let plan = plan(&sources).unwrap();
    let config = yaml::read(std::str::from_utf8(&plan.files["scheduler-config.yaml"]).unwrap());
    (plan, config.unwrap())
}

fn pop(list: &mut Value) -> Value {
    list.as_array_mut().unwrap().pop().unwrap()
}

#[test]
fn everything_but_ours_stays() {
    for text in [OLD, NEW] {
        let (plan, _) = planned(text);
        let before = yaml::read(text).unwrap();
        let mut after = yaml::read(&plan.manifest).unwrap();
        let container = &mut after["spec"]["containers"][0];
        let flag = pop(&mut container["command"]);
        assert_eq!(flag, "--config=/etc/kubernetes/nanogpu/scheduler-config.yaml");
        let mount = pop(&mut container["volumeMounts"]);
        assert_eq!(
            mount,
            json!({"name": "nanogpu-settings", "mountPath": "/etc/kubernetes/nanogpu", "readOnly": true})
        );
        let volume = pop(&mut after["spec"]["volumes"]);
        assert_eq!(
            volume["hostPath"],
            json!({"path": "/etc/kubernetes/nanogpu", "type": "Directory"})
        );
        let annotations = after["metadata"]["annotations"].as_object_mut().unwrap();
        assert_eq!(annotations.remove("nano-gpu/settings").unwrap().as_str().unwrap().len(), 64);
        if annotations.is_empty() {
            after["metadata"].as_object_mut().unwrap().remove("annotations");
        }
        assert_eq!(after, before);
    }
}

#[test]
fn the_configuration_says_what_kube_scheduler_would_no_longer_hear() {
    let (_, config) = planned(OLD);
    assert_eq!(config["clientConnection"], json!({"kubeconfig": "/etc/kubernetes/scheduler.conf"}));
    assert_eq!(config["extenders"][0]["ignorable"], false);
    let (_, config) = planned(NEW);
    assert_eq!(config["clientConnection"]["qps"], 80);
    assert_eq!(config["enableProfiling"], false);
}

#[test]
fn health_is_asked_where_the_flags_say() {
    let health = |text: &str| Manifest::read(text).unwrap().health();
    assert_eq!(health(OLD), "https://127.0.0.1:10259/healthz");
    assert_eq!(health(NEW), "https://127.0.0.1:10269/healthz");
    let six = OLD.replace("--bind-address=127.0.0.1", "--bind-address=::1");
    assert_eq!(health(&six), "https://[::1]:10259/healthz");
}

#[test]
fn other_files_or_other_certificates_are_another_manifest() {
    let (plan, _) = planned(OLD);
    let original = Manifest::read(OLD).unwrap();
    let one = original.patched("/etc/kubernetes/nanogpu", "1").unwrap();
    let two = original.patched("/etc/kubernetes/nanogpu", "2").unwrap();
    assert_ne!(one, two, "or the kubelet would not start it anew");
    assert_ne!(plan.manifest, one);
}

#[test]
fn paths_in_the_container_are_found_on_the_host() {
    let text = OLD
        .replace("- mountPath: /etc/kubernetes/scheduler.conf", "- mountPath: /conf")
        .replace("path: /etc/kubernetes/scheduler.conf", "path: /etc/kubernetes/theirs/");
    let manifest = Manifest::read(&text).unwrap();
    let on_host = |path: &str| manifest.on_host(path);
    assert_eq!(on_host("/conf/a.yaml").as_deref(), Some("/etc/kubernetes/theirs/a.yaml"));
    assert_eq!(on_host("/conf").as_deref(), Some("/etc/kubernetes/theirs"));
    assert_eq!(on_host("/configuration/a.yaml"), None);
}
