//! What is asked of GPUs, and what they answer.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use model::{Device, DeviceId, Health, Inventory, Link, Mebibytes, Mig};
use tokio::sync::mpsc;

/// The GPUs of a node. [`Nvml`](crate::nvml::Nvml) is the real one.
pub trait Gpus: Send + Sync + 'static {
    /// What there is now.
    fn look(&self) -> BoxFuture<'_, Result<Found, Absent>>;

    /// How it is used now. Cards that do not answer are left out.
    fn measure(&self) -> BoxFuture<'_, Result<Vec<Measured>, Absent>>;

    /// What goes wrong from now on. Ends when the receiver is dropped.
    fn events(&self) -> mpsc::Receiver<Event>;
}

/// The cards of a node that has some.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The driver's version.
    pub driver: String,
    /// Cards and slices that answer, healthy as far as they know, in the driver's order.
    pub devices: Vec<Device>,
    /// The ways between the cards.
    pub links: Vec<Link>,
    /// Cards that are there and do not answer.
    pub unreadable: Vec<Unreadable>,
    /// What cards say of errors in their memory. Those that do not count them are silent.
    pub memory_errors: BTreeMap<DeviceId, MemoryErrors>,
}

/// Errors in the memory of a card, as its ECC counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryErrors {
    /// Errors that could not be corrected, since the driver was loaded or the card was reset.
    pub uncorrected: u64,
    /// The same, ever: the card keeps this count itself. Not all do.
    pub ever: Option<u64>,
    /// Whether a bad page stays in use until the card is reset: cards before Ampere.
    pub bad_page: bool,
    /// Whether a bad row, out of use by now, is exchanged at the next reset: cards from Ampere on.
    pub reset_advised: bool,
    /// Whether a bad row could not be exchanged.
    pub repair_failed: bool,
}

impl MemoryErrors {
    /// How many errors came since `before`, that could not be corrected: as many at least. The count
    /// since the driver was loaded begins anew with it, and the one that the card keeps can be set
    /// back by people, so of the two the larger difference is taken.
    pub fn since(&self, before: &Self) -> u64 {
        let more = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
        let loaded = more(self.uncorrected, before.uncorrected);
        let ever = self.ever.zip(before.ever).map_or(0, |(now, before)| now.saturating_sub(before));
        loaded.max(ever)
    }
}

/// A card that is there and does not answer: it fell off the bus, or needs a reset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    /// Its place in the driver's order.
    pub index: u32,
    /// Its UUID, if it still tells that much.
    pub id: Option<DeviceId>,
    /// What the driver says about it.
    pub reason: &'static str,
}

/// How a device is used at a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measured {
    /// Which device.
    pub device: DeviceId,
    /// Memory in use, in bytes.
    pub used: u64,
    /// All its memory, in bytes.
    pub total: u64,
    /// How much of the last moments kernels ran, in percent; nothing if the device cannot say.
    pub busy: Option<u32>,
    /// The processes on it, by process number.
    pub processes: Vec<Process>,
}

/// A process on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its number, as the driver sees processes.
    pub pid: u32,
    /// Memory it holds, in bytes.
    pub used: u64,
    /// How much of the last moments its kernels ran, in percent.
    pub busy: u32,
}

/// Something a card reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Which card; nothing if the driver does not say, which means any of them.
    pub device: Option<DeviceId>,
    /// The Xid.
    pub xid: u64,
}

/// Why there is no GPU to use. None of these is for ever: ask again.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Absent {
    /// No library of the driver.
    #[error("no {library} below {}; is the NVIDIA driver installed, and the driver root right?", root.display())]
    NoLibrary {
        /// Its name.
        library: &'static str,
        /// Where it was looked for.
        root: PathBuf,
    },
    /// The library is there and cannot be loaded.
    #[error("{} cannot be loaded as the driver's library", path.display())]
    BadLibrary {
        /// The library.
        path: PathBuf,
        /// What the loader says.
        #[source]
        source: Arc<nvml_wrapper::error::NvmlError>,
    },
    /// The kernel module is not loaded.
    #[error("the NVIDIA kernel module is not loaded")]
    NoModule,
    /// Library and kernel module are of two versions, as after an upgrade without a reboot.
    #[error(
        "the driver's library and kernel module are of different versions; reload the module or reboot"
    )]
    Mismatch,
    /// A driver, and no card.
    #[error("the driver sees no GPU")]
    NoCards,
    /// A call to the driver does not return.
    #[error("the driver has not answered for {} s; it is asked again", after.as_secs())]
    Hanging {
        /// How long was waited.
        after: Duration,
    },
    /// Anything else the driver says.
    #[error("the driver failed at {call}")]
    Failed {
        /// What it was asked.
        call: &'static str,
        /// What it said.
        #[source]
        source: Arc<nvml_wrapper::error::NvmlError>,
    },
}

/// The inventory of what was `found`, with every device of `known` that is gone or does not
/// answer kept as sick: pods on it still hold it, and it may come back.
///
/// `sick` says of a device that answers whether it is out of service all the same.
pub fn inventory(
    found: Option<&Found>,
    known: &Inventory,
    sick: &dyn Fn(&Device) -> Option<Health>,
) -> Inventory {
    let Some(found) = found else {
        let devices = known.devices.iter().map(out_of_service).collect();
        return Inventory { devices, links: known.links.clone() };
    };
    let mut devices: Vec<Arc<Device>> = found
        .devices
        .iter()
        .map(|device| {
            let health = sick(device).unwrap_or(Health::Healthy);
            Arc::new(Device { health, ..device.clone() })
        })
        .collect();
    let answers = |id: &DeviceId| found.devices.iter().any(|device| device.id == *id);
    let indexes: Vec<u32> = found.devices.iter().map(|device| device.index).collect();
    for gone in known.devices.iter().filter(|device| !answers(&device.id)) {
        let lost = found.unreadable.iter().any(|lost| match &lost.id {
            Some(id) => *id == gone.id,
            None => lost.index == gone.index && gone.mig == Mig::Off,
        });
        // A slice that is gone was destroyed on purpose, and a card whose place another has now
        // was exchanged: those will not come back.
        if lost || (!indexes.contains(&gone.index) && !matches!(gone.mig, Mig::Slice { .. })) {
            devices.push(out_of_service(gone));
        }
    }
    devices.sort_by_key(|device| device.index);
    devices.dedup_by_key(|device| device.index);
    let present = |index: u32| devices.iter().any(|device| device.index == index);
    let mut links = found.links.clone();
    for link in &known.links {
        let told = links.iter().any(|other| (other.a, other.b) == (link.a, link.b));
        if !told && present(link.a) && present(link.b) {
            links.push(link.clone());
        }
    }
    links.sort();
    Inventory { devices, links }
}

fn out_of_service(device: &Arc<Device>) -> Arc<Device> {
    match device.health {
        Health::Healthy => Arc::new(Device { health: Health::Sick, ..Device::clone(device) }),
        Health::Sick | Health::Cordoned => device.clone(),
    }
}

/// Bytes as the inventory counts them.
pub(crate) fn mebibytes(bytes: u64) -> Mebibytes {
    Mebibytes(bytes >> 20)
}

#[cfg(test)]
mod tests {
    use model::{CardModel, Cores, Hop, Kind};

    use super::*;

    fn device(index: u32) -> Device {
        Device {
            kind: Kind::Gpu,
            id: DeviceId::parse(&format!("GPU-{index}")).unwrap(),
            index,
            minor: index,
            bus: format!("0000:0{index}:00.0"),
            model: CardModel::new("NVIDIA T4"),
            memory: Mebibytes(15360),
            cores: Cores::CARD,
            numa: None,
            nic: None,
            health: Health::Healthy,
            mig: Mig::Off,
        }
    }

    fn found(indexes: &[u32], unreadable: &[u32]) -> Found {
        let pairs = indexes.windows(2);
        Found {
            driver: "550.1".into(),
            devices: indexes.iter().map(|index| device(*index)).collect(),
            links: pairs
                .map(|pair| Link { a: pair[0], b: pair[1], hop: Hop::OneSwitch, nvlinks: 0 })
                .collect(),
            unreadable: unreadable
                .iter()
                .map(|index| Unreadable { index: *index, id: None, reason: "lost" })
                .collect(),
            memory_errors: BTreeMap::new(),
        }
    }

    fn health(inventory: &Inventory) -> Vec<(u32, Health)> {
        inventory.devices.iter().map(|device| (device.index, device.health)).collect()
    }

    const WELL: &dyn Fn(&Device) -> Option<Health> = &|_| None;

    #[test]
    fn a_card_that_falls_off_the_bus_stays_listed_as_sick_and_comes_back() {
        let all = inventory(Some(&found(&[0, 1, 2], &[])), &Inventory::default(), WELL);
        assert_eq!(health(&all).iter().filter(|one| one.1 == Health::Healthy).count(), 3);
        let less = inventory(Some(&found(&[0, 2], &[1])), &all, WELL);
        assert_eq!(health(&less), [(0, Health::Healthy), (1, Health::Sick), (2, Health::Healthy)]);
        assert!(less.links.iter().any(|link| (link.a, link.b) == (0, 1)), "{less:?}");
        assert_eq!(inventory(Some(&found(&[0, 1, 2], &[])), &less, WELL).devices, all.devices);
    }

    #[test]
    fn without_a_driver_everything_known_is_sick() {
        let all = inventory(Some(&found(&[0, 1], &[])), &Inventory::default(), WELL);
        let none = inventory(None, &all, WELL);
        assert_eq!(health(&none), [(0, Health::Sick), (1, Health::Sick)]);
        assert_eq!(inventory(None, &Inventory::default(), WELL), Inventory::default());
    }

    #[test]
    fn what_the_caller_says_of_a_card_counts() {
        let one = DeviceId::parse("GPU-1").unwrap();
        let cordoned = |device: &Device| (device.id == one).then_some(Health::Cordoned);
        let all = inventory(Some(&found(&[0, 1], &[])), &Inventory::default(), &cordoned);
        assert_eq!(health(&all), [(0, Health::Healthy), (1, Health::Cordoned)]);
    }

    #[test]
    fn errors_are_counted_over_a_driver_that_was_loaded_anew() {
        let counts = |uncorrected, ever| MemoryErrors { uncorrected, ever, ..<_>::default() };
        let cases = [
            // before, now, how many came
            (counts(3, Some(9)), counts(3, Some(9)), 0),
            (counts(3, Some(9)), counts(5, Some(11)), 2),
            // The driver was loaded anew: with nothing since, with some, and with as many as before.
            (counts(3, Some(9)), counts(0, Some(9)), 0),
            (counts(3, Some(9)), counts(2, Some(11)), 2),
            (counts(3, Some(9)), counts(3, Some(12)), 3),
            (counts(3, Some(9)), counts(0, Some(10)), 1),
            // The card's own count was set back by people.
            (counts(3, Some(9)), counts(3, Some(0)), 0),
            (counts(3, Some(9)), counts(4, Some(1)), 1),
            // Cards that keep none.
            (counts(3, None), counts(4, None), 1),
            (counts(3, None), counts(1, None), 1),
        ];
        for (before, now, came) in cases {
            assert_eq!(now.since(&before), came, "{before:?} {now:?}");
        }
    }

    #[test]
    fn a_card_exchanged_for_another_is_forgotten() {
        let before = inventory(Some(&found(&[0, 1], &[])), &Inventory::default(), WELL);
        let mut now = found(&[0, 1], &[]);
        now.devices[1].id = DeviceId::parse("GPU-new").unwrap();
        let after = inventory(Some(&now), &before, WELL);
        assert_eq!(after.devices.len(), 2);
        assert_eq!(after.devices[1].id.as_str(), "GPU-new");
    }
}
