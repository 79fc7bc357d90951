//! What is not understood is left alone, with a sentence.

use std::fs;

use crate::made_up::{Machine, OLD};

#[track_caller]
fn left_alone(manifest: &str, because: &str) {
    let machine = Machine::new(manifest);
    machine.refuses(&machine.patch_words(), because);
}

#[test]
fn manifests_of_another_shape() {
    left_alone("a: [", "is left alone: the manifest cannot be read: it is no YAML of one document");
    left_alone(&format!("{OLD}---\nkind: Pod\n"), "no YAML of one document");
    left_alone("", "the manifest is no Pod");
    left_alone(&OLD.replace("kind: Pod", "kind: Job"), "the manifest is no Pod");
    left_alone(
        &OLD.replace("name: kube-scheduler\n    resources", "name: other\n    resources")
            .replace("    - kube-scheduler\n", "    - other-scheduler\n"),
        "the manifest has no container that is kube-scheduler",
    );
    left_alone(&OLD.replace("    - kube-scheduler\n", "    - /bin/sh\n"), "starts `/bin/sh`");
    left_alone(&OLD.replace("name: kubeconfig", "name: nanogpu-settings"), "already has a volume");
    left_alone(&OLD.replace("--leader-elect=true", "--kube-api-qps=many"), "--kube-api-qps=many");
    let ours = "--config=/etc/kubernetes/nanogpu/scheduler-config.yaml";
    left_alone(&OLD.replace("--leader-elect=true", ours), "what it was before is not kept");
}

#[test]
fn machines_that_are_no_control_plane() {
    let machine = Machine::new(OLD);
    fs::remove_file(machine.manifest()).unwrap();
    machine.refuses(&machine.patch_words(), "this is no control-plane node of kubeadm's");
    // A link would be replaced by a file.
    machine.put("elsewhere.yaml", OLD);
    std::os::unix::fs::symlink(machine.path("elsewhere.yaml"), machine.manifest()).unwrap();
    machine.refuses(&machine.patch_words(), "is no plain file");
    let said = machine.run("status --root /nowhere/at/all");
    assert_eq!(said.code, Some(1));
}

#[test]
fn nobody_is_asked_who_does_not_answer() {
    let machine = Machine::new(OLD);
    machine.refuses(
        "patch --extender http://127.0.0.1:9/scheduler --within 1",
        "nanogpu-scheduler does not answer",
    );
    machine.refuses("patch --extender https://127.0.0.1:9/scheduler", "give --certificates");
    machine.refuses("patch --no-verify", "say where kube-scheduler reaches nanogpu-scheduler");
}

#[test]
fn two_at_once() {
    let machine = Machine::new(OLD);
    let held = fs::File::open(machine.path("kubernetes")).unwrap();
    held.lock().unwrap();
    machine.refuses(&machine.patch_words(), "another nanogpu-install is at work");
}

#[test]
fn a_backup_that_is_damaged_is_not_restored() {
    let machine = Machine::new(OLD);
    machine.patch();
    machine.put("kubernetes/nanogpu-install/kube-scheduler.yaml", "kind: Pod\n");
    machine.refuses("rollback --no-verify", "is not what was kept there");
    machine.put("kubernetes/nanogpu-install/journal.json", "{");
    machine.refuses("rollback --no-verify", "is damaged");
}

/// A manifest whose kube-scheduler has a configuration of its own.
fn configured(folder: &str) -> String {
    OLD.replace("--leader-elect=true", "--leader-elect=true\n    - --config=/conf/theirs.yaml")
        .replace(
            "    volumeMounts:\n",
            "    volumeMounts:\n    - mountPath: /conf\n      name: conf\n",
        )
        .replace(
            "  volumes:\n",
            &format!("  volumes:\n  - hostPath:\n      path: {folder}\n    name: conf\n"),
        )
}

#[test]
fn an_operators_own_configuration_is_merged_or_refused() {
    let machine = Machine::new(&configured("/etc/kubernetes/theirs"));
    machine.refuses(&machine.patch_words(), "theirs.yaml");
    let head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";
    let theirs = "kubernetes/theirs/theirs.yaml";
    machine.put(theirs, "a: [");
    machine.refuses(
        &machine.patch_words(),
        "/etc/kubernetes/theirs/theirs.yaml, kube-scheduler's configuration",
    );
    machine
        .put(theirs, &format!("{head}extenders: [{{urlPrefix: 'http://old', bindVerb: bind}}]\n"));
    machine.refuses(&machine.patch_words(), "its extender http://old binds pods");
    machine.put(theirs, &format!("{head}clientConnection: {{kubeconfig: /mine, qps: 7}}\n"));
    let before = machine.files();
    machine.patch();
    let text = machine.text();
    assert_eq!(text.matches("--config").count(), 1, "{text}");
    let config = fs::read_to_string(machine.path("kubernetes/nanogpu/scheduler-config.yaml"));
    let config = installer::yaml::read(&config.unwrap()).unwrap();
    assert_eq!(
        config["clientConnection"]["kubeconfig"], "/mine",
        "flags beside --config said nothing"
    );
    machine.rollback();
    assert!(machine.files() == before);

    let machine = Machine::new(&configured("/opt/theirs"));
    machine.refuses(&machine.patch_words(), "move it below /etc/kubernetes");
}
