//! Points at which a test can end the process, as a crash would.

use std::fmt;

/// A step at which the process may end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// Allocate was asked.
    Allocate,
    /// Allocate is about to answer.
    AllocateAnswer,
    /// `PreStart` was asked.
    PreStart,
    /// The checkpoint was read.
    Identified,
    /// The placement was checked.
    Checked,
    /// Pages and record are written.
    Recorded,
    /// The spec is written.
    Written,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allocate => "allocate",
            Self::AllocateAnswer => "allocate-answer",
            Self::PreStart => "prestart",
            Self::Identified => "identified",
            Self::Checked => "checked",
            Self::Recorded => "recorded",
            Self::Written => "written",
        })
    }
}

/// The variable that names the point at which the process ends; for tests only. The file it names
/// after `@` is made first, and where it is already the process goes on: it ends once.
pub const VARIABLE: &str = "NANOGPU_AGENT_DIES_AT";

/// Ends the process here if it was asked to, without a farewell.
pub fn reached(point: Point) {
    let Ok(asked) = std::env::var(VARIABLE) else { return };
    let Some((name, once)) = asked.split_once('@') else { return };
    if name == point.to_string()
        && std::fs::OpenOptions::new().write(true).create_new(true).open(once).is_ok()
    {
        tracing::error!(%point, "ending here, as asked");
        let own = rustix::process::getpid();
        let _ = rustix::process::kill_process(own, rustix::process::Signal::KILL);
    }
}
