//! `doctor`: an installation, checked end to end. What is found is gathered first and judged by a
//! function, so that every verdict has a test.

mod gathering;
mod judging;

use std::fmt::Write as _;

use serde::Serialize;

pub use gathering::gather;
pub use judging::judge;

/// What was found. An error is why it could not be looked at.
#[derive(Debug, Clone)]
pub struct Found {
    /// The API server's version.
    pub version: Result<String, String>,
    /// Where nanogpu is installed.
    pub namespace: String,
    /// Pods of the scheduler: name, and whether each is ready.
    pub schedulers: Result<Vec<(String, bool)>, String>,
    /// The leader's Lease: its holder, and for how many milliseconds it was not renewed.
    pub leader: Result<Option<(String, u64)>, String>,
    /// What the scheduler said when asked whether it is ready, and by which way.
    pub ready: Result<(String, Result<(), String>), String>,
    /// Whether the webhook is there and trusted by the API server.
    pub webhook: Result<Option<bool>, String>,
    /// Whether the policy and its binding are there.
    pub policy: Result<(bool, bool), String>,
    /// Nodes.
    pub nodes: Result<Vec<Node>, String>,
    /// Where quotas stand, and what is there.
    pub quotas: Vec<(String, Quota)>,
}

/// What stands where a quota may.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Quota {
    /// Nothing.
    None,
    /// A quota.
    Sound,
    /// A text that is none, and why.
    Broken(String),
    /// It cannot be looked at, and why.
    Unseen(String),
}

/// A node, as far as it is checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its kubelet's version.
    pub kubelet: String,
    /// Its container runtime and version.
    pub runtime: String,
    /// In which way its agent says that devices come into containers.
    pub devices_by: Option<String>,
    /// Its inventory: how many cards, how many of them sick and cordoned; or why it cannot be read.
    pub inventory: Option<Result<Cards, String>>,
    /// For how many milliseconds its agent has been silent.
    pub silence: Option<u64>,
    /// What its agent says it lacks.
    pub lacks: Vec<String>,
    /// A sign of cards by someone else than our agent.
    pub sign: Option<String>,
}

/// Cards of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cards {
    /// All.
    pub all: usize,
    /// Of which sick.
    pub sick: usize,
    /// Of which cordoned.
    pub cordoned: usize,
}

/// How well something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Well.
    Ok,
    /// It works, and someone should look.
    Warn,
    /// It does not work.
    Fail,
}

impl Level {
    const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// One verdict.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// How well it is.
    pub level: Level,
    /// Of what.
    pub what: &'static str,
    /// What was found.
    pub found: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub todo: Option<String>,
}

/// The verdicts, a line each, and what to do below those that are not well.
pub fn page(verdicts: &[Verdict]) -> String {
    let mut text = String::new();
    let width = verdicts.iter().map(|verdict| verdict.what.len()).max().unwrap_or(0);
    for verdict in verdicts {
        let Verdict { level, what, found, todo } = verdict;
        let _ = writeln!(text, "{:<4}  {what:<width$}  {found}", level.word());
        if let Some(todo) = todo {
            let _ = writeln!(text, "      {:width$}  -> {todo}", "");
        }
    }
    let count = |level| verdicts.iter().filter(|verdict| verdict.level == level).count();
    let (fail, warn) = (count(Level::Fail), count(Level::Warn));
    let sum = match (fail, warn) {
        (0, 0) => "All is well.".to_owned(),
        (0, warn) => format!("It works; {warn} to look at."),
        (fail, 0) => format!("{fail} to mend."),
        (fail, warn) => format!("{fail} to mend, {warn} to look at."),
    };
    let _ = write!(text, "\n{sum}\n");
    text
}
