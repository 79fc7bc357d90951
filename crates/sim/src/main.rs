//! `nanogpu-sim`: what a placement policy would have done.
#![forbid(unsafe_code)]

use std::io::{BufWriter, ErrorKind, Write, stdout};
use std::process::ExitCode;

use clap::Parser;
use sim::commands::Args;

fn main() -> ExitCode {
    // Mistakes on the command line end here, with 2.
    let args = Args::parse();
    let mut out = BufWriter::new(stdout().lock());
    match args.run(&mut out).and_then(|()| Ok(out.flush()?)) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read us has seen enough, as `head` does.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            #[expect(clippy::print_stderr, reason = "a command talks to a person")]
            {
                eprintln!("error: {error:#}");
            }
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let kinds = error.chain().filter_map(|cause| {
        let json =
            cause.downcast_ref::<serde_json::Error>().and_then(serde_json::Error::io_error_kind);
        json.or_else(|| cause.downcast_ref::<std::io::Error>().map(std::io::Error::kind))
    });
    kinds.into_iter().any(|kind| kind == ErrorKind::BrokenPipe)
}
