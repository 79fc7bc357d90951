//! What a person can type: one file a command, each its arguments and what it does with them.

mod demo;
mod generate;
mod replay;
mod what_if;

use std::io::Write;
use std::ops::RangeInclusive;

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};

use crate::replay::Decider;

/// The command line.
#[derive(Debug, Parser)]
#[command(
    name = "nanogpu-sim",
    version,
    about = "Replays pods through the placement code of nanogpu, without a cluster.",
    after_help = "Without a command it replays a small made-up cluster and explains the result."
)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Replays a trace, and shows how much of the cards each policy got allocated
    Replay(replay::Replay),
    /// Makes up nodes and pods, and writes them as a trace
    Generate(generate::Generate),
    /// Asks of a cluster's snapshot what would be if
    WhatIf(what_if::WhatIf),
}

impl Args {
    /// Does what was asked, and writes the answer to `out`.
    pub fn run(&self, out: &mut impl Write) -> Result<()> {
        match &self.command {
            None => demo::run(out),
            Some(Command::Replay(replay)) => replay.run(out),
            Some(Command::Generate(generate)) => generate.run(out),
            Some(Command::WhatIf(what_if)) => what_if.run(out),
        }
    }
}

/// Seeds, both ends included.
type Seeds = RangeInclusive<u64>;

/// More seeds are a typing error.
const MOST_SEEDS: u64 = 10_000;

fn seeds(text: &str) -> Result<Seeds> {
    let (from, to) = text.split_once("..").unwrap_or((text, text));
    let parse = |text: &str| text.trim().parse::<u64>();
    let (Ok(from), Ok(to)) = (parse(from), parse(to)) else {
        anyhow::bail!("seeds are a number such as 42, or a range such as 42..51");
    };
    ensure!(from <= to, "the first seed is larger than the last");
    ensure!(to - from < MOST_SEEDS, "at most {MOST_SEEDS} seeds");
    Ok(from..=to)
}

fn decider(text: &str) -> Result<Decider> {
    Decider::parse(text.trim()).with_context(|| {
        let known: Vec<&str> = Decider::all().map(Decider::as_str).collect();
        format!("there is no such policy; known are {}", known.join(", "))
    })
}
