//! The names of the library: those of three drivers, and what README.md says of them.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use nvml::{EXPORTS, Kind, absent_in};

/// What three drivers export, from their own symbol tables.
const DRIVERS: [(u32, &str); 3] = [
    (535, include_str!("exported/535.261.03.txt")),
    (550, include_str!("exported/550.163.01.txt")),
    (555, include_str!("exported/555.58.02.txt")),
];

fn all() -> BTreeSet<&'static str> {
    EXPORTS.iter().flat_map(|export| export.names).copied().collect()
}

#[test]
fn no_name_stands_twice() {
    let count: usize = EXPORTS.iter().map(|export| export.names.len()).sum();
    assert_eq!(count, all().len());
}

#[test]
fn a_driver_of_each_version_has_exactly_the_names_of_the_real_one() {
    for (branch, list) in DRIVERS {
        let absent: BTreeSet<&str> = absent_in(branch).collect();
        let ours: BTreeSet<&str> = all().difference(&absent).copied().collect();
        let real: BTreeSet<&str> = list.lines().collect();
        assert_eq!(ours, real, "driver {branch}");
    }
}

#[test]
fn the_readme_has_the_table() {
    let readme = include_str!("../../README.md");
    let begin = "<!-- names: begin -->\n";
    let end = "<!-- names: end -->\n";
    let from = readme.find(begin).unwrap() + begin.len();
    let until = readme.find(end).unwrap();
    if readme[from..until] == table() {
        return;
    }
    if std::env::var_os("NANOGPU_BLESS").is_some() {
        let new = format!("{}{}{}", &readme[..from], table(), &readme[until..]);
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md"), new).unwrap();
        return;
    }
    panic!("README.md is stale; run NANOGPU_BLESS=1 cargo test -p nvml --test it");
}

fn table() -> String {
    let mut text = String::from("| names | what they do | count |\n|---|---|---|\n");
    for export in EXPORTS {
        let what = match export.kind {
            Kind::Live => "live",
            Kind::Unsupported => "answers `NOT_SUPPORTED`",
            Kind::Newer => "answers `NOT_SUPPORTED`; before driver 560 not there",
        };
        let _ = writeln!(text, "| {} | {what} | {} |", export.about, export.names.len());
    }
    let lists = [
        ("Live", Kind::Live),
        ("Answer as unsupported", Kind::Unsupported),
        ("Answer as unsupported, and are not there before driver 560", Kind::Newer),
    ];
    for (title, kind) in lists {
        let _ = writeln!(text, "\n<details><summary>{title}</summary>\n");
        for export in EXPORTS.iter().filter(|export| export.kind == kind) {
            let names: Vec<String> = export.names.iter().map(|name| format!("`{name}`")).collect();
            let _ = writeln!(text, "- {}: {}", export.about, names.join(", "));
        }
        text.push_str("\n</details>\n");
    }
    text
}
