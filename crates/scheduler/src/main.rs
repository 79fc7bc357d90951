//! `nanogpu-scheduler`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use scheduler::http::Beside;
use scheduler::options::{Options, OptionsError};
use tokio::runtime::Builder;

// Bodies of requests are thousands of small texts: a third faster than with the system's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Threads for what may take long. Reads have limits of their own, and leave one for evictions.
const BESIDE: usize = 2;

fn main() -> ExitCode {
    let options = match Options::read(std::env::args_os()) {
        Ok(options) => options,
        Err(OptionsError::Clap(error)) => error.exit(),
        Err(error) => return fail(&error.into()),
    };
    match run(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

fn run(options: Options) -> anyhow::Result<()> {
    telemetry::start(options.log_form.parse()?, &options.log_level)?;
    let threads = Builder::new_multi_thread().worker_threads(BESIDE).enable_all().build()?;
    let beside = Beside::new(threads.handle().clone());
    let ran = Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(scheduler::running::run(options, beside));
    // Whoever still reads is not waited for.
    threads.shutdown_background();
    ran
}

#[expect(clippy::print_stderr, reason = "the one place where a failure to run is printed")]
fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("nanogpu-scheduler: {error:#}");
    ExitCode::FAILURE
}
