//! Without a command: a small made-up cluster, and what it shows in plain words.

use std::io::Write;

use anyhow::Result;
use model::PolicyName;

use crate::arrival::Order;
use crate::generate::Made;
use crate::replay::{Decider, Run};
use crate::report::Report;
use crate::{table, threads};

const POLICIES: [PolicyName; 4] =
    [PolicyName::Stranding, PolicyName::Fgd, PolicyName::Binpack, PolicyName::Spread];

pub(super) fn run(out: &mut impl Write) -> Result<()> {
    let scene = Made::new(60, 900, 7).scene("a made-up cluster")?;
    let how = Run {
        decider: Decider::Ours(POLICIES[0]),
        order: Order::Shuffled,
        to: 130,
        churn: 0,
        oracle: false,
        as_extender: None,
    };
    let compared = scene.compare(&POLICIES.map(Decider::Ours), how, 1..=3, threads::cpus());
    writeln!(out, "{}\n", scene.describe(how, &(1..=3)))?;
    writeln!(out, "{}", table::results(&compared.reports))?;
    let cards = scene.nodes.iter().map(|node| node.devices.len()).sum();
    writeln!(out, "{}", explain(&compared.reports, cards))?;
    Ok(())
}

/// What the table shows, with its numbers.
fn explain(reports: &[Report], cards: usize) -> String {
    let allocated = |report: &Report| {
        report.points.iter().find(|p| p.demand == 100).map_or(0.0, |p| p.allocated_mean)
    };
    let fragmented = |report: &Report| {
        report.fragmentation.iter().find(|p| p.demand == 100).map_or(0.0, |p| p.fragmented_mean)
    };
    let by_allocation = |a: &&Report, b: &&Report| allocated(a).total_cmp(&allocated(b));
    let best = reports.iter().max_by(by_allocation);
    let worst = reports.iter().min_by(by_allocation);
    let (Some(best), Some(worst)) = (best, worst) else { return String::new() };
    #[expect(clippy::cast_precision_loss, reason = "a count of cards")]
    let more = (allocated(best) - allocated(worst)) * cards as f64 / 100.0;
    format!(
        "Pods came one after another until they had asked for 130 % of all cards; each was tried \
         once.\n\
         When they had asked for as much as there is, {best} had put {:.1} % of the cards to use \
         and {worst} {:.1} %:\n\
         {more:.0} of {cards} cards more, on the same nodes and for the same pods.\n\
         Of the {:.1} % that {worst} left free, {:.1} are fragmented: in pieces, or without the \
         CPU, for the pods that come.\n\
         \n\
         Next, try a larger cluster or your own trace, with a plot, and with pods that leave:\n\
         \n\
         {EXAMPLES}",
        allocated(best),
        allocated(worst),
        100.0 - allocated(worst),
        fragmented(worst),
        best = best.policy,
        worst = worst.policy,
    )
}

const EXAMPLES: &str = "  nanogpu-sim generate --nodes 200 --pods 5000 --out made
  nanogpu-sim replay --nodes made/nodes.csv --pods made/pods.csv --policy stranding,fgd,binpack \
     --plot made.svg
  nanogpu-sim replay --nodes made/nodes.csv --pods made/pods.csv --churn 10000
  nanogpu-sim generate --topology --nodes 200 --pods 2000 --out wired
  nanogpu-sim replay --help";
