//! What is printed: the same every time, on one thread or many, and in the form promised.

use serde_json::Value;
use sim::arrival::Order;
use sim::compare::Compared;
use sim::plot;
use sim::replay::{Decider, Run};
use sim::report::{Report, write_csv};

use crate::build::{in_order, made, path, printed, sim, trace};

/// What a clock measured.
const TIMES: [&str; 3] = ["decision_us_p50", "decision_us_p99", "decisions_per_second"];

fn without_times(json: &str) -> Value {
    let mut json: Value = serde_json::from_str(json).unwrap();
    for report in json.as_array_mut().unwrap() {
        let report = report.as_object_mut().unwrap();
        assert!(TIMES.iter().all(|key| report.remove(*key).is_some()));
    }
    json
}

fn compared(threads: usize) -> Compared {
    let deciders = ["stranding", "fgd", "any-fit"].map(|name| Decider::parse(name).unwrap());
    let how = Run { order: Order::Shuffled, churn: 50, ..in_order() };
    made().compare(&deciders, how, 1..=4, threads)
}

fn csv(reports: &[Report]) -> String {
    let mut bytes = Vec::new();
    write_csv(reports, &mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

#[test]
fn many_threads_give_what_one_gives() {
    let (one, many) = (compared(1), compared(4));
    assert_eq!(csv(&one.reports), csv(&many.reports));
    let json = |compared: &Compared| serde_json::to_string(&compared.reports).unwrap();
    assert_eq!(without_times(&json(&one)), without_times(&json(&many)));
    assert_eq!(one.first, many.first);
    let svg = |compared| plot::svg("made", compared, Some(96.9)).unwrap();
    assert_eq!(svg(&one), svg(&many));
}

#[test]
fn the_same_command_gives_the_same_bytes() {
    let (nodes, pods) = trace("same");
    let svg = path("same.svg");
    let base = ["replay", "--nodes", &nodes, "--pods", &pods, "--seeds", "1..3"];
    let with = |more: &[&str]| printed(&[&base, more].concat());
    let plotted = || {
        let text = with(&["--csv", "--churn", "40", "--plot", svg.to_str().unwrap()]);
        (text, std::fs::read_to_string(&svg).unwrap())
    };
    assert_eq!(plotted(), plotted());
    assert_eq!(without_times(&with(&["--json"])), without_times(&with(&["--json"])));
    assert_eq!(with(&["--csv", "--threads", "1"]), with(&["--csv", "--threads", "2"]));
}

#[test]
fn json_has_the_keys_that_were_promised_in_their_order() {
    let (nodes, pods) = trace("keys");
    let text = printed(&[
        "replay",
        "--nodes",
        &nodes,
        "--pods",
        &pods,
        "--policy",
        "stranding,fgd",
        "--json",
    ]);
    let json: Value = serde_json::from_str(&text).unwrap();
    let reports = json.as_array().unwrap();
    assert_eq!(reports.len(), 2);
    let keys = [
        "workload",
        "policy",
        "order",
        "seeds",
        "points",
        "failed_by_class",
        "decision_us_p50",
        "decision_us_p99",
    ];
    let places: Vec<usize> =
        keys.iter().map(|key| text.find(&format!("\"{key}\":")).expect(key)).collect();
    assert!(places.is_sorted(), "{places:?}");
    for report in reports {
        assert_eq!(report["workload"], "keys-pods");
        assert_eq!(report["order"], "shuffled");
        assert_eq!(report["seeds"], serde_json::json!([42, 43, 44, 45, 46, 47, 48, 49, 50, 51]));
        let points = report["points"].as_array().unwrap();
        let demands: Vec<u64> = points.iter().map(|p| p["demand"].as_u64().unwrap()).collect();
        assert_eq!(demands, [90, 95, 100, 110, 130]);
        let keys: Vec<&String> = points[0].as_object().unwrap().keys().collect();
        assert_eq!(keys, ["allocated_mean", "allocated_sd", "demand"]);
        assert!(report["failed_by_class"].is_object());
        assert!(report["decision_us_p50"].is_f64() && report["decision_us_p99"].is_f64());
    }
}

#[test]
fn csv_has_a_line_for_each_number() {
    let text = csv(&compared(2).reports);
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("workload,policy,order,measure,at,mean,sd"));
    let has = |start: &str| assert!(text.lines().any(|line| line.starts_with(start)), "{start}");
    has("made,stranding,shuffled,allocated_percent,100,");
    has("made,fgd,shuffled,fragmented_percent,100,");
    has("made,any-fit,shuffled,failed_pods,one-card,");
    has("made,fgd,shuffled,churn_allocated_percent,,");
    has("made,fgd,shuffled,churn_rejected_percent,type-bound,");
}

#[test]
fn the_table_is_aligned_and_says_what_was_replayed() {
    let (nodes, pods) = trace("table");
    let base = ["replay", "--nodes", &nodes, "--pods", &pods, "--policy", "binpack,any-fit"];
    let text = printed(&[&base[..], &["--seeds", "1..2", "--churn", "20", "--oracle"]].concat());
    let (first, rest) = text.split_once('\n').unwrap();
    assert_eq!(
        first,
        "table-pods: 20 pods on 3 nodes with 16 cards; seeds 1..2, order shuffled, to 130 % demand, \
         mode decide, statistics of the whole trace"
    );
    let rows: Vec<&str> = rest.lines().filter(|line| line.starts_with("policy")).collect();
    let widths = |name: &str| -> Vec<usize> {
        let rows = rest.lines().filter(|line| line.starts_with(name));
        rows.map(|line| line.chars().count()).collect()
    };
    assert_eq!(rows.len(), 2, "one table, and one for the churn:\n{text}");
    assert_eq!(widths("policy"), widths("binpack"));
    assert_eq!(widths("binpack"), widths("any-fit"));
    assert!(text.contains("Then churn: 20 departures"), "{text}");
    // With one seed nothing varies.
    let text = printed(&[&base[..], &["--seeds", "1", "--as-extender"]].concat());
    assert!(!text.contains('±') && text.contains("seed 1,") && text.contains("as extender"));
}

#[test]
fn without_a_command_it_shows_and_explains() {
    let text = printed(&[]);
    for word in ["stranding", "fgd", "binpack", "spread", "60 nodes", "cards to use", "--plot"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn a_picture_has_a_title_axes_a_legend_and_a_square_a_card() {
    let compared = compared(2);
    let svg = plot::svg("made", &compared, Some(96.9)).unwrap();
    let cards: usize = compared.first.iter().map(|node| node.devices.len()).sum();
    let squares = svg.matches("<rect").count();
    assert!(squares > cards && squares < cards + 60, "{squares} for {cards}");
    for text in ["made: 12 nodes", "demand of the pods", "allocated, %", "any-fit", "bound 96.9"] {
        assert!(svg.contains(text), "{text}");
    }
    assert!(!plot::svg("made", &compared, None).unwrap().contains("bound"));
}

#[test]
fn help_names_every_policy() {
    let help = printed(&["replay", "--help"]);
    for decider in Decider::all() {
        assert!(help.contains(&format!("  {} ", decider.as_str())), "{}", decider.as_str());
    }
    assert!(help.contains("the papers' Random"));
    assert_eq!(sim(&["--version"]).status.code(), Some(0));
}
