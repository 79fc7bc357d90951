//! A judge of placements that tries every way. It knows the rules and none of our code paths.

use model::{
    Affinity, Agent, Allowance, ContainerRequest, Device, DeviceState, Health, MemoryAsk, Mig,
    Near, Node, Part, Placement, Portion, Request, Role, Unlisted,
};

/// Whether any way exists to place `request` on `node`.
pub(crate) fn some_way(node: &Node, request: &Request, allowance: &Allowance) -> bool {
    if !is_open(node, request, allowance) {
        return false;
    }
    let mut ways = vec![Vec::new()];
    for container in &request.containers {
        let sets = subsets(node.devices.len(), container.cards as usize);
        ways = ways
            .into_iter()
            .flat_map(|way: Vec<Vec<usize>>| {
                sets.iter().map(move |set| [way.clone(), vec![set.clone()]].concat())
            })
            .collect();
    }
    ways.iter().any(|way| works(node, request, allowance, way))
}

/// Whether `placement` is one of the ways, with the right portions.
pub(crate) fn is_valid(
    node: &Node,
    request: &Request,
    allowance: &Allowance,
    placement: &Placement,
) -> bool {
    let place = |id: &model::DeviceId| node.devices.iter().position(|s| s.device.id == *id);
    let mut way = Vec::new();
    for (container, placed) in request.containers.iter().zip(placement.containers()) {
        let set: Option<Vec<usize>> = placed.grants.iter().map(|g| place(&g.device)).collect();
        let Some(set) = set else { return false };
        let right = placed.grants.iter().zip(&set).all(|(grant, &place)| {
            let device = &node.devices[place].device;
            match (grant.portion, container.part) {
                (Portion::Whole, Part::Whole) => true,
                (Portion::Share(share), Part::Share { cores, memory }) => {
                    share.cores == cores && share.memory.0 == mebibytes(memory, device)
                }
                _ => false,
            }
        });
        if !right || placed.name != container.name || set.len() != container.cards as usize {
            return false;
        }
        way.push(set);
    }
    way.len() == request.containers.len() && works(node, request, allowance, &way)
}

fn is_open(node: &Node, request: &Request, allowance: &Allowance) -> bool {
    let pool = allowance.pools.is_empty()
        || node.pool.as_ref().is_some_and(|pool| allowance.pools.contains(pool));
    let tickets = request.tickets.iter().all(|(resource, count)| {
        node.tickets.get(resource).is_some_and(|t| t.used + count <= t.total)
    });
    node.agent == Agent::Fresh
        && node.problem.is_none()
        && pool
        && tickets
        && node.free.cpu >= request.host.cpu
        && node.free.memory >= request.host.memory
}

fn works(node: &Node, request: &Request, allowance: &Allowance, way: &[Vec<usize>]) -> bool {
    let containers = &request.containers;
    let used: Vec<usize> = way.iter().flatten().copied().collect();
    let sells = |state: &DeviceState| {
        state.device.health == Health::Healthy
            && state.device.mig == Mig::Off
            && !state.contested
            && request.selector.admits(&state.device)
    };
    if request.one_card && used.iter().any(|place| *place != used[0]) {
        return false;
    }
    used.iter().all(|&place| sells(&node.devices[place]))
        && way.iter().all(|set| near(node, request.affinity, set))
        && phases(containers).iter().all(|phase| {
            (0..node.devices.len()).all(|place| {
                let on_it: Vec<&ContainerRequest> = phase
                    .iter()
                    .filter(|&&c| way[c].contains(&place))
                    .map(|&c| &containers[c])
                    .collect();
                holds(&node.devices[place], &on_it)
            })
        })
        && within(node, containers, allowance, way)
}

/// Whether the cards of one container are as near to one another as the pod requires.
fn near(node: &Node, affinity: Affinity, set: &[usize]) -> bool {
    let device = |place: usize| &node.devices[place].device;
    let Affinity::Require(near) = affinity else { return true };
    set.iter().all(|&one| {
        set.iter().filter(|&&other| other != one).all(|&other| {
            let (a, b) = (device(one), device(other));
            match near {
                Near::Numa => a.numa.is_some() && a.numa == b.numa,
                Near::Link => node.topology.links().iter().any(|link| {
                    link.nvlinks > 0
                        && [(a.index, b.index), (b.index, a.index)].contains(&(link.a, link.b))
                }),
            }
        })
    })
}

/// Which containers run at the same time, moment by moment.
fn phases(containers: &[ContainerRequest]) -> Vec<Vec<usize>> {
    let of = |role: Role, before: usize| -> Vec<usize> {
        (0..before).filter(|&c| containers[c].role == role).collect()
    };
    let mut phases: Vec<Vec<usize>> = of(Role::Init, containers.len())
        .into_iter()
        .map(|init| [of(Role::Sidecar, init), vec![init]].concat())
        .collect();
    let all = containers.len();
    phases.push([of(Role::Sidecar, all), of(Role::App, all)].concat());
    phases
}

fn holds(state: &DeviceState, containers: &[&ContainerRequest]) -> bool {
    if containers.is_empty() {
        return true;
    }
    if containers.iter().any(|container| container.part == Part::Whole) {
        return containers.len() == 1 && state.used.holders == 0;
    }
    let (mut cores, mut memory) = (u64::from(state.used.hold.cores.0), state.used.hold.memory.0);
    for container in containers {
        if let Part::Share { cores: more, memory: ask } = container.part {
            cores += u64::from(more.0);
            memory += mebibytes(ask, &state.device);
        }
    }
    !state.used.hold.whole
        && cores <= state.device.cores.0.into()
        && memory <= state.device.memory.0
}

fn within(
    node: &Node,
    containers: &[ContainerRequest],
    allowance: &Allowance,
    way: &[Vec<usize>],
) -> bool {
    let mut taken: Vec<(&Device, u64, u64)> = Vec::new();
    for (place, state) in node.devices.iter().enumerate() {
        let device: &Device = &state.device;
        let mut peak = None;
        for phase in phases(containers) {
            let on_it = phase.into_iter().filter(|&c| way[c].contains(&place));
            let sums = on_it.map(|c| match containers[c].part {
                Part::Whole => (u64::from(device.cores.0), device.memory.0),
                Part::Share { cores, memory } => (cores.0.into(), mebibytes(memory, device)),
            });
            let sum = sums.reduce(|a, b| (a.0 + b.0, a.1 + b.1));
            peak = match (peak, sum) {
                (Some((a, b)), Some((c, d))) => Some((u64::max(a, c), u64::max(b, d))),
                (one, other) => one.or(other),
            };
        }
        taken.extend(peak.map(|(cores, memory)| (device, cores, memory)));
    }
    let listed = |device: &Device| allowance.rules.iter().any(|r| r.model.matches(&device.model));
    if allowance.unlisted == Unlisted::Refused && !taken.iter().all(|(device, ..)| listed(device)) {
        return false;
    }
    allowance.rules.iter().all(|rule| {
        let counted: Vec<_> = taken.iter().filter(|t| rule.model.matches(&t.0.model)).collect();
        let cards = rule.used.cards + counted.len() as u64;
        let cores = u64::from(rule.used.cores.0) + counted.iter().map(|t| t.1).sum::<u64>();
        let memory = rule.used.memory.0 + counted.iter().map(|t| t.2).sum::<u64>();
        counted.is_empty()
            || (rule.cap.cards.is_none_or(|cap| cards <= cap)
                && rule.cap.cores.is_none_or(|cap| cores <= cap.0.into())
                && rule.cap.memory.is_none_or(|cap| memory <= cap.0))
    })
}

fn mebibytes(ask: MemoryAsk, device: &Device) -> u64 {
    match ask {
        MemoryAsk::Exact(memory) => memory.0,
        MemoryAsk::Percent(part) => device.memory.0 * u64::from(part.0) / 100,
    }
}

fn subsets(of: usize, size: usize) -> Vec<Vec<usize>> {
    (0u32..1 << of)
        .filter(|mask| mask.count_ones() as usize == size)
        .map(|mask| (0..of).filter(|bit| mask & (1 << bit) != 0).collect())
        .collect()
}

/// What placements hold of one device.
#[derive(Debug, Default)]
pub(crate) struct Held {
    cores: u64,
    memory: u64,
    holders: usize,
    whole: bool,
}

impl Held {
    pub(crate) fn fits(&self, device: &Device) -> bool {
        if self.whole {
            return self.holders == 1;
        }
        self.cores <= device.cores.0.into() && self.memory <= device.memory.0
    }
}

/// Adds up what `placements` hold of `device`, each at its peak.
pub(crate) fn held(device: &Device, placements: &[Placement]) -> Held {
    let mut held = Held::default();
    for placement in placements {
        let on_it: Vec<(Role, Portion)> = placement
            .containers()
            .iter()
            .flat_map(|c| c.grants.iter().map(|grant| (c.role, grant)))
            .filter(|(_, grant)| grant.device == device.id)
            .map(|(role, grant)| (role, grant.portion))
            .collect();
        if on_it.is_empty() {
            continue;
        }
        held.holders += 1;
        held.whole |= on_it.iter().any(|(_, portion)| *portion == Portion::Whole);
        let size = |portion: Portion| match portion {
            Portion::Whole => (u64::from(device.cores.0), device.memory.0),
            Portion::Share(share) => (share.cores.0.into(), share.memory.0),
        };
        let (mut sidecars, mut apps, mut peak) = ((0, 0), (0, 0), (0, 0));
        let plus = |a: (u64, u64), b: (u64, u64)| (a.0 + b.0, a.1 + b.1);
        let max = |a: (u64, u64), b: (u64, u64)| (a.0.max(b.0), a.1.max(b.1));
        for (role, portion) in on_it {
            match role {
                Role::Init => peak = max(peak, plus(sidecars, size(portion))),
                Role::Sidecar => sidecars = plus(sidecars, size(portion)),
                Role::App => apps = plus(apps, size(portion)),
            }
        }
        let peak = max(peak, plus(sidecars, apps));
        (held.cores, held.memory) = plus((held.cores, held.memory), peak);
    }
    held
}
