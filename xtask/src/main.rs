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

use anyhow::{Context, bail};
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
    /// Show the product at work, on a real Kubernetes with simulated cards (root, Linux).
    Demo {
        /// Check every act, and take everything down at the end.
        #[arg(long)]
        once: bool,
        /// Without a cluster: sample pods are placed on nodes that are only numbers.
        #[arg(long, conflicts_with = "once")]
        dry: bool,
    },
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

/// The demo without a cluster.
const DRY: Invocation =
    Invocation { env: &[], unset: &[], line: "cargo run --quiet -p stories --example demo" };

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
        Command::Demo { dry: true, .. } => DRY.run(&root),
        Command::Demo { once, .. } => demo(&root, *once),
        Command::Cluster { args } => testbed(&root, args),
        Command::Images { args } => {
            let args: Vec<String> =
                ["images".to_owned()].into_iter().chain(args.iter().cloned()).collect();
            testbed(&root, &args)
        }
        Command::Generate => tidy::generate(&root),
    }
}

/// On a cluster, where there can be one.
fn demo(root: &Path, once: bool) -> anyhow::Result<()> {
    match test::can_run_a_cluster() {
        Ok(()) => {
            println!("building nanogpu, the simulated driver and the testbed");
            test::BUILD.run(root)?;
            let args: &[String] = if once { &["--once".to_owned()] } else { &[] };
            program(root, "nanogpu-demo", args)
        }
        // CI would believe that something was shown.
        Err(reason) if once => bail!("{reason}"),
        Err(reason) => {
            println!("{reason}. Here is the small one, without a cluster.\n");
            DRY.run(root)
        }
    }
}

fn testbed(root: &Path, args: &[String]) -> anyhow::Result<()> {
    program(root, "testbed", args)
}

/// Programs apart: they need a Kubernetes client, which would make every `cargo xtask` wait for
/// minutes to be built. No package is named, so that they share what the workspace was built from.
fn program(root: &Path, name: &str, args: &[String]) -> anyhow::Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = process::Command::new(cargo);
    command.args(["run", "--quiet", "--all-features", "--bin", name, "--"]).args(args);
    steps::as_by_hand(&mut command);
    let status = command.current_dir(root).status().with_context(|| format!("start {name}"))?;
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

    #[test]
    fn a_demo_is_dry_or_checked_not_both() {
        assert!(Cli::try_parse_from(["xtask", "demo", "--once", "--dry"]).is_err());
        let cli = Cli::try_parse_from(["xtask", "demo"]).unwrap();
        assert!(matches!(cli.command, Command::Demo { once: false, dry: false }));
    }
}
