//! What every dialect must be able to say about a pod, and the reading they share.

use model::ids::Quoted;
use model::{
    Claimed, Container, ContainerRequest, Cores, Mebibytes, MemoryAsk, Part, Pod, Quantity,
    QuantityError, Request,
};

use crate::observing::Seen;
use crate::refusal::Refusal;
use crate::settings::{Dialect, Settings};
use crate::writing::{EnvOf, Writer, Writing};

/// One dialect.
pub(crate) trait Speaks: Sync {
    /// Resource names that draw kubelet tickets.
    fn identities(&self) -> &'static [&'static str];

    /// Resource names that only measure.
    fn measures(&self) -> &'static [&'static str];

    /// A resource that may be asked without the others, and what tickets of it are called when it
    /// is: where a node only measures it, nobody would be asked to make such a container ready.
    fn alone(&self) -> Option<Alone> {
        None
    }

    /// What one container asks, if anything.
    fn ask(
        &self,
        container: &Container,
        settings: &Settings,
        notes: &mut Vec<String>,
    ) -> Result<Option<Ask>, Refusal>;

    /// Whether all containers of a pod share one card.
    fn one_card(&self) -> bool {
        false
    }

    /// What the dialect's own pod annotations add.
    fn pod_rules(
        &self,
        _pod: &Pod,
        _request: &mut Request,
        _notes: &mut Vec<String>,
    ) -> Result<(), Refusal> {
        Ok(())
    }

    /// The annotations and labels the dialect's tools read.
    fn write(&self, writing: &Writing, out: &mut Writer);

    /// The environment the dialect's containers expect.
    fn env(&self, of: &EnvOf) -> Vec<(String, String)>;

    /// What of it is known when tickets are drawn, before anyone knows for which pod.
    fn early_env(&self, _tickets: usize, _ids_hash: &str) -> Vec<(String, String)> {
        Vec::new()
    }

    /// What a pod placed by the original system holds: nothing if that system never placed it,
    /// an error if its annotations cannot be read.
    fn recognise(&self, seen: &Seen) -> Option<Result<Vec<Claimed>, String>>;
}

/// A resource that is measured beside another, and asked for without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alone {
    /// The resource.
    pub resource: &'static str,
    /// The one that stands beside it where it is only measured.
    pub beside: &'static str,
    /// What its tickets are called where the other is not asked for. People read it in refusals.
    pub tickets: &'static str,
}

/// What one container asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) cards: u32,
    pub(crate) part: Part,
}

impl Ask {
    pub(crate) const fn whole(cards: u32) -> Self {
        Self { cards, part: Part::Whole }
    }

    pub(crate) const fn share(cards: u32, cores: Cores, memory: MemoryAsk) -> Self {
        Self { cards, part: Part::Share { cores, memory } }
    }

    pub(crate) fn into_request(self, container: &Container) -> ContainerRequest {
        ContainerRequest {
            name: container.name.clone(),
            role: container.role,
            cards: self.cards,
            part: self.part,
            burst: None,
        }
    }
}

/// The dialect `pod` speaks, if any. Resources of 0 do not count as speaking.
pub(crate) fn spoken(pod: &Pod, settings: &Settings) -> Result<Option<Dialect>, Refusal> {
    let mut found: Option<(Dialect, &'static str)> = None;
    for &dialect in &settings.enabled {
        let speaks = dialect.speaks();
        let names = speaks.identities().iter().chain(speaks.measures());
        let asked = |name: &&&'static str| {
            let written =
                pod.containers.iter().flat_map(|c| [c.limits.get(**name), c.requests.get(**name)]);
            written.flatten().any(|text| !is_zero(text))
        };
        let Some(&name) = names.clone().find(asked) else { continue };
        match found {
            Some((_, one)) => return Err(Refusal::TwoDialects { one, other: name }),
            None => found = Some((dialect, name)),
        }
    }
    Ok(found.map(|(dialect, _)| dialect))
}

fn is_zero(text: &str) -> bool {
    Quantity::parse(text).ok().and_then(Quantity::whole) == Some(0)
}

/// How much of `resource` the container asks: a whole number, or a refusal.
pub(crate) fn count(container: &Container, resource: &'static str) -> Result<Option<u64>, Refusal> {
    let (limit, request) = (container.limits.get(resource), container.requests.get(resource));
    let Some(text) = limit.or(request) else { return Ok(None) };
    let whole = |text: &str| {
        let quantity = Quantity::parse(text).ok()?;
        u64::try_from(quantity.whole()?).ok()
    };
    let name = || container.name.clone();
    let value = whole(text).ok_or_else(|| match Quantity::parse(text) {
        Err(QuantityError::TooLarge(_)) if !text.starts_with('-') => {
            too_much(container, resource, "write a smaller number")
        }
        _ => Refusal::NotACount { container: name(), resource, value: Quoted::new(text) },
    })?;
    match (limit, request) {
        (Some(limit), Some(request)) if whole(request) != Some(value) => Err(Refusal::Unequal {
            container: name(),
            resource,
            limit: Quoted::new(limit),
            request: Quoted::new(request),
        }),
        _ => Ok(Some(value)),
    }
}

/// The same, where 0 counts as not asking; the author is told.
pub(crate) fn positive(
    container: &Container,
    resource: &'static str,
    notes: &mut Vec<String>,
) -> Result<Option<u64>, Refusal> {
    let value = count(container, resource)?;
    if value == Some(0) {
        let name = &container.name;
        notes.push(format!(
            "container {name}: {resource} is 0, which is the same as leaving it out"
        ));
        return Ok(None);
    }
    Ok(value)
}

/// A percentage of cards: a part of one, or several whole ones.
pub(crate) enum Percent {
    Share(Cores),
    Whole(u32),
}

/// Reads a percentage as every dialect that counts 100 a card means it.
pub(crate) fn percent(
    container: &Container,
    resource: &'static str,
    value: u64,
) -> Result<Percent, Refusal> {
    if let Some(cores) = u32::try_from(value).ok().filter(|cores| *cores < Cores::CARD.0) {
        return Ok(Percent::Share(Cores(cores)));
    }
    if !value.is_multiple_of(u64::from(Cores::CARD.0)) {
        return Err(Refusal::OutOfRange {
            container: container.name.clone(),
            resource,
            value,
            must: "1 to 99 for a part of a card, or a multiple of 100 for whole cards",
        });
    }
    let hint = "it counts 100 a card";
    cards(container, resource, value / u64::from(Cores::CARD.0), hint).map(Percent::Whole)
}

/// What to tell an author who asks for whole cards and for memory beside them.
pub(crate) fn memory_ignored(container: &Container, resource: &str) -> String {
    let name = &container.name;
    format!("container {name} gets whole cards with all their memory; its {resource} is ignored")
}

/// One half of a request without the other.
pub(crate) fn half(container: &Container, has: &'static str, lacks: &'static str) -> Refusal {
    Refusal::Half { container: container.name.clone(), has, lacks }
}

/// The most memory one card can be asked for: 16 TiB.
const MOST_MEMORY: Mebibytes = Mebibytes(1 << 24);

/// The most cards one container can be asked for: a node has at most 64.
pub(crate) const MOST_CARDS: u64 = 64;

/// Memory of `value` units.
pub(crate) fn memory(
    container: &Container,
    resource: &'static str,
    value: u64,
    unit: Mebibytes,
    hint: &'static str,
) -> Result<Mebibytes, Refusal> {
    let memory = unit.times(value);
    if memory > MOST_MEMORY {
        return Err(too_much(container, resource, hint));
    }
    Ok(memory)
}

/// A count of cards.
pub(crate) fn cards(
    container: &Container,
    resource: &'static str,
    value: u64,
    hint: &'static str,
) -> Result<u32, Refusal> {
    let small = u32::try_from(value).ok().filter(|_| value <= MOST_CARDS);
    small.ok_or_else(|| too_much(container, resource, hint))
}

fn too_much(container: &Container, resource: &'static str, hint: &'static str) -> Refusal {
    let value = Quoted::new(container.asks(resource).unwrap_or_default());
    Refusal::TooMuch { container: container.name.clone(), resource, value, hint }
}
