//! Wired machines, pods that wish near cards, and what is reported of them.

use model::{Node, PolicyName};
use sim::nearness::NearnessReport;
use sim::replay::{Decider, Run, run};
use sim::report::Report;
use sim::trace::{NodeRow, PodRow, TracePod};

use crate::build::{in_order, near, row};

fn machine(name: &str, machine: &str, cards: u32) -> NodeRow {
    NodeRow {
        sn: name.to_owned(),
        cpu_milli: 64_000,
        memory_mib: 65_536,
        gpu: cards,
        model: "V100".to_owned(),
        card_mem_mib: None,
        machine: machine.to_owned(),
    }
}

fn wishes(pods: &[(u32, &str)]) -> Vec<TracePod> {
    let pod = |(i, &(cards, wish)): (usize, &(u32, &str))| {
        let pod = PodRow { topology: wish.to_owned(), ..row(&format!("p{i}"), cards * 1000) };
        pod.pod().unwrap()
    };
    pods.iter().enumerate().map(pod).collect()
}

/// What came of these pods, which fill the nodes exactly or more than that.
fn report(nodes: &[NodeRow], pods: &[(u32, &str)], to: u64) -> Option<NearnessReport> {
    let nodes: Vec<Node> = nodes.iter().map(|row| row.node().unwrap()).collect();
    let how = Run { decider: Decider::Ours(PolicyName::Stranding), to, ..in_order() };
    let outcome = run(&nodes, &wishes(pods), how, 1);
    Report::new("made", "stranding", "trace", &[(1, outcome)]).nearness
}

#[test]
fn links_between_the_cards_of_a_pod_are_judged() {
    let mesh = [machine("a", "dgx-1v", 8)];
    // All four of a half are joined, so are two of the other; whoever is left has NVLink, too.
    let got = report(&mesh, &[(4, "link"), (2, "link-strict"), (2, "")], 100).unwrap();
    near(got.link_quality, 100.0);
    near(got.as_preferred_percent, 100.0);
    assert_eq!((got.required, got.rejected_percent), (1.0, 0.0));
    // Eight are not all joined: a preference is not met, a requirement is refused.
    let got = report(&mesh, &[(8, "link")], 100).unwrap();
    near(got.as_preferred_percent, 0.0);
    assert!(got.link_quality > 10.0 && got.link_quality < 100.0, "{got:?}");
    let got = report(&mesh, &[(8, "link-strict")], 100).unwrap();
    near(got.rejected_percent, 100.0);
    // Pairs on PCIe switches.
    let got = report(&[machine("a", "t4x8", 8)], &[(2, "numa"), (2, ""), (4, "numa")], 100);
    near(got.unwrap().link_quality, (50.0 + 50.0 + (2.0 * 50.0 + 4.0 * 30.0) / 6.0) / 3.0);
}

#[test]
fn without_a_wish_there_is_nothing_to_report() {
    assert!(report(&[machine("a", "dgx-1v", 8)], &[(4, ""), (1, "link")], 50).is_none());
}

#[test]
fn a_preference_leads_to_the_node_that_has_it() {
    // By name the node without links would come first.
    let nodes = [machine("a", "rtx4090x8", 8), machine("b", "dgx-a100", 8)];
    let got = report(&nodes, &[(4, "link"), (4, "link")], 50).unwrap();
    near(got.as_preferred_percent, 100.0);
}

#[test]
fn rows_that_cannot_be_meant_are_refused() {
    let error = |row: &NodeRow| format!("{:#}", row.node().unwrap_err());
    assert_eq!(error(&machine("a", "dgx-1v", 4)), "has 4 cards; a dgx-1v has 8");
    let unknown = error(&machine("a", "dgx-9", 8));
    assert!(unknown.starts_with("machines are dgx-1v, ") && unknown.contains("dgx-9"), "{unknown}");
    let wish = PodRow { topology: "close".to_owned(), ..row("p", 2000) };
    assert_eq!(
        wish.pod().unwrap_err().to_string(),
        "topology is \"close\"; it must be one of none, link, link-strict, numa, numa-strict"
    );
}
