//! Wrong inputs: one clear sentence each, 2 for how it was called and 1 for what went wrong.

use sim::replay::Decider;

use crate::build::{file, path, sim, trace};

/// The complaint, which must be all there is.
fn complaint(args: &[&str], code: i32) -> String {
    let output = sim(args);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
    assert_eq!(output.stdout, b"", "{args:?}");
    assert!(!text.contains("backtrace") && !text.contains("panicked"), "{text}");
    let told = text.strip_prefix("error: ").unwrap_or_else(|| panic!("{text}"));
    told.lines().next().unwrap().to_owned()
}

fn failure(args: &[&str]) -> String {
    complaint(args, 1)
}

fn misuse(args: &[&str]) -> String {
    complaint(args, 2)
}

#[test]
fn a_missing_file_is_named() {
    let (nodes, pods) = trace("missing");
    assert_eq!(
        failure(&["replay", "--nodes", "no/nodes.csv", "--pods", &pods]),
        "cannot read the nodes in no/nodes.csv: No such file or directory (os error 2)"
    );
    assert_eq!(
        failure(&["replay", "--nodes", &nodes, "--pods", "no/pods.csv"]),
        "cannot read the pods in no/pods.csv: No such file or directory (os error 2)"
    );
    assert_eq!(
        failure(&["what-if", "--snapshot", "no/snapshot.json"]),
        "cannot read the snapshot in no/snapshot.json: No such file or directory (os error 2)"
    );
}

#[test]
fn a_wrong_list_says_what_is_wrong_with_it() {
    let (nodes, pods) = trace("wrong");
    let node_list = |name: &str, text: &str| {
        let list = file(name, text);
        let told = failure(&["replay", "--nodes", &list, "--pods", &pods]);
        told.replace(&list, "LIST")
    };
    assert_eq!(
        node_list("wrong-1.csv", "name,cpu_milli,memory_mib,gpu,model\n"),
        "LIST has no column sn; a list of nodes has sn, cpu_milli, memory_mib, gpu, model"
    );
    let header = "sn,cpu_milli,memory_mib,gpu,model\n";
    assert_eq!(node_list("wrong-2.csv", header), "LIST lists no node with a card");
    assert_eq!(
        node_list("wrong-3.csv", &format!("{header}a,many,1,1,T4\n")),
        "LIST: CSV deserialize error: record 1 (line: 2, byte: 34): field 1: invalid digit found in \
         string"
    );
    assert_eq!(
        node_list("wrong-4.csv", &format!("{header}a,1,1,65,T4\n")),
        "LIST: node a: has 65 cards; a node may have at most 64"
    );
    assert!(
        node_list("wrong-5.csv", &format!("{header}A B,1,1,1,T4\n"))
            .starts_with("LIST: node A B: \"GPU-A B-0\" is not a device id")
    );
    let pod_list = |name: &str, line: &str| {
        let text = format!("name,cpu_milli,memory_mib,num_gpu,gpu_milli\n{line}\n");
        let list = file(name, &text);
        let told = failure(&["replay", "--nodes", &nodes, "--pods", &list]);
        told.replace(&list, "LIST")
    };
    assert_eq!(pod_list("wrong-6.csv", "p,1,1,0,0"), "LIST lists no pod that asks for a card");
    assert_eq!(
        pod_list("wrong-7.csv", "p,1,1,1,1001"),
        "LIST: pod p: asks for 1001 thousandths of a card, which has 1000"
    );
    assert_eq!(
        pod_list("wrong-8.csv", "p,1,1,2,500"),
        "LIST: pod p: asks for 500 thousandths of each of 2 cards, which must be whole"
    );
}

#[test]
fn wrong_arguments_say_what_would_be_right() {
    let (nodes, pods) = trace("arguments");
    let told = |more: &[&str]| {
        let base = ["replay", "--nodes", &nodes, "--pods", &pods];
        misuse(&[&base, more].concat())
    };
    let known: Vec<&str> = Decider::all().map(Decider::as_str).collect();
    assert_eq!(
        told(&["--policy", "stranding,best"]),
        format!(
            "invalid value 'best' for '--policy <NAME,..>': there is no such policy; known are {}",
            known.join(", ")
        )
    );
    let seeds = "seeds are a number such as 42, or a range such as 42..51";
    for wrong in ["x", "1..", "1..2..3", "-1", ""] {
        let told = told(&[&format!("--seeds={wrong}")]);
        assert_eq!(told, format!("invalid value '{wrong}' for '--seeds <SEEDS>': {seeds}"));
    }
    assert!(told(&["--seeds", "5..1"]).ends_with("the first seed is larger than the last"));
    assert!(told(&["--seeds", "1..99999999"]).ends_with("at most 10000 seeds"));
    assert!(told(&["--to", "0"]).contains("0 is not in 1..=1000"));
    assert!(told(&["--json", "--csv"]).contains("cannot be used with"));
    assert!(told(&["--bound", "96.9"]).starts_with("the following required arguments"));
    assert!(told(&["--plot", "x.svg", "--bound", "200"]).ends_with("a number from 0 to 100"));
    assert!(misuse(&["replay"]).starts_with("the following required arguments"));
    assert!(misuse(&["generate", "--nodes", "0"]).contains("0 is not in 1..=100000"));
}

#[test]
fn what_cannot_be_written_is_named() {
    let (nodes, pods) = trace("unwritable");
    let folder = path("unwritable-file");
    std::fs::write(&folder, "").unwrap();
    let svg = folder.join("out.svg");
    let output =
        sim(&["replay", "--nodes", &nodes, "--pods", &pods, "--plot", svg.to_str().unwrap()]);
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        told,
        format!("error: cannot write {}: Not a directory (os error 20)\n", svg.display())
    );
    assert_eq!(output.status.code(), Some(1));
    let out = folder.to_str().unwrap();
    let told = failure(&["generate", "--nodes", "1", "--pods", "1", "--out", out]);
    assert!(told.starts_with(&format!("cannot make {out}: ")), "{told}");
}

#[test]
fn a_wrong_snapshot_says_what_is_wrong_with_it() {
    let told = |name: &str, text: &str| {
        let file = file(name, text);
        failure(&["what-if", "--snapshot", &file]).replace(&file, "FILE")
    };
    assert_eq!(
        told("snapshot-1.json", "{\"version\": 2, \"nodes\": []}"),
        "FILE is not a snapshot: it has version 2; this build reads 1"
    );
    assert!(told("snapshot-2.json", "{}").starts_with("FILE is not a snapshot: missing field"));
    assert!(told("snapshot-3.json", "nodes").starts_with("FILE is not a snapshot: expected"));
    let node = "{\"name\": \"a\", \"cpuMilli\": 1, \"memoryMiB\": 1}";
    let twice = format!("{{\"version\": 1, \"nodes\": [{node}, {node}]}}");
    assert_eq!(
        told("snapshot-4.json", &twice),
        "FILE is not a snapshot: node a: stands there twice"
    );
}
