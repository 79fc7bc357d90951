//! Results over several seeds, for people and for programs.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::replay::Outcome;

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

#[expect(clippy::cast_precision_loss, reason = "counts and nanoseconds far below 2^52")]
impl Report {
    /// Sums up the runs of one policy.
    pub fn new(workload: &str, policy: &str, order: &str, runs: &[(u64, Outcome)]) -> Self {
        let points = DEMANDS.iter().filter_map(|&demand| {
            let at: Vec<f64> =
                runs.iter().filter_map(|(_, run)| run.allocated.get(&demand).copied()).collect();
            let mean = at.iter().sum::<f64>() / at.len() as f64;
            let spread = at.iter().map(|x| (x - mean).powi(2)).sum::<f64>();
            let sd = (spread / (at.len().max(2) - 1) as f64).sqrt();
            let point = Point { demand, allocated_mean: mean, allocated_sd: sd };
            (!at.is_empty()).then_some(point)
        });
        let mut failed: BTreeMap<String, f64> = BTreeMap::new();
        for (class, count) in runs.iter().flat_map(|(_, run)| &run.failed) {
            *failed.entry((*class).to_owned()).or_default() += *count as f64 / runs.len() as f64;
        }
        let mut nanos: Vec<u64> = runs.iter().flat_map(|(_, run)| run.nanos.clone()).collect();
        nanos.sort_unstable();
        let at = |part: f64| {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a place")]
            let place = (nanos.len() as f64 * part) as usize;
            nanos.get(place).copied().unwrap_or(0) as f64 / 1000.0
        };
        Self {
            workload: workload.to_owned(),
            policy: policy.to_owned(),
            order: order.to_owned(),
            seeds: runs.iter().map(|(seed, _)| *seed).collect(),
            points: points.collect(),
            failed_by_class: failed,
            decision_us_p50: at(0.5),
            decision_us_p99: at(0.99),
        }
    }
}
