//! `doctor`: an installation that is well, and one that is not.

use kubectl::doctor::{Cards, Found, Level, Node, Quota as QuotaFound, judge, page};
use ledger::Quota;

use crate::kept::is;

fn node(name: &str, cards: usize) -> Node {
    Node {
        name: name.into(),
        kubelet: "v1.36.3".into(),
        runtime: "containerd://2.1.9".into(),
        devices_by: Some("cdi".into()),
        inventory: Some(Ok(Cards { all: cards, ..Cards::default() })),
        silence: Some(3_000),
        lacks: Vec::new(),
        sign: Some("nano-gpu/gpu-percent".into()),
    }
}

fn well() -> Found {
    let pod = "nanogpu-scheduler-7d4-x1".to_owned();
    Found {
        version: Ok("v1.36.3".into()),
        namespace: "nanogpu-system".into(),
        schedulers: Ok(vec![(pod.clone(), true), ("nanogpu-scheduler-7d4-x2".into(), true)]),
        leader: Ok(Some((pod.clone(), 2_000))),
        ready: Ok((format!("port 8443 of pod nanogpu-system/{pod}"), Ok(()))),
        webhook: Ok(Some(true)),
        policy: Ok((true, true)),
        nodes: Ok(vec![node("gpu-a", 8), node("gpu-b", 4)]),
        quotas: vec![
            ("nanogpu-system/nanogpu-quota".into(), QuotaFound::Sound),
            ("kube-system/gpuquota".into(), QuotaFound::None),
        ],
    }
}

#[test]
fn a_sound_installation_is_well() {
    is("doctor-well", &page(&judge(&well())));
}

#[test]
fn what_is_wrong_is_named_with_what_to_do() {
    let mut found = well();
    found.schedulers.as_mut().unwrap()[1].1 = false;
    found.leader.as_mut().unwrap().as_mut().unwrap().1 = 300_000;
    found.ready = Err("there is no service nanogpu-system/nanogpu-scheduler".into());
    found.webhook = Ok(None);
    found.policy = Ok((true, false));
    let nodes = found.nodes.as_mut().unwrap();
    nodes[0].inventory = Some(Ok(Cards { all: 8, sick: 1, cordoned: 1 }));
    nodes[0].lacks = vec!["processes".into()];
    nodes[1].silence = Some(300_000);
    nodes[1].kubelet = "v1.29.4".into();
    nodes[1].runtime = "docker://26.1.0".into();
    nodes[1].devices_by = None;
    let sign = Some("nvidia.com/gpu".into());
    nodes.push(Node { inventory: None, silence: None, sign, ..node("gpu-c", 0) });
    nodes.push(Node { inventory: None, silence: None, sign: None, ..node("cpu-1", 0) });
    let wrong = Quota::from_json(r#"{"version": 2, "namespaces": {}}"#).unwrap_err().to_string();
    found.quotas[0].1 = QuotaFound::Broken(wrong);
    found.quotas[1].1 = QuotaFound::Unseen("configmaps \"gpuquota\" is forbidden".into());
    is("doctor-ill", &page(&judge(&found)));
}

#[test]
fn without_the_api_server_nothing_else_is_said() {
    let mut found = well();
    found.version = Err("connection refused".into());
    let verdicts = judge(&found);
    assert_eq!(verdicts.len(), 1);
    assert_eq!(verdicts[0].level, Level::Fail);
}
