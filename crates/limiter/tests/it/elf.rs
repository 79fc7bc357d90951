//! The file itself: what it needs, and what it must not have.

use std::process::Command;

use crate::rig::library;

fn readelf(option: &str) -> String {
    let out = Command::new("readelf").args([option, "--wide"]).arg(library()).output().unwrap();
    assert!(out.status.success());
    String::from_utf8(out.stdout).unwrap()
}

/// The version in a text such as `GLIBC_2.2.5`.
fn version(text: &str) -> Vec<u32> {
    text.trim_start_matches("GLIBC_").split('.').map(|part| part.parse().unwrap()).collect()
}

#[test]
fn it_loads_on_glibc_2_17_and_needs_nothing_else() {
    let needs: Vec<String> = readelf("--dynamic")
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .map(|line| line.split(['[', ']']).nth(1).unwrap().to_owned())
        .collect();
    assert_eq!(needs, ["libc.so.6", "libdl.so.2"]);
    let versions = readelf("--version-info");
    let named = versions.split_whitespace().filter(|word| word.starts_with("GLIBC_"));
    let newest = named.map(version).max().unwrap();
    assert!(newest <= vec![2, 17], "{newest:?}");
}

#[test]
fn nothing_runs_when_it_is_loaded_or_when_a_thread_ends() {
    let sections = readelf("--sections");
    for absent in [".init_array", ".fini_array", ".ctors", ".init ", ".tbss", ".tdata"] {
        assert!(!sections.contains(absent), "{absent}");
    }
}

#[test]
fn it_cannot_panic_or_unwind() {
    let symbols = readelf("--symbols");
    for absent in ["panicking", "_Unwind_", "nanogpu_a_panic_is_possible", "__cxa"] {
        let found = symbols.lines().find(|line| line.contains(absent));
        assert_eq!(found, None);
    }
}

#[test]
fn it_is_small_and_has_every_name() {
    let size = std::fs::metadata(library()).unwrap().len();
    assert!(size < 600 << 10, "{size} bytes");
    let symbols = readelf("--dyn-syms");
    let defined: std::collections::HashSet<&str> = symbols
        .lines()
        .filter(|line| !line.contains(" UND "))
        .filter_map(|line| line.split_whitespace().last())
        .collect();
    let table = include_str!("../../exports.tsv");
    let missing: Vec<&str> = table
        .lines()
        .skip(1)
        .map(|row| row.split('\t').next().unwrap())
        .filter(|name| !defined.contains(name))
        .collect();
    assert_eq!(missing, Vec::<&str>::new());
    // Whatever the simulated driver has is in the table, so a new name there is a failure here.
    let simulated = include_str!("../../../../simdriver/cuda/symbols.tsv");
    let missing: Vec<&str> = simulated
        .lines()
        .skip(1)
        .map(|row| row.split('\t').next().unwrap())
        .filter(|name| !defined.contains(name))
        .collect();
    assert_eq!(missing, Vec::<&str>::new());
    let nvml = nvml::EXPORTS.iter().flat_map(|export| export.names);
    assert_eq!(nvml.filter(|name| !defined.contains(**name)).count(), 0);
}
