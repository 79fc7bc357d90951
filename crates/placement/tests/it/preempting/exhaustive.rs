//! On small worlds the answer is that of a search over all subsets, which knows the rules and none
//! of our code paths but `fit`.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::arb::node_name;
use model::{
    Affinity, Agent, Allowance, Amount, Cap, Claim, Claimed, Cores, DeviceRef, Health, Holder,
    Host, Mebibytes, MilliCpu, ModelPattern, Near, Node, Part, PodId, Problem, Request, Role, Rule,
    Snapshot, Tickets, Topology,
};
use placement::{Ask, Budget, NoPreemption, Policy, Thoroughness, fit, preempt};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};

use super::uid;
use crate::build::{Cards, HOST, ask, device, node, request, share};

const TICKET: &str = "nano-gpu/gpu-percent";
const PRIORITY: i32 = 5;

#[derive(Debug, Clone)]
struct World {
    /// Two nodes: how many cards each has.
    cards: [u32; 2],
    /// A card that is sick, by node and index.
    sick: Option<(usize, u32)>,
    stale: Option<usize>,
    pods: Vec<Pod>,
    /// Pods by place, and how many of them may go.
    budgets: Vec<(BTreeSet<usize>, u32)>,
    quota: Option<(u64, u32)>,
    asks: Vec<(Role, u32, Part)>,
    affinity: Affinity,
    cpus: u64,
    tickets: u64,
}

#[derive(Debug, Clone)]
struct Pod {
    on: usize,
    /// By card; a card that is not there is pointed at in vain.
    parts: BTreeMap<u32, Part>,
    priority: i32,
    leaving: bool,
    readable: bool,
    ours: bool,
    cpus: u64,
    tickets: u64,
}

fn parts() -> impl Strategy<Value = Part> {
    let cores = select(vec![0u32, 20, 40, 60, 60, 70, 90]);
    let memory = select(vec![0u64, 1000, 2000, 4000, 6000, 9000]);
    prop_oneof![1 => Just(Part::Whole), 6 => (cores, memory).prop_map(|(c, m)| share(c, m))]
}

fn pods() -> impl Strategy<Value = Pod> {
    let rarely = |weight| proptest::bool::weighted(weight);
    let parts = proptest::collection::btree_map(0u32..3, parts(), 0..4);
    let amounts = (select(vec![0u64, 10, 30]), select(vec![0u64, 0, 10, 50]));
    (
        0usize..2,
        parts,
        select(vec![2i32, 3, 3, 3, 4, 6]),
        rarely(0.12),
        rarely(0.03),
        rarely(0.4),
        amounts,
    )
        .prop_map(|(on, parts, priority, leaving, odd, ours, (cpus, tickets))| Pod {
            on,
            parts,
            priority,
            leaving,
            readable: !odd,
            ours,
            cpus,
            tickets,
        })
}

fn worlds() -> impl Strategy<Value = World> {
    let cards = (1u32..=3, select(vec![0u32, 0, 1, 1, 2, 3])).prop_map(|(a, b)| [a, b]);
    let sick = option::weighted(0.1, (0usize..2, 0u32..3));
    let stale = option::weighted(0.1, 0usize..2);
    let budget = (proptest::collection::btree_set(0usize..5, 0..5), 0u32..3);
    let quota = option::weighted(0.25, (select(vec![1u64, 2, 9]), select(vec![60u32, 120, 900])));
    // Most can be met by an empty node.
    let asks = vec(
        (
            select(vec![Role::Init, Role::App, Role::App]),
            select(vec![1u32, 1, 1, 1, 2, 3]),
            parts(),
        ),
        1..=2,
    );
    let amounts = (select(vec![0u64, 1, 40, 60]), select(vec![0u64, 0, 20, 60]));
    let near = select(vec![Affinity::Any, Affinity::Any, Affinity::Require(Near::Numa)]);
    let asks = (asks, near, amounts);
    (cards, sick, stale, vec(pods(), 1..=5), vec(budget, 0..3), quota, asks).prop_map(
        |(cards, sick, stale, pods, budgets, quota, (mut asks, affinity, (cpus, tickets)))| {
            asks.sort_by_key(|(role, ..)| *role == Role::App);
            World { cards, sick, stale, pods, budgets, quota, asks, affinity, cpus, tickets }
        },
    )
}

impl World {
    /// One of the nodes with only those pods that `stays` admits, added up here.
    fn node(&self, on: usize, stays: impl Fn(usize) -> bool) -> Node {
        // The second node has smaller cards, so that losses differ.
        let size = [10_000, 8_000][on];
        let name = ["a", "b"][on];
        let mut node = (0..self.cards[on]).fold(node(name), |node, _| node.model("Tesla T4", size));
        // The middle card hangs on another NUMA node.
        for (place, state) in node.devices.iter_mut().enumerate() {
            device(state).numa = Some(u32::from(place == 1));
        }
        let devices: Vec<_> = node.devices.iter().map(|state| state.device.clone()).collect();
        node.topology = Arc::new(Topology::new(&devices, &[]));
        if self.stale == Some(on) {
            node.agent = Agent::Stale;
        }
        if let Some((_, card)) = self.sick.filter(|(at, card)| *at == on && *card < self.cards[on])
        {
            device(&mut node.devices[card as usize]).health = Health::Sick;
        }
        let mut tickets = Tickets { total: 100, used: 0 };
        let mut cpus = 0;
        for (i, pod) in self.pods.iter().enumerate().filter(|(i, pod)| pod.on == on && stays(*i)) {
            tickets.used += pod.tickets;
            cpus += pod.cpus * 1000;
            node.holders.push(Arc::new(self.holder(i)));
            if !pod.readable {
                node.problem = Some(Problem::Holder("odd".into()));
                continue;
            }
            for (&card, part) in &pod.parts {
                let Some(state) = node.devices.get_mut(card as usize) else {
                    node.missing.push(card.to_string());
                    continue;
                };
                let (cores, memory) = taken(*part, size);
                state.used.hold.whole |= *part == Part::Whole;
                state.used.hold.cores = Cores(state.used.hold.cores.0 + cores);
                state.used.hold.memory = Mebibytes(state.used.hold.memory.0 + memory);
                state.used.holders += 1;
            }
        }
        node.free.cpu = MilliCpu(HOST.cpu.0.saturating_sub(cpus));
        node.tickets.insert(TICKET.into(), tickets);
        node
    }

    fn holder(&self, place: usize) -> Holder {
        let pod = &self.pods[place];
        let parts = pod.parts.iter().map(|(&card, &part)| (DeviceRef::Index(card), part));
        let claim = match (pod.readable, pod.parts.is_empty()) {
            (false, _) => Claim::Unreadable("odd".into()),
            (true, true) => Claim::Nothing,
            (true, false) => {
                Claim::Shares(vec![Claimed { role: Role::App, parts: parts.collect() }])
            }
        };
        let namespace = if pod.ours { "team-a" } else { "team-b" };
        let name = format!("p{place}");
        Holder {
            pod: PodId { namespace: namespace.into(), uid: uid(&name), name },
            node: node_name(["a", "b"][pod.on]),
            claim,
            host: Host { cpu: MilliCpu(pod.cpus * 1000), ..Host::default() },
            tickets: vec![(TICKET.into(), pod.tickets)],
            priority: pod.priority,
            terminating: pod.leaving,
        }
    }

    fn request(&self) -> Request {
        let host = Host { cpu: MilliCpu(self.cpus * 1000), ..Host::default() };
        let tickets = vec![(TICKET.to_owned(), self.tickets)];
        Request {
            host,
            tickets,
            priority: PRIORITY,
            affinity: self.affinity,
            ..request(&self.asks)
        }
    }

    /// What team-a may take if only those pods are there that `stays` admits.
    fn allowance(&self, stays: impl Fn(usize) -> bool) -> Allowance {
        let Some((cards, cores)) = self.quota else { return Allowance::default() };
        let mut used = Amount::default();
        for (_, pod) in self.pods.iter().enumerate().filter(|(i, pod)| pod.ours && stays(*i)) {
            let there = |card: &&u32| **card < self.cards[pod.on] && pod.readable;
            for card in pod.parts.keys().filter(there) {
                used.cards += 1;
                used.cores.0 += taken(pod.parts[card], 1).0;
            }
        }
        let cap = Cap { cards: Some(cards), cores: Some(Cores(cores)), memory: None };
        Allowance {
            rules: vec![Rule { model: ModelPattern::new("T4"), cap, used }],
            ..Allowance::default()
        }
    }

    fn fits(&self, on: usize, gone: impl Fn(usize) -> bool) -> bool {
        let request = self.request();
        let allowance = self.allowance(|pod| !gone(pod));
        let ask = Ask { allowance: &allowance, ..ask(&request, Policy::default()) };
        fit(&self.node(on, |pod| !gone(pod)), &ask).is_ok()
    }

    /// The best set by trying all.
    fn expected(&self) -> Expected {
        if let Some(on) = (0..2).find(|&on| self.fits(on, |_| false)) {
            return Expected::Fits(on);
        }
        if let Some(on) = (0..2).find(|&on| self.fits(on, |pod| self.pods[pod].leaving)) {
            return Expected::Waiting(on);
        }
        let mut best = None;
        let mut without_budgets = false;
        for on in 0..2 {
            for mask in 1u32..1 << self.pods.len() {
                let set: BTreeSet<usize> =
                    (0..self.pods.len()).filter(|pod| mask & (1 << pod) != 0).collect();
                let may_go = |pod: &Pod| pod.on == on && !pod.leaving && pod.priority < PRIORITY;
                let gone = |pod| set.contains(&pod) || self.pods[pod].leaving;
                if !set.iter().all(|&pod| may_go(&self.pods[pod])) || !self.fits(on, gone) {
                    continue;
                }
                without_budgets = true;
                let within = |(pods, allowed): &(BTreeSet<usize>, u32)| {
                    pods.intersection(&set).count() <= *allowed as usize
                };
                if !self.budgets.iter().all(within) {
                    continue;
                }
                let mut priorities: Vec<i32> = set.iter().map(|&p| self.pods[p].priority).collect();
                priorities.sort_by_key(|priority| -priority);
                let loss: u64 = set.iter().map(|&pod| self.loss(pod)).sum();
                let rank = (set.len(), priorities, loss, on, set);
                best = Some(best.map_or(rank.clone(), |best| std::cmp::min(best, rank)));
            }
        }
        match best {
            Some((.., on, set)) => Expected::Victims(on, set),
            None if without_budgets => Expected::Budget,
            None => Expected::Nothing,
        }
    }

    /// Compute and memory that are thrown out, in thousandths of a card each.
    fn loss(&self, pod: usize) -> u64 {
        let pod = &self.pods[pod];
        let size = [10_000, 8_000][pod.on];
        let there = |(card, _): &(&u32, &Part)| **card < self.cards[pod.on] && pod.readable;
        let losses = pod.parts.iter().filter(there).map(|(_, &part)| {
            let (cores, memory) = taken(part, size);
            u64::from(cores) * 10 + memory * 1000 / size
        });
        losses.sum()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Expected {
    Fits(usize),
    Waiting(usize),
    Victims(usize, BTreeSet<usize>),
    Budget,
    Nothing,
}

fn taken(part: Part, size: u64) -> (u32, u64) {
    match part {
        Part::Whole => (100, size),
        Part::Share { cores, memory } => match memory {
            model::MemoryAsk::Exact(memory) => (cores.0, memory.0),
            model::MemoryAsk::Percent(_) => unreachable!("not in these worlds"),
        },
    }
}

#[test]
fn the_answer_is_that_of_an_exhaustive_search() {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok());
    let met = RefCell::new(BTreeMap::<String, u32>::new());
    let config =
        Config { cases: cases.unwrap_or(20_000), failure_persistence: None, ..Config::default() };
    let result = TestRunner::new(config).run(&worlds(), |world| {
        let nodes = (0..2).map(|on| Arc::new(world.node(on, |_| true))).collect();
        let allowances = [("team-a".to_owned(), world.allowance(|_| true))];
        let snapshot = Snapshot::new(nodes, Arc::new(allowances.into()));
        let budgets: Vec<Budget> = world
            .budgets
            .iter()
            .map(|(pods, allowed)| Budget {
                pods: pods.iter().map(|pod| uid(&format!("p{pod}"))).collect(),
                allowed: *allowed,
            })
            .collect();
        let request = world.request();
        let ask = Ask::new(&snapshot, &request, Policy::default());
        let answer = preempt(&snapshot, &ask, &budgets);
        let place = |name: &str| usize::from(name == "b");
        let (kind, got) = match &answer {
            Ok(preemption) => {
                prop_assert_eq!(preemption.search, Thoroughness::Complete);
                let names = preemption.victims.iter().map(|victim| &victim.pod.name[1..]);
                let set: BTreeSet<usize> = names.map(|name| name.parse().unwrap()).collect();
                let kind = format!("{} victims", set.len());
                (kind, Expected::Victims(place(preemption.node.as_str()), set))
            }
            Err(NoPreemption::Fits { node }) => {
                ("fits".into(), Expected::Fits(place(node.as_str())))
            }
            Err(NoPreemption::Waiting { node }) => {
                ("waiting".into(), Expected::Waiting(place(node.as_str())))
            }
            Err(NoPreemption::Budget) => ("budget".into(), Expected::Budget),
            Err(NoPreemption::GaveUp) => return Err(TestCaseError::fail("gave up")),
            Err(NoPreemption::NoNode) => ("no node".into(), Expected::Nothing),
            Err(NoPreemption::Nobody) => ("nobody".into(), Expected::Nothing),
            Err(NoPreemption::Quota { .. }) => ("quota".into(), Expected::Nothing),
        };
        prop_assert_eq!(got, world.expected());
        *met.borrow_mut().entry(kind).or_default() += 1;
        Ok(())
    });
    if let Err(failure) = result {
        panic!("{failure}");
    }
    let met = met.into_inner();
    println!("answers met: {met:?}");
    let kinds = ["1 victims", "2 victims", "3 victims", "budget", "fits", "no node", "nobody"];
    for kind in kinds.into_iter().chain(["quota", "waiting"]) {
        assert!(met.contains_key(kind), "{kind} must be met by some world: {met:?}");
    }
}
