//! The numbers of docs/placement.md, on the public openb trace. The trace is not ours to ship:
//! `NANOGPU_OPENB=<its folder> cargo xtask soak openb`.
#![expect(clippy::print_stdout, reason = "the numbers are what a soak is for")]

use std::path::PathBuf;

use model::PolicyName;
use sim::arrival::Order;
use sim::baseline::Baseline;
use sim::replay::{Decider, Run, run};
use sim::trace;

const SEEDS: std::ops::RangeInclusive<u64> = 42..=51;

fn folder() -> PathBuf {
    let folder = std::env::var_os("NANOGPU_OPENB").expect("NANOGPU_OPENB names the trace's folder");
    PathBuf::from(folder)
}

/// Allocation at 100 percent of demand, mean over the seeds.
fn allocated(workload: &str, how: Run) -> f64 {
    let folder = folder();
    let nodes = trace::nodes(&folder.join("openb_node_list_gpu_node.csv")).expect("nodes");
    let pods = trace::pods(&folder.join(format!("openb_pod_list_{workload}.csv"))).expect("pods");
    let at_100 = |seed| run(&nodes, &pods, how, seed).steps[&100].allocated;
    #[expect(clippy::cast_precision_loss, reason = "ten seeds")]
    let count = SEEDS.count() as f64;
    let mean = SEEDS.map(at_100).sum::<f64>() / count;
    println!("{workload:<12} {:<15} {:<9} {mean:.2}", how.decider.as_str(), how.order.as_str());
    mean
}

fn how(decider: Decider) -> Run {
    Run { decider, order: Order::Shuffled, to: 101, churn: 0, oracle: false, as_extender: false }
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
            // As published, the typical pods of the whole trace are known from the start.
            let got = allocated(workload, Run { oracle: true, ..how(decider) });
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
