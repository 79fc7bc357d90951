//! What a pod that is already on a node holds, whoever placed it.
//!
//! Our own placement is believed. Another system's annotations are believed only on pods bound
//! before the take-over, because later anyone could have written them. What cannot be read
//! is said so: the ledger then sells nothing more on that node.

use model::codec::decode_placement;
use model::ids::Quoted;
use model::{
    Claim, Claimed, Container, ContainerRequest, DeviceRef, Holder, Part, Pod, Quantity, Request,
    names, peak,
};

use crate::settings::{Dialect, Settings};

/// What `pod` holds. `None`: it is not on a node, or it has ended.
pub fn observe(pod: &Pod, settings: &Settings) -> Option<Holder> {
    let node = pod.node.clone().filter(|_| !pod.has_ended())?;
    let claim = match pod.annotations.get(names::PLACEMENT) {
        Some(text) => match decode_placement(text) {
            // Bound elsewhere than we meant: the agent there refuses it, so it holds nothing.
            Ok(placement) if *placement.node() != node => Claim::Nothing,
            Ok(placement) => Claim::of(&placement),
            Err(error) => Claim::Unreadable(error.to_string()),
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

/// The kubelet tickets `pod` draws at its peak in `dialect`.
pub(crate) fn tickets(pod: &Pod, dialect: Dialect) -> Vec<(String, u64)> {
    let drawn = |resource: &str| {
        let count = |container: &Container| {
            let quantity = Quantity::parse(container.asks(resource)?).ok()?;
            u64::try_from(quantity.whole()?).ok()
        };
        peak(pod.containers.iter().map(|c| (c.role, count(c).unwrap_or(0))))
    };
    let names = dialect.speaks().identities().iter();
    let counted = names.map(|name| ((*name).to_owned(), drawn(name)));
    counted.filter(|(_, count)| *count > 0).collect()
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
        // Running already, so what we would refuse today must still be counted.
        let request = crate::read(pod, settings).ok().flatten().map(|asked| asked.request);
        let names = names().copied().collect();
        match speaks.recognise(&Seen { pod, request, names }) {
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
    /// What it asks, where we can read it.
    request: Option<Request>,
    /// The dialect's resource names.
    names: Vec<&'static str>,
}

impl Seen<'_> {
    /// Whether `container` asks for a card in this dialect.
    pub(crate) fn asks(&self, container: &Container) -> bool {
        match &self.request {
            Some(request) => request.containers.iter().any(|c| c.name == container.name),
            None => self.names.iter().any(|name| container.asks(name).is_some()),
        }
    }

    /// What `container` claims of `cards`: its request, or whole cards where that is unreadable.
    pub(crate) fn claimed(
        &self,
        container: &Container,
        cards: impl Iterator<Item = DeviceRef>,
    ) -> Claimed {
        let asked = |c: &&ContainerRequest| c.name == container.name;
        let request = self.request.as_ref().and_then(|r| r.containers.iter().find(asked));
        let part = request.map_or(Part::Whole, |container| container.part);
        Claimed { role: container.role, parts: cards.map(|card| (card, part)).collect() }
    }
}

/// Reads a comma list of card numbers.
pub(crate) fn minors(key: &str, text: &str) -> Result<Vec<u32>, String> {
    let number = |text: &str| text.trim().parse::<u32>().ok();
    let numbers: Option<Vec<u32>> = text.split(',').map(number).collect();
    numbers.ok_or_else(|| format!("annotation {key} is {}, not a list of cards", Quoted::new(text)))
}
