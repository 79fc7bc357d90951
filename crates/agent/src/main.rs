//! `nanogpu-agent`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use agent::args::Args;
use clap::Parser as _;

/// Reading and writing files is done beside the one that waits for everything else, by at most so many.
/// When all pods of a node start at once more would only wait for one another, and each keeps memory of
/// its own.
const BESIDE: usize = 4;

fn main() -> ExitCode {
    let args = Args::parse();
    // One thread waits for everything, since there is little to do and waking a second one would cost
    // more than what it could do meanwhile.
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.max_blocking_threads(BESIDE).enable_all().build();
    let ran = runtime.map_err(anyhow::Error::from).and_then(|runtime| runtime.block_on(run(args)));
    match ran {
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
