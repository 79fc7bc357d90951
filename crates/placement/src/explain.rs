//! Why not: for one node, and in one line for the whole pod.

use std::fmt;

use model::{Affinity, ContainerRequest, DeviceState, MemoryAsk, Mig, Near, Node, NodeName, Part};

use crate::Ask;
use crate::fit::short;
use crate::refusal::{Best, NodeRefusal, Refusal};
use crate::search::Search;

/// Why `search` found nothing on `node`. What can never change is named first.
pub(crate) fn why(node: &Node, ask: &Ask, search: &Search) -> Refusal {
    let containers = &ask.request.containers;
    let first = |reason: fn(&Node, &Ask, &ContainerRequest) -> Option<Refusal>| {
        containers.iter().find_map(|container| reason(node, ask, container))
    };
    first(never)
        .or_else(|| first(out_of_service))
        .or_else(|| first(taken))
        .or_else(|| short(node, ask))
        .or_else(|| over_quota(node, ask))
        .unwrap_or_else(|| {
            let containers = containers.len();
            if search.gave_up() {
                Refusal::GaveUp { containers }
            } else {
                Refusal::NotTogether { containers }
            }
        })
}

/// What this node could not give even if it were empty.
fn never(node: &Node, ask: &Ask, container: &ContainerRequest) -> Option<Refusal> {
    let selector = &ask.request.selector;
    let cards = container.cards;
    let matching = || matching(node, ask);
    if ordinary(node).next().is_some() && matching().next().is_none() {
        return Some(Refusal::NoMatch { selector: selector.to_string() });
    }
    if too_few(cards, matching()) {
        return Some(Refusal::TooFewCards { cards });
    }
    if let Part::Share { cores, memory } = container.part {
        let strong = |state: &&DeviceState| cores <= state.device.cores;
        if too_few(cards, matching().filter(strong)) {
            return Some(Refusal::CardTooWeak { cards, cores });
        }
        let large = |state: &&DeviceState| memory.of(&state.device) <= state.device.memory;
        if too_few(cards, matching().filter(large)) {
            return Some(Refusal::CardTooSmall { cards, memory });
        }
    }
    let would_do = |state: &DeviceState| {
        matches(ask, state) && fits(container, &DeviceState::idle(state.device.clone()))
    };
    let near = too_far_apart(node, ask, cards, would_do)?;
    Some(Refusal::TooFarApart { cards, near })
}

fn out_of_service(node: &Node, ask: &Ask, container: &ContainerRequest) -> Option<Refusal> {
    let cards = container.cards;
    too_few(cards, selling(node, ask)).then_some(Refusal::OutOfService { cards })
}

/// What others hold now.
fn taken(node: &Node, ask: &Ask, container: &ContainerRequest) -> Option<Refusal> {
    let cards = container.cards;
    let fitting = |state: &DeviceState| state.sells() && fits(container, state);
    if !too_few(cards, matching(node, ask).filter(|state| fitting(state))) {
        let fitting = |state: &DeviceState| matches(ask, state) && fitting(state);
        let near = too_far_apart(node, ask, cards, fitting)?;
        return Some(Refusal::NearTaken { cards, near });
    }
    let Part::Share { cores, memory } = container.part else {
        return Some(Refusal::NotIdle { cards });
    };
    let enough_cores = |state: &&DeviceState| state.free_cores() >= cores;
    let enough_memory = |state: &&DeviceState| state.free_memory() >= memory.of(&state.device);
    Some(if too_few(cards, selling(node, ask).filter(enough_cores)) {
        Refusal::CoresShort { cards, cores }
    } else if too_few(cards, selling(node, ask).filter(enough_memory)) {
        Refusal::MemoryShort { cards, memory }
    } else {
        Refusal::Fragmented { cards, cores, memory }
    })
}

/// Whether only the quota stands in the way.
fn over_quota(node: &Node, ask: &Ask) -> Option<Refusal> {
    let unlimited = Ask { allowance: model::Allowance::unlimited(), ..*ask };
    let namespace = || ask.request.pod.namespace.clone();
    (!ask.allowance.is_unlimited() && Search::new(node, &unlimited).run())
        .then(|| Refusal::Quota { namespace: namespace() })
}

/// Cards that are not cut into slices.
fn ordinary(node: &Node) -> impl Iterator<Item = &DeviceState> {
    node.devices.iter().filter(|state| state.device.mig == Mig::Off)
}

/// Of these, the ones the pod would accept.
fn matching<'a>(node: &'a Node, ask: &'a Ask) -> impl Iterator<Item = &'a DeviceState> {
    node.devices.iter().filter(|state| matches(ask, state))
}

fn matches(ask: &Ask, state: &DeviceState) -> bool {
    state.device.mig == Mig::Off && ask.request.selector.admits(&state.device)
}

/// Of these, the ones in service.
fn selling<'a>(node: &'a Node, ask: &'a Ask) -> impl Iterator<Item = &'a DeviceState> {
    matching(node, ask).filter(|state| state.sells())
}

fn fits(container: &ContainerRequest, state: &DeviceState) -> bool {
    let device = &state.device;
    state.fits(&container.part.of(device).hold(device))
}

/// How near `wanted` of the cards that `would_do` must be to one another, if they cannot be.
fn too_far_apart(
    node: &Node,
    ask: &Ask,
    wanted: u32,
    would_do: impl Fn(&DeviceState) -> bool,
) -> Option<Near> {
    let Affinity::Require(near) = ask.request.affinity else { return None };
    let devices = node.devices.iter().enumerate();
    let places = devices.filter(|(_, state)| would_do(state)).map(|(place, _)| place).collect();
    (wanted > 1 && !node.topology.may_have(near, wanted, places)).then_some(near)
}

fn too_few<'a>(wanted: u32, cards: impl Iterator<Item = &'a DeviceState>) -> bool {
    cards.take(wanted as usize).count() < wanted as usize
}

impl NodeRefusal {
    /// The refusal of `node` for `reason`, with its numbers.
    pub(crate) fn new(node: &Node, ask: &Ask, reason: Refusal) -> Self {
        let cards = u32::try_from(matching(node, ask).count()).unwrap_or(u32::MAX);
        let mut best = Best { cards, ..Best::default() };
        for state in selling(node, ask) {
            best.idle += u32::from(state.is_idle());
            best.memory = best.memory.max(state.free_memory());
            best.cores = best.cores.max(state.free_cores());
        }
        Self { reason, best }
    }
}

/// Why a pod waits: every refused node, and all of it in one line.
///
/// ```text
/// 12 nodes: 7 short of memory on one card, best has 3,200 MiB of 4,096; 5 have no A100
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// How many nodes were asked.
    pub nodes: usize,
    /// Each that refused, by name.
    pub refused: Vec<(NodeName, NodeRefusal)>,
}

impl Explanation {
    pub(crate) fn new(nodes: usize, refused: Vec<(NodeName, NodeRefusal)>) -> Self {
        Self { nodes, refused }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut groups: Vec<Alike> = Vec::new();
        for (_, NodeRefusal { reason, best }) in &self.refused {
            match groups.iter_mut().find(|group| group.reason == reason) {
                Some(group) => group.add(best),
                None => groups.push(Alike { reason, count: 1, best: *best }),
            }
        }
        f.write_str(&in_one_line(self.nodes, groups))
    }
}

/// Nodes that refuse for the same reason.
#[derive(Debug, Clone, Copy)]
pub struct Alike<'a> {
    /// Why.
    pub reason: &'a Refusal,
    /// How many they are.
    pub count: usize,
    /// The best that any of them has, number by number.
    pub best: Best,
}

impl Alike<'_> {
    /// Counts one more that has this to offer.
    pub fn add(&mut self, best: &Best) {
        self.count += 1;
        self.best = Best {
            memory: self.best.memory.max(best.memory),
            cores: self.best.cores.max(best.cores),
            idle: self.best.idle.max(best.idle),
            cards: self.best.cards.max(best.cards),
        };
    }
}

/// Why a pod waits, in one line: of `nodes` nodes these groups refused it.
pub fn in_one_line(nodes: usize, mut groups: Vec<Alike>) -> String {
    groups.sort_by_key(|group| std::cmp::Reverse(group.count));
    let asked = match nodes {
        0 => return "no nodes".to_owned(),
        1 => "1 node".to_owned(),
        nodes => format!("{} nodes", grouped(nodes as u64)),
    };
    if groups.is_empty() {
        return asked;
    }
    let parts: Vec<String> = groups.iter().map(part).collect();
    format!("{asked}: {}", parts.join("; "))
}

/// One group of equal refusals.
fn part(Alike { reason, count, best }: &Alike) -> String {
    let have = if *count == 1 { "has" } else { "have" };
    let count = grouped(*count as u64);
    match reason {
        Refusal::MemoryShort { cards, memory } => {
            let best = grouped(best.memory.0);
            let wanted = match memory {
                MemoryAsk::Exact(memory) => format!("best has {best} MiB of {}", grouped(memory.0)),
                MemoryAsk::Percent(_) => format!("best has {best} MiB, wanted is {memory}"),
            };
            format!("{count} short of memory on {}, {wanted}", on_cards(*cards))
        }
        Refusal::CoresShort { cards, cores } => {
            let best = best.cores.0;
            format!("{count} short of compute on {}, best has {best}% of {cores}", on_cards(*cards))
        }
        Refusal::NotIdle { cards } => {
            let best = best.idle;
            format!("{count} {have} too few cards wholly free, best has {best} of {cards}")
        }
        Refusal::TooFewCards { cards } => {
            let best = best.cards;
            format!("{count} {have} too few cards, best has {best} of {cards}")
        }
        Refusal::CardTooSmall { memory: MemoryAsk::Exact(memory), .. } => {
            format!("{count} {have} no card of {} MiB", grouped(memory.0))
        }
        Refusal::Fragmented { .. } => {
            format!("{count} {have} compute and memory free only on different cards")
        }
        Refusal::TooFarApart { .. } | Refusal::NearTaken { .. } => {
            format!("{count} {have} {reason}")
        }
        Refusal::NoMatch { selector } => format!("{count} {have} no {selector}"),
        Refusal::NoCards => format!("{count} {have} no card"),
        other => format!("{count} with: {other}"),
    }
}

fn on_cards(cards: u32) -> String {
    if cards == 1 { "one card".to_owned() } else { format!("{cards} cards") }
}

/// A number with its thousands apart.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
