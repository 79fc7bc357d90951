//! `cluster up` and `down` as a person meets them: what is said, and that nothing is left behind.

#![cfg(test)]

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

const TESTBED: &str = env!("CARGO_BIN_EXE_testbed");

/// Clusters of these tests come and go one after another, because they look at the whole machine.
static TURN: Mutex<()> = Mutex::new(());

/// Waits for the turn. A test that failed in its own has said so itself.
fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The testbed with a state folder of the test's own.
struct Bed {
    state: tempfile::TempDir,
}

impl Bed {
    fn new() -> Self {
        Self { state: tempfile::Builder::new().prefix("bed-").tempdir_in("/var/tmp").unwrap() }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(TESTBED);
        command.args(args).env("NANOGPU_TESTBED_STATE", self.state.path());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Everything the state folder holds.
    fn left(&self) -> Vec<String> {
        let entries = fs::read_dir(self.state.path()).unwrap().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        // A test that failed half-way leaves a cluster; the folder it is known by is about to go.
        self.run(&["down", "--all"]);
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// What a cluster could change on the host.
fn host() -> Vec<String> {
    let run = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let settings =
        ["vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops", "net/ipv4/ip_forward"];
    let mut seen: Vec<String> = settings
        .iter()
        .map(|name| fs::read_to_string(Path::new("/proc/sys").join(name)).unwrap())
        .collect();
    seen.push(run("ip -o link"));
    seen.push(run("iptables -S"));
    seen.push(run("iptables -t nat -S"));
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    seen.extend(mounts.lines().map(str::to_owned));
    seen
}

/// Processes in cgroups of the testbed whose cluster is called `name`.
fn processes(name: &str) -> Vec<String> {
    fn walk(folder: &Path, into: &mut Vec<String>) {
        let text = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
        into.extend(text.lines().map(str::to_owned));
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.path().is_dir() {
                walk(&entry.path(), into);
            }
        }
    }
    let mut found = Vec::new();
    for root in ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"] {
        walk(&Path::new(root).join("nanogpu-testbed").join(name), &mut found);
    }
    found
}

#[test]
fn two_clusters_stand_side_by_side_and_leave_nothing() {
    let _turn = turn();
    let bed = Bed::new();
    let before = host();
    for name in ["one", "two"] {
        let up = bed.run(&[
            "up",
            "--name",
            name,
            "--nodes",
            "0",
            "--fake-nodes",
            "2",
            "--fake-capacity",
            "example.com/gpu=8",
        ]);
        assert!(up.status.success(), "{}", text(&up));
        assert!(text(&up).starts_with(&format!("cluster `{name}` is up after ")), "{}", text(&up));
    }
    let status = text(&bed.run(&["status"]));
    assert!(status.contains("cluster `one` is up: 0 real and 2 fake nodes"), "{status}");
    assert!(status.contains("cluster `two` is up: 0 real and 2 fake nodes"), "{status}");

    let again = bed.run(&["up", "--name", "one"]);
    assert!(!again.status.success());
    assert!(text(&again).contains("cluster `one` is already up"), "{}", text(&again));

    let down = bed.run(&["down", "--all"]);
    assert_eq!(text(&down), "cluster `one` is down\ncluster `two` is down\n");
    assert_eq!(bed.left(), Vec::<String>::new());
    assert_eq!(processes("one"), Vec::<String>::new());
    assert_eq!(host(), before);
}

#[test]
fn down_without_up_says_so() {
    let bed = Bed::new();
    let down = bed.run(&["down"]);
    assert!(down.status.success());
    assert_eq!(text(&down), "there is no cluster `dev`\n");
    assert_eq!(text(&bed.run(&["down", "--all"])), "there is no cluster\n");
    let status = text(&bed.run(&["status"]));
    assert_eq!(status, "there is no cluster; start one with `cargo xtask cluster up`\n");
}

/// Kills `up` at several points of its way; what it left must be found and removed.
#[test]
fn an_up_that_was_killed_is_cleaned_up() {
    let _turn = turn();
    let bed = Bed::new();
    let before = host();
    for (index, signal) in [(0, KILL), (1, KILL), (2, TERM)] {
        let mut up = bed.command(&["up", "--name", "gone"]).spawn().unwrap();
        // Wherever it is after this long: the test holds at any point.
        thread::sleep(Duration::from_millis(300 + 1500 * index));
        Command::new("kill").args([signal, &up.id().to_string()]).status().unwrap();
        up.wait().unwrap();
        if signal == KILL {
            assert_ne!(processes("gone"), Vec::<String>::new(), "something was started");
            let down = bed.run(&["down", "--name", "gone"]);
            assert_eq!(text(&down), "cluster `gone` is down\n");
        }
        assert_eq!(processes("gone"), Vec::<String>::new());
        assert_eq!(bed.left(), Vec::<String>::new());
    }
    assert_eq!(host(), before);

    // The next `up` cleans up by itself.
    let mut up = bed.command(&["up", "--name", "gone"]).spawn().unwrap();
    thread::sleep(Duration::from_millis(2500));
    up.kill().unwrap();
    up.wait().unwrap();
    let up = bed.run(&["up", "--name", "gone", "--nodes", "0"]);
    assert!(up.status.success(), "{}", text(&up));
    assert!(
        text(&up).contains("removed what a cluster `gone` that did not come up left"),
        "{}",
        text(&up)
    );
    bed.run(&["down", "--all"]);
    assert_eq!(host(), before);
}

const KILL: &str = "-KILL";
const TERM: &str = "-TERM";

#[test]
fn a_port_in_use_is_named_before_anything_starts() {
    let bed = Bed::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let up = bed.run(&["up", "--name", "port", "--api-port", &port]);
    assert!(!up.status.success());
    assert!(text(&up).contains(&format!("port {port} on 127.0.0.1 is in use")), "{}", text(&up));
    assert_eq!(processes("port"), Vec::<String>::new());
}

#[test]
fn without_root_it_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // The build folder may be closed to others.
    let program = folder.path().join("testbed");
    fs::copy(TESTBED, &program).unwrap();
    let output = Command::new(&program).args(["up"]).uid(65534).gid(65534).output().unwrap();
    assert!(!output.status.success());
    assert!(text(&output).starts_with("error: a cluster needs root"), "{}", text(&output));
}

/// Where a distribution's Go is new enough it is installed instead, which no test should do to a
/// machine: a folder that has everything but Go and apt's tools stands for one that has none.
#[test]
fn without_go_it_says_what_to_install() {
    let programs = tempfile::tempdir().unwrap();
    for name in ["runc", "ip", "iptables", "conntrack", "busybox"] {
        fs::write(programs.path().join(name), "").unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(TESTBED)
        .arg("programs")
        .env("XDG_CACHE_HOME", folder.path())
        .env("PATH", programs.path())
        .env_remove("NANOGPU_TESTBED_ASSETS")
        .output()
        .unwrap();
    assert!(!output.status.success());
    assert!(text(&output).contains("there is no `go` in PATH"), "{}", text(&output));
    assert!(text(&output).contains("apt-get install golang-go"), "{}", text(&output));
}

/// Programs in the cache after a build that failed.
fn cached(cache: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(cache.join("nanogpu/testbed")).unwrap().flatten() {
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    names
}

#[test]
fn sources_that_cannot_be_fetched_leave_no_half_built_program() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(TESTBED)
        .arg("programs")
        .env("XDG_CACHE_HOME", folder.path())
        .env("GOMODCACHE", folder.path().join("modules"))
        .env("GOPROXY", "off")
        .env_remove("NANOGPU_TESTBED_ASSETS")
        .output()
        .unwrap();
    assert!(!output.status.success());
    assert!(
        text(&output).contains("the sources of kube-apiserver could not be fetched"),
        "{}",
        text(&output)
    );
    assert_eq!(cached(folder.path()), ["lock"]);
}

#[test]
fn a_disk_too_small_is_told_before_the_build() {
    let folder = tempfile::tempdir().unwrap();
    let line = format!(
        "mount -t tmpfs -o size=4m none {0} && XDG_CACHE_HOME={0} {TESTBED} programs",
        folder.path().display()
    );
    // In a mount namespace of its own, so that the small disk goes with it.
    let output = Command::new("unshare").args(["--mount", "sh", "-c", &line]).output().unwrap();
    assert!(!output.status.success());
    assert!(text(&output).contains("building Kubernetes takes about 6 GB"), "{}", text(&output));
}

#[test]
fn ready_programs_are_taken_from_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let cache = tempfile::tempdir().unwrap();
    for name in [
        "etcd",
        "containerd",
        "containerd-shim-runc-v2",
        "ctr",
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "kubelet",
        "kubectl",
        "kube-proxy",
        "kwok",
    ] {
        fs::write(folder.path().join(name), "").unwrap();
    }
    let run = |assets: &Path| {
        Command::new(TESTBED)
            .arg("programs")
            .env("XDG_CACHE_HOME", cache.path())
            .env("NANOGPU_TESTBED_ASSETS", assets)
            .output()
            .unwrap()
    };
    let output = run(folder.path());
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(
        text(&output).lines().filter(|line| line.contains(folder.path().to_str().unwrap())).count(),
        11
    );
    let missing = run(&folder.path().join("nowhere"));
    assert!(text(&missing).contains("which is no folder"), "{}", text(&missing));
}
