//! `nanogpu-install`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser as _;
use installer::options::{Command, Options};
use installer::tree::Tree;
use installer::{patching, undoing, verifying};

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

fn run(options: &Options) -> anyhow::Result<()> {
    let tree = Tree::new(&options.root, &options.on_host);
    match &options.command {
        Command::Patch(patch) => patching::patch(&tree, patch, &mut say),
        Command::Verify(verify) => verifying::verify(&tree, verify, &mut say),
        Command::Rollback(rollback) => undoing::rollback(&tree, rollback, &mut say),
        Command::Status => {
            say(&undoing::status(&tree)?);
            Ok(())
        }
    }
}

#[expect(clippy::print_stdout, reason = "the one place that tells what was done")]
fn say(line: &str) {
    println!("{line}");
}

#[expect(clippy::print_stderr, reason = "the one place where a failure is printed")]
fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("nanogpu-install: {error:#}");
    ExitCode::FAILURE
}
