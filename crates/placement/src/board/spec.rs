//! A question packed like the rows it is put to.

use std::fmt::Write as _;
use std::hash::{Hash, Hasher};

use model::{
    Affinity, Allowance, CardModel, ContainerRequest, MemoryAsk, Near, Part, PolicyName, Request,
    Selector,
};

use super::row::{IDLE, Row, SELLS, Slot};
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
    /// How near to one another it prefers several cards.
    pub(crate) near: Option<Near>,
    /// All that it asks, where the numbers do not say it.
    pub(crate) full: Option<Box<Full>>,
}

/// A question that is put to each node in full, beyond what every [`Spec`] has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Full {
    containers: Vec<ContainerRequest>,
    one_card: bool,
    selector: Selector,
    affinity: Affinity,
    allowance: Allowance,
    device: PolicyName,
}

impl Full {
    pub(crate) fn of(ask: &Ask) -> Self {
        let Request { containers, one_card, selector, affinity, .. } = ask.request;
        Self {
            containers: containers.clone(),
            one_card: *one_card,
            selector: selector.clone(),
            affinity: *affinity,
            allowance: ask.allowance.clone(),
            device: ask.policy.device,
        }
    }
}

impl Hash for Full {
    /// By how it prints: the nouns it is made of have no hash of their own.
    fn hash<H: Hasher>(&self, state: &mut H) {
        struct Into<'a, H>(&'a mut H);
        impl<H: Hasher> std::fmt::Write for Into<'_, H> {
            fn write_str(&mut self, text: &str) -> std::fmt::Result {
                self.0.write(text.as_bytes());
                Ok(())
            }
        }
        // Writing into a hasher cannot fail.
        let _ = write!(Into(state), "{self:?}");
    }
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
            near: match request.affinity {
                Affinity::Prefer(near) if request.containers.iter().any(|c| c.cards > 1) => {
                    Some(near)
                }
                Affinity::Any | Affinity::Prefer(_) | Affinity::Require(_) => None,
            },
            full: None,
        }
    }

    /// Whether pods with the same question always get the same answer: no policy looks at
    /// anything else.
    pub(crate) fn is_everything(&self) -> bool {
        let device = self.full.as_ref().map(|full| full.device);
        self.policy != PolicyName::Random && device != Some(PolicyName::Random)
    }

    /// Whether the host of `row` has room and tickets.
    pub(crate) fn host_fits(&self, row: &Row) -> bool {
        let has = |(resource, count): &(u16, u64)| {
            let left = row.tickets.iter().find(|(known, _)| known == resource);
            left.is_some_and(|(_, left)| left >= count)
        };
        row.cpu >= self.cpu && row.memory >= self.memory && self.tickets.iter().all(has)
    }

    /// What a device must have for `part`.
    pub(crate) fn needs(&self, part: OnePart) -> Needs {
        let models = self.models;
        let share = Needs { models, flags: SELLS, cores: 0, memory: 0, percent: 0 };
        match part {
            OnePart::Whole => Needs { flags: SELLS | IDLE, ..share },
            OnePart::Exact { cores, memory } => Needs { memory, cores, ..share },
            OnePart::Percent { cores, part } => Needs { cores, percent: part, ..share },
        }
    }
}

/// What a device must have. One shape for every part, so that a loop over devices has no cases to
/// tell apart.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Needs {
    models: u64,
    memory: u32,
    cores: u16,
    percent: u16,
    flags: u8,
}

impl Needs {
    /// Whether `cards` devices of `row` may have it, as far as its sums tell: a node that is full
    /// is passed over without a look at its devices.
    pub(crate) const fn may_be_met(&self, cards: u32, row: &Row) -> bool {
        row.most_cores >= self.cores && (self.flags & IDLE == 0 || row.idle >= cards)
    }

    /// Whether `slot` has it.
    pub(crate) const fn are_met(&self, slot: &Slot) -> bool {
        slot.flags & self.flags == self.flags
            && self.models >> (slot.model & 63) & 1 == 1
            && slot.cores >= self.cores
            && slot.memory >= self.memory
            && slot.percent >= self.percent
    }
}

/// The bit of a model. Beyond 63 models the last bit stands for all others: such nodes are
/// asked in full, see [`Asks::Several`].
pub(crate) fn bit(number: usize) -> u64 {
    1 << number.min(63)
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
