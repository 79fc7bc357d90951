//! From the pods that came to the numbers that ranking uses.

use std::collections::BTreeMap;

use model::{CardModel, Mebibytes, Node, PartKind, PodKind, Shape, Statistics, Workload};

/// A card's compute, in the unit of the statistics.
const CARD: u64 = 1_000_000;

/// Cards are taken to need a little less of the host than pods ask on average, in percent. An
/// estimate above the truth calls room stranded that is not, and costs far more than one below.
const FRUGAL: u128 = 90;

/// The most that one kind of pods can add to a price, in millionths: where next to nothing is
/// left, more would say nothing.
const MOST_DEAR: u128 = 2_000_000;

/// How much of the workload the typical kinds cover, in percent.
const COVERED: u64 = 95;

/// Learns from the pods seen so far and the nodes there are.
pub fn learn<'a>(workload: &Workload, nodes: impl Iterator<Item = &'a Node>) -> Statistics {
    let mut shapes = Shapes::new();
    for node in nodes {
        let group = shapes.entry(Shape::of(node)).or_default();
        let selling = node.devices.iter().filter(|state| state.sells());
        group.room += selling.map(|state| u128::from(state.free_cores().0)).sum::<u128>();
        group.nodes += 1;
    }
    let mut sums = Sums::default();
    for (kind, count) in workload.kinds() {
        sums.add(kind, count, &shapes);
    }
    Statistics {
        cpu_per_card: sums.per_card(sums.cpu * FRUGAL / 100),
        memory_per_card: sums.per_card(sums.memory_mib * FRUGAL / 100),
        card_memory_per_core: sums.card_memory_per_core(),
        value: sums.value(),
        prices: prices(workload, &shapes),
        typical: typical(workload),
    }
}

/// The nodes, by what makes them alike.
type Shapes = BTreeMap<Shape, Group>;

/// Nodes of one shape.
#[derive(Default)]
struct Group {
    nodes: u64,
    /// Compute that is free on their cards, in percent of a card.
    room: u128,
}

#[derive(Default)]
struct Sums {
    /// Over pods that ask for a card: CPU, memory, compute in thousandths of a card.
    cpu: u128,
    memory_mib: u128,
    milli: u128,
    /// Over shares: compute and memory, both in parts of a card.
    share_cores: u128,
    share_memory: u128,
    /// How many shares of each percentage came.
    sizes: BTreeMap<u64, u128>,
}

impl Sums {
    fn add(&mut self, kind: &PodKind, count: u64, shapes: &Shapes) {
        if kind.cards.is_empty() {
            return;
        }
        let times = u128::from(count);
        self.cpu += u128::from(kind.host.0) * times;
        self.memory_mib += u128::from(kind.host.1 >> 20) * times;
        self.milli += u128::from(kind.gpu_milli()) * times;
        for (cards, part) in &kind.cards {
            let cores = u128::from(part.milli());
            let memory = match part {
                PartKind::Whole => continue,
                PartKind::Percent(_, part) => u128::from(part.0) * 10,
                PartKind::Exact(_, memory) => in_milli(*memory, shapes),
            };
            let times = times * u128::from(*cards);
            self.share_cores += cores * times;
            self.share_memory += memory * times;
            // A share is as large as its larger side.
            let size = u64::try_from(cores.max(memory).min(1000) / 10).unwrap_or(100);
            *self.sizes.entry(size).or_default() += times;
        }
    }

    fn per_card(&self, sum: u128) -> Option<u64> {
        // Too few pods say nothing, and none divide by nothing.
        (self.milli > 0).then(|| u64::try_from(sum * 1000 / self.milli).unwrap_or(u64::MAX).max(1))
    }

    fn card_memory_per_core(&self) -> u64 {
        if self.share_cores == 0 || self.share_memory == 0 {
            return 1000;
        }
        let ratio = self.share_memory * 1000 / self.share_cores;
        u64::try_from(ratio).unwrap_or(u64::MAX).clamp(100, 10_000)
    }

    fn value(&self) -> [u32; 101] {
        let all: u128 = self.sizes.values().sum();
        let mut value = [0; 101];
        let mut fitting = 0;
        for (percent, worth) in value.iter_mut().enumerate() {
            fitting += self.sizes.get(&(percent as u64)).copied().unwrap_or(0);
            let chance = (u128::from(CARD) * fitting).checked_div(all).unwrap_or(0);
            *worth = u32::try_from(percent as u128 * chance / 100).unwrap_or(u32::MAX);
        }
        value[100] = u32::try_from(CARD).unwrap_or(u32::MAX);
        value
    }
}

/// An amount of memory in thousandths of the mean card.
fn in_milli(memory: Mebibytes, shapes: &Shapes) -> u128 {
    let (mut count, mut all) = (0, 0);
    for (shape, group) in shapes {
        let nodes = u128::from(group.nodes);
        count += shape.cards.len() as u128 * nodes;
        all += shape.cards.iter().map(|(_, memory, _)| u128::from(memory.0)).sum::<u128>() * nodes;
    }
    (u128::from(memory.0) * 1000 * count).checked_div(all).unwrap_or(1000)
}

/// For each shape: how much demand could go there, for the room that is left on all shapes that
/// demand could go to. A shape that many kinds depend on is dear to the others, and becomes
/// dearer as it fills up.
///
/// The pods seen stand for all that will come, so their demand is scaled to fill what is free:
/// a price is right from the first pods on and does not grow with their number.
fn prices(workload: &Workload, shapes: &Shapes) -> BTreeMap<Shape, u64> {
    let demand = |(kind, count): (&PodKind, u64)| u128::from(kind.gpu_milli()) * u128::from(count);
    let all_demand = workload.kinds().map(demand).sum::<u128>().max(1);
    let all_room: u128 = shapes.values().map(|group| group.room).sum();
    let mut prices: BTreeMap<Shape, u64> = BTreeMap::new();
    for (kind, count) in workload.kinds().filter(|(kind, _)| !kind.cards.is_empty()) {
        let fitting = || shapes.iter().filter(|(shape, _)| fits_empty(kind, shape));
        // In millionths: many small demands must not round to nothing.
        let scaled = demand((kind, count)) * all_room * 1_000_000 / all_demand;
        let left: u128 = fitting().map(|(_, group)| group.room).sum();
        let each = scaled.checked_div(left).unwrap_or(0).min(MOST_DEAR);
        for (shape, _) in fitting() {
            let price = prices.entry(shape.clone()).or_default();
            *price = price.saturating_add(u64::try_from(each).unwrap_or(u64::MAX));
        }
    }
    for price in prices.values_mut() {
        *price /= 1000;
    }
    prices
}

fn fits_empty(kind: &PodKind, shape: &Shape) -> bool {
    let admits = |model: &CardModel| {
        kind.models.iter().all(|any| any.iter().any(|token| model.contains(token)))
            && !kind.not_models.iter().any(|token| model.contains(token))
    };
    let large = |memory: &Mebibytes| {
        kind.cards.iter().all(|(_, part)| !matches!(part, PartKind::Exact(_, ask) if ask > memory))
    };
    let wanted = kind.cards.iter().map(|(cards, _)| *cards as usize).max().unwrap_or(0);
    let usable = shape.cards.iter().filter(|(model, memory, _)| admits(model) && large(memory));
    kind.host.0 <= shape.host.0 && kind.host.1 <= shape.host.1 && usable.count() >= wanted
}

/// The most frequent kinds until they cover most pods, with their weights. Host memory does not
/// tell kinds apart here, as in the literature: fragmentation is not about it.
fn typical(workload: &Workload) -> Vec<(PodKind, u64)> {
    let mut counts: BTreeMap<PodKind, u64> = BTreeMap::new();
    for (kind, count) in workload.kinds() {
        let kind = PodKind { host: (kind.host.0, 0), ..kind.clone() };
        *counts.entry(kind).or_default() += count;
    }
    let all: u64 = counts.values().sum();
    let mut kinds: Vec<(PodKind, u64)> = counts.into_iter().collect();
    kinds.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let mut covered = 0;
    let frequent = kinds.iter().take_while(|(_, count)| {
        let more_needed = covered * 100 < all * COVERED;
        covered += count;
        more_needed
    });
    let kept = frequent.count();
    kinds.truncate(kept);
    let covered = kinds.iter().map(|(_, count)| count).sum::<u64>().max(1);
    for (_, weight) in &mut kinds {
        *weight = *weight * CARD / covered;
    }
    kinds
}
