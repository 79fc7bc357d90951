//! `nanogpu-sim`: what a placement policy would have done.
#![expect(clippy::print_stdout, reason = "a command talks to a person")]

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use sim::arrival::Order;
use sim::replay::{Decider, Run, run};
use sim::report::{DEMANDS, Report};
use sim::trace;

#[derive(Parser)]
#[command(
    name = "nanogpu-sim",
    about = "Replays pods through nanogpu's placement, without a cluster."
)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Replays a trace, and shows how much of the cards each policy got allocated.
    Replay(Replay),
}

#[derive(clap::Args)]
struct Replay {
    /// The nodes, as CSV.
    #[arg(long)]
    nodes: PathBuf,
    /// The pods, as CSV.
    #[arg(long)]
    pods: PathBuf,
    /// Policies to compare, separated by commas.
    #[arg(long, default_value = "stranding")]
    policy: String,
    /// Seeds, such as 42 or 42..51 (both ends included).
    #[arg(long, default_value = "42..51")]
    seeds: String,
    /// In which order pods come.
    #[arg(long, value_enum, default_value = "shuffled")]
    order: Order,
    /// Until how many percent of the cards have been asked for.
    #[arg(long, default_value_t = 130)]
    to: u64,
    /// Let kube-scheduler place the pods that ask for no card, as in a cluster.
    #[arg(long)]
    as_extender: bool,
    /// Give policies the statistics of the whole trace from the start.
    #[arg(long)]
    oracle: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn main() -> Result<()> {
    match Args::parse().command {
        Command::Replay(replay) => replay_trace(&replay),
    }
}

fn replay_trace(args: &Replay) -> Result<()> {
    let nodes = trace::nodes(&args.nodes)?;
    let pods = trace::pods(&args.pods)?;
    let workload =
        args.pods.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    let mut reports = Vec::new();
    for name in args.policy.split(',').map(str::trim) {
        let decider = Decider::parse(name).with_context(|| format!("no policy {name:?}"))?;
        let how = Run {
            decider,
            order: args.order,
            to: args.to,
            oracle: args.oracle,
            as_extender: args.as_extender,
        };
        let runs: Vec<_> =
            seeds(&args.seeds)?.map(|seed| (seed, run(&nodes, &pods, how, seed))).collect();
        let report = Report::new(&workload, name, args.order.as_str(), &runs);
        if !args.json {
            line(&report);
        }
        reports.push(report);
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&reports)?);
    }
    Ok(())
}

fn line(report: &Report) {
    let points: Vec<String> = report
        .points
        .iter()
        .filter(|point| DEMANDS.contains(&point.demand))
        .map(|p| format!("{}%: {:.2}±{:.2}", p.demand, p.allocated_mean, p.allocated_sd))
        .collect();
    println!(
        "{:<16} {:<10} {}  failed {:?}  {:.1}/{:.1} us",
        report.policy,
        report.order,
        points.join("  "),
        report.failed_by_class,
        report.decision_us_p50,
        report.decision_us_p99,
    );
}

fn seeds(text: &str) -> Result<std::ops::RangeInclusive<u64>> {
    let (from, to) = text.split_once("..").unwrap_or((text, text));
    let parse = |text: &str| text.parse::<u64>().with_context(|| format!("seed {text:?}"));
    let (from, to) = (parse(from)?, parse(to)?);
    if from > to {
        bail!("seeds {text}: the first is larger than the last");
    }
    Ok(from..=to)
}
