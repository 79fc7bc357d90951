//! The numbers of docs/placement.md, on the public openb trace. The trace is not ours to ship:
//! `NANOGPU_OPENB=<its folder> NANOGPU_OPENB_ORDERS=<a folder> cargo xtask soak openb`, where the
//! latter is what `go run data/openb_orders.go` wrote: the orders that published runs saw.
#![expect(clippy::print_stdout, reason = "the numbers are what a soak is for")]

use std::path::PathBuf;

use model::PolicyName;
use sim::arrival::Order;
use sim::baseline::Baseline;
use sim::replay::{Decider, Run, run};
use sim::report::Mean;
use sim::trace;

const SEEDS: std::ops::RangeInclusive<u64> = 42..=51;

fn folder(variable: &str) -> PathBuf {
    let folder = std::env::var_os(variable);
    PathBuf::from(folder.unwrap_or_else(|| panic!("{variable} must name a folder, see above")))
}

/// Allocation at 100 percent of demand, mean over the seeds.
fn allocated(workload: &str, how: Run) -> f64 {
    let folder = folder("NANOGPU_OPENB");
    let nodes = trace::nodes(&folder.join("openb_node_list_gpu_node.csv")).expect("nodes");
    let pods = trace::pods(&folder.join(format!("openb_pod_list_{workload}.csv"))).expect("pods");
    let runs = SEEDS.map(|seed| run(&nodes, &pods, how, seed).steps[&100].allocated);
    mean(workload, how, &runs.collect::<Vec<_>>())
}

/// The same in the orders that the published runs saw, so that only the policy can differ. Where
/// the policy itself draws, as the papers' Random does, each is run several times.
fn as_published(workload: &str, decider: Decider) -> f64 {
    let draws = if decider == Decider::Baseline(Baseline::AnyFit) { 4 } else { 1 };
    let how = Run { order: Order::Given, ..known(decider) };
    let runs = SEEDS.flat_map(|seed| {
        let folder = folder("NANOGPU_OPENB_ORDERS").join(workload).join(seed.to_string());
        let nodes = trace::nodes(&folder.join("nodes.csv")).expect("nodes");
        let pods = trace::pods(&folder.join("pods.csv")).expect("pods");
        (0..draws).map(move |draw| run(&nodes, &pods, how, draw).steps[&100].allocated)
    });
    mean(workload, how, &runs.collect::<Vec<_>>())
}

fn mean(workload: &str, how: Run, runs: &[f64]) -> f64 {
    let Mean { mean, sd } = Mean::of(runs);
    let (decider, order) = (how.decider.as_str(), how.order.as_str());
    println!("{workload:<12} {decider:<15} {order:<9} {mean:.2} ± {sd:.2}");
    mean
}

fn how(decider: Decider) -> Run {
    Run { decider, order: Order::Shuffled, to: 101, churn: 0, oracle: false, as_extender: None }
}

/// As published, the typical pods of the whole trace are known from the start.
fn known(decider: Decider) -> Run {
    Run { oracle: true, ..how(decider) }
}

#[test]
#[ignore = "needs the openb trace in NANOGPU_OPENB; cargo xtask soak openb"]
fn the_default_policy_reaches_its_numbers() {
    let table = [
        ("default", 95.75),
        ("gpuspec33", 93.6),
        ("gpushare40", 94.3),
        ("gpushare100", 86.9),
        ("multigpu50", 97.5),
        ("cpu200", 95.7),
        ("cpu250", 93.3),
    ];
    let stranding = how(Decider::Ours(PolicyName::Stranding));
    for (workload, least) in table {
        let got = allocated(workload, stranding);
        assert!(got >= least, "{workload}: {got:.2} of {least}");
    }
    let got = allocated("default", Run { order: Order::Trace, ..stranding });
    assert!(got >= 95.6, "default in trace order: {got:.2}");
}

#[test]
#[ignore = "needs the openb trace in NANOGPU_OPENB; cargo xtask soak openb"]
fn the_literature_is_reproduced() {
    // Published means at 100 percent of demand, in this order of the columns.
    let columns = [
        Decider::Baseline(Baseline::AnyFit),
        Decider::Baseline(Baseline::DotProd),
        Decider::Baseline(Baseline::GpuClustering),
        Decider::Baseline(Baseline::GpuPacking),
        Decider::Baseline(Baseline::BestFit),
        Decider::Ours(PolicyName::Fgd),
    ];
    let table = [
        ("default", [86.30, 90.62, 91.65, 91.78, 92.86, 95.23]),
        ("gpushare40", [84.86, 89.30, 89.76, 89.77, 91.44, 93.96]),
        ("gpushare100", [78.90, 81.98, 82.22, 82.13, 84.62, 86.64]),
        ("multigpu50", [81.28, 94.73, 95.69, 96.06, 95.62, 97.09]),
        ("gpuspec33", [83.87, 79.82, 81.09, 82.22, 80.39, 87.84]),
        ("cpu200", [83.03, 87.45, 89.67, 89.98, 92.15, 94.82]),
        ("cpu250", [80.00, 83.57, 87.75, 88.05, 91.21, 93.20]),
    ];
    let mut off = Vec::new();
    for (workload, published) in table {
        for (decider, expected) in columns.into_iter().zip(published) {
            let got = match workload {
                // The orders of its runs are not known.
                "multigpu50" => allocated(workload, known(decider)),
                _ => as_published(workload, decider),
            };
            if (got - expected).abs() > 0.3 {
                off.push(format!(
                    "{workload} {}: {got:.2}, published {expected}",
                    decider.as_str()
                ));
            }
        }
    }
    assert!(off.is_empty(), "more than 0.3 points away: {off:#?}");
}
