//! Every crate of others' that we build on has a line saying what it saves us from writing.
//!
//! Asked both of the workspace's list and of what the crates really use, so that neither an
//! unused entry nor one that went around the list escapes.

use std::collections::BTreeSet;

use super::Finding;
use super::repo::{Crate, TextFile, find};

const LIST: &str = "docs/dependencies.md";

/// Reports dependencies without a line in `docs/dependencies.md`.
pub(super) fn check(crates: &[Crate], files: &[TextFile]) -> Vec<Finding> {
    let manifest = find(files, "Cargo.toml").map_or("", |file| &file.text);
    let mut names = in_workspace_table(manifest);
    names.extend(crates.iter().flat_map(|krate| &krate.dependencies).map(|dep| dep.name.as_str()));
    for krate in crates {
        names.remove(krate.name.as_str());
    }
    let Some(list) = find(files, LIST) else {
        return vec![Finding::new(LIST, "is missing; it says of each dependency why we have it")];
    };
    names
        .into_iter()
        .filter(|name| !list.text.contains(&format!("`{name}`")))
        .map(|name| {
            Finding::new(
                LIST,
                format!("has no line on `{name}`: what does it save us from writing?"),
            )
        })
        .collect()
}

/// The keys of `[workspace.dependencies]`.
///
/// Read by hand: a parser of TOML brings crates in versions that others of ours do not use,
/// and keys at the start of a line are all that is asked here.
fn in_workspace_table(manifest: &str) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    let mut inside = false;
    for line in manifest.lines() {
        if let Some(header) = line.strip_prefix('[') {
            let header = header.trim_end().trim_end_matches(']');
            inside = header == "workspace.dependencies";
            names.extend(header.strip_prefix("workspace.dependencies."));
        } else if inside {
            names.extend(key(line));
        }
    }
    names
}

/// The first part of the key that `line` gives a value to.
fn key(line: &str) -> Option<&str> {
    let (key, _) = line.split_once('=')?;
    let name = key.split('.').next()?.trim().trim_matches('"');
    let plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
    (!name.is_empty() && name.chars().all(plain)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::super::repo::made_up::{file, krate, theirs};
    use super::*;

    const MANIFEST: &str = r#"
[workspace]
members = ["crates/*"]

[workspace.dependencies]
# Ours.
model = { path = "crates/model" }
serde = { version = "1", features = [
    "derive",
] }
clap.version = "4"

[workspace.dependencies.insta]
version = "1"

[profile.dev]
debug = 1
"#;

    #[test]
    fn the_keys_of_the_table_are_read() {
        let names: Vec<&str> = in_workspace_table(MANIFEST).into_iter().collect();
        assert_eq!(names, ["clap", "insta", "model", "serde"]);
    }

    #[test]
    fn a_dependency_without_a_line_is_a_finding() {
        let crates = [krate("model", vec![theirs("libc")])];
        let list = "- `serde`: wire formats\n- `clap`: arguments\n- insta\n- `libc-print`\n";
        let files = [file("Cargo.toml", MANIFEST), file(LIST, list)];
        let findings: Vec<String> = check(&crates, &files).iter().map(Finding::to_string).collect();
        assert_eq!(
            findings,
            [
                "docs/dependencies.md: has no line on `insta`: what does it save us from writing?",
                "docs/dependencies.md: has no line on `libc`: what does it save us from writing?",
            ]
        );
    }

    #[test]
    fn a_missing_list_is_one_finding() {
        assert_eq!(check(&[], &[file("Cargo.toml", MANIFEST)]).len(), 1);
    }
}
