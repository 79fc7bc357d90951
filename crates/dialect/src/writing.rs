//! What goes back onto a pod: our placement, and what its dialect's own tools look for.
//!
//! A Binding's annotations are merged without validation, and one invalid key or one byte too
//! many makes every later update of the pod fail. So nothing invalid can be written here: it is
//! left out, and the omission is reported.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::mem::take;

use model::codec::encode_placement;
use model::{
    Container, ContainerName, Device, DeviceId, Placement, Pod, Portion, UnixNanos, names,
};

use crate::Asked;
use crate::settings::Settings;

/// The most all our annotations of one pod may measure.
const LARGEST: usize = 64 * 1024;
/// What the API server allows for all annotations of an object.
const LARGEST_OF_ALL: usize = 256 * 1024;

/// What to write onto a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Written {
    /// Annotations, ours and the dialect's.
    pub annotations: BTreeMap<String, String>,
    /// Labels. Apart, because a Binding carries them only from Kubernetes 1.35 on.
    pub labels: BTreeMap<String, String>,
    /// What could not be written, for the pod's author.
    pub omitted: Vec<Omission>,
}

/// Something a dialect's tools would look for and will not find.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Omission {
    /// The key.
    pub key: String,
    /// Why it is left out.
    pub why: &'static str,
}

impl fmt::Display for Omission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is left out: {}", self.key, self.why)
    }
}

/// Why nothing can be written at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The placement alone is too long for the room that is left.
    #[error("the placement takes {needed} bytes of annotations, but the pod has room for {room}")]
    NoRoom {
        /// What it takes.
        needed: usize,
        /// What there is.
        room: usize,
    },
}

/// What `pod` gets written when it is bound: the truth for us, and its dialect's own keys.
pub fn write<'a>(
    asked: &Asked,
    pod: &'a Pod,
    placement: &'a Placement,
    devices: &'a dyn Fn(&DeviceId) -> Option<&'a Device>,
    settings: &'a Settings,
    now: UnixNanos,
) -> Result<Written, WriteError> {
    // A placement of an earlier try is overwritten, so it takes no room.
    let existing = size(pod.annotations.iter().filter(|(key, _)| *key != names::PLACEMENT));
    let room = LARGEST.min(LARGEST_OF_ALL.saturating_sub(existing));
    let text = encode_placement(placement);
    let needed = names::PLACEMENT.len() + text.len();
    if needed > room {
        return Err(WriteError::NoRoom { needed, room });
    }
    let mut writer = Writer::default();
    let writing = Writing { pod, placement, devices, settings, now };
    asked.dialect.speaks().write(&writing, &mut writer);
    let Writer { mut written } = writer;
    let mut grants = placement.containers().iter().flat_map(|container| &container.grants);
    let why = if grants.any(|grant| devices(&grant.device).is_none()) {
        Some("a card of the pod is not in the node's inventory")
    } else {
        let too_long = needed + size(&written.annotations) > room;
        too_long.then_some("the pod's annotations would be too long")
    };
    if let Some(why) = why {
        // Half of a dialect's keys would mislead its tools more than none.
        let (annotations, labels) = (take(&mut written.annotations), take(&mut written.labels));
        let keys: BTreeSet<String> = annotations.into_keys().chain(labels.into_keys()).collect();
        written.omitted.extend(keys.into_iter().map(|key| Omission { key, why }));
    }
    written.annotations.insert(names::PLACEMENT.to_owned(), text);
    Ok(written)
}

/// How the API server measures annotations.
fn size<'a>(annotations: impl IntoIterator<Item = (&'a String, &'a String)>) -> usize {
    annotations.into_iter().map(|(key, value)| key.len() + value.len()).sum()
}

/// The environment `container` expects by its dialect, but for the variable of
/// [`visible_devices`](crate::visible_devices). `ids_hash` names the kubelet's ID set.
pub fn env<'a>(
    asked: &Asked,
    pod: &'a Pod,
    container: &'a Container,
    placement: &'a Placement,
    devices: &'a dyn Fn(&DeviceId) -> Option<&'a Device>,
    settings: &'a Settings,
    ids_hash: &'a str,
) -> Vec<(String, String)> {
    let of = EnvOf { pod, container, placement, devices, settings, ids_hash };
    asked.dialect.speaks().env(&of)
}

/// A pod that is about to be bound.
pub(crate) struct Writing<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) placement: &'a Placement,
    devices: &'a dyn Fn(&DeviceId) -> Option<&'a Device>,
    pub(crate) settings: &'a Settings,
    pub(crate) now: UnixNanos,
}

impl<'a> Writing<'a> {
    /// What `container` gets, card by card.
    pub(crate) fn grants(
        &self,
        container: &ContainerName,
    ) -> impl Iterator<Item = (&'a Device, Portion)> {
        grants(self.placement, container, self.devices)
    }

    /// Every card of the pod, container by container.
    pub(crate) fn cards(&self) -> impl Iterator<Item = &'a Device> {
        let containers = self.placement.containers().iter();
        containers.flat_map(|container| self.grants(&container.name)).map(|(card, _)| card)
    }

    /// The device nodes of `container`, as a comma list.
    pub(crate) fn minors(&self, container: &ContainerName) -> String {
        list(self.grants(container).map(|(card, _)| card.minor))
    }

    /// The places of `container`'s cards in the driver's order, as a comma list.
    pub(crate) fn indexes(&self, container: &ContainerName) -> String {
        list(self.grants(container).map(|(card, _)| card.index))
    }
}

/// A container that is about to start.
pub(crate) struct EnvOf<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) container: &'a Container,
    placement: &'a Placement,
    devices: &'a dyn Fn(&DeviceId) -> Option<&'a Device>,
    pub(crate) settings: &'a Settings,
    pub(crate) ids_hash: &'a str,
}

impl<'a> EnvOf<'a> {
    /// What the container gets, card by card.
    pub(crate) fn grants(&self) -> impl Iterator<Item = (&'a Device, Portion)> {
        grants(self.placement, &self.container.name, self.devices)
    }

    /// Its cards.
    pub(crate) fn cards(&self) -> impl Iterator<Item = &'a Device> {
        self.grants().map(|(card, _)| card)
    }
}

fn grants<'a>(
    placement: &'a Placement,
    container: &ContainerName,
    devices: &'a dyn Fn(&DeviceId) -> Option<&'a Device>,
) -> impl Iterator<Item = (&'a Device, Portion)> {
    let grants = placement.grants(container.as_str()).iter();
    grants.filter_map(move |grant| Some((devices(&grant.device)?, grant.portion)))
}

fn list(numbers: impl Iterator<Item = u32>) -> String {
    numbers.map(|number| number.to_string()).collect::<Vec<_>>().join(",")
}

/// Collects keys, letting none pass that the API server would not.
#[derive(Default)]
pub(crate) struct Writer {
    written: Written,
}

impl Writer {
    pub(crate) fn annotate(&mut self, key: &str, value: &str) {
        match bad_key(key) {
            Some(why) => self.written.omitted.push(Omission { key: key.to_owned(), why }),
            None => drop(self.written.annotations.insert(key.to_owned(), value.to_owned())),
        }
    }

    pub(crate) fn label(&mut self, key: &str, value: &str) {
        let why = bad_key(key).or_else(|| {
            let fits = value.is_empty() || is_name(value);
            (!fits).then_some("a label's value has at most 63 letters, digits, '-', '_' and '.'")
        });
        match why {
            Some(why) => self.written.omitted.push(Omission { key: key.to_owned(), why }),
            None => drop(self.written.labels.insert(key.to_owned(), value.to_owned())),
        }
    }
}

fn bad_key(key: &str) -> Option<&'static str> {
    let (prefix, name) = key.split_once('/').map_or((None, key), |(p, name)| (Some(p), name));
    if prefix.is_some_and(|prefix| model::NodeName::parse(prefix).is_err()) {
        return Some("its prefix is no DNS name");
    }
    (!is_name(name)).then_some("a key's name has at most 63 letters, digits, '-', '_' and '.'")
}

fn is_name(text: &str) -> bool {
    let end = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_alphanumeric());
    text.len() <= 63
        && end(text.bytes().next())
        && end(text.bytes().last())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}
