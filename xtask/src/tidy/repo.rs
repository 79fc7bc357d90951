//! What the rules look at: the files git would commit, and the crates of the workspace.
//!
//! The only part of tidy that touches the disk or starts a process. It judges nothing.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};
use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};

/// The repository as the rules see it.
pub(super) struct Repo {
    pub(super) crates: Vec<Crate>,
    pub(super) files: Vec<TextFile>,
}

/// A text file that is, or would be, under version control.
pub(super) struct TextFile {
    /// From the root of the workspace, with `/` between folders.
    pub(super) path: String,
    pub(super) text: String,
}

/// A crate of this workspace.
pub(super) struct Crate {
    pub(super) name: String,
    /// From the root of the workspace.
    pub(super) folder: String,
    /// Its `lib.rs`, or `main.rs` where there is no library.
    pub(super) entry: String,
    pub(super) dependencies: Vec<Dependency>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Dependency {
    pub(super) name: String,
    pub(super) purpose: Purpose,
    pub(super) optional: bool,
    /// Whether it is a crate of this workspace.
    pub(super) ours: bool,
}

/// What a dependency is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Purpose {
    Code,
    Build,
    Tests,
}

impl Repo {
    pub(super) fn read(root: &Path) -> anyhow::Result<Self> {
        Ok(Self { crates: read_crates(root)?, files: read_files(root)? })
    }

    pub(super) fn file(&self, path: &str) -> Option<&TextFile> {
        find(&self.files, path)
    }
}

impl TextFile {
    pub(super) fn is_rust(&self) -> bool {
        Path::new(&self.path).extension().is_some_and(|extension| extension == "rs")
    }

    /// Whether it lies in a folder of tests or benchmarks, or is a module of tests by its name.
    pub(super) fn is_test(&self) -> bool {
        self.path.split('/').any(|part| matches!(part, "tests" | "benches" | "tests.rs"))
    }

    pub(super) fn is_generated(&self) -> bool {
        self.text.lines().next().is_some_and(|line| line.contains("@generated"))
    }

    /// The text before the tests at its end.
    pub(super) fn before_tests(&self) -> &str {
        before_tests(&self.text)
    }
}

impl Crate {
    pub(super) fn manifest(&self) -> String {
        format!("{}/Cargo.toml", self.folder)
    }
}

pub(super) fn find<'a>(files: &'a [TextFile], path: &str) -> Option<&'a TextFile> {
    files.iter().find(|file| file.path == path)
}

/// Cuts at a `#[cfg(test)]` that stands over an inline module: by our style the last thing in a
/// file. One over `mod tests;` or a single item hides nothing of what follows.
fn before_tests(text: &str) -> &str {
    let mut start = 0;
    let mut cut = None;
    for line in text.split_inclusive('\n') {
        let code = line.trim();
        match cut {
            _ if code == "#[cfg(test)]" => cut = Some(start),
            Some(at) if opens_module(code) => return &text[..at],
            // Some other item was meant.
            Some(_) if code.ends_with(['{', ';', '}']) => cut = None,
            // Further attributes, which may take several lines.
            _ => {}
        }
        start += line.len();
    }
    text
}

fn opens_module(line: &str) -> bool {
    line.ends_with('{') && line.split_whitespace().any(|word| word == "mod")
}

fn read_files(root: &Path) -> anyhow::Result<Vec<TextFile>> {
    let mut files = Vec::new();
    for path in list_files(root)? {
        let full = root.join(&path);
        // Git also lists what was deleted but not yet committed, and links to folders.
        if !full.symlink_metadata().is_ok_and(|entry| entry.is_file()) {
            continue;
        }
        let bytes = std::fs::read(&full).with_context(|| format!("read {path}"))?;
        // What is not text has no rule.
        if let Ok(text) = String::from_utf8(bytes) {
            files.push(TextFile { path, text });
        }
    }
    Ok(files)
}

/// Tracked files, and those not yet added but not ignored either.
fn list_files(root: &Path) -> anyhow::Result<BTreeSet<String>> {
    let output = Command::new("git")
        .args(["ls-files", "-co", "--exclude-standard", "-z"])
        .current_dir(root)
        .output()
        .context("start `git`, which lists the files")?;
    if !output.status.success() {
        bail!("list the files: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let list = String::from_utf8(output.stdout).context("a file name is not UTF-8")?;
    Ok(list.split_terminator('\0').map(str::to_owned).collect())
}

fn read_crates(root: &Path) -> anyhow::Result<Vec<Crate>> {
    let metadata = MetadataCommand::new()
        .current_dir(root)
        .no_deps()
        .exec()
        .context("ask cargo for the crates of the workspace")?;
    let mut crates = metadata
        .packages
        .iter()
        .map(|package| to_crate(&metadata, package))
        .collect::<anyhow::Result<Vec<Crate>>>()?;
    crates.sort_by(|a, b| a.folder.cmp(&b.folder));
    Ok(crates)
}

fn to_crate(metadata: &Metadata, package: &Package) -> anyhow::Result<Crate> {
    let relative = |path: &cargo_metadata::camino::Utf8Path| {
        path.strip_prefix(&metadata.workspace_root).unwrap_or(path).to_string()
    };
    let folder = package.manifest_path.parent().context("a manifest lies in no folder")?;
    let is_library = |target: &&cargo_metadata::Target| {
        target.is_lib() || target.is_cdylib() || target.is_proc_macro()
    };
    let entry = package
        .targets
        .iter()
        .find(is_library)
        .or_else(|| package.targets.iter().find(|target| target.is_bin()))
        .map_or_else(String::new, |target| relative(&target.src_path));
    let ours: BTreeSet<&str> = metadata.packages.iter().map(|other| other.name.as_str()).collect();
    let dependencies = package
        .dependencies
        .iter()
        .map(|dependency| Dependency {
            name: dependency.name.clone(),
            purpose: to_purpose(dependency.kind),
            optional: dependency.optional,
            ours: dependency.path.is_some() && ours.contains(dependency.name.as_str()),
        })
        .collect();
    Ok(Crate { name: package.name.to_string(), folder: relative(folder), entry, dependencies })
}

fn to_purpose(kind: DependencyKind) -> Purpose {
    match kind {
        DependencyKind::Development => Purpose::Tests,
        DependencyKind::Build => Purpose::Build,
        _ => Purpose::Code,
    }
}

/// Made-up input for the tests of the rules.
#[cfg(test)]
pub(super) mod made_up {
    use super::*;

    pub(in crate::tidy) fn file(path: &str, text: impl Into<String>) -> TextFile {
        TextFile { path: path.to_owned(), text: text.into() }
    }

    pub(in crate::tidy) fn krate(name: &str, dependencies: Vec<Dependency>) -> Crate {
        let folder = format!("crates/{name}");
        let entry = format!("{folder}/src/lib.rs");
        Crate { name: name.to_owned(), folder, entry, dependencies }
    }

    pub(in crate::tidy) fn ours(name: &str, purpose: Purpose) -> Dependency {
        Dependency { name: name.to_owned(), purpose, optional: false, ours: true }
    }

    pub(in crate::tidy) fn theirs(name: &str) -> Dependency {
        Dependency { name: name.to_owned(), purpose: Purpose::Code, optional: false, ours: false }
    }
}

#[cfg(test)]
mod tests {
    use super::made_up::file;
    use super::*;

    #[test]
    fn tests_at_the_end_are_cut() {
        let text = "code\n#[cfg(test)]\n#[expect(\n    x\n)]\nmod tests {\n}\n";
        assert_eq!(before_tests(text), "code\n");
    }

    #[test]
    fn a_helper_for_tests_cuts_nothing() {
        let text = "#[cfg(test)]\nfn helper() {\n}\n\nmod code {\n}\n";
        assert_eq!(before_tests(text), text);
    }

    #[test]
    fn a_module_of_tests_in_another_file_cuts_nothing() {
        let text = "#[cfg(test)]\nmod tests;\n\nmod code {\n}\n";
        assert_eq!(before_tests(text), text);
    }

    #[test]
    fn test_files_are_known_by_their_place() {
        assert!(file("crates/a/tests/story.rs", "").is_test());
        assert!(file("crates/a/src/tests.rs", "").is_test());
        assert!(!file("crates/a/src/contests.rs", "").is_test());
    }

    #[test]
    fn this_workspace_is_readable() {
        let root = crate::workspace_root().unwrap();
        let repo = Repo::read(&root).unwrap();
        let xtask = repo.crates.iter().find(|krate| krate.name == "xtask").unwrap();
        assert_eq!((xtask.folder.as_str(), xtask.entry.as_str()), ("xtask", "xtask/src/main.rs"));
        assert!(repo.file("xtask/src/tidy/repo.rs").is_some());
    }
}
