//! What would be if, asked of the example snapshot.

use model::{NodeName, PolicyName};
use placement::Policy;
use serde_json::Value;
use sim::exported::Exported;
use sim::what_if::{Answer, Change, answer};

use crate::build::{file, near, printed, sim};

const SNAPSHOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/snapshot.json");

fn exported() -> Exported {
    Exported::parse(&std::fs::read_to_string(SNAPSHOT).unwrap()).unwrap()
}

fn name(text: &str) -> NodeName {
    NodeName::parse(text).unwrap()
}

fn ask(change: &Change, policy: PolicyName) -> Answer {
    answer(&exported(), change, Policy::both(policy)).unwrap()
}

#[test]
fn pods_hold_what_their_placements_say() {
    let exported = exported();
    let [cpu, a, b, c] = exported.nodes.as_slice() else { panic!("{exported:?}") };
    let free = |node: &model::Node| -> Vec<(u32, u64)> {
        node.devices.iter().map(|s| (s.free_cores().0, s.free_memory().0)).collect()
    };
    assert_eq!(free(cpu), []);
    // An init container is over before the others start: the larger of both counts.
    assert_eq!(free(a), [(0, 0), (0, 0), (50, 20_480), (0, 0)]);
    assert_eq!(free(b), [(70, 32_768), (0, 0), (100, 40_960), (100, 40_960)]);
    assert_eq!(free(c), [(80, 13_312), (100, 15_360)]);
    assert_eq!(a.free.cpu.0, 64_000 - 16_000 - 4_000 - 8_000 - 2_000);
    assert_eq!(a.holders.len(), 4);
}

#[test]
fn now_some_pending_pods_fit() {
    let answer = ask(&Change::default(), PolicyName::Stranding);
    assert_eq!(answer.changed, None);
    assert_eq!((answer.now.nodes, answer.now.cards, answer.now.fit), (4, 10, 1));
    // Four whole cards, and 50, 30 and 20 percent: 5 of 10.
    near(answer.now.allocated, 50.0);
    let fates: Vec<bool> = answer.pending.iter().map(|pod| pod.node.is_some()).collect();
    assert_eq!(fates, [true, false, false]);
    let why = answer.pending[1].refused.as_deref().unwrap();
    assert!(why.contains("2 have too few cards wholly free, best has 2 of 4"), "{why}");
}

#[test]
fn one_more_node_makes_room() {
    let change = Change { add: Some((1, name("gpu-b"))), drain: None };
    let answer = ask(&change, PolicyName::Stranding);
    let changed = answer.changed.unwrap();
    assert_eq!((changed.nodes, changed.cards, changed.fit), (5, 14, 2));
    assert_eq!(answer.pending[1].node.as_deref(), Some("gpu-b-new-1"));
    // Spread puts the first share onto the new node, and then four cards are no longer idle.
    assert_eq!(ask(&change, PolicyName::Spread).changed.unwrap().fit, 1);
}

#[test]
fn a_drained_nodes_pods_are_placed_one_by_one() {
    let change = Change { add: None, drain: Some(name("gpu-a")) };
    let answer = ask(&change, PolicyName::Stranding);
    let fates: Vec<(&str, Option<&str>)> =
        answer.drained.iter().map(|o| (o.pod.as_str(), o.node.as_deref())).collect();
    assert_eq!(fates[0], ("ml/train-0", Some("gpu-b")));
    assert_eq!(fates[1], ("ml/serve-0", Some("gpu-b")));
    // It asks for an A100 by name, and gpu-b has none left.
    assert_eq!(fates[2], ("ml/train-3", None));
    assert!(answer.drained[2].refused.as_deref().unwrap().contains("1 has no A100"));
    assert_eq!(fates[3].0, "web/api-0");
    assert!(fates[3].1.is_some());
    let changed = answer.changed.unwrap();
    assert_eq!((changed.nodes, changed.cards), (3, 6));
    // On gpu-b two whole cards, 30 + 50 and one whole before; on gpu-c 20: 400 of 600.
    near(changed.allocated, 400.0 / 6.0);
}

#[test]
fn draining_and_adding_the_same_kind_loses_nobody() {
    let change = Change { add: Some((1, name("gpu-a"))), drain: Some(name("gpu-a")) };
    let answer = ask(&change, PolicyName::Stranding);
    assert!(answer.drained.iter().all(|pod| pod.node.is_some()), "{:?}", answer.drained);
    near(answer.changed.unwrap().allocated, answer.now.allocated);
}

#[test]
fn an_unreadable_placement_closes_its_node_and_says_so() {
    let text = std::fs::read_to_string(SNAPSHOT).unwrap();
    let broken = file("broken.json", &text.replace("v1;gpu-b;main=GPU-b1:whole", "v1;gpu-b;main"));
    let told = printed(&["what-if", "--snapshot", &broken]);
    let line = told.lines().nth(1).unwrap();
    assert!(line.starts_with("node gpu-b takes nothing new: pod ml/train-1: "), "{line}");
}

#[test]
fn the_command_tells_all_of_it() {
    let told = printed(&[
        "what-if",
        "--snapshot",
        SNAPSHOT,
        "--drain",
        "gpu-a",
        "--add-nodes",
        "2",
        "--like",
        "gpu-c",
    ]);
    let rows: Vec<&str> = told.lines().collect();
    assert!(rows[0].ends_with("8 pods on nodes, 3 pending"), "{told}");
    assert!(rows[2].starts_with("policy stranding"), "{told}");
    assert!(rows[3].starts_with("now") && rows[3].ends_with("1 of 3"), "{told}");
    assert!(rows[4].starts_with("2 more like gpu-c, without gpu-a"), "{told}");
    assert!(told.contains("Of the pods on gpu-a, 4 of 4 find another place."), "{told}");
    assert!(told.contains("2 pods stay pending, even so."), "{told}");
    let told = printed(&["what-if", "--snapshot", SNAPSHOT, "--drain", "gpu-a"]);
    assert!(told.contains("Of the pods on gpu-a, 3 of 4 find another place."), "{told}");
    assert!(told.contains("ml/train-3  nowhere: 3 nodes: "), "{told}");
}

#[test]
fn other_pods_and_policies_can_be_tried_and_json_printed() {
    let pods = file(
        "what-if-pods.csv",
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli\nx,1000,1024,1,500\ny,1000,1024,0,0\n",
    );
    let told = printed(&[
        "what-if",
        "--snapshot",
        SNAPSHOT,
        "--pods",
        &pods,
        "--policy",
        "binpack,spread",
        "--json",
    ]);
    let json: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(json[0]["policy"], "binpack");
    assert_eq!(json[1]["policy"], "spread");
    assert_eq!(json[0]["pending"].as_array().unwrap().len(), 5);
    assert_eq!(json[0]["now"]["fit"], 3);
}

#[test]
fn a_node_that_is_not_there_is_named() {
    let told = |args: &[&str]| {
        let output = sim(&[&["what-if", "--snapshot", SNAPSHOT], args].concat());
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let text = "error: the snapshot has no node gpu-z; it has cpu-1, gpu-a, gpu-b, gpu-c\n";
    assert_eq!(told(&["--drain", "gpu-z"]), (Some(1), text.to_owned()));
    assert_eq!(told(&["--add-nodes", "1", "--like", "gpu-z"]), (Some(1), text.to_owned()));
    assert_eq!(told(&["--add-nodes", "1"]).0, Some(2));
    assert_eq!(told(&["--policy", "any-fit"]).0, Some(2));
}
