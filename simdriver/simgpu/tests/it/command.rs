//! The command line, from making a machine to breaking it.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const SIMGPU: &str = env!("CARGO_BIN_EXE_nanogpu-simgpu");

struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    fn new(choices: &[&str]) -> Self {
        let bench = Self { folder: tempfile::tempdir().unwrap() };
        let machine = bench.machine();
        let mut words = vec!["create", "--profile", "t4x4"];
        words.extend(choices);
        words.push(machine.to_str().unwrap());
        assert!(bench.said(&words).contains("4 x Tesla T4, driver 550.163.01"));
        bench
    }

    fn machine(&self) -> PathBuf {
        self.folder.path().join("machine")
    }

    fn run(&self, words: &[&str]) -> Output {
        run(&self.machine(), words)
    }

    /// What a command that succeeds says.
    fn said(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// Why a command fails.
    fn refused(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(!output.status.success(), "{words:?}: {}", text(&output.stdout));
        text(&output.stderr)
    }
}

fn run(machine: &Path, words: &[&str]) -> Output {
    Command::new(SIMGPU).env("NANOGPU_SIMGPU", machine).args(words).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_owned()).unwrap()
}

#[test]
fn a_machine_is_shown_with_its_cards() {
    let bench = Bench::new(&[]);
    let shown = bench.said(&["show"]);
    assert!(shown.contains("driver 550.163.01, CUDA 12.4"), "{shown}");
    assert_eq!(shown.matches("Tesla T4").count(), 4);
    assert!(shown.contains("no process uses a card"), "{shown}");
    assert!(bench.said(&["profiles"]).contains("dgx-a100"));
}

#[test]
fn mistakes_say_what_to_do() {
    let bench = Bench::new(&[]);
    let machine = bench.machine();
    let again = bench.refused(&["create", "--profile", "t4x4", machine.to_str().unwrap()]);
    assert!(again.contains("remove the folder first"), "{again}");
    let unknown = bench.refused(&["create", "--profile", "nothing", "elsewhere"]);
    assert!(unknown.contains("no machine is called \"nothing\"; `nanogpu-simgpu profiles`"));
    let old = bench.refused(&["create", "--profile", "t4x4", "--driver", "470.1", "elsewhere"]);
    assert!(old.contains("`470.1` is no version of a driver from 535 to 615"), "{old}");
    let card = bench.refused(&["fault", "xid", "9", "79"]);
    assert!(card.contains("there is no card 9; the machine has 0 to 3"), "{card}");
    let real = bench.refused(&["advance", "10"]);
    assert!(real.contains("--virtual-time"), "{real}");
    let none = run(&bench.folder.path().join("none"), &["show"]);
    assert!(text(&none.stderr).contains("make one with `nanogpu-simgpu create"));
}

#[test]
fn faults_come_and_go() {
    let bench = Bench::new(&[]);
    assert_eq!(bench.said(&["fault", "lost", "2"]), "card 2 is off the bus\n");
    assert!(bench.said(&["show"]).contains("lost"));
    bench.said(&["fault", "ecc", "1", "--uncorrected", "3"]);
    assert!(bench.said(&["show"]).contains("3 ECC errors"));
    bench.said(&["fault", "mismatch"]);
    assert!(bench.said(&["show"]).contains("driver and library do not match"));
    bench.said(&["fault", "clear"]);
    let shown = bench.said(&["show"]);
    assert!(!shown.contains("lost") && !shown.contains("match"), "{shown}");
}

#[test]
fn a_card_is_cut_and_put_together_again() {
    let bench = Bench { folder: tempfile::tempdir().unwrap() };
    let machine = bench.machine();
    bench.said(&["create", "--profile", "dgx-a100", machine.to_str().unwrap()]);
    assert!(bench.refused(&["mig", "3", "cut", "3g.20gb"]).contains("not in MIG mode"));
    bench.said(&["mig", "3", "on"]);
    assert!(bench.said(&["mig", "3", "cut", "3g.20gb"]).starts_with("card 3: MIG-"));
    assert!(bench.refused(&["mig", "3", "cut", "9g"]).contains("it has 1g.5gb, "));
    assert!(bench.refused(&["mig", "3", "off"]).contains("in use"));
    bench.said(&["mig", "3", "clear"]);
    assert_eq!(bench.said(&["mig", "3", "off"]), "card 3: MIG is off\n");
}

#[test]
fn memory_that_is_refused_is_a_clear_error() {
    let bench = Bench::new(&[]);
    bench.said(&["fault", "out-of-memory", "0"]);
    let refused = bench.refused(&["load", "--rogue", "--memory", "1GiB", "--seconds", "1"]);
    assert!(refused.contains("do not fit: 0 are free"), "{refused}");
}

#[test]
fn what_a_process_used_is_known_after_its_end() {
    let bench = Bench::new(&["--virtual-time"]);
    bench.said(&["load", "--rogue", "--memory", "1GiB", "--busy", "100%", "--seconds", "1"]);
    let usage = bench.said(&["usage", "--json"]);
    let usage: serde_json::Value = serde_json::from_str(&usage).unwrap();
    assert_eq!(usage["command"], "nanogpu-simgpu");
    assert_eq!(usage["alive"], false);
    assert_eq!(usage["peak_bytes"], (1024_u64 + 300) << 20);
    assert!(usage["busy_ns"].as_u64().unwrap() >= 20_000_000);
    assert!(bench.said(&["usage"]).contains("ended"));
}

#[test]
fn the_libraries_are_laid_out_as_a_driver_does() {
    let bench = Bench::new(&[]);
    let root = bench.folder.path().join("root");
    bench.said(&["install", "--driver-root", root.to_str().unwrap()]);
    let folder = std::fs::read_dir(root.join("usr/lib")).unwrap().next().unwrap().unwrap().path();
    let library = std::fs::canonicalize(folder.join("libnvidia-ml.so.1")).unwrap();
    assert_eq!(library.file_name().unwrap(), "libnvidia-ml.so.550.163.01");
    let bytes = std::fs::read(library).unwrap();
    let has = |name: &str| {
        let name = [&[0], name.as_bytes(), &[0]].concat();
        bytes.windows(name.len()).any(|window| window == name)
    };
    assert!(has("nvmlDeviceGetMemoryInfo_v2"));
    // It came with 555.
    assert!(!has("nvmlDeviceGetClockOffsets"));
}

#[test]
fn device_nodes_are_made_for_each_card() {
    let bench = Bench::new(&[]);
    let dev = bench.folder.path().join("dev");
    bench.said(&["nodes", dev.to_str().unwrap()]);
    for name in ["nvidiactl", "nvidia-uvm", "nvidia0", "nvidia3"] {
        assert!(dev.join(name).exists(), "{name}");
    }
}

/// Runs a command in a PID namespace of its own.
fn apart(machine: &Path, words: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc", SIMGPU]).args(words);
    command.env("NANOGPU_SIMGPU", machine);
    command
}

/// The PID of the first process in what `show` printed.
fn pid_shown(shown: &str) -> u32 {
    let line = shown.lines().last().unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn pids_are_the_hosts_or_the_callers() {
    for choices in [&[][..], &["--host-pids"]] {
        let bench = Bench::new(choices);
        let load = ["load", "--rogue", "--memory", "1GiB", "--seconds", "0"];
        let holder = apart(&bench.machine(), &load).stdout(Stdio::piped()).spawn();
        let mut holder = holder.unwrap();
        let mut line = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
        if line.is_empty() {
            println!("skipped: no right to make PID namespaces");
            holder.wait().unwrap();
            return;
        }
        // Where it is, it is the first process.
        assert!(line.ends_with("as process 1\n"), "{line}");
        let seen_here = pid_shown(&bench.said(&["show"]));
        let command = std::fs::read_to_string(format!("/proc/{seen_here}/comm")).unwrap();
        assert_eq!(command, "nanogpu-simgpu\n");
        let elsewhere = apart(&bench.machine(), &["show"]).output().unwrap();
        let seen_elsewhere = pid_shown(&text(&elsewhere.stdout));
        if choices.is_empty() {
            // It cannot be seen from there, though its memory can.
            assert_eq!(seen_elsewhere, 0);
        } else {
            assert_eq!(seen_elsewhere, seen_here);
        }
        holder.kill().unwrap();
        holder.wait().unwrap();
    }
}
