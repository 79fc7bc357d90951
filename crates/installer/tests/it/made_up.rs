//! A made-up `/etc/kubernetes`, and the program run on it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use installer::faults::{Point, VARIABLE};
use tempfile::TempDir;

pub(crate) const OLD: &str = include_str!("../manifests/kubeadm-1.31.yaml");
pub(crate) const NEW: &str = include_str!("../manifests/kubeadm-1.36.yaml");

/// All files by path, with mode and bytes.
pub(crate) type Files = BTreeMap<PathBuf, (u32, Vec<u8>)>;

/// What the program said.
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) error: String,
}

/// A machine.
pub(crate) struct Machine {
    folder: TempDir,
}

impl Machine {
    /// One whose kube-scheduler has this manifest.
    pub(crate) fn new(manifest: &str) -> Self {
        let machine = Self { folder: tempfile::tempdir().unwrap() };
        machine.put("kubernetes/manifests/kube-scheduler.yaml", manifest);
        machine.put("kubernetes/manifests/etcd.yaml", "kind: Pod\n");
        machine.put("kubernetes/scheduler.conf", "kind: Config\n");
        for name in ["ca.crt", "client.crt", "client.key"] {
            machine.put(&format!("secret/{name}"), &format!("{name} of the first year\n"));
        }
        let mode = fs::Permissions::from_mode(0o600);
        fs::set_permissions(machine.manifest(), mode).unwrap();
        machine
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn manifest(&self) -> PathBuf {
        self.path("kubernetes/manifests/kube-scheduler.yaml")
    }

    pub(crate) fn text(&self) -> String {
        fs::read_to_string(self.manifest()).unwrap()
    }

    pub(crate) fn put(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Everything below `/etc/kubernetes`.
    pub(crate) fn files(&self) -> Files {
        let mut files = Files::new();
        collect(&self.path("kubernetes"), &mut files);
        files
    }

    fn command(&self, words: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nanogpu-install"));
        command.arg("--root").arg(self.path("kubernetes")).args(words.split(' '));
        command.env_remove(VARIABLE).env_remove("NANOGPU_INSTALL_ROOT");
        command
    }

    pub(crate) fn run(&self, words: &str) -> Said {
        said(&mut self.command(words))
    }

    /// The words of a patch that nobody looks after.
    pub(crate) fn patch_words(&self) -> String {
        format!(
            "patch --no-verify --extender https://10.96.0.50:39443/scheduler --certificates {}",
            self.path("secret").display()
        )
    }

    /// Patches, which must succeed.
    pub(crate) fn patch(&self) -> String {
        let said = self.run(&self.patch_words());
        assert_eq!(said.code, Some(0), "{}{}", said.out, said.error);
        said.out
    }

    pub(crate) fn rollback(&self) -> String {
        let said = self.run("rollback --no-verify");
        assert_eq!(said.code, Some(0), "{}{}", said.out, said.error);
        said.out
    }

    /// Runs it until `point`, where it is killed; true if it came there.
    pub(crate) fn cut_off(&self, words: &str, point: Point) -> bool {
        let said = said(self.command(words).env(VARIABLE, point.to_string()));
        assert!(said.code.is_none() || said.code == Some(0), "{point}: {}", said.error);
        self.kubelet_sees_whole_manifests();
        said.code.is_none()
    }

    /// Whatever happened, the kubelet sees the two manifests and each is whole.
    pub(crate) fn kubelet_sees_whole_manifests(&self) {
        let names = fs::read_dir(self.path("kubernetes/manifests")).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| !name.starts_with('.')).collect();
        names.sort();
        assert_eq!(names, ["etcd.yaml", "kube-scheduler.yaml"]);
        installer::manifest::Manifest::read(&self.text()).unwrap();
    }

    /// It must refuse with a sentence, and leave everything as it is.
    #[track_caller]
    pub(crate) fn refuses(&self, words: &str, because: &str) {
        let before = self.files();
        let said = self.run(words);
        assert_eq!(said.code, Some(1), "{}{}", said.out, said.error);
        assert!(said.error.contains(because), "{}", said.error);
        assert!(self.files() == before, "something was changed: {}", said.error);
    }
}

fn said(command: &mut Command) -> Said {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Said { code: output.status.code(), out: text(&output.stdout), error: text(&output.stderr) }
}

fn collect(folder: &Path, files: &mut Files) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let mode = fs::symlink_metadata(&path).unwrap().permissions().mode() & 0o777;
        if path.is_dir() {
            files.insert(path.clone(), (mode, Vec::new()));
            collect(&path, files);
        } else {
            files.insert(path.clone(), (mode, fs::read(&path).unwrap()));
        }
    }
}
