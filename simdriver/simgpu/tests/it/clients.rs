//! Programs from the Python world that nobody here wrote, on a driver root as it is installed.
//!
//! They are installed once, into the user's cache, from whatever package index pip uses. `cargo
//! xtask test` runs this; `test fast` does not, as it needs the network the first time.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

const SIMGPU: &str = env!("CARGO_BIN_EXE_nanogpu-simgpu");
const REQUIREMENTS: &str = include_str!("clients/requirements.txt");

/// A machine with a driver root and a process that uses card 1.
struct Bench {
    folder: tempfile::TempDir,
    python: PathBuf,
    driver: &'static str,
    load: Child,
}

impl Bench {
    /// `None`, with the reason printed, where the programs cannot be had.
    fn new(driver: &'static str) -> Option<Self> {
        let python = match python() {
            Ok(python) => python,
            Err(reason) => {
                println!("skipped: {reason}");
                return None;
            }
        };
        let folder = tempfile::tempdir().unwrap();
        let machine = folder.path().join("machine");
        let made = simgpu(&machine)
            .args(["create", "--profile", "dgx-a100", "--driver", driver])
            .arg(&machine)
            .output()
            .unwrap();
        succeeded(&made);
        let root = folder.path().join("root");
        let installed = simgpu(&machine).args(["install", "--driver-root"]).arg(root).output();
        succeeded(&installed.unwrap());
        let mut load = simgpu(&machine)
            .args(["load", "--rogue", "--device", "1", "--memory", "2GiB", "--busy", "50%"])
            .args(["--seconds", "0"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // Its first line says that it holds the memory.
        let mut line = String::new();
        BufReader::new(load.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("holding 2048 MiB of card 1"), "{line}");
        let bench = Self { folder, python, driver, load };
        bench.wait_until_busy();
        Some(bench)
    }

    /// A sampling period must be over before anyone can see that the card is busy.
    fn wait_until_busy(&self) {
        loop {
            let usage = simgpu(&self.machine()).args(["usage", "--json"]).output().unwrap();
            let line = String::from_utf8(usage.stdout).unwrap();
            let usage: Value = serde_json::from_str(line.lines().next().unwrap()).unwrap();
            if usage["until_ns"].as_u64().unwrap() > 1_000_000_000
                && usage["busy_ns"].as_u64().unwrap() > 100_000_000
            {
                return;
            }
            std::thread::yield_now();
        }
    }

    fn machine(&self) -> PathBuf {
        self.folder.path().join("machine")
    }

    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.python.join("bin").join(name));
        let libraries = fs::read_dir(self.folder.path().join("root/usr/lib")).unwrap();
        let libraries = libraries.map(|entry| entry.unwrap().path()).next().unwrap();
        command
            .env("NANOGPU_SIMGPU", self.machine())
            .env("LD_LIBRARY_PATH", libraries)
            .env("DRIVER", self.driver)
            .env("LC_ALL", "C.UTF-8");
        command
    }

    fn script(&self, name: &str) -> Command {
        let mut command = self.program("python3");
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/clients");
        command.arg(folder.join(name)).arg(self.load.id().to_string());
        command
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = self.load.kill();
        let _ = self.load.wait();
    }
}

fn simgpu(machine: &Path) -> Command {
    let mut command = Command::new(SIMGPU);
    command.env("NANOGPU_SIMGPU", machine);
    command
}

fn succeeded(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{text}\n{errors}", output.status);
    text
}

/// Reads until the card is seen busy: on a busy host the load may be late for a sampling period,
/// but not for a thousand of them.
fn until_busy(mut read: impl FnMut() -> Value, busy: &str) -> Value {
    for _ in 0..1000 {
        let seen = read();
        if seen.pointer(busy).and_then(Value::as_u64).is_some_and(|percent| percent > 0) {
            return seen;
        }
    }
    panic!("{busy} is never above zero");
}

/// A folder with the programs, made the first time.
fn python() -> Result<PathBuf, String> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let cache = cache.or_else(home).ok_or("there is no cache folder")?.join("nanogpu");
    fs::create_dir_all(&cache).map_err(|error| error.to_string())?;
    // One at a time, and another folder when the versions change.
    let lock = File::create(cache.join("clients.lock")).map_err(|error| error.to_string())?;
    lock.lock().map_err(|error| error.to_string())?;
    let number =
        REQUIREMENTS.bytes().fold(5381_u32, |hash, byte| hash.wrapping_mul(33) ^ u32::from(byte));
    let folder = cache.join(format!("clients-{number:08x}"));
    let ready = folder.join("ready");
    if ready.exists() {
        return Ok(folder);
    }
    let requirements = cache.join("clients.txt");
    fs::write(&requirements, REQUIREMENTS).map_err(|error| error.to_string())?;
    tried(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
    let pip = folder.join("bin/pip");
    tried(Command::new(pip).args(["install", "--quiet", "-r"]).arg(&requirements))?;
    fs::write(&ready, "").map_err(|error| error.to_string())?;
    Ok(folder)
}

fn tried(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
#[ignore = "needs python3 and, the first time, a package index; `cargo xtask test` runs it"]
fn nvidia_ml_py_reads_everything_it_knows_of() {
    for driver in ["535.261.03", "550.163.01", "615.71"] {
        let Some(bench) = Bench::new(driver) else { return };
        let text = succeeded(&bench.script("nvidia_ml_py.py").output().unwrap());
        assert_eq!(text, "all as expected\n", "{driver}");
    }
}

#[test]
#[ignore = "needs python3 and, the first time, a package index; `cargo xtask test` runs it"]
fn gpustat_shows_cards_and_processes() {
    let Some(bench) = Bench::new("550.163.01") else { return };
    let read = || {
        let text = succeeded(&bench.program("gpustat").arg("--json").output().unwrap());
        serde_json::from_str(&text).unwrap()
    };
    let seen = until_busy(read, "/gpus/1/utilization.gpu");
    assert_eq!(seen["driver_version"], "550.163.01");
    let cards = seen["gpus"].as_array().unwrap();
    assert_eq!(cards.len(), 8);
    assert_eq!(cards[1]["name"], "NVIDIA A100-SXM4-40GB");
    assert_eq!(cards[1]["memory.used"], 2348);
    assert_eq!(cards[1]["memory.total"], 40960);
    assert_eq!(cards[1]["processes"][0]["pid"], bench.load.id());
    assert_eq!(cards[1]["processes"][0]["gpu_memory_usage"], 2348);
    assert_eq!(cards[0]["processes"], Value::Array(Vec::new()));
    let text = succeeded(&bench.program("gpustat").arg("--no-color").output().unwrap());
    assert!(text.contains("[1] NVIDIA A100-SXM4-40GB |"), "{text}");
}

#[test]
#[ignore = "needs python3 and, the first time, a package index; `cargo xtask test` runs it"]
fn nvitop_shows_cards_and_processes() {
    for driver in ["550.163.01", "615.71"] {
        let Some(bench) = Bench::new(driver) else { return };
        let text = succeeded(&bench.program("nvitop").arg("--once").output().unwrap());
        assert!(text.contains(&format!("Driver Version: {driver}")), "{text}");
        assert!(text.contains("2348MiB / 40.00GiB"), "{text}");
        assert!(text.contains(&format!("{} C", bench.load.id())), "{text}");
        let read = || {
            let text = succeeded(&bench.script("nvitop_api.py").output().unwrap());
            serde_json::from_str(&text).unwrap()
        };
        let seen = until_busy(read, "/busy/1");
        assert_eq!(seen["driver"], driver);
        assert_eq!(seen["names"].as_array().unwrap().len(), 8);
        assert_eq!(seen["used"][1], 2348_u64 << 20);
        assert_eq!(seen["processes"][1][0], bench.load.id());
    }
}

/// The first line of a Python program's output that is as in `expected` comes first, and so on.
fn told(command: &mut Command, expected: &str) {
    let text =
        succeeded(&command.env("CUDA_PYTHON_DISABLE_MAJOR_VERSION_WARNING", "1").output().unwrap());
    assert_eq!(text.trim(), expected.trim());
}

#[test]
#[ignore = "needs python3 and, the first time, a package index; `cargo xtask test` runs it"]
fn cuda_bindings_work_with_cards() {
    for (driver, version) in
        [("535.261.03", "12020"), ("555.58.02", "12050"), ("580.65.06", "13000")]
    {
        let Some(bench) = Bench::new(driver) else { return };
        told(
            &mut bench.script("cuda_bindings.py"),
            &format!(
                "CUDA_ERROR_NOT_INITIALIZED before cuInit\n\
                 cuda {version} cards 8\n\
                 name NVIDIA A100-SXM4-40GB\n\
                 uuids and bus ids agree\n\
                 taken on card 1: 2648 MiB\n\
                 copied 1048576 bytes\n\
                 CUDA_ERROR_NOT_READY while it runs\n\
                 kernel 5.0 ms\n\
                 graph of 2 nodes\n\
                 CUDA_ERROR_OUT_OF_MEMORY for 32 TiB\n\
                 CUDA_ERROR_INVALID_VALUE for memory that is not there\n\
                 pool uses 3145728\n\
                 out of memory\n\
                 all as expected"
            ),
        );
    }
}

#[test]
#[ignore = "needs python3 and, the first time, a package index; `cargo xtask test` runs it"]
fn numba_keeps_arrays_on_cards() {
    for driver in ["550.163.01", "580.65.06"] {
        let Some(bench) = Bench::new(driver) else { return };
        told(
            &mut bench.script("numba_arrays.py"),
            "cards 8\n\
             name NVIDIA A100-SXM4-40GB\n\
             copied 400000 bytes\n\
             total 40551 MiB\n\
             full after 39 GiB: OUT_OF_MEMORY\n\
             all as expected",
        );
    }
}
