//! Specs appear whole and once, say what a runtime understands, and touch no file of others.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use kubelet::cdi::{
    Act, ContainerEdits, Device, DeviceNode, Hook, Kind, Mount, Spec, SpecError, Specs, SpecsError,
};

fn kind() -> Kind {
    Kind::parse("nano-gpu/alloc").unwrap()
}

fn edits() -> ContainerEdits {
    ContainerEdits {
        env: vec!["NVIDIA_VISIBLE_DEVICES=void".into()],
        device_nodes: vec![DeviceNode {
            host_path: Some("/host/dev/nvidia0".into()),
            node_type: Some("c".into()),
            major: Some(195),
            minor: Some(0),
            permissions: Some("rw".into()),
            ..DeviceNode::new("/dev/nvidia0")
        }],
        mounts: vec![Mount::read_only("/opt/nano-gpu/lib.so", "/usr/lib/libcuda.so.1")],
        hooks: vec![Hook {
            hook_name: "createContainer".into(),
            path: "/opt/nano-gpu/hook".into(),
            args: vec!["hook".into()],
            env: vec![],
            timeout: Some(5),
        }],
    }
}

fn spec(name: &str) -> Spec {
    Spec::new(kind(), [Device::new(name, edits()).unwrap()]).unwrap()
}

#[test]
fn a_spec_is_the_json_that_runtimes_read() {
    assert_eq!(
        serde_json::to_value(spec("0a-1b")).unwrap(),
        serde_json::json!({
            "cdiVersion": "0.5.0",
            "kind": "nano-gpu/alloc",
            "devices": [{"name": "0a-1b", "containerEdits": {
                "env": ["NVIDIA_VISIBLE_DEVICES=void"],
                "deviceNodes": [{"path": "/dev/nvidia0", "hostPath": "/host/dev/nvidia0",
                    "type": "c", "major": 195, "minor": 0, "permissions": "rw"}],
                "mounts": [{"hostPath": "/opt/nano-gpu/lib.so",
                    "containerPath": "/usr/lib/libcuda.so.1",
                    "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"]}],
                "hooks": [{"hookName": "createContainer", "path": "/opt/nano-gpu/hook",
                    "args": ["hook"], "timeout": 5}],
            }}],
        })
    );
}

#[test]
fn a_spec_tells_whether_others_have_read_it() {
    let dir = tempfile::tempdir().unwrap();
    let specs = Specs::open(dir.path()).unwrap();
    assert_eq!(specs.was_read("nano-gpu-a").unwrap(), None);
    specs.write("nano-gpu-a", &spec("a")).unwrap();
    specs.read("nano-gpu-a").unwrap();
    assert_eq!(specs.was_read("nano-gpu-a").unwrap(), Some(false), "we are no others");
    let path = specs.write("nano-gpu-b", &spec("b")).unwrap();
    fs::read(&path).unwrap();
    assert_eq!(specs.was_read("nano-gpu-b").unwrap(), Some(true));
}

#[test]
fn a_spec_is_written_once_read_back_listed_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let specs = Specs::open(dir.path().join("run/cdi")).unwrap();
    let path = specs.write("nano-gpu-b", &spec("b")).unwrap();
    specs.write("nano-gpu-a", &spec("a")).unwrap();
    assert_eq!(path, specs.folder().join("nano-gpu-b.json"));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
    assert_eq!(specs.read("nano-gpu-b").unwrap().unwrap(), spec("b"));
    assert_eq!(specs.read("nano-gpu-c").unwrap(), None);

    let error = specs.write("nano-gpu-b", &spec("other")).unwrap_err();
    assert!(matches!(error, SpecsError::Exists { .. }), "{error}");
    assert_eq!(specs.read("nano-gpu-b").unwrap().unwrap(), spec("b"));

    // Files of others are in the folder too.
    fs::write(specs.folder().join("nvidia.json"), "{}").unwrap();
    fs::write(specs.folder().join("nano-gpu-x.yaml"), "").unwrap();
    fs::create_dir(specs.folder().join("nano-gpu-dir.json")).unwrap();
    assert_eq!(specs.list("nano-gpu-").unwrap(), ["nano-gpu-a", "nano-gpu-b"]);
    assert!(specs.remove("nano-gpu-a").unwrap());
    assert!(!specs.remove("nano-gpu-a").unwrap());
    assert_eq!(specs.list("nano-gpu-").unwrap(), ["nano-gpu-b"]);
    assert_eq!(hidden(&specs), 0);
}

/// How many temporary files are left.
fn hidden(specs: &Specs) -> usize {
    let names = fs::read_dir(specs.folder()).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().starts_with('.')).count()
}

#[test]
fn leftovers_of_a_killed_writer_are_collected() {
    let dir = tempfile::tempdir().unwrap();
    let specs = Specs::open(dir.path()).unwrap();
    for name in [".nano-gpu-a.1-0.tmp", ".nano-gpu-b.1-7.tmp", ".other.1-0.tmp", "nano-gpu-c.tmp"] {
        fs::write(dir.path().join(name), "half").unwrap();
    }
    assert_eq!(specs.list("").unwrap(), Vec::<String>::new());
    assert_eq!(specs.remove_leftovers("nano-gpu-").unwrap(), 2);
    assert!(dir.path().join(".other.1-0.tmp").exists());
}

#[test]
fn what_is_no_spec_is_set_aside_and_its_name_is_free() {
    let dir = tempfile::tempdir().unwrap();
    let specs = Specs::open(dir.path().join("cdi")).unwrap();
    let path = specs.folder().join("nano-gpu-a.json");
    let made: [&dyn Fn(); 3] = [
        &|| fs::write(&path, "{\"cdiVersion\":").unwrap(),
        &|| symlink("/etc/passwd", &path).unwrap(),
        &|| fs::write(&path, "{}").unwrap(),
    ];
    for make in made {
        make();
        let error = specs.read("nano-gpu-a").unwrap_err();
        assert!(error.is_in_the_file(), "{error}");
        let aside = specs.set_aside("nano-gpu-a").unwrap();
        assert!(aside.symlink_metadata().is_ok());
        assert_eq!(specs.read("nano-gpu-a").unwrap(), None);
        assert_eq!(specs.list("").unwrap(), Vec::<String>::new());
    }
    let missing = specs.set_aside("nano-gpu-a").unwrap_err();
    assert!(!missing.is_in_the_file(), "{missing}");
}

#[test]
fn no_link_is_followed() {
    let dir = tempfile::tempdir().unwrap();
    let specs = Specs::open(dir.path().join("cdi")).unwrap();
    let victim = dir.path().join("victim");
    fs::write(&victim, serde_json::to_vec(&spec("a")).unwrap()).unwrap();
    symlink(&victim, specs.folder().join("nano-gpu-a.json")).unwrap();
    symlink(dir.path().join("nothing"), specs.folder().join("nano-gpu-b.json")).unwrap();

    for name in ["nano-gpu-a", "nano-gpu-b"] {
        let written = specs.write(name, &spec("z")).unwrap_err();
        assert!(matches!(written, SpecsError::Exists { .. }), "{written}");
        let read = specs.read(name).unwrap_err();
        assert!(matches!(read, SpecsError::File { act: Act::Read, .. }), "{read}");
        // It is the link that goes.
        assert!(specs.remove(name).unwrap());
    }
    assert!(specs.list("").unwrap().is_empty());
    assert_eq!(serde_json::from_slice::<Spec>(&fs::read(&victim).unwrap()).unwrap(), spec("a"));
    assert!(!dir.path().join("nothing").exists());
}

#[test]
fn names_stay_in_the_folder() {
    let dir = tempfile::tempdir().unwrap();
    let specs = Specs::open(dir.path()).unwrap();
    for name in ["", ".", "..", "../a", "a/b", "/a", ".a", "a\0b"] {
        let error = specs.write(name, &spec("a")).unwrap_err();
        assert!(matches!(error, SpecsError::Invalid { .. }), "{name:?}: {error}");
        assert!(specs.read(name).is_err() && specs.remove(name).is_err(), "{name:?}");
    }
}

#[test]
fn torn_and_foreign_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let specs = Specs::open(dir.path()).unwrap();
    let whole = serde_json::to_string(&spec("a")).unwrap();
    fs::write(dir.path().join("torn.json"), &whole[..whole.len() - 5]).unwrap();
    assert!(matches!(specs.read("torn"), Err(SpecsError::NotASpec { .. })));
    fs::write(dir.path().join("bad.json"), whole.replace("0.5.0", "9.9.9")).unwrap();
    assert!(matches!(
        specs.read("bad"),
        Err(SpecsError::Invalid { source: SpecError::BadVersion { .. }, .. })
    ));
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(matches!(Specs::open(file.join("cdi")), Err(SpecsError::Folder { .. })));
}

#[test]
fn what_a_runtime_would_refuse_is_refused_before() {
    let device = |edits| Device::new("a", edits);
    let with = |change: fn(&mut ContainerEdits)| {
        let mut edits = edits();
        change(&mut edits);
        device(edits).unwrap_err()
    };
    assert!(matches!(device(ContainerEdits::default()), Err(SpecError::NoEdits { .. })));
    assert!(matches!(with(|e| e.env.push("=x".into())), SpecError::BadEnv { .. }));
    assert!(matches!(with(|e| e.env.push("x".into())), SpecError::BadEnv { .. }));
    assert!(matches!(with(|e| e.device_nodes[0].path = "dev".into()), SpecError::BadPath { .. }));
    assert!(matches!(
        with(|e| e.device_nodes[0].permissions = Some("rx".into())),
        SpecError::BadPermissions { .. }
    ));
    assert!(matches!(
        with(|e| e.device_nodes[0].node_type = Some("d".into())),
        SpecError::BadType { .. }
    ));
    assert!(matches!(with(|e| e.mounts[0].host_path = String::new()), SpecError::BadPath { .. }));
    assert!(matches!(with(|e| e.hooks[0].hook_name = "never".into()), SpecError::BadHook { .. }));
    assert_eq!(Spec::new(kind(), []), Err(SpecError::NoDevice));
    let twice = [device(edits()).unwrap(), device(edits()).unwrap()];
    assert!(matches!(Spec::new(kind(), twice), Err(SpecError::RepeatedDevice { .. })));
}
