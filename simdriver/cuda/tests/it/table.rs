//! The table of exports says what is there.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

const TABLE: &str = include_str!("../../symbols.tsv");
const README: &str = include_str!("../../README.md");
const MUST: &str = include_str!("must-be-live.txt");

/// Name, the version of CUDA that brought it, and what it answers.
fn rows() -> impl Iterator<Item = (&'static str, u32, &'static str)> {
    TABLE.lines().skip(1).map(|line| {
        let cells: Vec<&str> = line.split('\t').collect();
        (cells[0], cells[1].parse().unwrap(), cells[2])
    })
}

#[test]
fn rows_are_sorted_and_told_apart() {
    let names: Vec<&str> = rows().map(|(name, ..)| name).collect();
    assert!(names.is_sorted());
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
}

#[test]
fn every_row_is_exported() {
    crate::driver::on("dgx-a100", "550.163.01", "every_row_is_exported", |driver| {
        let missing: Vec<&str> =
            rows().map(|(name, ..)| name).filter(|name| driver.find(name).is_none()).collect();
        assert_eq!(missing, Vec::<&str>::new());
    });
}

#[test]
fn a_driver_exports_as_many_names_as_the_genuine_one() {
    // Names that no lookup knows are in all three.
    let count = |cuda: u32| rows().filter(|(_, since, _)| *since <= cuda).count();
    assert_eq!([count(12020), count(12040), count(12050)], [620, 656, 663]);
}

#[test]
fn what_limiters_must_see_is_live() {
    let answers: BTreeMap<&str, &str> = rows().map(|(name, _, answer)| (name, answer)).collect();
    let dead: Vec<&str> = MUST.lines().filter(|name| answers.get(name) != Some(&"live")).collect();
    assert_eq!(MUST.lines().count(), 230);
    assert_eq!(dead, Vec::<&str>::new());
}

#[test]
fn a_call_that_is_not_supported_says_what_is_wrong_first() {
    crate::driver::on(
        "dgx-a100",
        "550.163.01",
        "a_call_that_is_not_supported_says_what_is_wrong_first",
        |driver| {
            let refusing: Vec<&str> = rows()
                .filter(|(_, _, answer)| *answer == "refuses")
                .map(|(name, ..)| name)
                .collect();
            let answers = || -> BTreeSet<u32> {
                refusing
                    .iter()
                    .map(|name| {
                        let address = driver.find(name).unwrap();
                        // SAFETY: every one of them takes nothing and returns a result.
                        let function: extern "C" fn() -> u32 =
                            unsafe { std::mem::transmute(address) };
                        function()
                    })
                    .collect()
            };
            assert_eq!(answers(), [3].into());
            ok!(driver, cuInit(0 => u32));
            assert_eq!(answers(), [201].into());
            driver.context();
            assert_eq!(answers(), [801].into());
        },
    );
}

/// The names of each answer, as the README lists them.
fn listing() -> String {
    // Writing to a String cannot fail.
    let mut text = String::new();
    for (answer, title) in [
        ("live", "Live"),
        ("refuses", "Answers as an unsupported call does"),
        ("data", "Variables, zero"),
    ] {
        let mut by_version: BTreeMap<u32, Vec<&str>> = BTreeMap::new();
        for (name, since, _) in rows().filter(|row| row.2 == answer) {
            // Drivers before the oldest that is simulated are as good as that one.
            by_version.entry(if since <= 12020 { 0 } else { since }).or_default().push(name);
        }
        let count: usize = by_version.values().map(Vec::len).sum();
        let _ = write!(text, "### {title} ({count})\n\n| from | names |\n|---|---|\n");
        for (since, names) in by_version {
            let from = if since == 0 {
                "535".into()
            } else {
                format!("CUDA {}.{}", since / 1000, since % 1000 / 10)
            };
            let _ = writeln!(text, "| {from} | {} |", names.join(" "));
        }
        text.push('\n');
    }
    text
}

#[test]
fn the_readme_lists_every_export() {
    let expected = listing();
    if std::env::var_os("UPDATE_README").is_some() {
        let (before, rest) = README.split_once("<!-- exports -->\n").unwrap();
        let (_, after) = rest.split_once("<!-- end of exports -->").unwrap();
        let text = format!("{before}<!-- exports -->\n\n{expected}<!-- end of exports -->{after}");
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md"), text).unwrap();
        return;
    }
    assert!(
        README.contains(&expected),
        "README.md is stale; run UPDATE_README=1 cargo test -p cuda --test it readme"
    );
}
