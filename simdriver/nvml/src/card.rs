//! What can be said of one device: facts, and readings that follow from how busy it is.

use machine::cards::{Facts, facts};
use machine::{Card, ComputeInstance, DeviceId, Machine, Sample, Setting};

use crate::abi::{Answer, field};
use crate::session::Session;
use crate::types::PciInfo;

/// A card or a MIG device that a handle means.
pub(crate) struct Device<'a> {
    pub(crate) session: &'a Session,
    pub(crate) id: DeviceId,
    /// Of its card, among those this process sees.
    pub(crate) index: u32,
    pub(crate) card: &'a Card,
    pub(crate) mig: Option<ComputeInstance>,
}

impl Device<'_> {
    pub(crate) fn machine(&self) -> &'static Machine {
        self.session.machine
    }

    pub(crate) fn facts(&self) -> Facts {
        facts(&self.card.model)
    }

    /// The place of its card in the machine.
    pub(crate) fn place(&self) -> usize {
        self.machine().card_of(self.id)
    }

    pub(crate) fn setting(&self, setting: Setting) -> u32 {
        u32::try_from(self.machine().setting(self.id, setting)).unwrap_or(u32::MAX)
    }

    /// The last sampling period that is over; the first goes on where none is.
    pub(crate) fn sample(&self) -> Answer<Sample> {
        let samples = self.machine().samples(self.id)?;
        let over = samples.len().checked_sub(2).and_then(|place| samples.get(place));
        let none = Sample { time: 0, busy: 0, sm_time: 0, length: 1 };
        Ok(over.or(samples.last()).copied().unwrap_or(none))
    }

    /// How busy it is, in percent.
    pub(crate) fn percent(&self) -> Answer<u32> {
        Ok(self.sample()?.percent())
    }

    /// Whether some process has a context on it.
    pub(crate) fn in_use(&self) -> Answer<bool> {
        let place = self.place();
        let running = self.machine().running()?;
        Ok(running
            .iter()
            .flat_map(|process| &process.holds)
            .any(|holding| self.machine().card_of(holding.device) == place && holding.contexts > 0))
    }

    /// In degrees Celsius: warm when busy.
    pub(crate) fn temperature(&self) -> Answer<u32> {
        Ok(30 + 45 * self.percent()? / 100)
    }

    /// In mW: from idle to the limit, as it is busy.
    pub(crate) fn power(&self) -> Answer<u32> {
        let idle = self.facts().watts.1 * 1000;
        let limit = self.setting(Setting::PowerLimit).max(idle);
        Ok(idle + (limit - idle) / 100 * self.percent()?)
    }

    /// In mJ, since the machine was made.
    pub(crate) fn energy(&self) -> Answer<u64> {
        let (busy, ..) = self.machine().busy(self.id)?;
        let (most, idle) = self.facts().watts;
        let millis = |nanoseconds: u64| nanoseconds / 1_000_000;
        Ok(millis(self.machine().now()) * u64::from(idle) + millis(busy) * u64::from(most - idle))
    }

    /// Memory clock and graphics clock now, in MHz.
    pub(crate) fn clocks(&self) -> Answer<(u32, u32)> {
        let (memory, graphics) = self.facts().clocks;
        let graphics = match self.setting(Setting::LockedGraphicsClock) {
            0 => graphics,
            locked => locked.min(graphics),
        };
        if self.in_use()? { Ok((memory, graphics)) } else { Ok((memory.min(405), 210)) }
    }

    /// How many `NVLinks` its card has, and those of them that lead to each other card.
    pub(crate) fn nvlinks(&self) -> Vec<usize> {
        let description = self.machine().description();
        let others = (0..description.cards.len()).filter(|other| *other != self.place());
        let joined: Vec<(usize, u8)> =
            others.map(|other| (other, description.link(self.place(), other).1)).collect();
        // Behind a switch every card is reached over all links; else each pair has its own.
        if self.behind_switch() {
            let count = joined.iter().map(|(_, links)| *links).max().unwrap_or(0);
            return vec![SWITCH; usize::from(count)];
        }
        let own = joined.iter().flat_map(|(other, links)| vec![*other; usize::from(*links)]);
        own.collect()
    }

    /// Whether its links lead to a switch: more than a card has, were they all its own.
    pub(crate) fn behind_switch(&self) -> bool {
        let description = self.machine().description();
        let others = (0..description.cards.len()).filter(|other| *other != self.place());
        let sum: u32 = others.map(|other| u32::from(description.link(self.place(), other).1)).sum();
        let most = match self.facts().nvlink {
            2 => 6,
            3 => 12,
            4.. => 18,
            _ => 0,
        };
        sum > most
    }

    /// In MB/s and direction, for one link.
    pub(crate) fn nvlink_speed(&self) -> u32 {
        match self.facts().nvlink {
            0 => 0,
            1 => 20_000,
            2 => 25_781,
            3 => 25_000,
            4 => 26_562,
            _ => 53_125,
        }
    }

    pub(crate) fn pci(&self) -> PciInfo {
        pci_info(self.card.bus_numbers().unwrap_or_default(), self.facts().pci)
    }
}

/// In the place of a card, for the other end of a link.
pub(crate) const SWITCH: usize = usize::MAX;

/// A PCI address as NVML writes it, with a domain of eight digits.
pub(crate) fn bus_id((domain, bus, device, function): (u32, u32, u32, u32)) -> String {
    format!("{domain:08X}:{bus:02X}:{device:02X}.{function:X}")
}

pub(crate) fn pci_info(numbers: (u32, u32, u32, u32), pci: u32) -> PciInfo {
    let (domain, bus, device, function) = numbers;
    PciInfo {
        bus_id_legacy: field(&format!("{domain:04X}:{bus:02X}:{device:02X}.{function:X}")),
        domain,
        bus,
        device,
        pci_device_id: pci,
        pci_sub_system_id: 0x1450_10de,
        bus_id: field(&bus_id(numbers)),
    }
}
