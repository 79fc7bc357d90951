//! How long a decision takes: `cargo bench -p placement`.
//!
//! Warm: the kind of pod was asked for before, and one node has changed since. Cold: a kind never
//! seen, so that every node is weighed. Both pick the node and its cards.

use std::collections::BTreeMap;
use std::sync::Arc;

use divan::{Bencher, black_box};
use model::arb::{card, container_name, device_id, node_name};
use model::{
    Affinity, Agent, Allowance, Bytes, CardModel, ContainerRequest, Cores, Device, DeviceState,
    Hold, Host, Mebibytes, MemoryAsk, MilliCpu, Node, Overrides, Part, PodId, PodUid, PolicyName,
    Request, Role, Selector, Statistics, Workload,
};
use placement::{Ask, Board, Policy, choose, learn};

/// A policy and a size of cluster; eight cards a node.
#[derive(Clone, Copy)]
struct Case(PolicyName, usize);

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.0, self.1)
    }
}

fn cases() -> impl Iterator<Item = Case> {
    let sizes = [100, 1_000, 5_000, 20_000];
    PolicyName::ALL.into_iter().flat_map(move |policy| sizes.map(|nodes| Case(policy, nodes)))
}

fn main() {
    divan::main();
}

#[divan::bench(args = cases())]
fn warm(bencher: Bencher, &Case(policy, nodes): &Case) {
    let mut world = World::new(nodes, policy);
    let request = request(30, 0);
    world.decide(&request);
    let mut at = 0;
    bencher.bench_local(|| {
        at = (at + 7919) % nodes;
        world.touch(at);
        black_box(world.decide(&request))
    });
}

#[divan::bench(args = cases())]
fn cold(bencher: Bencher, &Case(policy, nodes): &Case) {
    let mut world = World::new(nodes, policy);
    let mut kind = 0;
    bencher.bench_local(|| {
        kind += 1;
        black_box(world.decide(&request(30, kind)))
    });
}

struct World {
    board: Board,
    statistics: Arc<Statistics>,
    policy: Policy,
}

impl World {
    fn new(count: usize, policy: PolicyName) -> Self {
        let mut rng = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = |below: u64| {
            rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (rng >> 33) % below
        };
        let nodes: Vec<Arc<Node>> = (0..count).map(|i| Arc::new(node(i, &mut next))).collect();
        let mut workload = Workload::default();
        for i in 0..200 {
            workload.see(&request(1 + i % 90, u64::from(i % 40) * 500));
        }
        let statistics = Arc::new(learn(&workload, nodes.iter().map(AsRef::as_ref)));
        let board = Board::of(nodes, statistics.clone());
        Self { board, statistics, policy: Policy::both(policy) }
    }

    fn decide(&mut self, request: &Request) -> Option<model::Placement> {
        let ask = Ask {
            request,
            allowance: Allowance::unlimited(),
            policy: self.policy,
            statistics: &self.statistics,
        };
        let place = self.board.best(&ask)?;
        choose(&self.board.nodes()[place], &ask).ok()
    }

    fn touch(&mut self, place: usize) {
        self.board.change(place, |node| node.free.cpu = MilliCpu(node.free.cpu.0 ^ 1));
    }
}

/// Eight cards, each partly taken.
fn node(number: usize, next: &mut impl FnMut(u64) -> u64) -> Node {
    let models = ["NVIDIA A100-SXM4-40GB", "Tesla T4", "NVIDIA H100 80GB HBM3", "NVIDIA L4"];
    let model = CardModel::new(models[number % models.len()]);
    let cpu = MilliCpu(20_000 + next(60_000));
    let devices = (0..8).map(|index| {
        let id = device_id(&format!("GPU-{number}-{index}"));
        let device = Device { id, model: model.clone(), memory: Mebibytes(40_960), ..card(index) };
        let mut state = DeviceState::idle(Arc::new(device));
        let cores = Cores(u32::try_from(next(10) * 10).unwrap_or(0));
        if !cores.is_zero() {
            let memory = Mebibytes(40_960).percent(cores);
            state.used.add(&Hold { cores, memory, whole: false });
        }
        state
    });
    let allocatable = Host { cpu: MilliCpu(96_000), memory: Bytes(1 << 39) };
    Node {
        name: node_name(&format!("node-{number:05}")),
        allocatable,
        free: Host { cpu, ..allocatable },
        pool: None,
        shunned: false,
        agent: Agent::Fresh,
        problem: None,
        devices: devices.collect(),
        topology: Arc::default(),
        tickets: BTreeMap::new(),
        holders: Vec::new(),
        missing: Vec::new(),
    }
}

/// A share of one card and some CPU.
fn request(percent: u32, cpu: u64) -> Request {
    let cores = Cores(percent);
    Request {
        pod: PodId {
            namespace: "bench".into(),
            name: "pod".into(),
            uid: PodUid::parse("uid").expect("a UID"),
        },
        containers: vec![ContainerRequest {
            name: container_name("main"),
            role: Role::App,
            cards: 1,
            part: Part::Share { cores, memory: MemoryAsk::Percent(cores) },
            burst: None,
        }],
        one_card: false,
        selector: Selector::default(),
        affinity: Affinity::Any,
        overrides: Overrides::default(),
        host: Host { cpu: MilliCpu(4000 + cpu), memory: Bytes(16 << 30) },
        tickets: Vec::new(),
        priority: 0,
    }
}
