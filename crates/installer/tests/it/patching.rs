//! In and out, once and again.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use installer::yaml;

use crate::made_up::{Machine, NEW, OLD};

#[test]
fn what_is_put_in_comes_out_to_the_byte() {
    for text in [OLD, NEW] {
        let machine = Machine::new(text);
        let before = machine.files();
        assert!(
            machine.run("status").out.starts_with("not patched: kube-scheduler runs as kubeadm")
        );
        let out = machine.patch();
        assert!(out.contains("names nanogpu's configuration now"), "{out}");
        assert!(machine.text().contains("--config=/etc/kubernetes/nanogpu/scheduler-config.yaml"));
        assert!(machine.run("status").out.starts_with("patched, not verified"));
        let key = fs::metadata(machine.path("kubernetes/nanogpu/client.key")).unwrap();
        assert_eq!(key.mode() & 0o777, 0o600);
        machine.kubelet_sees_whole_manifests();
        let config = fs::read_to_string(machine.path("kubernetes/nanogpu/scheduler-config.yaml"));
        let config = yaml::read(&config.unwrap()).unwrap();
        assert_eq!(config["extenders"][0]["urlPrefix"], "https://10.96.0.50:39443/scheduler");
        let out = machine.rollback();
        assert!(out.contains("is as it was before nanogpu"), "{out}");
        assert!(machine.files() == before, "something of ours is left");
        assert_eq!(machine.text(), text);
    }
}

#[test]
fn a_second_patch_writes_nothing() {
    let machine = Machine::new(OLD);
    machine.patch();
    let (files, inode) = (machine.files(), fs::metadata(machine.manifest()).unwrap().ino());
    let out = machine.patch();
    assert!(out.contains("already in kube-scheduler's manifest"), "{out}");
    assert!(machine.files() == files);
    assert_eq!(
        fs::metadata(machine.manifest()).unwrap().ino(),
        inode,
        "the kubelet sees no change"
    );
}

#[test]
fn a_second_rollback_does_nothing() {
    let machine = Machine::new(OLD);
    machine.patch();
    machine.rollback();
    let files = machine.files();
    assert!(machine.rollback().contains("nothing to undo"));
    assert!(machine.files() == files);
}

#[test]
fn renewed_certificates_start_kube_scheduler_anew() {
    let machine = Machine::new(OLD);
    let before = machine.files();
    machine.patch();
    let first = machine.text();
    machine.put("secret/client.crt", "client.crt of the second year\n");
    machine.patch();
    assert_ne!(machine.text(), first);
    let kept = fs::read_to_string(machine.path("kubernetes/nanogpu/client.crt")).unwrap();
    assert_eq!(kept, "client.crt of the second year\n");
    // Without a folder those of the last time stay.
    let said = machine.run("patch --no-verify --extender https://10.96.0.51:39443/scheduler");
    assert_eq!(said.code, Some(0), "{}", said.error);
    assert_eq!(fs::read_to_string(machine.path("kubernetes/nanogpu/client.crt")).unwrap(), kept);
    machine.rollback();
    assert!(machine.files() == before);
}

#[test]
fn a_manifest_that_kubeadm_wrote_anew_is_patched_anew() {
    let machine = Machine::new(OLD);
    machine.patch();
    fs::write(machine.manifest(), NEW).unwrap();
    assert!(machine.run("status").out.contains("`patch` puts nanogpu in again"));
    machine.patch();
    assert!(machine.text().contains("v1.36.3") && machine.text().contains("--config="));
    machine.rollback();
    assert_eq!(machine.text(), NEW, "what is restored is the newer one");
    // And without a patch in between, it is left alone.
    machine.patch();
    fs::write(machine.manifest(), OLD).unwrap();
    assert!(machine.rollback().contains("left as it is"));
    assert_eq!(machine.text(), OLD);
}

#[test]
fn a_manifest_that_somebody_changed_is_not_overwritten() {
    let machine = Machine::new(OLD);
    machine.patch();
    let changed = machine.text().replace("100m", "200m");
    fs::write(machine.manifest(), &changed).unwrap();
    let sentence = "was changed by somebody since nanogpu was put in";
    machine.refuses("rollback --no-verify", sentence);
    machine.refuses(&machine.patch_words(), sentence);
    machine.refuses("verify", sentence);
    assert!(machine.run("status").out.contains(sentence));
    let said = machine.run("rollback --no-verify --force");
    assert_eq!(said.code, Some(0), "{}", said.error);
    assert_eq!(machine.text(), OLD);
    let kept = machine.path("kubernetes/nanogpu-install/kube-scheduler.yaml.changed");
    assert_eq!(fs::read_to_string(kept).unwrap(), changed);
}

#[test]
fn a_kube_scheduler_that_does_not_come_back_is_rolled_back() {
    let machine = Machine::new(OLD);
    let before = machine.files();
    machine.patch();
    // Nobody listens there.
    let said = machine.run("verify --within 1 --steady 0 --verify-url https://127.0.0.1:9/healthz");
    assert_eq!(said.code, Some(1));
    assert!(said.out.contains("Rolling back."), "{}", said.out);
    assert!(said.error.contains("kube-scheduler does not answer"), "{}", said.error);
    assert!(machine.files() == before);
    machine.patch();
    let kept = machine.files();
    let said =
        machine.run("verify --keep --within 1 --steady 0 --verify-url https://127.0.0.1:9/healthz");
    assert_eq!(said.code, Some(1));
    assert!(machine.files() == kept, "asked to keep it");
}
