//! Pure crates have no IO, no clock, no chance and no async, so that the same input always gives
//! the same answer and a simulator cannot disagree with the scheduler.
//!
//! Two checks: what such a crate depends on, and what its sources name. The second reads text,
//! not meaning: it stops an honest slip, not someone who wants to get around it.

use super::Finding;
use super::arrows::{self, Layer};
use super::repo::{Crate, Dependency, Purpose, TextFile};

/// What a pure crate may take from others.
const DEPENDENCIES: &[&str] = &["serde", "serde_json", "thiserror"];
/// The same, but only behind a feature: tests of other crates turn it on.
const OPTIONAL_DEPENDENCIES: &[&str] = &["proptest"];

/// What the sources of a pure crate do not name.
const FORBIDDEN: &[&str] = &[
    "std::fs",
    "std::net",
    "std::time::SystemTime",
    "std::time::Instant",
    "std::thread",
    "std::env",
    "std::process",
    "async fn",
    ".await",
    "rand::",
];

/// Reports dependencies of pure crates that are not in the lists above.
pub(super) fn check_dependencies(crates: &[Crate]) -> Vec<Finding> {
    let pairs = crates
        .iter()
        .filter(|krate| is_pure(krate))
        .flat_map(|krate| krate.dependencies.iter().map(move |dependency| (krate, dependency)));
    pairs
        .filter(|(_, dependency)| !allowed(dependency))
        .map(|(krate, dependency)| {
            let name = &dependency.name;
            let sentence = if OPTIONAL_DEPENDENCIES.contains(&name.as_str()) {
                format!("a pure crate depends on `{name}` only as `optional = true`")
            } else {
                format!("a pure crate may not depend on `{name}`; see xtask/src/tidy/purity.rs")
            };
            Finding::new(krate.manifest(), sentence)
        })
        .collect()
}

/// Reports sources of pure crates that name something of [`FORBIDDEN`].
pub(super) fn check_sources(crates: &[Crate], files: &[TextFile]) -> Vec<Finding> {
    let folders: Vec<String> = crates
        .iter()
        .filter(|krate| is_pure(krate))
        .map(|krate| format!("{}/src/", krate.folder))
        .collect();
    files
        .iter()
        .filter(|file| file.is_rust() && !file.is_test())
        .filter(|file| folders.iter().any(|folder| file.path.starts_with(folder)))
        .flat_map(check_source)
        .collect()
}

fn is_pure(krate: &Crate) -> bool {
    matches!(arrows::layer_of(&krate.name), Some(Layer::Model | Layer::Pure))
}

fn allowed(dependency: &Dependency) -> bool {
    let name = dependency.name.as_str();
    // Arrows between our own crates have their own rule.
    dependency.ours
        || dependency.purpose != Purpose::Code
        || DEPENDENCIES.contains(&name)
        || (dependency.optional && OPTIONAL_DEPENDENCIES.contains(&name))
}

fn check_source(file: &TextFile) -> Vec<Finding> {
    let code = without_comments(file.before_tests());
    let imports = imports(&code);
    FORBIDDEN
        .iter()
        .filter(|forbidden| names(&code, forbidden) || names(&imports, forbidden))
        .map(|forbidden| {
            let sentence =
                format!("names `{forbidden}`; a pure crate has no IO, clock, chance or async");
            Finding::new(file.path.as_str(), sentence)
        })
        .collect()
}

/// Drops lines that are comments: documentation may well say what is not used.
fn without_comments(text: &str) -> String {
    let code: Vec<&str> =
        text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    code.join("\n")
}

/// Every import written out in full, one a line, so that `use std::{fs, io}` hides nothing.
fn imports(code: &str) -> String {
    let bodies = code.split("use ").skip(1).filter_map(|rest| rest.split_once(';'));
    bodies.flat_map(|(tree, _)| written_out(tree)).collect::<Vec<_>>().join("\n")
}

fn written_out(tree: &str) -> Vec<String> {
    let Some((stem, group)) = tree.split_once('{') else { return vec![tree.trim().to_owned()] };
    let group = group.rsplit_once('}').map_or(group, |(inside, _)| inside);
    branches(group)
        .into_iter()
        .flat_map(written_out)
        .map(|leaf| format!("{}{leaf}", stem.trim()))
        .collect()
}

/// Splits at the commas that lie in no inner group.
fn branches(group: &str) -> Vec<&str> {
    let mut depth = 0;
    group
        .split(|letter| {
            match letter {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            letter == ',' && depth == 0
        })
        .collect()
}

/// Whether `name` occurs as whole words, so that `operand::new` is not `rand::`.
fn names(code: &str, name: &str) -> bool {
    let in_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    code.match_indices(name).any(|(at, found)| {
        let (before, after) = (&code[..at], &code[at + found.len()..]);
        let glued_left = name.starts_with(in_word) && before.ends_with(in_word);
        let glued_right = name.ends_with(in_word) && after.starts_with(in_word);
        !glued_left && !glued_right
    })
}

#[cfg(test)]
mod tests {
    use super::super::repo::made_up::{file, krate, ours, theirs};
    use super::*;

    fn findings_in(text: &str) -> usize {
        let crates = [krate("model", vec![])];
        check_sources(&crates, &[file("crates/model/src/lib.rs", text)]).len()
    }

    #[test]
    fn a_pure_crate_depends_on_the_listed_few() {
        let optional = Dependency { optional: true, ..theirs("proptest") };
        let fine = krate("ledger", vec![theirs("serde"), optional, ours("model", Purpose::Code)]);
        assert_eq!(check_dependencies(&[fine]), []);
    }

    #[test]
    fn another_dependency_is_a_finding() {
        let findings = check_dependencies(&[krate("ledger", vec![theirs("tokio")])]);
        assert_eq!(
            findings[0].to_string(),
            "crates/ledger/Cargo.toml: a pure crate may not depend on `tokio`; \
             see xtask/src/tidy/purity.rs"
        );
        assert_eq!(check_dependencies(&[krate("ledger", vec![theirs("proptest")])]).len(), 1);
        assert_eq!(check_dependencies(&[krate("agent", vec![theirs("tokio")])]), []);
    }

    #[test]
    fn tests_of_a_pure_crate_may_depend_on_more() {
        let insta = Dependency { purpose: Purpose::Tests, ..theirs("insta") };
        assert_eq!(check_dependencies(&[krate("ledger", vec![insta])]), []);
    }

    #[test]
    fn naming_the_outside_is_a_finding() {
        assert_eq!(findings_in("let now = std::time::Instant::now();"), 1);
        assert_eq!(findings_in("use std::fs;\npub async fn read() {}"), 2);
    }

    #[test]
    fn a_grouped_import_hides_nothing() {
        assert_eq!(findings_in("use std::{\n    io,\n    time::{Duration, Instant},\n};"), 1);
        assert_eq!(findings_in("pub use std::{collections::{BTreeMap, BTreeSet}, fs};"), 1);
        assert_eq!(findings_in("use std::time::{Duration};"), 0);
    }

    #[test]
    fn comments_tests_and_other_crates_are_apart() {
        assert_eq!(findings_in("//! Never uses `std::fs`.\n"), 0);
        assert_eq!(findings_in("#[cfg(test)]\nmod tests {\n    use std::fs;\n}\n"), 0);
        let crates = [krate("model", vec![]), krate("agent", vec![])];
        let agent = file("crates/agent/src/lib.rs", "use std::fs;");
        assert_eq!(check_sources(&crates, &[agent]), []);
    }

    #[test]
    fn part_of_a_word_is_not_a_name() {
        assert_eq!(findings_in("operand::new(); std::environment()"), 0);
    }
}
