//! Results over several seeds, for programs: JSON and CSV.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use anyhow::Result;
use serde::Serialize;

use crate::churn::Churned;
use crate::nearness::NearnessReport;
use crate::replay::{Outcome, Step};

/// The demands at which results are given, in percent of the capacity.
pub const DEMANDS: [u64; 5] = [90, 95, 100, 110, 130];

/// What one policy did on one workload.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The workload.
    pub workload: String,
    /// The policy.
    pub policy: String,
    /// In which order pods came.
    pub order: String,
    /// The seeds.
    pub seeds: Vec<u64>,
    /// Allocation at each demand.
    pub points: Vec<Point>,
    /// Pods that found no place by the end, by class, mean over the seeds.
    pub failed_by_class: BTreeMap<String, f64>,
    /// How long a decision took, in microseconds.
    pub decision_us_p50: f64,
    /// The slowest in a hundred.
    pub decision_us_p99: f64,
    /// How many decisions a second one thread made.
    pub decisions_per_second: f64,
    /// Fragmentation at each demand.
    pub fragmentation: Vec<FragmentationPoint>,
    /// What became of pods with several cards, if any wished them near to one another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nearness: Option<NearnessReport>,
    /// What came of the churn, if there was any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub churn: Option<ChurnReport>,
    /// Allocation and fragmentation at every percent of demand, for plots and CSV.
    #[serde(skip)]
    pub curve: Vec<(u64, Mean, Mean)>,
}

/// Allocation at one demand.
#[derive(Debug, Clone, Serialize)]
pub struct Point {
    /// Arrived demand, in percent.
    pub demand: u64,
    /// Mean over the seeds, in percent.
    pub allocated_mean: f64,
    /// Standard deviation over the seeds.
    pub allocated_sd: f64,
}

/// Fragmentation at one demand.
#[derive(Debug, Clone, Serialize)]
pub struct FragmentationPoint {
    /// Arrived demand, in percent.
    pub demand: u64,
    /// Free compute that typical pods cannot use, in percent of all; mean over the seeds.
    pub fragmented_mean: f64,
    /// Standard deviation over the seeds.
    pub fragmented_sd: f64,
}

/// The second half of the churn, over all seeds.
#[derive(Debug, Clone, Serialize)]
pub struct ChurnReport {
    /// Events of each seed, both halves.
    pub events: u64,
    /// Mean allocation, in percent.
    pub allocated_mean: f64,
    /// Standard deviation over the seeds.
    pub allocated_sd: f64,
    /// Pods that came, by class, over all seeds. Type-bound pods count once more.
    pub came_by_class: BTreeMap<String, u64>,
    /// Those that found no place, likewise.
    pub rejected_by_class: BTreeMap<String, u64>,
}

/// Mean and standard deviation over the seeds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mean {
    /// The mean.
    pub mean: f64,
    /// The standard deviation; nothing varies in one number.
    pub sd: f64,
}

impl Mean {
    /// Over `values`, of which there is at least one.
    #[expect(clippy::cast_precision_loss, reason = "a count of seeds")]
    pub fn of(values: &[f64]) -> Self {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let spread = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
        Self { mean, sd: (spread / (values.len().max(2) - 1) as f64).sqrt() }
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts and nanoseconds far below 2^52")]
impl Report {
    /// Sums up the runs of one policy, at least one.
    pub fn new(workload: &str, policy: &str, order: &str, runs: &[(u64, Outcome)]) -> Self {
        let curve = curve(runs);
        let at = || curve.iter().filter(|(demand, ..)| DEMANDS.contains(demand));
        let points = at().map(|&(demand, Mean { mean, sd }, _)| Point {
            demand,
            allocated_mean: mean,
            allocated_sd: sd,
        });
        let fragmentation = at().map(|&(demand, _, Mean { mean, sd })| FragmentationPoint {
            demand,
            fragmented_mean: mean,
            fragmented_sd: sd,
        });
        let mut failed: BTreeMap<String, f64> = BTreeMap::new();
        for (class, count) in runs.iter().flat_map(|(_, run)| &run.failed) {
            *failed.entry((*class).to_owned()).or_default() += *count as f64 / runs.len() as f64;
        }
        let mut nanos: Vec<u64> = runs.iter().flat_map(|(_, run)| run.nanos.clone()).collect();
        nanos.sort_unstable();
        let all = nanos.iter().sum::<u64>().max(1) as f64;
        let at = |percent: usize| {
            nanos.get(nanos.len() * percent / 100).copied().unwrap_or(0) as f64 / 1000.0
        };
        Self {
            workload: workload.to_owned(),
            policy: policy.to_owned(),
            order: order.to_owned(),
            seeds: runs.iter().map(|(seed, _)| *seed).collect(),
            points: points.collect(),
            failed_by_class: failed,
            decision_us_p50: at(50),
            decision_us_p99: at(99),
            decisions_per_second: (nanos.len() as f64 * 1e9 / all).round(),
            fragmentation: fragmentation.collect(),
            nearness: NearnessReport::new(
                &runs.iter().map(|(_, run)| run.nearness).collect::<Vec<_>>(),
            ),
            churn: ChurnReport::new(runs),
            curve,
        }
    }
}

impl ChurnReport {
    fn new(runs: &[(u64, Outcome)]) -> Option<Self> {
        let churned: Vec<&Churned> =
            runs.iter().filter_map(|(_, run)| run.churn.as_ref()).collect();
        let events = churned.first()?.events;
        let allocated: Vec<f64> = churned.iter().map(|churned| churned.allocated).collect();
        let Mean { mean, sd } = Mean::of(&allocated);
        let sum = |of: fn(&Churned) -> &BTreeMap<&'static str, u64>| {
            let mut sum: BTreeMap<String, u64> = BTreeMap::new();
            for (class, count) in churned.iter().flat_map(|churned| of(churned)) {
                *sum.entry((*class).to_owned()).or_default() += count;
            }
            sum
        };
        Some(Self {
            events,
            allocated_mean: mean,
            allocated_sd: sd,
            came_by_class: sum(|churned| &churned.came),
            rejected_by_class: sum(|churned| &churned.rejected),
        })
    }

    /// Of the pods of `class` that came, how many percent found no place; nothing if none came.
    #[expect(clippy::cast_precision_loss, reason = "counts of pods")]
    pub fn rejected_percent(&self, class: &str) -> Option<f64> {
        let came = *self.came_by_class.get(class)? as f64;
        Some(self.rejected_by_class.get(class).copied().unwrap_or(0) as f64 * 100.0 / came)
    }
}

fn curve(runs: &[(u64, Outcome)]) -> Vec<(u64, Mean, Mean)> {
    let demands: BTreeSet<u64> =
        runs.iter().flat_map(|(_, run)| run.steps.keys().copied()).collect();
    let at = |demand| {
        let steps: Vec<&Step> = runs.iter().filter_map(|(_, run)| run.steps.get(&demand)).collect();
        let allocated: Vec<f64> = steps.iter().map(|step| step.allocated).collect();
        let fragmented: Vec<f64> = steps.iter().map(|step| step.fragmented).collect();
        (demand, Mean::of(&allocated), Mean::of(&fragmented))
    };
    demands.into_iter().map(at).collect()
}

/// One number with where it belongs, a line of CSV.
#[derive(Serialize)]
struct Line<'a> {
    workload: &'a str,
    policy: &'a str,
    order: &'a str,
    measure: &'static str,
    /// A demand in percent, or a class of pods.
    at: &'a str,
    mean: String,
    sd: String,
}

/// Writes one line for each number: allocation and fragmentation at every percent of demand,
/// failed pods, churn. Nothing a clock measured, so the same run gives the same bytes.
pub fn write_csv(reports: &[Report], out: &mut impl Write) -> Result<()> {
    let mut writer = csv::Writer::from_writer(out);
    for report in reports {
        let mut line = |measure, at: &str, mean: f64, sd: Option<f64>| {
            writer.serialize(Line {
                workload: &report.workload,
                policy: &report.policy,
                order: &report.order,
                measure,
                at,
                mean: format!("{mean:.4}"),
                sd: sd.map(|sd| format!("{sd:.4}")).unwrap_or_default(),
            })
        };
        for (demand, allocated, fragmented) in &report.curve {
            let demand = demand.to_string();
            line("allocated_percent", &demand, allocated.mean, Some(allocated.sd))?;
            line("fragmented_percent", &demand, fragmented.mean, Some(fragmented.sd))?;
        }
        for (class, failed) in &report.failed_by_class {
            line("failed_pods", class, *failed, None)?;
        }
        if let Some(near) = &report.nearness {
            line("near_required_rejected_percent", "", near.rejected_percent, None)?;
            line("near_as_preferred_percent", "", near.as_preferred_percent, None)?;
            line("link_quality", "", near.link_quality, None)?;
        }
        if let Some(churn) = &report.churn {
            line("churn_allocated_percent", "", churn.allocated_mean, Some(churn.allocated_sd))?;
            for class in churn.came_by_class.keys() {
                let percent = churn.rejected_percent(class).unwrap_or(0.0);
                line("churn_rejected_percent", class, percent, None)?;
            }
        }
    }
    Ok(writer.flush()?)
}
