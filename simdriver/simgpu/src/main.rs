//! `nanogpu-simgpu`: makes simulated GPUs, shows them, breaks them and keeps them busy.

mod args;
mod fault;
mod install;
mod load;
mod make;
mod mig;
mod show;
mod usage;

use std::io::{ErrorKind, Write, stdout};
use std::process::ExitCode;

use clap::Parser;

use crate::args::{Args, Command};

fn main() -> ExitCode {
    let args = Args::parse();
    let mut out = stdout().lock();
    match run(&args, &mut out).and_then(|()| Ok(out.flush()?)) {
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

fn run(args: &Args, out: &mut impl Write) -> anyhow::Result<()> {
    match &args.command {
        Command::Profiles => make::profiles(out),
        Command::Create(choices) => make::create(choices, out),
        Command::Show => show::show(args.machine()?, out),
        Command::Fault { fault } => fault::inject(args.machine()?, fault, out),
        Command::Mig { device, act } => mig::cut(args.machine()?, *device, act, out),
        Command::Load(load) => load::run(args.machine()?, load, out),
        Command::Usage { json } => usage::print(args.machine()?, *json, out),
        Command::Advance { milliseconds } => make::advance(args.machine()?, *milliseconds, out),
        Command::Install(choices) => install::install(args, choices, out),
        Command::Nodes { folder } => install::nodes(args.machine()?, folder, out),
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.chain().filter_map(|cause| cause.downcast_ref::<std::io::Error>());
    io.into_iter().any(|error| error.kind() == ErrorKind::BrokenPipe)
}
