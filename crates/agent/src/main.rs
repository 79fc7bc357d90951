//! `nanogpu-agent`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use agent::args::Args;
use clap::Parser as _;

#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    match run(Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

async fn run(args: Args) -> anyhow::Result<()> {
    telemetry::start(args.log_form.parse()?, &args.log_level)?;
    agent::running::run(&args).await
}

#[expect(clippy::print_stderr, reason = "the one place where a failure to run is printed")]
fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("nanogpu-agent: {error:#}");
    ExitCode::FAILURE
}
