//! `why`, for causes that differ.

use kubectl::why::{Around, Asker, not_ours, page, without_scheduler};
use serde_json::{Value, json};

use crate::kept::{is, read};

fn pod(name: &str, limits: &Value) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "team", "uid": name, "annotations": {}},
        "spec": {"schedulerName": "nanogpu",
                 "containers": [{"name": "c", "resources": {"limits": limits}}]},
        "status": {"phase": "Pending"},
    })
}

fn asks(name: &str, percent: &str) -> Value {
    pod(name, &json!({"nano-gpu/gpu-percent": percent}))
}

fn around(cards: &str) -> Around {
    Around { cards: read(cards), quotas: read("quotas") }
}

fn tells(file: &str, pod: &Value, around: &Around) {
    is(file, &page(&Asker::new(pod).unwrap(), &read(file), around, false));
}

#[test]
fn a_pod_that_waits_is_told_why() {
    let cards = around("devices");
    tells("why-memory", &pod("trainer", &json!({"aliyun.com/gpu-mem": "8"})), &cards);
    tells("why-fragments", &asks("wide", "60"), &cards);
    tells("why-model", &asks("picky", "20"), &cards);
    tells("why-never", &asks("wrong", "150"), &cards);
    tells("why-quota", &asks("second", "20"), &cards);
    tells("why-cordoned", &asks("hopeful", "20"), &around("devices-cordoned"));
    // Who may not see cards is told the same, without them.
    let nothing = Around::default();
    tells("why-silent", &asks("lonely", "20"), &nothing);
    tells("why-topology", &asks("pair", "200"), &nothing);
    tells("why-budget", &asks("urgent", "50"), &nothing);
    tells("why-preempts", &asks("urgent", "50"), &nothing);
    tells("why-fits", &asks("small", "10"), &nothing);
}

#[test]
fn a_pod_that_is_bound_is_told_where_it_sits() {
    let mut bound = asks("gpu-a-x", "1");
    bound["spec"]["nodeName"] = json!("gpu-a");
    bound["status"]["phase"] = json!("Running");
    bound["metadata"]["annotations"]["nano-gpu/placement"] =
        json!("v1;gpu-a;c=GPU-gpu-a-0:50%+13056Mi");
    tells("why-bound", &bound, &around("devices"));
}

#[test]
fn without_the_scheduler_the_pod_itself_is_asked() {
    let mut waits = asks("wide", "60");
    waits["status"]["conditions"] = json!([{"type": "PodScheduled", "status": "False",
        "message": "0/3 nodes are available: 3 no card with 60% of its compute free."}]);
    let asker = Asker::new(&waits).unwrap();
    is("why-without-scheduler", &without_scheduler(&asker, "there is no service a/b"));
}

#[test]
fn a_pod_of_others_is_told_so() {
    let web = Asker::new(&pod("web", &json!({"cpu": "1"}))).unwrap();
    assert_eq!(
        not_ours(&web, "x"),
        "Pod team/web asks for no card: nanogpu has no say in where it goes."
    );
    let known = Asker::new(&asks("a", "20")).unwrap();
    let said = not_ours(&known, "nanogpu knows no pod team/a that asks for a card");
    assert!(said.starts_with("Pod team/a asks for nano-gpu/gpu-percent 20 (container c), but"));
}

/// The codes in the tables of docs/refusals.md.
fn codes() -> Vec<String> {
    let text = include_str!("../../../../docs/refusals.md");
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    rows.map(|(code, _)| code.to_owned()).collect()
}

#[test]
fn every_reason_there_is_has_a_sentence_of_its_own() {
    let codes = codes();
    assert!(codes.len() >= 20, "{codes:?}");
    for code in codes {
        let mut answer: Value = read("why-budget");
        for refusal in answer["refused"].as_array_mut().unwrap() {
            refusal["code"] = json!(code);
        }
        let asker = Asker::new(&asks("urgent", "50")).unwrap();
        let said =
            page(&asker, &serde_json::from_value(answer).unwrap(), &Around::default(), false);
        let lead = said.lines().next().unwrap();
        assert!(lead.starts_with("Pod team/urgent waits: "), "{code}: {lead}");
        assert!(!lead.contains("no node can take it now"), "{code} has no sentence");
    }
}
