//! The kubelet's checkpoint, in the forms it has had and the states a disk can leave it in.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use kubelet::checkpoint::{Checkpoint, CheckpointError, FILE};
use kubelet::devices::IdSet;
use kubelet::plugin::Allocation;
use kubelet::wire::device_plugin::CdiDevice;
use prost::Message as _;

const RESOURCE: &str = "nano-gpu/gpu-percent";

/// The answer a plugin gave, as the kubelet keeps it.
pub(crate) fn answer(cdi: &str) -> String {
    let allocation = Allocation {
        envs: [("NVIDIA_VISIBLE_DEVICES".to_owned(), "void".to_owned())].into(),
        cdi_devices: vec![CdiDevice { name: cdi.into() }],
        ..Default::default()
    };
    BASE64_STANDARD.encode(allocation.encode_to_vec())
}

fn entry(pod: &str, container: &str, resource: &str, ids: &str, cdi: &str) -> String {
    let answer = answer(cdi);
    format!(
        r#"{{"PodUID":"{pod}","ContainerName":"{container}","ResourceName":"{resource}","DeviceIDs":{ids},"AllocResp":"{answer}"}}"#
    )
}

pub(crate) fn file(entries: &[String], registered: &str) -> String {
    let entries = entries.join(",");
    format!(
        r#"{{"Data":{{"PodDeviceEntries":[{entries}],"RegisteredDevices":{registered}}},"Checksum":2741398765}}"#
    )
}

const POD_A: &str = "6c0a2d6e-0f3b-4c5d-9a6e-0b8f8f3f2c11";
const POD_B: &str = "f1f0c7f2-41a3-4d2b-8d0e-5b7a9a1f0e22";

/// Two init containers and an app container of one pod, of which the last holds the set of the
/// first; a pod with two resources; IDs on two NUMA nodes.
pub(crate) fn full() -> String {
    file(
        &[
            entry(
                POD_A,
                "warm-up",
                RESOURCE,
                r#"{"-1":["nano-0-07","nano-0-03"]}"#,
                "nano-gpu/alloc=aa-01",
            ),
            entry(POD_A, "fetch", RESOURCE, r#"{"-1":["nano-0-07"]}"#, "nano-gpu/alloc=bb-02"),
            entry(
                POD_A,
                "main",
                RESOURCE,
                r#"{"-1":["nano-0-03","nano-0-07"]}"#,
                "nano-gpu/alloc=aa-03",
            ),
            entry(
                POD_B,
                "main",
                RESOURCE,
                r#"{"0":["nano-1-00"],"1":["nano-1-01","nano-1-00"]}"#,
                "nano-gpu/alloc=cc-04",
            ),
            entry(
                POD_B,
                "main",
                "example.com/nic",
                r#"{"0":["nano-1-00"],"1":["nano-1-01"]}"#,
                "example.com/nic=0",
            ),
        ],
        r#"{"nano-gpu/gpu-percent":["nano-0-00","nano-0-03"],"example.com/nic":null}"#,
    )
}

fn holders(checkpoint: &Checkpoint, resource: &str, ids: &[&str]) -> Vec<(String, String, String)> {
    let ids: IdSet = ids.iter().copied().collect();
    let told = |entry: &kubelet::checkpoint::Entry| {
        let cdi = entry.cdi_devices().unwrap().join(",");
        (entry.pod.to_string(), entry.container.to_string(), cdi)
    };
    checkpoint.holders(resource, &ids).map(told).collect()
}

fn held(pod: &str, container: &str, cdi: &str) -> (String, String, String) {
    (pod.into(), container.into(), cdi.into())
}

#[test]
fn holders_are_found_by_their_set_whatever_its_order() {
    let checkpoint = Checkpoint::parse(full().as_bytes()).unwrap();
    assert_eq!(checkpoint.entries().len(), 5);
    // An init container and the app container of one pod share a set; each has its own answer.
    assert_eq!(
        holders(&checkpoint, RESOURCE, &["nano-0-07", "nano-0-03"]),
        [
            held(POD_A, "warm-up", "nano-gpu/alloc=aa-01"),
            held(POD_A, "main", "nano-gpu/alloc=aa-03")
        ]
    );
    // A part of a set is another set.
    assert_eq!(
        holders(&checkpoint, RESOURCE, &["nano-0-07"]),
        [held(POD_A, "fetch", "nano-gpu/alloc=bb-02")]
    );
    // NUMA nodes do not matter, nor an ID that is near to both; the resource does.
    assert_eq!(
        holders(&checkpoint, RESOURCE, &["nano-1-00", "nano-1-01"]),
        [held(POD_B, "main", "nano-gpu/alloc=cc-04")]
    );
    assert_eq!(
        holders(&checkpoint, "example.com/nic", &["nano-1-00", "nano-1-01"]),
        [held(POD_B, "main", "example.com/nic=0")]
    );
    assert_eq!(holders(&checkpoint, RESOURCE, &["nano-0-03"]), []);
}

#[test]
fn a_writing_of_the_file_is_told_from_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let stamp = || Checkpoint::stamp(folder.path()).unwrap();
    assert_eq!(stamp(), None);
    // As the kubelet writes it: a new file takes the name of the old one.
    let write = || {
        std::fs::write(folder.path().join("new"), full()).unwrap();
        std::fs::rename(folder.path().join("new"), folder.path().join(FILE)).unwrap();
    };
    write();
    let first = stamp();
    assert!(first.is_some() && stamp() == first, "who only looks changes nothing");
    write();
    assert!(stamp() != first, "the same text, written again");
}

#[test]
fn a_kubelet_that_gave_out_nothing_writes_null() {
    let text = r#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}"#;
    assert_eq!(Checkpoint::parse(text.as_bytes()).unwrap(), Checkpoint::default());
    let text = r#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":null},"Checksum":1}"#;
    assert_eq!(Checkpoint::parse(text.as_bytes()).unwrap(), Checkpoint::default());
}

/// The bytes that the code of kubelet 1.36.3 writes, for an answer with a variable, a mount and a
/// CDI device.
#[test]
fn a_kubelets_own_bytes_are_read() {
    let text = r#"{"Data":{"PodDeviceEntries":[{"PodUID":"6c0a2d6e-0f3b-4c5d-9a6e-0b8f8f3f2c11","ContainerName":"main","ResourceName":"nano-gpu/gpu-percent","DeviceIDs":{"-1":["nano-0-03","nano-0-07"]},"AllocResp":"CgYKAUESAWISCgoCL2MSAi9oGAEqFgoUbmFuby1ncHUvYWxsb2M9YWEtMDE="}],"RegisteredDevices":{"example.com/none":null,"nano-gpu/gpu-percent":["nano-0-00"]}},"Checksum":3233984449}"#;
    let checkpoint = Checkpoint::parse(text.as_bytes()).unwrap();
    assert_eq!(
        holders(&checkpoint, RESOURCE, &["nano-0-07", "nano-0-03"]),
        [held(POD_A, "main", "nano-gpu/alloc=aa-01")]
    );
    let answer = checkpoint.entries()[0].answer().unwrap();
    assert_eq!(answer.envs["A"], "b");
    let mount = &answer.mounts[0];
    assert_eq!(
        (mount.container_path.as_str(), mount.host_path.as_str(), mount.read_only),
        ("/c", "/h", true)
    );
}

#[test]
fn older_forms_are_read_too() {
    let one = entry(POD_A, "main", RESOURCE, r#"["b","a"]"#, "nano-gpu/alloc=aa-01");
    let before_numa = file(std::slice::from_ref(&one), "{}");
    let before_checksums = format!(r#"{{"PodDeviceEntries":[{one}],"RegisteredDevices":{{}}}}"#);
    for text in [before_numa, before_checksums] {
        let checkpoint = Checkpoint::parse(text.as_bytes()).unwrap();
        assert_eq!(
            holders(&checkpoint, RESOURCE, &["a", "b"]),
            [held(POD_A, "main", "nano-gpu/alloc=aa-01")]
        );
    }
}

#[test]
fn what_is_new_does_not_disturb() {
    let text = full()
        .replace(r#""Checksum""#, r#""Version":7,"Checksum""#)
        .replace(r#""RegisteredDevices""#, r#""Claims":[{"a":1}],"RegisteredDevices""#)
        .replace(r#""PodUID""#, r#""ShareID":"x","PodUID""#);
    let old = Checkpoint::parse(full().as_bytes()).unwrap();
    assert_eq!(Checkpoint::parse(text.as_bytes()).unwrap(), old);
}

#[test]
fn a_torn_file_is_called_torn_wherever_it_ends() {
    let text = full();
    for end in 0..text.len() {
        match Checkpoint::parse(&text.as_bytes()[..end]) {
            Err(CheckpointError::Torn(_)) => {}
            other => panic!("cut at {end}: {other:?}"),
        }
    }
}

#[test]
fn a_file_of_another_form_is_called_foreign() {
    for text in [
        "[]",
        "7",
        r#"{"Data":{"PodDeviceEntries":[{"PodUID":7}]}}"#,
        r#"{"Data":{"PodDeviceEntries":[{"PodUID":"a","ContainerName":"b","ResourceName":"c","DeviceIDs":"d"}]}}"#,
        r#"{"PodDeviceEntries":{},"RegisteredDevices":{}}"#,
    ] {
        let error = Checkpoint::parse(text.as_bytes()).unwrap_err();
        assert!(matches!(error, CheckpointError::Foreign(_)), "{text}: {error:?}");
    }
    for text in ["{}", r#"{"Data":{}}"#, r#"{"Data":[]}"#, r#"{"policyName":"none","checksum":1}"#]
    {
        let error = Checkpoint::parse(text.as_bytes()).unwrap_err();
        assert!(matches!(error, CheckpointError::NoEntries), "{text}: {error:?}");
    }
    let nameless = file(&[entry(POD_A, "", RESOURCE, "{}", "x/y=z")], "{}");
    let error = Checkpoint::parse(nameless.as_bytes()).unwrap_err();
    assert!(matches!(error, CheckpointError::BadHolder { .. }), "{error:?}");
}

#[test]
fn an_answer_that_cannot_be_read_spoils_only_itself() {
    let text = full().replace(&answer("example.com/nic=0"), "AAA=!");
    let checkpoint = Checkpoint::parse(text.as_bytes()).unwrap();
    let broken: Vec<_> = checkpoint.entries().iter().map(|one| one.answer().is_err()).collect();
    assert_eq!(broken, [false, false, false, false, true]);
}

#[test]
fn the_file_is_found_in_the_folder_of_device_plugins() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(Checkpoint::read(dir.path()), Err(CheckpointError::Missing { .. })));
    std::fs::write(dir.path().join(FILE), full()).unwrap();
    assert_eq!(Checkpoint::read(dir.path()).unwrap().entries().len(), 5);
    std::fs::remove_file(dir.path().join(FILE)).unwrap();
    std::fs::create_dir(dir.path().join(FILE)).unwrap();
    assert!(matches!(Checkpoint::read(dir.path()), Err(CheckpointError::Unreadable { .. })));
}
