//! The menu of the workspace: what a contributor or CI runs, as `cargo xtask <command>`.
//!
//! Each command is ordinary code in a file of its own; this one only parses and dispatches.
//! It never depends on a crate of ours, so that it still runs when those do not compile.

#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a tool for people at a terminal: headings and findings are its output"
)]

mod soak;
mod steps;
mod test;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};

use anyhow::Context;
use clap::{Parser, Subcommand, ValueEnum};

use crate::steps::Invocation;

#[derive(Parser)]
#[command(bin_name = "cargo xtask", about = "Checks, long runs and the demo of this workspace")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run what CI runs; `test fast` leaves out what needs tools to be installed or a cluster.
    Test { tier: Option<Tier> },
    /// Check the rules of the repository itself.
    Tidy,
    /// Run the long version of a test; without a name, list them.
    Soak { name: Option<String> },
    /// Show the product at work.
    Demo,
    /// A real Kubernetes on this machine: up, down, status. `cluster up --help` says more.
    #[command(disable_help_flag = true)]
    Cluster {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Write our images as OCI archives, with a Containerfile each.
    #[command(disable_help_flag = true)]
    Images {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Write the generated files that `tidy` compares.
    Generate,
}

#[derive(Clone, Copy, ValueEnum)]
enum Tier {
    /// The everyday loop: no cluster, nothing to install.
    Fast,
}

const DEMO: Invocation = Invocation {
    env: &[],
    unset: &[],
    line: &["cargo", "run", "--quiet", "-p", "stories", "--example", "demo"],
};

fn main() -> ExitCode {
    match run(&Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command) -> anyhow::Result<()> {
    let root = workspace_root()?;
    match command {
        Command::Test { tier: Some(Tier::Fast) } => test::fast(&root),
        Command::Test { tier: None } => test::all(&root),
        Command::Tidy => tidy::run(&root),
        Command::Soak { name: Some(name) } => soak::run(&root, name),
        Command::Soak { name: None } => {
            soak::list();
            Ok(())
        }
        Command::Demo => DEMO.run(&root),
        Command::Cluster { args } => testbed(&root, args),
        Command::Images { args } => {
            let args: Vec<String> =
                ["images".to_owned()].into_iter().chain(args.iter().cloned()).collect();
            testbed(&root, &args)
        }
        Command::Generate => tidy::generate(&root),
    }
}

/// The testbed is a program of its own: it needs a Kubernetes client, which would make every
/// `cargo xtask` wait for minutes to be built.
fn testbed(root: &Path, args: &[String]) -> anyhow::Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = process::Command::new(cargo)
        .args(["run", "--quiet", "-p", "testbed", "--"])
        .args(args)
        .current_dir(root)
        .status()
        .context("start the testbed")?;
    // It has said what was wrong.
    if !status.success() {
        process::exit(status.code().unwrap_or(1));
    }
    Ok(())
}

/// The folder above this crate's.
///
/// Asked of the environment and not fixed at build time: a moved checkout keeps its `target`
/// folder, and with it a binary that would still point to the old place.
fn workspace_root() -> anyhow::Result<PathBuf> {
    let xtask = std::env::var_os("CARGO_MANIFEST_DIR").context("start it as `cargo xtask`")?;
    let root = Path::new(&xtask).parent().context("xtask lies in no folder")?;
    Ok(root.to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn test_without_a_tier_is_what_ci_runs() {
        let cli = Cli::try_parse_from(["xtask", "test"]).unwrap();
        assert!(matches!(cli.command, Command::Test { tier: None }));
    }
}
