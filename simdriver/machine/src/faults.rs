//! Things that go wrong, on demand.

use std::sync::atomic::Ordering;

use rustix::thread::futex;

use crate::description::WithoutNodes;
use crate::lock;
use crate::machine::Machine;
use crate::process::{DeviceId, JoinError};
use crate::queue;
use crate::state::{COUNTERS, REPORTS, at, get, wide};

/// Whether the driver answers at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// It does.
    Ready,
    /// There is none.
    NoDriver,
    /// Library and kernel module are of different versions.
    Mismatch,
}

/// What went wrong with a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultReport {
    /// How many reports there were up to this one.
    pub number: u64,
    /// On which card.
    pub card: usize,
    /// What.
    pub event: Event,
    /// Device time.
    pub time: u64,
}

/// What those who listen are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// An error of the driver's numbered kinds.
    Xid(u64),
    /// ECC corrected an error.
    SingleBitEcc,
    /// ECC could not correct an error.
    DoubleBitEcc,
}

/// Counters of errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counter {
    /// Corrected since the driver was loaded.
    CorrectedVolatile,
    /// Not corrected since the driver was loaded.
    UncorrectedVolatile,
    /// Corrected, ever.
    CorrectedAggregate,
    /// Not corrected, ever.
    UncorrectedAggregate,
    /// Pages retired for corrected errors.
    RetiredCorrected,
    /// Pages retired for uncorrected errors.
    RetiredUncorrected,
    /// Rows remapped for corrected errors.
    RemappedCorrected,
    /// Rows remapped for uncorrected errors.
    RemappedUncorrected,
    /// 1 if a remapping waits for a reset.
    RemapPending,
    /// 1 if a remapping failed.
    RemapFailed,
    /// PCIe replays.
    PcieReplays,
    /// `NVLink` errors.
    NvLinkErrors,
}

/// A fault to inject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Reports an Xid. Those that end the work on the card do so.
    Xid(DeviceId, u64),
    /// The card falls off the bus, with Xid 79.
    Lose(DeviceId),
    /// It is back.
    Return(DeviceId),
    /// The card is not in the machine, or is plugged in again. As with a real driver, who has the
    /// library open goes on with the cards it found then.
    Absent(DeviceId, Switch),
    /// Adds to a counter; ECC errors are reported too.
    Count(DeviceId, Counter, u64),
    /// Every reservation on the card is refused, or is not any more.
    OutOfMemory(DeviceId, Switch),
    /// Calls to NVML take so many nanoseconds longer.
    NvmlDelay(u64),
    /// Calls to NVML do not return, or do again.
    NvmlHang(Switch),
    /// Library and kernel module do not match, or do again.
    Mismatch(Switch),
    /// There is no driver, or there is again.
    NoDriver(Switch),
    /// NVML names no process, as to an asker whose PID namespace shows none; or does again.
    Nameless(Switch),
}

/// Whether a fault begins or ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Switch {
    /// It begins.
    On,
    /// It ends.
    Off,
}

/// Xids after which nothing that runs on the card goes on.
const ENDS_WORK: [u64; 9] = [48, 62, 64, 74, 79, 95, 109, 119, 120];

impl Machine {
    /// Makes something go wrong, or right again.
    pub fn inject(&'static self, fault: Fault) -> Result<(), JoinError> {
        let header = &self.state.header;
        match fault {
            Fault::Xid(device, xid) => self.report(device, Event::Xid(xid))?,
            Fault::Lose(device) => {
                let card = self.card_of(device);
                self.change(|change| change.set(&self.state.devices[card].lost, 1))?;
                self.report(device, Event::Xid(79))?;
            }
            Fault::Return(device) => {
                let card = self.card_of(device);
                self.change(|change| change.set(&self.state.devices[card].lost, 0))?;
            }
            Fault::Absent(device, switch) => {
                let card = self.card_of(device);
                self.change(|change| {
                    change.set(&self.state.devices[card].absent, switch.word());
                })?;
            }
            Fault::Count(device, counter, more) => self.count(device, counter, more)?,
            Fault::OutOfMemory(device, switch) => {
                let card = self.card_of(device);
                let word = &self.state.devices[card].out_of_memory;
                self.change(|change| change.set(word, switch.word()))?;
            }
            Fault::NvmlDelay(time) => self.change(|change| change.set(&header.nvml_delay, time))?,
            Fault::NvmlHang(switch) => {
                self.change(|change| change.set(&header.nvml_hang, switch.word()))?;
            }
            Fault::Mismatch(switch) => {
                self.change(|change| change.set(&header.mismatch, switch.word()))?;
            }
            Fault::NoDriver(switch) => {
                self.change(|change| change.set(&header.no_driver, switch.word()))?;
            }
            Fault::Nameless(switch) => {
                self.change(|change| change.set(&header.nameless, switch.word()))?;
            }
        }
        crate::wait::wake_all(self.state);
        Ok(())
    }

    fn count(
        &'static self,
        device: DeviceId,
        counter: Counter,
        more: u64,
    ) -> Result<(), JoinError> {
        let words = &self.state.devices[self.card_of(device)].counters;
        let aggregate = match counter {
            Counter::CorrectedVolatile => Some((Counter::CorrectedAggregate, Event::SingleBitEcc)),
            Counter::UncorrectedVolatile => {
                Some((Counter::UncorrectedAggregate, Event::DoubleBitEcc))
            }
            _ => None,
        };
        self.change(|change| {
            change.add(&words[counter as usize], more);
            if let Some((aggregate, _)) = aggregate {
                change.add(&words[aggregate as usize], more);
            }
        })?;
        match aggregate {
            Some((_, event)) => self.report(device, event),
            None => Ok(()),
        }
    }

    fn report(&'static self, device: DeviceId, event: Event) -> Result<(), JoinError> {
        let card = self.card_of(device);
        self.change(|change| {
            let now = self.catch_up(change);
            if matches!(event, Event::Xid(xid) if ENDS_WORK.contains(&xid)) {
                self.end_work(change, card, now);
            }
            let header = &self.state.header;
            let number = get(&header.report_count) + 1;
            let report = &self.state.reports[at(&header.report_count) % REPORTS];
            let (kind, data) = match event {
                Event::Xid(xid) => (0, xid),
                Event::SingleBitEcc => (1, 0),
                Event::DoubleBitEcc => (2, 0),
            };
            change.set(&header.report_count, number);
            for (word, value) in [
                (&report.number, number),
                (&report.device, wide(card)),
                (&report.kind, kind),
                (&report.data, data),
                (&report.time, now),
            ] {
                change.set(word, value);
            }
        })?;
        self.state.header.reported.fetch_add(1, Ordering::AcqRel);
        lock::wake(&self.state.header.reported, i32::MAX.unsigned_abs());
        Ok(())
    }

    fn end_work(&self, change: &crate::journal::Change, card: usize, now: u64) {
        for slot in &self.state.slots[..crate::account::used(self.state)] {
            queue::cancel(change, slot, now, |context| {
                let device = slot.contexts.get(context).map_or(0, at);
                let device = device.checked_sub(1).and_then(DeviceId::new);
                device.is_some_and(|device| self.card_of(device) == card)
            });
            // A step for each process: together they would be too many.
            change.commit();
        }
    }

    /// A counter of errors.
    pub fn counter(&self, device: DeviceId, counter: Counter) -> u64 {
        get(&self.state.devices[self.card_of(device)].counters[counter as usize])
    }

    /// Puts the counters of corrected and uncorrected errors back to zero.
    pub fn clear_counters(
        &'static self,
        device: DeviceId,
        counters: &[Counter],
    ) -> Result<(), JoinError> {
        let words = &self.state.devices[self.card_of(device)].counters;
        self.change(|change| {
            for counter in counters {
                change.set(&words[*counter as usize % COUNTERS], 0);
            }
        })
    }

    /// Whether a device's card is off the bus, or out of the machine.
    pub fn is_lost(&self, device: DeviceId) -> bool {
        let card = &self.state.devices[self.card_of(device)];
        get(&card.lost) == 1 || get(&card.absent) == 1
    }

    /// Whether a card is in the machine.
    pub fn is_present(&self, card: DeviceId) -> bool {
        get(&self.state.devices[self.card_of(card)].absent) == 0
    }

    /// Whether NVML names the processes on a card.
    pub fn names_processes(&self) -> bool {
        get(&self.state.header.nameless) == 0
    }

    /// Whether the driver answers.
    pub fn presence(&self) -> Presence {
        let description = self.description();
        let nodes = description.dev_root.join("nvidiactl").exists();
        let hidden = !nodes && description.without_device_nodes == WithoutNodes::None;
        if hidden || get(&self.state.header.no_driver) == 1 {
            Presence::NoDriver
        } else if get(&self.state.header.mismatch) == 1 {
            Presence::Mismatch
        } else {
            Presence::Ready
        }
    }

    /// Sleeps as long as calls to NVML are to be slowed down, or hang.
    pub fn suffer(&self) {
        let header = &self.state.header;
        let delay = get(&header.nvml_delay);
        if delay > 0 {
            std::thread::sleep(std::time::Duration::from_nanos(delay));
        }
        while get(&header.nvml_hang) == 1 {
            let seen = header.wake.load(Ordering::Acquire);
            let time = futex::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
            let _ = futex::wait(&header.wake, futex::Flags::empty(), seen, Some(&time));
        }
    }

    /// How many reports there were.
    pub fn report_count(&self) -> u64 {
        get(&self.state.header.report_count)
    }

    /// The reports after the first `seen`, oldest first, as far as they are kept.
    pub fn reports_since(&self, seen: u64) -> Vec<FaultReport> {
        let reports = self.state.reports.iter().filter_map(|report| {
            let event = match get(&report.kind) {
                0 => Event::Xid(get(&report.data)),
                1 => Event::SingleBitEcc,
                _ => Event::DoubleBitEcc,
            };
            let (number, card) = (get(&report.number), at(&report.device));
            (number > seen).then(|| FaultReport { number, card, event, time: get(&report.time) })
        });
        let mut reports: Vec<FaultReport> = reports.collect();
        reports.sort_by_key(|report| report.number);
        reports
    }

    /// Sleeps until there are more than `seen` reports, or for so long. Says whether there are.
    pub fn wait_for_report(&self, seen: u64, at_most: std::time::Duration) -> bool {
        let deadline = std::time::Instant::now() + at_most;
        let word = &self.state.header.reported;
        loop {
            let before = word.load(Ordering::Acquire);
            if self.report_count() > seen {
                return true;
            }
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            if left.is_zero() {
                return false;
            }
            // Not for ever: who reports may be killed before it wakes us.
            let left = left.min(std::time::Duration::from_millis(500));
            let time = futex::Timespec {
                tv_sec: 0,
                tv_nsec: libc::c_long::from(left.subsec_nanos().max(1)),
            };
            let _ = futex::wait(word, futex::Flags::empty(), before, Some(&time));
        }
    }
}

impl Switch {
    fn word(self) -> u64 {
        u64::from(self == Self::On)
    }
}
