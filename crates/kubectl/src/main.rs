//! `kubectl-nanogpu`, which kubectl runs as `kubectl nanogpu`.

use std::io::Write as _;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};
use kubectl::completing;
use kubectl::options::Options;

fn main() -> ExitCode {
    // Exactly one provider is built in; this fails only if one was installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut words = std::env::args();
    let called = words.next().unwrap_or_default();
    if called.rsplit('/').next() == Some(completing::NAME) {
        let words: Vec<String> = words.collect();
        let text = completing::choices(&Options::command(), &words);
        let _ = std::io::stdout().write_all(text.as_bytes());
        return ExitCode::SUCCESS;
    }
    let options = Options::parse();
    match outcome(options) {
        Ok(code) => code,
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn outcome(options: Options) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let code = runtime.block_on(kubectl::running::run(options, &mut std::io::stdout()));
    // The task that reads keys may be waiting for one.
    runtime.shutdown_background();
    code
}

/// Whoever reads us has seen enough, as `head` does.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let causes = error.chain().filter_map(|cause| cause.downcast_ref::<std::io::Error>());
    causes.into_iter().any(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}
