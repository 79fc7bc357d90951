//! Devices as the kubelet counts them: IDs, sets of IDs and the list a plugin shows.
//!
//! An ID is a ticket. No meaning is read from it here; a set of them is how the kubelet says which
//! container it is talking about.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use prost::Message as _;
use sha2::{Digest as _, Sha256};

use crate::wire::device_plugin as wire;

/// A set of device IDs: sorted, each once, so that two orders of the same IDs are equal.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdSet(Vec<String>);

impl IdSet {
    /// The IDs in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &str> + ExactSizeIterator {
        self.0.iter().map(String::as_str)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `id` is one of them.
    pub fn contains(&self, id: &str) -> bool {
        self.0.binary_search_by(|one| one.as_str().cmp(id)).is_ok()
    }

    /// A name for the set: the first 16 hex digits of the SHA-256 over its IDs in order.
    ///
    /// A zero byte ends each ID, so that no two sets give the same text to the hash.
    pub fn digest(&self) -> String {
        let mut hash = Sha256::new();
        for id in &self.0 {
            hash.update(id.as_bytes());
            hash.update([0]);
        }
        let mut text = String::with_capacity(16);
        for byte in &hash.finalize()[..8] {
            write!(text, "{byte:02x}").expect("writing to a string cannot fail");
        }
        text
    }

    /// The IDs as a list, in order.
    pub fn into_vec(self) -> Vec<String> {
        self.0
    }
}

impl<S: Into<String>> FromIterator<S> for IdSet {
    fn from_iter<I: IntoIterator<Item = S>>(ids: I) -> Self {
        let mut ids: Vec<String> = ids.into_iter().map(Into::into).collect();
        ids.sort_unstable();
        ids.dedup();
        Self(ids)
    }
}

/// Whether the kubelet may give a device to a new container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Health {
    /// It may.
    Healthy,
    /// It may not; containers that hold it keep it.
    Unhealthy,
}

/// One device of a plugin's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its ID, unique in the list.
    pub id: String,
    /// Whether it may be given out.
    pub health: Health,
    /// The NUMA nodes it is near to. None for tickets that stand for no place.
    pub numa: Vec<i64>,
}

impl Device {
    /// A healthy device without a place.
    pub fn healthy(id: impl Into<String>) -> Self {
        Self { id: id.into(), health: Health::Healthy, numa: Vec::new() }
    }

    /// An unhealthy device without a place.
    pub fn unhealthy(id: impl Into<String>) -> Self {
        Self { id: id.into(), health: Health::Unhealthy, numa: Vec::new() }
    }
}

/// The devices of a plugin: each ID once, and small enough for the kubelet to take.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeviceList(Arc<Packed>);

/// A list as it is kept. A node has thousands of devices in each of several lists, which are sent once
/// in a while: as messages they would be the largest thing a plugin keeps.
#[derive(Debug, Default, PartialEq)]
struct Packed {
    /// All IDs, one behind the other.
    ids: String,
    /// Where each ends, and how its device is.
    devices: Vec<(usize, Health)>,
    /// The places of those that have one.
    numa: BTreeMap<usize, Vec<i64>>,
}

/// The most bytes the kubelet takes in one message; one that is larger ends its stream.
pub const LARGEST_LIST: usize = 4 * 1024 * 1024;

/// Why devices make no list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceListError {
    /// Two devices have one ID.
    #[error("device ID {id:?} stands twice in the list; each needs one of its own")]
    Repeated {
        /// The ID.
        id: String,
    },
    /// A device has no ID.
    #[error("a device of the list has no ID")]
    NoId,
    /// The list does not fit into one message.
    #[error(
        "{devices} devices are {bytes} bytes, and the kubelet takes at most {LARGEST_LIST} at once; \
         count in a larger unit"
    )]
    TooLarge {
        /// How many devices there are.
        devices: usize,
        /// How long the message would be.
        bytes: usize,
    },
}

impl DeviceList {
    /// Makes a list, in the order of the IDs.
    pub fn new(devices: impl IntoIterator<Item = Device>) -> Result<Self, DeviceListError> {
        let mut devices: Vec<Device> = devices.into_iter().collect();
        devices.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        if devices.first().is_some_and(|device| device.id.is_empty()) {
            return Err(DeviceListError::NoId);
        }
        if let Some(pair) = devices.windows(2).find(|pair| pair[0].id == pair[1].id) {
            return Err(DeviceListError::Repeated { id: pair[0].id.clone() });
        }
        let mut packed = Packed::default();
        let mut bytes = 0;
        for (number, device) in devices.iter().enumerate() {
            packed.ids.push_str(&device.id);
            packed.devices.push((packed.ids.len(), device.health));
            if !device.numa.is_empty() {
                packed.numa.insert(number, device.numa.clone());
            }
            let long = to_wire(&device.id, device.health, &device.numa).encoded_len();
            // The field's number and the length stand before each.
            bytes += 1 + prost::length_delimiter_len(long) + long;
        }
        if bytes > LARGEST_LIST {
            return Err(DeviceListError::TooLarge { devices: devices.len(), bytes });
        }
        packed.ids.shrink_to_fit();
        packed.devices.shrink_to_fit();
        Ok(Self(Arc::new(packed)))
    }

    /// How many devices it has.
    pub fn len(&self) -> usize {
        self.0.devices.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.0.devices.is_empty()
    }

    pub(crate) fn to_wire(&self) -> wire::ListAndWatchResponse {
        let Packed { ids, devices, numa } = &*self.0;
        let begins = std::iter::once(0).chain(devices.iter().map(|(end, _)| *end));
        let one = |(number, (begin, (end, health))): (usize, (usize, &(usize, Health)))| {
            let numa = numa.get(&number).map_or(&[][..], Vec::as_slice);
            to_wire(&ids[begin..*end], *health, numa)
        };
        let devices = begins.zip(devices).enumerate().map(one).collect();
        wire::ListAndWatchResponse { devices }
    }
}

fn to_wire(id: &str, health: Health, numa: &[i64]) -> wire::Device {
    let nodes: Vec<_> = numa.iter().map(|id| wire::NumaNode { id: *id }).collect();
    wire::Device {
        id: id.to_owned(),
        health: match health {
            Health::Healthy => "Healthy".into(),
            Health::Unhealthy => "Unhealthy".into(),
        },
        // Left out rather than empty: an empty place is still a place to the topology manager.
        topology: (!nodes.is_empty()).then_some(wire::TopologyInfo { nodes }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_order_in_which_ids_come_does_not_matter() {
        let a: IdSet = ["nano-0-02", "nano-0-01", "nano-0-02"].into_iter().collect();
        let b: IdSet = ["nano-0-01", "nano-0-02"].into_iter().collect();
        assert_eq!(a, b);
        assert_eq!(a.digest(), b.digest());
        assert!(a.contains("nano-0-01") && !a.contains("nano-0-03"));
    }

    #[test]
    fn the_digest_is_what_sha256sum_prints() {
        // printf 'nano-0-01\0nano-0-02\0' | sha256sum
        let set: IdSet = ["nano-0-01", "nano-0-02"].into_iter().collect();
        assert_eq!(set.digest(), "0854beb047fabb22");
        assert_eq!(IdSet::default().digest(), "e3b0c44298fc1c14");
    }

    proptest! {
        #[test]
        fn different_sets_have_different_digests(
            a in prop::collection::btree_set("[ab:,]{1,3}", 0..5),
            b in prop::collection::btree_set("[ab:,]{1,3}", 0..5),
        ) {
            let (x, y): (IdSet, IdSet) = (a.iter().collect(), b.iter().collect());
            prop_assert_eq!(a == b, x.digest() == y.digest());
        }
    }

    #[test]
    fn a_list_names_each_device_once() {
        assert_eq!(
            DeviceList::new([Device::healthy("a"), Device::unhealthy("a")]),
            Err(DeviceListError::Repeated { id: "a".into() })
        );
        assert_eq!(DeviceList::new([Device::healthy("")]), Err(DeviceListError::NoId));
    }

    #[test]
    fn a_list_the_kubelet_would_not_take_is_refused_here() {
        let devices = |count: usize| (0..count).map(|n| Device::healthy(format!("GPU-{n:08}")));
        assert_eq!(DeviceList::new(devices(50_000)).unwrap().len(), 50_000);
        let Err(DeviceListError::TooLarge { devices: 300_000, bytes }) =
            DeviceList::new(devices(300_000))
        else {
            panic!("300,000 devices fit")
        };
        assert!(bytes > LARGEST_LIST);
    }

    #[test]
    fn what_is_weighed_is_what_is_sent() {
        let near = |n: i64| Device { numa: vec![n], ..Device::healthy(format!("x-{n}")) };
        let all: Vec<Device> = (0..9).map(near).chain([Device::unhealthy("y")]).collect();
        let list = DeviceList::new(all.clone()).unwrap().to_wire();
        assert_eq!(list.devices.len(), all.len());
        for (sent, given) in list.devices.iter().zip(&all) {
            assert_eq!(*sent, to_wire(&given.id, given.health, &given.numa));
        }
        let Err(DeviceListError::TooLarge { bytes, .. }) =
            DeviceList::new((0..300_000).map(|n| Device::unhealthy(format!("GPU-{n:08}"))))
        else {
            panic!("300,000 devices fit")
        };
        let devices = (0..300_000).map(|n| to_wire(&format!("GPU-{n:08}"), Health::Unhealthy, &[]));
        let sent = wire::ListAndWatchResponse { devices: devices.collect() };
        assert_eq!(bytes, sent.encoded_len());
    }

    #[test]
    fn a_device_without_a_place_says_nothing_of_numa() {
        let near = Device { numa: vec![1], ..Device::healthy("b") };
        let list = DeviceList::new([near, Device::unhealthy("a")]).unwrap().to_wire();
        assert_eq!(
            (list.devices[0].health.as_str(), &list.devices[0].topology),
            ("Unhealthy", &None)
        );
        assert_eq!(list.devices[1].topology.as_ref().unwrap().nodes[0].id, 1);
    }
}
