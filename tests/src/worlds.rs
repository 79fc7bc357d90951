//! Generators of clusters and pods that collide: few cards, few sizes, every dialect.

use std::collections::BTreeMap;
use std::sync::Arc;

use dialect::Dialect;
use model::arb::{card, container_name, devices, node_name};
use model::{
    Affinity, Agent, Bytes, Container, ContainerRequest, Cores, Device, DeviceState, Hold, Hop,
    Host, Inventory, Link, MemoryAsk, MilliCpu, Near, Node, NodeName, Overrides, Part, Phase, Pod,
    PodId, PodUid, Request, Role, Selector, Topology,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

/// A node's name and cards. Some nodes list a card of another.
pub fn nodes() -> impl Strategy<Value = Vec<(NodeName, Inventory)>> {
    let prefix = prop_oneof![
        Just(["GPU-a", "GPU-b", "GPU-c"]),
        Just(["GPU-a", "GPU-b", "GPU-c"]),
        Just(["GPU-a", "GPU-b", "GPU-c"]),
        Just(["GPU-a", "GPU-b", "GPU-a"]),
    ];
    prefix.prop_flat_map(|[a, b, c]| {
        (inventories(a, 4), inventories(b, 2), inventories(c, 3)).prop_map(|(a, b, c)| {
            let names = ["node-a", "node-b", "node-c"].map(node_name);
            names.into_iter().zip([a, b, c]).collect()
        })
    })
}

/// Up to five devices, wired in any way; of some pairs nothing is known.
fn inventories(prefix: &'static str, most: usize) -> impl Strategy<Value = Inventory> {
    let nvlinks = prop_oneof![2 => Just(0u8), 1 => 1u8..3];
    let way = option::weighted(0.9, (select(Hop::ALL.to_vec()), nvlinks));
    (devices(prefix, most), vec(way, 10)).prop_map(|(devices, ways)| {
        let pairs = (0..devices.len()).flat_map(|b| (0..b).map(move |a| (a, b)));
        let links = pairs.zip(ways).filter_map(|((a, b), way)| {
            let (hop, nvlinks) = way?;
            Some(Link { a: devices[a].index, b: devices[b].index, hop, nvlinks })
        });
        Inventory { links: links.collect(), devices }
    })
}

/// A pod of any dialect, usually one that can run.
pub fn pods() -> impl Strategy<Value = Pod> {
    let containers = vec((roles(), sizes()), 1..4);
    (select(Dialect::ALL.to_vec()), containers, annotations(), 0u32..1_000_000).prop_map(
        |(dialect, containers, annotations, number)| {
            let mut containers: Vec<Container> = containers
                .into_iter()
                .map(|(role, size)| Container {
                    name: container_name("x"),
                    role,
                    position: 0,
                    limits: resources(dialect, size),
                    requests: BTreeMap::new(),
                })
                .collect();
            containers.sort_by_key(|container| container.role == Role::App);
            let apps = containers.iter().position(|c| c.role == Role::App);
            for (i, container) in containers.iter_mut().enumerate() {
                container.name = container_name(&format!("c{i}"));
                container.position = apps.filter(|apps| i >= *apps).map_or(i, |apps| i - apps);
            }
            // Now and then a pod that wants much of the host.
            let cpu = if number % 5 == 0 { "60" } else { "1" };
            containers[0].requests.insert("cpu".into(), cpu.into());
            pod(&format!("pod-{number}"), containers, annotations)
        },
    )
}

/// One node of equal cards with other pods on some, and a request for several of them. Cards
/// that are near to one another are few, so that containers get in each other's way.
pub fn near_misses() -> impl Strategy<Value = (Node, Request)> {
    let wired = inventories("GPU-a", 5).prop_map(|mut inventory| {
        for device in &mut inventory.devices {
            let Device { id, index, numa, .. } = Device::clone(device);
            *device = Arc::new(Device { id, numa, ..card(index) });
        }
        inventory
    });
    let taken = vec(option::weighted(0.3, select(vec![20u32, 60, 100])), 5);
    let part = prop_oneof![
        3 => Just(Part::Whole),
        2 => select(vec![30u32, 50, 80]).prop_map(|part| {
            Part::Share { cores: Cores(part), memory: MemoryAsk::Percent(Cores(part)) }
        }),
    ];
    let containers = vec((roles(), 1u32..4, part), 1..4);
    let near = [Near::Link, Near::Numa];
    let affinity = select([near.map(Affinity::Require), near.map(Affinity::Prefer)].concat());
    (wired, taken, containers, affinity).prop_map(|(inventory, taken, containers, affinity)| {
        let mut node = lone_node(&inventory);
        for (state, taken) in node.devices.iter_mut().zip(taken) {
            if let Some(cores) = taken {
                let memory = state.device.memory.percent(Cores(cores));
                state.used.add(&Hold { cores: Cores(cores), memory, whole: cores == 100 });
            }
        }
        (node, request(containers, affinity))
    })
}

fn lone_node(inventory: &Inventory) -> Node {
    let host = Host { cpu: MilliCpu(1000), memory: Bytes(1 << 30) };
    Node {
        name: node_name("node-a"),
        allocatable: host,
        free: host,
        pool: None,
        shunned: false,
        agent: Agent::Fresh,
        problem: None,
        devices: inventory.devices.iter().cloned().map(DeviceState::idle).collect(),
        topology: Arc::new(Topology::new(&inventory.devices, &inventory.links)),
        tickets: BTreeMap::new(),
        holders: Vec::new(),
        missing: Vec::new(),
    }
}

fn request(mut containers: Vec<(Role, u32, Part)>, affinity: Affinity) -> Request {
    containers.sort_by_key(|(role, ..)| *role == Role::App);
    let containers = containers.into_iter().enumerate().map(|(i, (role, cards, part))| {
        let name = container_name(&format!("c{i}"));
        ContainerRequest { name, role, cards, part, burst: None }
    });
    Request {
        pod: pod("near", Vec::new(), BTreeMap::new()).id,
        containers: containers.collect(),
        one_card: false,
        selector: Selector::default(),
        affinity,
        overrides: Overrides::default(),
        host: Host::default(),
        tickets: Vec::new(),
        priority: 0,
    }
}

/// A pending pod with these containers.
///
/// # Panics
/// If `name` makes no UID.
pub fn pod(name: &str, containers: Vec<Container>, annotations: BTreeMap<String, String>) -> Pod {
    Pod {
        id: PodId {
            namespace: "team-a".into(),
            name: name.into(),
            uid: PodUid::parse(&format!("uid-{name}")).expect("a UID"),
        },
        node: None,
        scheduler: "default-scheduler".into(),
        annotations,
        labels: BTreeMap::new(),
        containers,
        pod_level: BTreeMap::new(),
        overhead: BTreeMap::new(),
        phase: Phase::Pending,
        terminating: false,
        priority: 0,
        scheduled_at: None,
    }
}

fn roles() -> impl Strategy<Value = Role> {
    prop_oneof![1 => Just(Role::Init), 1 => Just(Role::Sidecar), 4 => Just(Role::App)]
}

/// Compute, memory in GiB, cards.
type Size = (u64, u64, u64);

fn sizes() -> impl Strategy<Value = Size> {
    let cores = prop_oneof![4 => 1u64..60, 1 => Just(100), 1 => Just(50)];
    (cores, select(vec![1u64, 1, 2, 3, 8]), prop_oneof![5 => Just(1u64), 1 => 2u64..4])
}

fn resources(dialect: Dialect, (cores, gib, cards): Size) -> BTreeMap<String, String> {
    let percent = if cards > 1 { cards * 100 } else { cores };
    let pairs: Vec<(&str, u64)> = match dialect {
        Dialect::Nano => vec![("nano-gpu/gpu-percent", percent)],
        Dialect::NanoIo => vec![("nano-gpu.io/gpu-core", percent), ("nano-gpu.io/gpu-memory", gib)],
        Dialect::Elastic if cores < 20 => vec![("elasticgpu.io/gpu-memory", gib * 1024)],
        Dialect::Elastic => vec![("elasticgpu.io/gpu-core", percent)],
        Dialect::ElasticCom => {
            vec![("elasticgpu.com/gpu-core", percent), ("elasticgpu.com/gpu-memory", gib * 1000)]
        }
        Dialect::Tencent => {
            vec![("tencent.com/vcuda-core", percent), ("tencent.com/vcuda-memory", gib * 4)]
        }
        Dialect::Inspur => {
            vec![("inspur.com/vcuda-core", percent), ("inspur.com/vcuda-memory", gib * 3)]
        }
        Dialect::NvidiaVcuda => {
            vec![("nvidia.com/vcuda-core", percent), ("nvidia.com/vcuda-memory", gib * 900)]
        }
        Dialect::Gpushare => vec![("aliyun.com/gpu-mem", gib)],
        Dialect::Hami => vec![
            ("nvidia.com/gpu", cards),
            ("nvidia.com/gpucores", cores),
            ("nvidia.com/gpumem", gib * 700),
        ],
        Dialect::VgpuManager => vec![
            ("nvidia.com/vgpu-number", cards),
            ("nvidia.com/vgpu-cores", cores),
            ("nvidia.com/vgpu-memory", gib * 800),
        ],
    };
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value.to_string())).collect()
}

fn annotations() -> impl Strategy<Value = BTreeMap<String, String>> {
    let model = option::weighted(0.2, select(vec!["A100", "T4,A10", "Z9"]));
    let not = option::weighted(0.1, select(vec!["A100", "GPU-a-0"]));
    let policy = option::weighted(0.3, select(vec!["binpack", "spread", "random", "gpu-manager"]));
    (model, not, policy).prop_map(|(model, not, policy)| {
        let pairs = [
            ("nvidia.com/use-gputype", model),
            ("nvidia.com/exclude-gpu-type", not),
            ("nano-gpu/device-policy", policy),
        ];
        let given = pairs.into_iter().filter_map(|(key, value)| Some((key, value?)));
        given.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    })
}

/// Something that happens to a cluster.
#[derive(Debug, Clone)]
pub enum Happening {
    /// A pod is created.
    Submit(Pod),
    /// One of the pods there ends.
    End(usize),
    /// One of the pods there is being deleted.
    Terminate(usize),
    /// A pod appears that nobody can read.
    Odd(usize),
    /// A node changes.
    Node(usize, Change),
    /// 15 seconds pass, and only the named node's agent is heard.
    Silence(usize),
    /// Everything is forgotten and read again.
    Restart,
}

/// What may happen to a node.
#[derive(Debug, Clone)]
pub enum Change {
    /// It has other cards now.
    Cards(Inventory),
    /// Its inventory is damaged.
    Broken,
    /// It offers few tickets.
    FewTickets(u64),
    /// It is in another pool.
    Pool(Option<String>),
    /// It has this many CPUs.
    Cpus(u64),
    /// It is gone.
    Gone,
}

/// A sequence of happenings.
pub fn happenings(most: usize) -> impl Strategy<Value = Vec<Happening>> {
    let which = 0usize..64;
    let change = prop_oneof![
        3 => inventories("GPU-d", 4).prop_map(Change::Cards),
        1 => Just(Change::Broken),
        3 => (20u64..150).prop_map(Change::FewTickets),
        1 => option::of(select(vec!["public".to_owned(), "private".to_owned()])).prop_map(Change::Pool),
        1 => (1u64..40).prop_map(Change::Cpus),
        1 => Just(Change::Gone),
    ];
    let happening = prop_oneof![
        24 => pods().prop_map(Happening::Submit),
        5 => which.clone().prop_map(Happening::End),
        2 => which.clone().prop_map(Happening::Terminate),
        1 => which.clone().prop_map(Happening::Odd),
        2 => (which.clone(), change).prop_map(|(which, change)| Happening::Node(which, change)),
        2 => which.prop_map(Happening::Silence),
        1 => Just(Happening::Restart),
    ];
    vec(happening, 1..=most)
}

/// A quota, or none.
pub fn quotas() -> impl Strategy<Value = Option<&'static str>> {
    select(vec![
        None,
        None,
        None,
        None,
        Some(
            r#"{"version":1,"namespaces":{"team-a":{"models":{"A100":{"cards":2,"memoryMiB":20000},"*":{"cores":400}}}}}"#,
        ),
        Some(
            r#"{"version":1,"namespaces":{"team-a":{"models":{"T4":{"cards":3}},"others":"refused","pools":["public"]}}}"#,
        ),
        Some(r#"{"version":1,"namespaces":{"team-b":{"models":{"*":{"cards":0}}}}}"#),
    ])
}
