//! A question packed like the rows it is put to.

use model::{Affinity, CardModel, MemoryAsk, Part, PolicyName, Request};

use super::row::{IDLE, Row, SELLS, Slot, View};
use crate::Ask;

/// What a pod asks, as ranking needs it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Spec {
    pub(crate) cpu: u64,
    pub(crate) memory: u64,
    pub(crate) asks: Asks,
    /// Whether memory leads in comparisons of fullness.
    pub(crate) memory_only: bool,
    /// Models that will do, one bit each by the board's number.
    pub(crate) models: u64,
    pub(crate) tickets: Vec<(u16, u64)>,
    pub(crate) policy: PolicyName,
}

/// What it asks of the cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Asks {
    /// Nothing: it only needs the host.
    Host,
    /// One container, the same part of each of so many cards.
    One { cards: u32, part: OnePart },
    /// Anything else: each node is asked in full.
    Several,
}

/// A part of a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum OnePart {
    Whole,
    Exact { cores: u16, memory: u32 },
    Percent { cores: u16, part: u16 },
}

impl Spec {
    /// Packs `ask`, given the board's numbers of models and resources.
    pub(crate) fn of(ask: &Ask, models: &[CardModel], resource: impl Fn(&str) -> u16) -> Self {
        let request = ask.request;
        let selector = &request.selector;
        let admitted = models.iter().enumerate().filter(|(_, model)| selector.admits_model(model));
        let tickets = request.tickets.iter().map(|(name, count)| (resource(name), *count));
        Self {
            cpu: request.host.cpu.0,
            memory: request.host.memory.0,
            asks: asks(ask),
            memory_only: crate::policy::asks_memory_only(request),
            models: admitted.fold(0, |mask, (number, _)| mask | bit(number)),
            tickets: tickets.collect(),
            policy: ask.policy.node,
        }
    }

    /// Whether pods with the same numbers always get the same answer: the policy looks at
    /// nothing else, and the numbers say all that the pod asks.
    pub(crate) fn is_everything(&self) -> bool {
        !matches!(self.asks, Asks::Several) && self.policy != PolicyName::Random
    }

    /// Whether the host of `row` has room and tickets.
    pub(crate) fn host_fits(&self, row: &Row) -> bool {
        let has = |(resource, count): &(u16, u64)| {
            let left = row.tickets.iter().find(|(known, _)| known == resource);
            left.is_some_and(|(_, left)| left >= count)
        };
        row.cpu >= self.cpu && row.memory >= self.memory && self.tickets.iter().all(has)
    }

    /// Whether `part` fits on `slot`.
    pub(crate) fn fits(&self, slot: &Slot, part: OnePart) -> bool {
        self.models & bit(slot.model.into()) != 0
            && match part {
                OnePart::Whole => slot.is(SELLS | IDLE),
                OnePart::Exact { cores, memory } => {
                    slot.is(SELLS) && slot.cores >= cores && slot.memory >= memory
                }
                OnePart::Percent { cores, part } => {
                    slot.is(SELLS) && slot.cores >= cores && slot.memory >= percent(slot, part)
                }
            }
    }

    /// Whether at least `cards` devices of `view` fit.
    pub(crate) fn enough(&self, view: &View, cards: u32, part: OnePart) -> bool {
        let fitting = view.slots.iter().filter(|slot| self.fits(slot, part));
        fitting.take(cards as usize).count() == cards as usize
    }
}

/// The bit of a model. Beyond 63 models the last bit stands for all others: such nodes are
/// asked in full, see [`Asks::Several`].
pub(crate) fn bit(number: usize) -> u64 {
    1 << number.min(63)
}

/// So many percent of a device's memory, in MiB.
fn percent(slot: &Slot, part: u16) -> u32 {
    u32::try_from(u64::from(slot.all_memory) * u64::from(part) / 100).unwrap_or(u32::MAX)
}

fn asks(ask: &Ask) -> Asks {
    let request: &Request = ask.request;
    let [container] = request.containers.as_slice() else {
        return if request.containers.is_empty() { Asks::Host } else { Asks::Several };
    };
    let by_id = !request.selector.ids.is_empty() || !request.selector.not_ids.is_empty();
    let strict = matches!(request.affinity, Affinity::Require(_));
    if by_id || strict || !ask.allowance.is_unlimited() {
        return Asks::Several;
    }
    let cores = |cores: model::Cores| u16::try_from(cores.0).ok();
    let part = match container.part {
        Part::Whole => Some(OnePart::Whole),
        Part::Share { cores: c, memory: MemoryAsk::Exact(memory) } => cores(c)
            .zip(u32::try_from(memory.0).ok())
            .map(|(cores, memory)| OnePart::Exact { cores, memory }),
        Part::Share { cores: c, memory: MemoryAsk::Percent(part) } => cores(c)
            .zip(u16::try_from(part.0).ok())
            .map(|(cores, part)| OnePart::Percent { cores, part }),
    };
    part.map_or(Asks::Several, |part| Asks::One { cards: container.cards, part })
}
