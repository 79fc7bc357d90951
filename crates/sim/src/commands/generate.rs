//! `generate`: a made-up trace, as two files.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::generate::Made;
use crate::table::grouped_u64;

#[derive(Debug, clap::Args)]
pub(super) struct Generate {
    /// How many nodes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    nodes: u64,
    /// How many pods
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pods: u64,
    /// What decides them
    #[arg(long, default_value_t = 42)]
    seed: u64,
    /// With machines whose wiring is known, and pods that prefer or require near cards
    #[arg(long)]
    topology: bool,
    /// The folder for nodes.csv and pods.csv; made if it is not there
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

impl Generate {
    pub(super) fn run(&self, out: &mut impl Write) -> Result<()> {
        let (nodes, pods) = (usize::try_from(self.nodes)?, usize::try_from(self.pods)?);
        let made = if self.topology {
            Made::wired(nodes, pods, self.seed)
        } else {
            Made::new(nodes, pods, self.seed)
        };
        let folder = &self.out;
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let (nodes, pods) = (folder.join("nodes.csv"), folder.join("pods.csv"));
        write_rows(&nodes, &made.nodes)?;
        write_rows(&pods, &made.pods)?;
        let cards: u64 = made.nodes.iter().map(|row| u64::from(row.gpu)).sum();
        let demand: u64 =
            made.pods.iter().map(|row| u64::from(row.num_gpu) * u64::from(row.gpu_milli)).sum();
        writeln!(
            out,
            "{} nodes with {} cards, and {} pods that ask for {} % of them.\n\
             Replay them: nanogpu-sim replay --nodes {} --pods {}",
            grouped_u64(self.nodes),
            grouped_u64(cards),
            grouped_u64(self.pods),
            grouped_u64(demand / 10 / cards.max(1)),
            nodes.display(),
            pods.display(),
        )?;
        Ok(())
    }
}

fn write_rows(path: &Path, rows: &[impl Serialize]) -> Result<()> {
    let context = || format!("cannot write {}", path.display());
    let mut writer = csv::Writer::from_path(path).with_context(context)?;
    for row in rows {
        writer.serialize(row).with_context(context)?;
    }
    writer.flush().with_context(context)
}
