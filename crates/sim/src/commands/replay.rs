//! `replay`: a trace, policies, seeds; a table, JSON, CSV or a plot.

use std::fmt::Write as _;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use model::PolicyName;

use super::{Seeds, decider, seeds};
use crate::arrival::Order;
use crate::baseline::{Baseline, Scoring};
use crate::compare::Scene;
use crate::replay::{Decider, Run};
use crate::{plot, report, table, threads, trace};

#[derive(Debug, clap::Args)]
#[command(after_long_help = policies())]
pub(super) struct Replay {
    #[arg(long, value_name = "FILE", help = NODES)]
    nodes: PathBuf,
    #[arg(long, value_name = "FILE", help = PODS)]
    pods: PathBuf,
    /// Policies to compare, with commas between them (--help explains each)
    #[arg(
        long,
        value_name = "NAME,..",
        value_delimiter = ',',
        default_value = "stranding",
        value_parser = decider
    )]
    policy: Vec<Decider>,
    /// A seed such as 42, or several such as 42..51, both ends included
    #[arg(long, default_value = "42..51", value_parser = seeds)]
    seeds: Seeds,
    /// In which order pods come
    #[arg(long, value_enum, default_value = "shuffled")]
    order: Order,
    /// Until how many percent of the cards have been asked for
    #[arg(
        long,
        value_name = "PERCENT",
        default_value_t = 130,
        value_parser = clap::value_parser!(u64).range(1..=1000)
    )]
    to: u64,
    /// Then so many times a pod leaves and, on average, 1.3 others come
    #[arg(long, value_name = "EVENTS", default_value_t = 0)]
    churn: u64,
    /// Decide as in a cluster: kube-scheduler places the pods that ask for no card, the others go
    /// to the node we rank first, because the shipped configuration lets our rank decide. With a
    /// value: how it scores nodes for the pods that ask for no card
    #[arg(
        long,
        value_name = "SCORING",
        value_enum,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "least-allocated"
    )]
    as_extender: Option<Scoring>,
    /// Give policies the statistics of the whole trace from the start
    #[arg(long)]
    oracle: bool,
    /// On how many threads; one gives the truest times
    #[arg(long, value_name = "N", default_value_t = threads::cpus())]
    threads: usize,
    /// Print JSON
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Print CSV: every number with its policy, measure and demand, but no times
    #[arg(long)]
    csv: bool,
    /// Draw allocation, fragmentation and the cards at the end
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// The most that any policy could allocate, in percent, to be drawn
    #[arg(long, value_name = "PERCENT", requires = "plot", value_parser = percent)]
    bound: Option<f64>,
}

impl Replay {
    pub(super) fn run(&self, out: &mut impl Write) -> Result<()> {
        let workload = self.pods.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let scene = Scene {
            workload: workload.unwrap_or_default(),
            nodes: trace::nodes(&self.nodes)?,
            pods: trace::pods(&self.pods)?,
        };
        let how = self.how();
        let threads = self.threads.clamp(1, threads::cpus());
        let compared = scene.compare(&self.policy, how, self.seeds.clone(), threads);
        if self.json {
            serde_json::to_writer_pretty(&mut *out, &compared.reports)?;
            writeln!(out)?;
        } else if self.csv {
            report::write_csv(&compared.reports, out)?;
        } else {
            writeln!(out, "{}\n", scene.describe(how, &self.seeds))?;
            write!(out, "{}", table::results(&compared.reports))?;
        }
        if let Some(path) = &self.plot {
            plot::draw(path, &scene.workload, &compared, self.bound)?;
        }
        Ok(())
    }

    fn how(&self) -> Run {
        Run {
            // Each of the policies takes its turn.
            decider: Decider::Ours(PolicyName::Stranding),
            order: self.order,
            to: self.to,
            churn: self.churn,
            oracle: self.oracle,
            as_extender: self.as_extender,
        }
    }
}

fn percent(text: &str) -> Result<f64> {
    let percent: f64 = text.parse()?;
    ensure!((0.0..=100.0).contains(&percent), "a percentage is a number from 0 to 100");
    Ok(percent)
}

// As values, because the documentation lint wants ticks around these names and help shows them.
const NODES: &str =
    "The nodes, as CSV: sn, cpu_milli, memory_mib, gpu, model and, if known, card_mem_mib, machine";
const PODS: &str = "The pods, as CSV: name, cpu_milli, memory_mib, num_gpu, gpu_milli and, if \
     wanted, gpu_spec, gpu_mem_mib, topology";

const OURS: [(PolicyName, &str); 6] = [
    (PolicyName::Stranding, "the default: keeps CPU, memory and rare cards from being stranded"),
    (PolicyName::Fgd, "leaves the typical pods as much usable room as it can"),
    (PolicyName::Binpack, "fills what is already in use"),
    (PolicyName::Spread, "uses what is idle"),
    (PolicyName::Random, "anywhere, decided by the pod's UID and so the same every time"),
    (PolicyName::GpuManager, "by gpu-manager's own rules"),
];

/// What every policy does, for the long help.
fn policies() -> String {
    let mut text = "Policies of nanogpu, which a cluster can use:\n".to_owned();
    for policy in PolicyName::ALL {
        let does = OURS.iter().find(|(name, _)| *name == policy).map_or("", |(_, does)| does);
        let _ = writeln!(text, "  {:<15} {does}", policy.as_str());
    }
    text.push_str("\nPolicies of the literature, for comparison only:\n");
    for baseline in Baseline::ALL {
        let does = match baseline {
            Baseline::AnyFit => {
                "the papers' Random: by chance, any node that fits and any card on it"
            }
            Baseline::DotProd => "the node whose free room resembles the request least (Tetris)",
            Baseline::GpuClustering => "nodes that hold pods of the same size",
            Baseline::GpuPacking => "used cards, then used nodes, then idle nodes",
            Baseline::BestFit => "the node that has least left over",
        };
        let _ = writeln!(text, "  {:<15} {does}", baseline.as_str());
    }
    text
}
