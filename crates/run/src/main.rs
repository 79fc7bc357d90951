//! `nanogpu-run`: the limiter without Kubernetes.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser as _;
use run::Args;

fn main() -> ExitCode {
    // Mistakes on the command line end here, with 2.
    match run::run(&Args::parse()) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            #[expect(clippy::print_stderr, reason = "a command talks to a person")]
            {
                eprintln!("nanogpu-run: {error:#}");
            }
            ExitCode::from(125)
        }
    }
}
