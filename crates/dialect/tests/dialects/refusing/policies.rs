//! Policies a pod chooses for itself.

use dialect::Settings;
use model::PolicyName::{self, Binpack, Random, Spread};
use model::{Affinity, Near};

use crate::common::{Draft, pod};

const NODE: [&str; 3] =
    ["nano-gpu/node-policy", "nvidia.com/node-scheduler-policy", "hami.io/node-scheduler-policy"];
const DEVICE: [&str; 3] = [
    "nano-gpu/device-policy",
    "nvidia.com/device-scheduler-policy",
    "hami.io/gpu-scheduler-policy",
];

fn draft() -> Draft {
    pod().app("main", &[("nano-gpu/gpu-percent", "20")])
}

#[test]
fn every_key_chooses_a_policy() {
    let table = [
        ("binpack", Some(Binpack)),
        ("spread", Some(Spread)),
        ("random", Some(Random)),
        (" BinPack ", Some(Binpack)),
        ("none", None),
        ("", None),
        (",", None),
    ];
    for (text, policy) in table {
        for key in NODE {
            let chosen = draft().annotate(key, text).read().request.overrides;
            assert_eq!((chosen.node, chosen.device), (policy, None), "{key} {text:?}");
        }
        for key in DEVICE {
            let chosen = draft().annotate(key, text).read().request.overrides;
            assert_eq!((chosen.node, chosen.device), (None, policy), "{key} {text:?}");
        }
    }
}

#[test]
fn ours_outranks_a_foreign_one() {
    let chosen = |ours: &str| -> Option<PolicyName> {
        let draft = draft().annotate(NODE[1], "spread").annotate(NODE[0], ours);
        draft.read().request.overrides.node
    };
    assert_eq!(chosen("binpack"), Some(Binpack));
    assert_eq!(chosen("none"), None);
}

#[test]
fn of_hami_s_list_the_first_policy_counts_and_the_rest_is_said() {
    let asked = draft().annotate(DEVICE[2], "numa,spread,mutex,binpack, topology-aware").read();
    assert_eq!(asked.request.overrides.device, Some(Spread));
    let note = |word: &str| {
        format!(
            "annotation hami.io/gpu-scheduler-policy: {word} is not supported and has no effect"
        )
    };
    assert_eq!(asked.notes, ["mutex"].map(note));
    assert_eq!(asked.request.affinity, Affinity::Prefer(Near::Numa));
}

#[test]
fn nearness_is_read_in_every_spelling() {
    use Affinity::{Any, Prefer, Require};
    let table = [
        ("link", Prefer(Near::Link)),
        (" Link-Strict ", Require(Near::Link)),
        ("numa", Prefer(Near::Numa)),
        ("numa-strict", Require(Near::Numa)),
        ("none", Any),
        ("", Any),
    ];
    for (text, expected) in table {
        for key in ["nano-gpu/topology", "nvidia.com/device-topology-mode"] {
            let asked = draft().annotate(key, text).read();
            assert_eq!(asked.request.affinity, expected, "{key} {text:?}");
        }
    }
    let bound = draft().annotate("nvidia.com/numa-bind", "true").read();
    assert_eq!(bound.request.affinity, Require(Near::Numa));
    assert_eq!(draft().annotate("nvidia.com/numa-bind", "false").read().request.affinity, Any);
    let aware = draft().annotate("hami.io/gpu-scheduler-policy", "binpack,topology-aware").read();
    assert_eq!(aware.request.affinity, Prefer(Near::Link));
    let ours =
        draft().annotate("nvidia.com/numa-bind", "true").annotate("nano-gpu/topology", "link");
    assert_eq!(ours.read().request.affinity, Prefer(Near::Link));
    assert_eq!(
        draft().annotate("nano-gpu/topology", "near").refusal(),
        "annotation nano-gpu/topology is \"near\"; it must be one of none, link, link-strict, numa, \
         numa-strict"
    );
}

#[test]
fn an_unknown_policy_is_refused_with_those_there_are() {
    let all = PolicyName::ALL.map(PolicyName::as_str).join(", ");
    for key in NODE.into_iter().chain(DEVICE) {
        for text in ["best", "binpack;spread", "binpack,best"] {
            assert_eq!(
                draft().annotate(key, text).refusal(),
                format!("annotation {key} is {text:?}; it must be one of {all}")
            );
        }
    }
}

#[test]
fn a_policy_the_administrator_does_not_allow_is_refused() {
    let only = |policies: &[PolicyName]| Settings {
        policies: policies.iter().copied().collect(),
        ..Settings::default()
    };
    let refusal = |settings: &Settings| {
        draft().annotate(NODE[0], "random").read_by(settings).unwrap_err().to_string()
    };
    assert_eq!(
        refusal(&only(&[Spread, Binpack])),
        "annotation nano-gpu/node-policy is \"random\"; it must be one of binpack, spread"
    );
    assert_eq!(
        refusal(&only(&[])),
        "annotation nano-gpu/node-policy is \"random\"; \
         it must be left out: pods may not choose a policy in this cluster"
    );
    // Not to choose is always allowed.
    assert!(draft().annotate(NODE[0], "none").read_by(&only(&[])).is_ok());
}
