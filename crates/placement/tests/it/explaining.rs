//! Why not: every refusal has a node that gives it, and the pod gets one line.

use std::sync::Arc;

use model::{
    Affinity, Agent, Allowance, Cap, Cores, Host, Mebibytes, MilliCpu, ModelPattern, Near, Node,
    Part, Problem, Request, Rule, Selector, Snapshot, Tickets, Unlisted,
};
use placement::{Ask, Policy, decide, fit};

use crate::build::{Cards, apps, ask, device, machine, node, percent, share, snapshot, take};

fn sentence(node: &Node, request: &Request) -> (&'static str, String, bool) {
    let refusal = fit(node, &ask(request, Policy::default())).expect_err("a refusal");
    (refusal.reason.code(), refusal.to_string(), refusal.reason.is_permanent())
}

fn selects(models: &[&str], mut request: Request) -> Request {
    let tokens = models.iter().map(|&model| model.to_owned()).collect();
    request.selector = Selector { models: vec![tokens], ..Selector::default() };
    request
}

fn near(near: Near, request: Request) -> Request {
    Request { affinity: Affinity::Require(near), ..request }
}

#[test]
#[expect(clippy::too_many_lines, reason = "one row a refusal")]
fn every_refusal_is_one_stable_sentence() {
    let small = apps(&[(1, percent(10))]);
    let with = |alter: fn(&mut Node)| {
        let mut node = node("a").left(100);
        alter(&mut node);
        node
    };
    let tickets = |alter: fn(&mut Request)| {
        let mut request = apps(&[(1, percent(10))]);
        alter(&mut request);
        request
    };
    let asks_tickets = tickets(|r| r.tickets = vec![("nano-gpu/gpu-percent".into(), 10)]);
    let asks_host = tickets(|r| r.host = Host { cpu: MilliCpu(64_001), ..Host::default() });
    let full = node("a").free(100, 3000).free(5, 10_000);
    let table: Vec<(Node, Request, &str, &str, bool)> = vec![
        (
            with(|n| n.agent = Agent::Never),
            small.clone(),
            "no-agent",
            "no nanogpu agent reports from the node",
            true,
        ),
        (
            with(|n| n.agent = Agent::Stale),
            small.clone(),
            "stale-agent",
            "the node's agent has stopped reporting",
            false,
        ),
        (
            with(|n| n.problem = Some(Problem::Inventory("x".into()))),
            small.clone(),
            "bad-inventory",
            "the node's inventory cannot be read",
            false,
        ),
        (
            with(|n| n.problem = Some(Problem::Holder("x".into()))),
            small.clone(),
            "bad-holder",
            "a pod on the node holds cards in a way that cannot be read",
            false,
        ),
        (node("a"), small.clone(), "no-cards", "the node has no card", true),
        (
            with(|_| ()),
            asks_tickets.clone(),
            "not-offered",
            "the node does not offer 10 nano-gpu/gpu-percent",
            true,
        ),
        (
            with(|n| {
                let tickets = Tickets { total: 100, used: 91 };
                n.tickets = [("nano-gpu/gpu-percent".into(), tickets)].into();
            }),
            asks_tickets,
            "tickets-short",
            "fewer than 10 nano-gpu/gpu-percent left",
            false,
        ),
        (with(|_| ()), asks_host, "host-short", "too little CPU or memory left on the host", false),
        (
            with(|_| ()),
            selects(&["A100", "H100"], small.clone()),
            "no-match",
            "no A100 or H100",
            true,
        ),
        (
            with(|_| ()),
            apps(&[(2, percent(10))]),
            "too-few-cards",
            "fewer than 2 cards that would do",
            true,
        ),
        (
            with(|_| ()),
            apps(&[(1, share(10, 10_001))]),
            "card-too-small",
            "no card of 10001 MiB",
            true,
        ),
        (
            machine("bridge-x4", &[]),
            near(Near::Link, apps(&[(3, percent(10))])),
            "too-far-apart",
            "fewer than 3 cards joined by NVLink",
            true,
        ),
        (
            machine("hgx-a100-4", &[]),
            near(Near::Numa, apps(&[(2, Part::Whole)])),
            "too-far-apart",
            "fewer than 2 cards of one NUMA node",
            true,
        ),
        (node("a").sick(), small.clone(), "out-of-service", "no card in service", false),
        (
            node("a").left(100).left(90),
            apps(&[(2, Part::Whole)]),
            "not-idle",
            "fewer than 2 cards wholly free",
            false,
        ),
        (
            node("a").left(20),
            apps(&[(1, share(30, 1))]),
            "cores-short",
            "no card with 30% of its compute free",
            false,
        ),
        (
            node("a").free(100, 3200),
            apps(&[(1, share(30, 4096))]),
            "memory-short",
            "no card with 4096 MiB free",
            false,
        ),
        (
            node("a").free(100, 2000),
            apps(&[(1, percent(30))]),
            "memory-short",
            "no card with 30% of its memory free",
            false,
        ),
        (
            full,
            apps(&[(1, share(30, 4096))]),
            "fragmented",
            "no card with 30% of its compute and 4096 MiB free together",
            false,
        ),
        (
            machine("bridge-x4", &[0, 1]),
            near(Near::Link, apps(&[(2, Part::Whole)])),
            "near-taken",
            "fewer than 2 cards joined by NVLink with room",
            false,
        ),
        (
            machine("pcie-x4", &[0, 2]),
            near(Near::Numa, apps(&[(2, percent(10))])),
            "near-taken",
            "fewer than 2 cards of one NUMA node with room",
            false,
        ),
        (
            node("a").left(60).left(50),
            apps(&[(1, percent(40)); 3]),
            "not-together",
            "no room for the pod's 3 GPU containers together",
            false,
        ),
    ];
    for (node, request, code, text, permanent) in table {
        assert_eq!(sentence(&node, &request), (code, text.to_owned(), permanent));
    }
}

#[test]
fn quota_and_pool_refuse_by_namespace() {
    let allowance = Allowance {
        rules: vec![Rule {
            model: ModelPattern::new("T4"),
            cap: Cap { cores: Some(Cores(100)), ..Cap::default() },
            used: model::Amount { cards: 1, cores: Cores(80), memory: Mebibytes(1) },
        }],
        unlisted: Unlisted::Refused,
        pools: vec!["public".into()],
    };
    let refused = |node: &Node, part| {
        let request = apps(&[(1, part)]);
        let ask = Ask { allowance: &allowance, ..ask(&request, Policy::default()) };
        fit(node, &ask).err().map(|refusal| refusal.to_string())
    };
    let mut node = node("a").left(100).model("NVIDIA A100", 10_000);
    let pool = "namespace team-a may not use the node's pool";
    assert_eq!(refused(&node, percent(10)).as_deref(), Some(pool));
    node.pool = Some("public".into());
    assert_eq!(refused(&node, percent(20)), None);
    // 21 more would exceed 100 on the T4, and the A100 is not in the quota at all.
    let quota = "namespace team-a has no quota left for the node's cards";
    assert_eq!(refused(&node, percent(21)).as_deref(), Some(quota));
}

#[test]
fn the_pod_gets_one_line() {
    let mut nodes: Vec<Node> = (0..7)
        .map(|i| {
            node(&format!("a100-{i}")).model("NVIDIA A100", 40_000).add(|state| {
                device(state).model = model::CardModel::new("NVIDIA A100");
                take(state, 10, 6800 + i);
            })
        })
        .collect();
    for node in &mut nodes {
        take(&mut node.devices[0], 10, 39_000);
    }
    nodes.extend((0..5).map(|i| node(&format!("t4-{i}")).left(100)));
    let snapshot = snapshot(nodes);
    let wanted = selects(&["A100"], apps(&[(1, share(30, 4096))]));
    let explanation =
        decide(&snapshot, &Ask::new(&snapshot, &wanted, Policy::default())).unwrap_err();
    assert_eq!(
        explanation.to_string(),
        "12 nodes: 7 short of memory on one card, best has 3,200 MiB of 4,096; 5 have no A100"
    );
    // The node's own numbers are apart from its sentence.
    let (name, refusal) = &explanation.refused[0];
    assert_eq!(
        (name.as_str(), refusal.to_string().as_str()),
        ("a100-0", "no card with 4096 MiB free")
    );
    assert_eq!(refusal.best.memory, Mebibytes(3200));
}

#[test]
fn nodes_whose_cards_are_too_far_apart_are_counted() {
    let named =
        |name: &str, taken: &[usize]| Node { name: node(name).name, ..machine("bridge-x4", taken) };
    let snapshot = snapshot(vec![named("a", &[0, 1]), named("b", &[0, 2]), named("c", &[0, 1, 2])]);
    let wanted = near(Near::Link, apps(&[(2, Part::Whole)]));
    let explanation =
        decide(&snapshot, &Ask::new(&snapshot, &wanted, Policy::default())).unwrap_err();
    assert_eq!(
        explanation.to_string(),
        "3 nodes: 2 have fewer than 2 cards joined by NVLink with room; \
         1 has too few cards wholly free, best has 1 of 2"
    );
}

#[test]
fn an_empty_cluster_says_so() {
    let snapshot = Snapshot::new(Vec::<Arc<Node>>::new(), Arc::default());
    let wanted = apps(&[(1, percent(1))]);
    let explanation =
        decide(&snapshot, &Ask::new(&snapshot, &wanted, Policy::default())).unwrap_err();
    assert_eq!(explanation.to_string(), "no nodes");
}
