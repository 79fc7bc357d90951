//! Running commands one after another, each under a heading and with its time.
//!
//! A command is shown as a line that can be pasted into a shell, because that line is also how
//! a failed step is repeated and how a result is cited. It must never say less than what ran.

use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, anyhow, bail};

/// One step of a run.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) action: Action,
}

pub(crate) enum Action {
    Command(Invocation),
    /// A command whose effect lasts, so it is left out where that is already seen.
    Unless {
        done: fn(&Path) -> bool,
        otherwise: Invocation,
    },
    /// A command that not every machine can run; elsewhere the reason is said.
    Where {
        possible: fn() -> Result<(), &'static str>,
        then: Invocation,
    },
    /// Work done in this process, and the line that repeats it.
    Here {
        run: fn(&Path) -> anyhow::Result<()>,
        again: &'static str,
    },
}

/// A command line with its environment, run in the root of the workspace.
pub(crate) struct Invocation {
    pub(crate) env: &'static [(&'static str, &'static str)],
    /// Variables that must not be inherited.
    pub(crate) unset: &'static [&'static str],
    /// Its words have no spaces in them.
    pub(crate) line: &'static str,
}

/// Runs `steps` in order and stops at the first that fails.
pub(crate) fn run_all<'a>(
    root: &Path,
    steps: impl IntoIterator<Item = &'a Step>,
) -> anyhow::Result<()> {
    let started = Instant::now();
    for step in steps {
        run(root, step)?;
    }
    println!("\nall steps passed in {}", elapsed(started));
    Ok(())
}

fn run(root: &Path, step: &Step) -> anyhow::Result<()> {
    println!("\n== {}: {}", step.name, step.action);
    let started = Instant::now();
    let outcome = step.action.run(root);
    let word = if outcome.is_ok() { "ok" } else { "failed" };
    println!("== {}: {word} after {}", step.name, elapsed(started));
    outcome.map_err(|error| {
        anyhow!("step `{}` failed: {error:#}\nto rerun only this one: {}", step.name, step.action)
    })
}

fn elapsed(since: Instant) -> String {
    format!("{:.1} s", since.elapsed().as_secs_f64())
}

impl Action {
    fn run(&self, root: &Path) -> anyhow::Result<()> {
        match self {
            Self::Command(invocation) => invocation.run(root),
            Self::Unless { done, .. } if done(root) => Ok(()),
            Self::Unless { otherwise, .. } => otherwise.run(root),
            Self::Where { possible, then } => match possible() {
                Ok(()) => then.run(root),
                Err(reason) => {
                    println!("skipped: {reason}");
                    Ok(())
                }
            },
            Self::Here { run, .. } => run(root),
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command(invocation)
            | Self::Unless { otherwise: invocation, .. }
            | Self::Where { then: invocation, .. } => invocation.fmt(f),
            Self::Here { again, .. } => f.write_str(again),
        }
    }
}

impl Invocation {
    /// Runs it with our input and output, and fails if it does.
    pub(crate) fn run(&self, root: &Path) -> anyhow::Result<()> {
        let mut words = self.line.split_whitespace();
        let program = words.next().context("an empty command line")?;
        let mut command = Command::new(executable(root, program));
        command.args(words).current_dir(root).envs(self.env.iter().copied());
        as_by_hand(&mut command);
        for name in self.unset {
            command.env_remove(name);
        }
        let status = command.status().with_context(|| format!("start `{program}`"))?;
        if !status.success() {
            bail!("`{program}` ended with {status}");
        }
        Ok(())
    }
}

/// Takes away what cargo told us about our own package: some build scripts run anew when it changes,
/// and everything above them is built anew, here and at the next build by hand.
pub(crate) fn as_by_hand(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if is_about_a_package(&name.to_string_lossy()) {
            command.env_remove(name);
        }
    }
}

fn is_about_a_package(name: &str) -> bool {
    ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|start| name.starts_with(start))
        || name == "CARGO_BIN_NAME"
        || name == "CARGO_CRATE_NAME"
}

fn executable(root: &Path, program: &str) -> OsString {
    if program == "cargo" {
        // The cargo that started us, not the first in PATH: they may be of different toolchains.
        return std::env::var_os("CARGO").unwrap_or_else(|| program.into());
    }
    if program.contains('/') {
        // Whether a relative program is looked up before or after the change of folder is left
        // open by the standard library, so it is made absolute.
        return root.join(program).into();
    }
    program.into()
}

impl fmt::Display for Invocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.unset.is_empty() {
            f.write_str("env ")?;
        }
        for name in self.unset {
            write!(f, "-u {name} ")?;
        }
        for (name, value) in self.env {
            write!(f, "{name}={} ", quoted(value))?;
        }
        f.write_str(self.line)
    }
}

fn quoted(word: &str) -> String {
    if word.contains(' ') { format!("'{word}'") } else { word.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here(name: &'static str, run: fn(&Path) -> anyhow::Result<()>) -> Step {
        Step { name, action: Action::Here { run, again: "do it again" } }
    }

    #[test]
    fn settings_of_cargo_are_passed_on_and_its_words_about_us_are_not() {
        assert!(is_about_a_package("CARGO_PKG_NAME") && is_about_a_package("CARGO_MANIFEST_DIR"));
        assert!(!is_about_a_package("CARGO_TARGET_DIR") && !is_about_a_package("CARGO_HOME"));
    }

    #[test]
    fn an_invocation_shows_everything_that_changes_its_outcome() {
        let invocation = Invocation {
            env: &[("RUSTDOCFLAGS", "-D warnings")],
            unset: &["OTHER"],
            line: "cargo doc",
        };
        assert_eq!(invocation.to_string(), "env -u OTHER RUSTDOCFLAGS='-D warnings' cargo doc");
    }

    #[test]
    fn the_first_failing_step_ends_the_run_and_says_how_to_repeat_it() {
        let steps = [
            here("first", |_| Ok(())),
            here("second", |_| bail!("no")),
            here("third", |_| panic!("must not run")),
        ];
        let error = run_all(Path::new("."), &steps).unwrap_err();
        assert_eq!(
            format!("{error:#}"),
            "step `second` failed: no\nto rerun only this one: do it again"
        );
    }

    #[test]
    fn what_is_done_already_is_not_done_again() {
        let otherwise = Invocation { env: &[], unset: &[], line: "false" };
        assert!(Action::Unless { done: |_| true, otherwise }.run(Path::new(".")).is_ok());
        let otherwise = Invocation { env: &[], unset: &[], line: "false" };
        assert!(Action::Unless { done: |_| false, otherwise }.run(Path::new(".")).is_err());
    }

    #[test]
    fn a_command_that_fails_is_an_error() {
        let invocation = Invocation { env: &[], unset: &[], line: "false" };
        assert!(invocation.run(Path::new(".")).is_err());
    }
}
