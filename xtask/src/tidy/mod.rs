//! The rules of the repository itself, as ordinary code.
//!
//! A rule is a function from what the repository holds ([`Repo`]) to findings. It reads no file
//! and starts no process, so each is tested on made-up input; [`repo`] does the gathering.

mod arrows;
mod dependencies;
mod docs;
mod generated;
mod hosts;
mod purity;
mod repo;
mod sizes;

use std::fmt;
use std::path::Path;

use anyhow::bail;

pub(crate) use generated::generate;

use self::repo::Repo;

/// Something that breaks a rule: where, and a sentence that says what to do about it.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    path: String,
    sentence: String,
}

type Rule = fn(&Repo) -> Vec<Finding>;

const RULES: &[Rule] = &[
    |repo| arrows::check(&repo.crates),
    |repo| purity::check_dependencies(&repo.crates),
    |repo| purity::check_sources(&repo.crates, &repo.files),
    |repo| sizes::check(&repo.files),
    |repo| docs::check(&repo.files),
    generated::check,
    |repo| dependencies::check(&repo.crates, &repo.files),
    |repo| hosts::check(&repo.files),
];

/// Applies every rule and prints all findings; fails if there are any.
pub(crate) fn run(root: &Path) -> anyhow::Result<()> {
    let repo = Repo::read(root)?;
    let findings: Vec<Finding> = RULES.iter().flat_map(|rule| rule(&repo)).collect();
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => Ok(()),
        1 => bail!("tidy has one finding"),
        count => bail!("tidy has {count} findings"),
    }
}

impl Finding {
    fn new(path: impl Into<String>, sentence: impl Into<String>) -> Self {
        Self { path: path.into(), sentence: sentence.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.sentence)
    }
}
