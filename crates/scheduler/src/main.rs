//! `nanogpu-scheduler`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use scheduler::options::{Options, OptionsError};

// Bodies of requests are thousands of small texts: a third faster than with the system's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    let options = match Options::read(std::env::args_os()) {
        Ok(options) => options,
        Err(OptionsError::Clap(error)) => error.exit(),
        Err(error) => return fail(&error.into()),
    };
    let form = match options.log_form.parse() {
        Ok(form) => form,
        Err(error) => return fail(&anyhow::Error::new::<telemetry::LogError>(error)),
    };
    if let Err(error) = telemetry::start(form, &options.log_level) {
        return fail(&error.into());
    }
    match scheduler::running::run(options).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

#[expect(clippy::print_stderr, reason = "the one place where a failure to run is printed")]
fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("nanogpu-scheduler: {error:#}");
    ExitCode::FAILURE
}
