//! What a pod that is already on a node holds, whoever placed it.
//!
//! Our own placement is believed. Another system's annotations are believed only on pods bound
//! before the take-over, because later anyone could have written them. What cannot be read
//! is said so: the ledger then sells nothing more on that node.

use std::error::Error;

use model::codec::decode_placement;
use model::ids::Quoted;
use model::{Claim, Claimed, Container, DeviceRef, Holder, Part, Pod, Quantity, Role, names, peak};

use crate::asking::{Ask, Speaks};
use crate::refusal::Refusal;
use crate::settings::{Dialect, Settings};

/// What `pod` holds. `None`: it is not on a node, or it has ended.
pub fn observe(pod: &Pod, settings: &Settings) -> Option<Holder> {
    let node = pod.node.clone().filter(|_| !pod.has_ended())?;
    let claim = match pod.annotations.get(names::PLACEMENT) {
        Some(text) => match decode_placement(text) {
            // Bound elsewhere than we meant: the agent there refuses it, so it holds nothing.
            Ok(placement) if *placement.node() != node => Claim::Nothing,
            Ok(placement) => Claim::of(&placement),
            Err(error) => Claim::Unreadable(told(&error)),
        },
        None => foreign(pod, settings),
    };
    let enabled = settings.enabled.iter();
    Some(Holder {
        pod: pod.id.clone(),
        node,
        claim,
        host: pod.host(),
        tickets: enabled.flat_map(|&dialect| tickets(pod, dialect)).collect(),
        priority: pod.priority,
        terminating: pod.terminating,
    })
}

/// An error with its cause: whoever reads it in the ledger sees nothing else of it.
fn told(error: &dyn Error) -> String {
    error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}

/// The kubelet tickets `pod` draws at its peak in `dialect`.
pub(crate) fn tickets(pod: &Pod, dialect: Dialect) -> Vec<(String, u64)> {
    let count = |container: &Container, resource: &str| {
        let quantity = Quantity::parse(container.asks(resource)?).ok()?;
        u64::try_from(quantity.whole()?).ok()
    };
    let count = |container: &Container, resource: &str| count(container, resource).unwrap_or(0);
    let drawn = |resource: &str| peak(pod.containers.iter().map(|c| (c.role, count(c, resource))));
    let names = dialect.speaks().identities().iter();
    let counted = names.map(|name| ((*name).to_owned(), drawn(name)));
    let alone = dialect.alone().map(|alone| {
        let asked = |container: &Container| match count(container, alone.beside) {
            0 => count(container, alone.resource),
            _ => 0,
        };
        let sum = peak(pod.containers.iter().map(|c| (c.role, asked(c))));
        (alone.tickets.to_owned(), sum)
    });
    counted.chain(alone).filter(|(_, count)| *count > 0).collect()
}

fn foreign(pod: &Pod, settings: &Settings) -> Claim {
    if !bound_before_take_over(pod, settings) {
        return Claim::Nothing;
    }
    for &dialect in &settings.enabled {
        let speaks = dialect.speaks();
        let names = || speaks.identities().iter().chain(speaks.measures());
        if !pod.containers.iter().any(|c| names().any(|name| c.asks(name).is_some())) {
            continue;
        }
        match speaks.recognise(&Seen { pod, speaks, settings }) {
            Some(Ok(claimed)) => return Claim::Shares(claimed),
            Some(Err(why)) => return Claim::Unreadable(why),
            None => {}
        }
    }
    Claim::Nothing
}

fn bound_before_take_over(pod: &Pod, settings: &Settings) -> bool {
    // Both are RFC 3339 in UTC and to the second, as the API writes them, so that the order of
    // the texts is the order of the times. Anything else is not believed.
    let plain = |text: &&String| text.len() == 20 && text.ends_with('Z') && text.is_ascii();
    let bound = pod.scheduled_at.as_ref().filter(plain);
    let taken = settings.took_over_at.as_ref().filter(plain);
    bound.zip(taken).is_some_and(|(bound, taken)| bound <= taken)
}

/// A pod that another system may have placed.
pub(crate) struct Seen<'a> {
    pub(crate) pod: &'a Pod,
    speaks: &'static dyn Speaks,
    settings: &'a Settings,
}

impl Seen<'_> {
    /// Whether `container` asks for a card in this dialect, in a way its original understood.
    pub(crate) fn asks(&self, container: &Container) -> bool {
        match self.ask(container) {
            Ok(ask) => ask.is_some(),
            // To the originals half a request was none.
            Err(Refusal::Half { .. }) => false,
            // Running already, so what we would refuse today must still be counted.
            Err(_) => true,
        }
    }

    /// Whether `container` must have got a card. Most originals gave init containers none.
    pub(crate) fn must_hold(&self, container: &Container) -> bool {
        container.role == Role::App && self.asks(container)
    }

    /// What `container` claims of `cards`: its request, or whole cards where that is unreadable.
    pub(crate) fn claimed(
        &self,
        container: &Container,
        cards: impl Iterator<Item = DeviceRef>,
    ) -> Claimed {
        let part = self.ask(container).ok().flatten().map_or(Part::Whole, |ask| ask.part);
        Claimed { role: container.role, parts: cards.map(|card| (card, part)).collect() }
    }

    /// Of this container alone: what its neighbours ask, or the pod's annotations wish for, has
    /// no say in what it holds.
    fn ask(&self, container: &Container) -> Result<Option<Ask>, Refusal> {
        self.speaks.ask(container, self.settings, &mut Vec::new())
    }
}

/// What to say of an annotation that leaves out a container which must have a card.
pub(crate) fn no_card(key: &str, container: &Container) -> String {
    format!("annotation {key} names no card for container {}", container.name)
}

/// Reads a comma list of card numbers.
pub(crate) fn minors(key: &str, text: &str) -> Result<Vec<u32>, String> {
    let number = |text: &str| text.trim().parse::<u32>().ok();
    let numbers: Option<Vec<u32>> = text.split(',').map(number).collect();
    numbers.ok_or_else(|| format!("annotation {key} is {}, not a list of cards", Quoted::new(text)))
}
