//! Several policies on the same workload, each with every seed.

use std::ops::RangeInclusive;
use std::sync::Arc;

use model::Node;

use crate::baseline::Scoring;
use crate::replay::{Decider, Outcome, Run, run};
use crate::report::Report;
use crate::table::grouped_u64;
use crate::threads;
use crate::trace::TracePod;

/// What is replayed.
#[derive(Debug, Clone)]
pub struct Scene {
    /// The name of the workload.
    pub workload: String,
    /// The nodes.
    pub nodes: Vec<Node>,
    /// The pods.
    pub pods: Vec<TracePod>,
}

/// What came of it.
#[derive(Debug, Clone)]
pub struct Compared {
    /// One report a policy.
    pub reports: Vec<Report>,
    /// The nodes at the end of the first policy's run with the first seed.
    pub first: Vec<Arc<Node>>,
}

impl Scene {
    /// Replays the scene for each of `deciders` and `seeds`, otherwise as `how` says.
    pub fn compare(
        &self,
        deciders: &[Decider],
        how: Run,
        seeds: RangeInclusive<u64>,
        threads: usize,
    ) -> Compared {
        let jobs: Vec<(Decider, u64)> = deciders
            .iter()
            .flat_map(|decider| seeds.clone().map(|seed| (*decider, seed)))
            .collect();
        let first = jobs.first().copied();
        let outcomes = threads::each(&jobs, threads, |&(decider, seed)| {
            let mut outcome = run(&self.nodes, &self.pods, Run { decider, ..how }, seed);
            if Some((decider, seed)) != first {
                // Only the first is looked at, and a cluster is large.
                outcome.nodes = Vec::new();
            }
            (seed, outcome)
        });
        let nodes = outcomes.first().map(|(_, outcome)| outcome.nodes.clone());
        let of_policy = outcomes.len() / deciders.len().max(1);
        let reports = deciders.iter().zip(outcomes.chunks(of_policy.max(1)));
        let report = |(decider, runs): (&Decider, &[(u64, Outcome)])| {
            Report::new(&self.workload, decider.as_str(), how.order.as_str(), runs)
        };
        Compared { reports: reports.map(report).collect(), first: nodes.unwrap_or_default() }
    }

    /// One line that says what is replayed, and how.
    pub fn describe(&self, how: Run, seeds: &RangeInclusive<u64>) -> String {
        let cards: usize = self.nodes.iter().map(|node| node.devices.len()).sum();
        let count = |number: usize, of: &str| {
            let plural = if number == 1 { "" } else { "s" };
            format!("{} {of}{plural}", grouped_u64(number as u64))
        };
        let seeds = match (seeds.start(), seeds.end()) {
            (first, last) if first == last => format!("seed {first}"),
            (first, last) => format!("seeds {first}..{last}"),
        };
        let mode = match how.as_extender {
            None => "decide",
            Some(Scoring::LeastAllocated) => "as extender",
            Some(Scoring::MostAllocated) => "as extender, MostAllocated",
        };
        let learned = if how.oracle { "of the whole trace" } else { "learned on the way" };
        format!(
            "{}: {} on {} with {}; {seeds}, order {}, to {} % demand, mode {mode}, statistics {learned}",
            self.workload,
            count(self.pods.len(), "pod"),
            count(self.nodes.len(), "node"),
            count(cards, "card"),
            how.order.as_str(),
            how.to,
        )
    }
}
