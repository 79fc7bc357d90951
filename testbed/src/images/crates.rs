//! Which crates are linked into a program, as cargo itself resolves them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

/// A crate, and what of it a list of contents has.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Crate {
    pub(super) name: String,
    pub(super) version: String,
    /// As its manifest says, or nothing.
    pub(super) licence: String,
    /// Of the archive it came in; ours have none.
    pub(super) checksum: Option<String>,
}

/// With which features programs were built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Features {
    /// All of the workspace, as tests are built ([`crate::built`]).
    Workspace,
    /// Those of these packages, as for a release.
    Packages(Vec<String>),
}

/// Name and version.
pub(super) type Key = (String, String);
/// A crate, and one it needs.
pub(super) type Arrow = (Key, Key);

/// The crates of all programs, and which needs which.
#[derive(Debug, Default)]
pub(super) struct Linked {
    licences: BTreeMap<Key, String>,
    needs: BTreeMap<Key, BTreeSet<Key>>,
    checksums: BTreeMap<Key, String>,
}

impl Linked {
    /// Asks cargo.
    pub(super) fn ask(features: &Features) -> anyhow::Result<Self> {
        let mut cargo = Command::new(env!("CARGO"));
        // Without build scripts and macros: they run when a program is built and are not in it.
        cargo.args(["tree", "--locked", "--edges", "normal,no-proc-macro", "--prefix", "depth"]);
        cargo.args(["--format", " {p}\t{l}\t"]);
        match features {
            Features::Workspace => cargo.args(["--workspace", "--all-features"]),
            Features::Packages(names) => {
                cargo.args(names.iter().flat_map(|name| ["--package", name]))
            }
        };
        let output = cargo
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .context("cannot ask cargo which crates there are")?;
        if !output.status.success() {
            bail!("cargo tree: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        let mut linked = Self::parse(&String::from_utf8(output.stdout)?)?;
        let lock = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.lock");
        let lock =
            fs::read_to_string(&lock).with_context(|| format!("cannot read {}", lock.display()))?;
        linked.checksums = checksums(&lock);
        Ok(linked)
    }

    /// Lines of depth, name, version and licence. What hangs below a crate stands below its first
    /// mention only.
    fn parse(tree: &str) -> anyhow::Result<Self> {
        let mut linked = Self::default();
        let mut above: Vec<Key> = Vec::new();
        for line in tree.lines().filter(|line| !line.is_empty()) {
            let (depth, key, licence) =
                entry(line).with_context(|| format!("cargo tree says {line:?}"))?;
            above.truncate(depth);
            if let Some(parent) = above.last() {
                linked.needs.entry(parent.clone()).or_default().insert(key.clone());
            }
            linked.licences.insert(key.clone(), licence);
            above.push(key);
        }
        Ok(linked)
    }

    /// Everything that is in a program made of these packages of ours, and the arrows between.
    pub(super) fn below(&self, roots: &[&str]) -> anyhow::Result<(Vec<Crate>, Vec<Arrow>)> {
        let mut open = Vec::new();
        for root in roots {
            let known = self.licences.keys().find(|(name, _)| name == root);
            open.push(known.with_context(|| format!("cargo knows no package {root}"))?.clone());
        }
        let (mut seen, mut arrows) = (BTreeSet::new(), Vec::new());
        while let Some(key) = open.pop() {
            if !seen.insert(key.clone()) {
                continue;
            }
            for below in self.needs.get(&key).into_iter().flatten() {
                arrows.push((key.clone(), below.clone()));
                open.push(below.clone());
            }
        }
        arrows.sort();
        let described = |key: &Key| Crate {
            name: key.0.clone(),
            version: key.1.clone(),
            licence: self.licences.get(key).cloned().unwrap_or_default(),
            checksum: self.checksums.get(key).cloned(),
        };
        Ok((seen.iter().map(described).collect(), arrows))
    }
}

/// `2 bytes v1.12.1<tab>MIT<tab>`, with more behind a version that comes from elsewhere, and behind
/// the last tab.
fn entry(line: &str) -> Option<(usize, Key, String)> {
    let (depth, rest) = line.split_once(' ')?;
    let (package, rest) = rest.split_once('\t')?;
    let (licence, _) = rest.split_once('\t')?;
    let mut words = package.split(' ');
    let name = words.next()?.to_owned();
    let version = words.next()?.strip_prefix('v')?.to_owned();
    // An old way to say the same.
    let licence = licence.replace('/', " OR ");
    Some((depth.parse().ok()?, (name, version), licence))
}

/// The checksums in a `Cargo.lock`.
fn checksums(lock: &str) -> BTreeMap<Key, String> {
    let mut found = BTreeMap::new();
    for package in lock.split("[[package]]").skip(1) {
        let value = |key: &str| {
            let lines = package.lines();
            let mut values = lines.filter_map(|line| line.strip_prefix(key)?.strip_prefix(" = \""));
            Some(values.next()?.strip_suffix('"')?.to_owned())
        };
        if let (Some(name), Some(version), Some(checksum)) =
            (value("name"), value("version"), value("checksum"))
        {
            found.insert((name, version), checksum);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: &str = "0 agent v0.1.0 (/x/agent)\tApache-2.0\t\n\
        1 page v0.1.0 (/x/page)\tApache-2.0\t\n2 libc v0.2.1\tMIT/Apache-2.0\t\n\
        1 bytes v1.0.0\tMIT\t\n\n0 limiter v0.1.0 (/x/limiter)\tApache-2.0\t\n\
        1 page v0.1.0 (/x/page)\tApache-2.0\t (*)\n";

    fn names(linked: &Linked, root: &str) -> Vec<String> {
        linked.below(&[root]).unwrap().0.into_iter().map(|it| it.name).collect()
    }

    #[test]
    fn a_program_has_what_hangs_below_it_wherever_that_was_said() {
        let linked = Linked::parse(TREE).unwrap();
        assert_eq!(names(&linked, "agent"), ["agent", "bytes", "libc", "page"]);
        assert_eq!(names(&linked, "limiter"), ["libc", "limiter", "page"]);
        assert!(linked.below(&["other"]).is_err());
        let (crates, arrows) = linked.below(&["limiter"]).unwrap();
        assert_eq!(crates[0].licence, "MIT OR Apache-2.0");
        assert_eq!(arrows.len(), 2);
    }

    #[test]
    fn checksums_are_those_of_the_lock() {
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\n\n\
            [[package]]\nname = \"b\"\nversion = \"2.0.0\"\nsource = \"x\"\nchecksum = \"ff\"\n";
        let found = checksums(lock);
        assert_eq!(found.len(), 1);
        assert_eq!(found[&("b".to_owned(), "2.0.0".to_owned())], "ff");
    }
}
