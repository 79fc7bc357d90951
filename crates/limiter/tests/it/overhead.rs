//! What a call costs over the bare driver: over one that does nothing, so that nothing else is measured.
//!
//! By default only that it runs. `NANOGPU_OVERHEAD=1` prints nanoseconds, and instructions by callgrind
//! where valgrind is installed.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::rig::library;

/// Runs of each, and calls in a run: enough for eight threads to be at it together, not one after another.
const RUNS: usize = 11;
const CALLS: u32 = 2_000_000;

fn compile(folder: &Path, source: &str, to: &str, options: &[&str]) -> PathBuf {
    let out = folder.join(to);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/overhead").join(source);
    let built = Command::new("cc").args(["-O2", "-o"]).arg(&out).arg(source).args(options).status();
    assert!(built.unwrap().success());
    out
}

/// A folder with the driver, us before it, and pages of so many percent.
fn lay_out(folder: &Path, cores: u32) {
    let driver = folder.join("root/driver");
    std::fs::create_dir_all(&driver).unwrap();
    std::fs::create_dir_all(folder.join("root/pages")).unwrap();
    compile(&driver, "driver.c", "libcuda.so.1", &["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]);
    std::os::unix::fs::symlink(library(), folder.join("libcuda.so.1")).unwrap();
    compile(folder, "calls.c", "calls", &["-ldl", "-lpthread"]);
    pages(folder, cores);
}

fn pages(folder: &Path, cores: u32) {
    let name = |text: &str| page::Name::new(text).unwrap();
    let limits = page::Limits {
        device: name("GPU-11111111-1111-1111-1111-111111111111"),
        pod: name("pod"),
        container: name("main"),
        memory: 1 << 20 << 20,
        cores,
        burst: cores,
        place: 0,
        granted: cores * 100,
        tenants: 1,
    };
    std::fs::write(folder.join("root/pages/0.limits"), page::write_limits(&limits)).unwrap();
    std::fs::write(folder.join("root/pages/0.counters"), page::write_counters()).unwrap();
}

fn command(
    folder: &Path,
    before: &[&str],
    library: &Path,
    what: &str,
    live: u32,
    threads: u32,
    times: u32,
) -> Command {
    let calls = folder.join("calls");
    let mut words: Vec<&std::ffi::OsStr> = before.iter().map(std::ffi::OsStr::new).collect();
    words.push(calls.as_os_str());
    let mut command = Command::new(words[0]);
    command
        .args(&words[1..])
        .arg(library)
        .args([what, &live.to_string(), &threads.to_string(), &times.to_string()])
        .env("NANOGPU_ROOT", folder.join("root"))
        .env("LD_LIBRARY_PATH", folder);
    command
}

/// Nanoseconds a call in one run.
fn nanoseconds(
    folder: &Path,
    library: &Path,
    what: &str,
    live: u32,
    threads: u32,
    times: u32,
) -> f64 {
    let out = command(folder, &[], library, what, live, threads, times).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap().trim().parse().unwrap()
}

/// What a call costs bare, and how much more it costs limited: the middle of several differences, with the least and
/// the most of them. The two run in turn, so that what else happens on the machine meets both.
fn over_bare(
    folder: &Path,
    [bare, limited]: [&Path; 2],
    what: &str,
    live: u32,
    threads: u32,
) -> (f64, [f64; 3]) {
    let times = CALLS / threads;
    let (mut floors, mut differences) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let floor = nanoseconds(folder, bare, what, live, threads, times);
        let ours = nanoseconds(folder, limited, what, live, threads, times);
        floors.push(floor);
        differences.push(ours - floor);
    }
    floors.sort_by(f64::total_cmp);
    differences.sort_by(f64::total_cmp);
    let middle = RUNS / 2;
    (floors[middle], [differences[0], differences[middle], differences[RUNS - 1]])
}

/// Instructions a call: those of many calls less those of few.
fn instructions(folder: &Path, library: &Path, what: &str, live: u32) -> Option<u64> {
    let count = |times| {
        let valgrind = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"];
        let out = command(folder, &valgrind, library, what, live, 1, times).output().ok()?;
        let text = String::from_utf8(out.stderr).ok()?;
        let total = text.lines().find(|line| line.contains("Collected"))?.to_owned();
        total.rsplit(' ').next()?.parse::<u64>().ok()
    };
    Some((count(11_000)?.saturating_sub(count(1000)?)) / 10_000)
}

#[test]
fn what_a_call_costs() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    lay_out(folder, 0);
    let (bare, limited) = (folder.join("root/driver/libcuda.so.1"), folder.join("libcuda.so.1"));
    if std::env::var_os("NANOGPU_OVERHEAD").is_none() {
        for what in ["alloc", "launch", "info"] {
            for library in [&bare, &limited] {
                assert!(nanoseconds(folder, library, what, 5, 2, 500) >= 0.0);
            }
        }
        return;
    }
    for cores in [0, 50] {
        pages(folder, cores);
        for what in ["alloc", "launch", "info"] {
            for live in [0, 5000] {
                for threads in [1, 8] {
                    if what != "alloc" && live > 0 {
                        continue;
                    }
                    let (floor, [least, middle, most]) =
                        over_bare(folder, [&bare, &limited], what, live, threads);
                    println!(
                        "cores {cores:3} {what:6} live {live:4} threads {threads}: bare {floor:5.1} ns, limited +{middle:.1} ({least:.1} to {most:.1})"
                    );
                }
                if let (Some(ours), Some(floor)) = (
                    instructions(folder, &limited, what, live),
                    instructions(folder, &bare, what, live),
                ) && (what == "alloc" || live == 0)
                {
                    println!(
                        "cores {cores:3} {what:6} live {live:4}: +{} instructions",
                        ours - floor
                    );
                }
            }
        }
    }
}
