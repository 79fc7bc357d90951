//! What becomes of the victims kube-scheduler proposes.

use std::collections::BTreeSet;

use model::{Claim, Holder, Host, MilliCpu, Node, PodUid, Request};
use placement::{Ask, Budget, Policy};

use super::{BUDGET, NOBODY, altered, budget, leaving, pod, uid, wants, world};
use crate::build::{percent, snapshot};

/// What becomes of kube-scheduler's proposal on `node`.
fn on(node: &Node, request: &Request, budgets: &[Budget], proposed: &[&str]) -> String {
    let snapshot = snapshot(vec![node.clone()]);
    let ask = Ask::new(&snapshot, request, Policy::default());
    let proposed: BTreeSet<PodUid> = proposed.iter().map(|name| uid(name)).collect();
    match placement::preempt_on(&snapshot, &node.name, &ask, budgets, &proposed) {
        Ok(preemption) => {
            let victims = preemption.victims.iter().map(|holder| holder.pod.name.as_str());
            victims.collect::<Vec<_>>().join(" ")
        }
        Err(reason) => reason.to_string(),
    }
}

#[test]
fn kube_scheduler_s_victims_are_kept_replaced_or_joined() {
    let cpus = |count: u64| Host { cpu: MilliCpu(count * 1000), ..Host::default() };
    let with = |holder, count| altered(holder, |holder: &mut Holder| holder.host = cpus(count));
    let pods = || {
        [
            with(pod("gpu", 5, &[(0, percent(60))]), 30),
            with(pod("other", 5, &[(1, percent(50))]), 30),
            altered(with(pod("plain", 0, &[]), 1), |pod| pod.claim = Claim::Nothing),
            pod("equal", 10, &[(1, percent(10))]),
        ]
    };
    let node = world("node-a", 2, pods());
    let asks = |part, count| Request { host: cpus(count), ..wants(&[(1, part)]) };
    // The host is short and `plain` would do for it; the card needs `gpu`, which gives CPU too.
    assert_eq!(on(&node, &asks(percent(100), 4), &[], &["plain"]), "gpu");
    // The host is not short, so whatever `plain` is in the way of is not seen here: it goes.
    assert_eq!(on(&node, &asks(percent(100), 3), &[], &["plain"]), "gpu plain");
    assert_eq!(on(&node, &asks(percent(40), 3), &[], &["plain"]), "plain");
    // What kube-scheduler chose serves as well, but another is cheaper.
    assert_eq!(on(&node, &asks(percent(40), 4), &[], &["gpu"]), "plain");
    // No set at all: the node is no candidate.
    assert_eq!(on(&node, &asks(percent(100), 3), &[], &["equal"]), NOBODY);
    assert_eq!(on(&node, &asks(percent(100), 3), &[], &["stranger"]), NOBODY);
    assert_eq!(on(&node, &asks(percent(40), 3), &[budget(&["plain"], 0)], &["plain"]), BUDGET);
    assert_eq!(
        on(&node, &asks(percent(100), 3), &[budget(&["plain", "gpu"], 1)], &["plain"]),
        BUDGET
    );
    assert_eq!(
        on(&node, &asks(percent(40), 3), &[], &[]),
        "no pod has to leave: node-a has room now"
    );
    // One that is leaving needs no eviction.
    let leaves =
        world("node-a", 2, pods().map(|pod| if pod.priority == 0 { leaving(pod) } else { pod }));
    assert_eq!(
        on(&leaves, &asks(percent(40), 4), &[], &["plain"]),
        "waiting: pods that are leaving make room on node-a"
    );
    assert_eq!(on(&leaves, &asks(percent(100), 4), &[], &["plain"]), "gpu");
}
