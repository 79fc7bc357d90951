//! gpu-manager and gpu-admission: cores and memory together, and a limit for idle times.

use dialect::Dialect;
use model::Cores;

use crate::common::{asks, exact, notes, pod, whole};

/// Domain, and the MiB that one unit of memory is.
const DOMAINS: [(&str, u64, Dialect); 3] = [
    ("tencent.com", 256, Dialect::Tencent),
    ("inspur.com", 256, Dialect::Inspur),
    ("nvidia.com", 1, Dialect::NvidiaVcuda),
];

#[test]
fn a_share_is_cores_and_blocks_of_memory() {
    for (domain, unit, dialect) in DOMAINS {
        let (core, memory) = (format!("{domain}/vcuda-core"), format!("{domain}/vcuda-memory"));
        let limits = [(core.as_str(), "50"), (memory.as_str(), "30")];
        assert_eq!(asks(&limits), exact(1, 50, 30 * unit), "{domain}");
        let asked = pod().app("main", &limits).read();
        assert_eq!(asked.dialect, dialect);
        // Memory only measures: the kubelet's tickets are the cores.
        assert_eq!(asked.request.tickets, [(core.clone(), 50)]);
        assert!(!asked.request.one_card && asked.notes.is_empty());
    }
}

#[test]
fn fifty_and_thirty_of_tencent_are_7680_mebibytes() {
    let limits = [("tencent.com/vcuda-core", "50"), ("tencent.com/vcuda-memory", "30")];
    assert_eq!(asks(&limits), exact(1, 50, 7680));
}

#[test]
fn multiples_of_a_hundred_are_whole_cards_whatever_the_memory() {
    for (domain, ..) in DOMAINS {
        let (core, memory) = (format!("{domain}/vcuda-core"), format!("{domain}/vcuda-memory"));
        let both = [(core.as_str(), "200"), (memory.as_str(), "60")];
        assert_eq!(asks(&both), whole(2));
        assert_eq!(
            notes(&both),
            [format!(
                "container main gets whole cards with all their memory; its {memory} is ignored"
            )]
        );
        assert_eq!(asks(&[(core.as_str(), "100")]), whole(1));
        assert!(notes(&[(core.as_str(), "100")]).is_empty());
    }
}

#[test]
fn the_core_limit_lets_shares_use_an_idle_card() {
    for (domain, ..) in DOMAINS {
        let (core, memory) = (format!("{domain}/vcuda-core"), format!("{domain}/vcuda-memory"));
        let share = [(core.as_str(), "50"), (memory.as_str(), "30")];
        let limited = |text: &str| {
            let draft = pod().app("a", &share).app("b", &[(core.as_str(), "100")]).app("c", &[]);
            let asked = draft.annotate(&format!("{domain}/vcuda-core-limit"), text).read();
            let bursts: Vec<_> = asked.request.containers.iter().map(|c| c.burst).collect();
            (bursts, asked.notes)
        };
        for (text, burst) in [("80", 80), (" 80 ", 80), ("50", 50), ("100", 100)] {
            // A whole card has no limit to raise.
            assert_eq!(limited(text), (vec![Some(Cores(burst)), None], vec![]), "{text}");
        }
        let note =
            format!("annotation {domain}/vcuda-core-limit is 101; a card has 100, so 100 holds");
        assert_eq!(limited("101"), (vec![Some(Cores(100)), None], vec![note]));
    }
}

#[test]
fn another_domain_s_core_limit_is_none() {
    let share = [("tencent.com/vcuda-core", "50"), ("tencent.com/vcuda-memory", "30")];
    let asked = pod().app("main", &share).annotate("inspur.com/vcuda-core-limit", "80").read();
    assert_eq!(asked.request.containers[0].burst, None);
}
