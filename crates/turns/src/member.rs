//! A container on the card, as the referee sees it.

use std::collections::BTreeMap;
use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use page::bucket::{WHOLE, rate};
use page::referee::{Purse, Rules, Seen};
use page::{CountersPage, SEATS, Seat};

use crate::files::{LimitsFile, OpenError, now};
use crate::{Noted, Pages};

/// A wish that was not renewed for so long is nobody's: the process is stopped or dead.
const FRESH: u64 = 100_000_000;

/// A container.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) noted: Noted,
    pub(crate) limits: Arc<LimitsFile>,
    counters: File,
    asked: (u32, u32),
    seats: BTreeMap<u32, Watched>,
    /// The last copy of the seats.
    bytes: Vec<u8>,
}

/// A seat, and when it last changed by our own clock.
#[derive(Debug, Clone, Copy)]
struct Watched {
    said: Said,
    wants_changed: u64,
    changed: u64,
}

/// What a seat says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Said {
    pub(crate) wants: u32,
    returned: u32,
    pub(crate) spent: u64,
    phase: u64,
    due: u64,
}

impl Said {
    /// As the holder of the turn `epoch`.
    pub(crate) fn seen(&self, epoch: u32) -> Seen {
        let phase = page::turn::phase(epoch, self.phase, self.returned);
        Seen { phase, spent: self.spent, due: self.due }
    }
}

impl Member {
    pub(crate) fn open(name: &str, pages: &Pages) -> Result<Self, OpenError> {
        let limits = Arc::new(LimitsFile::open(&pages.limits)?);
        let counters = File::open(&pages.counters)
            .map_err(|source| OpenError::File { path: pages.counters.clone(), source })?;
        // A turn of a referee before us is nobody's.
        limits.page().grants.withdraw();
        limits.wake();
        let noted = Noted { name: name.to_owned(), ..Noted::default() };
        let mut member = Self {
            noted,
            limits,
            counters,
            asked: (0, 0),
            seats: BTreeMap::new(),
            bytes: Vec::new(),
        };
        member.asked = member.asks();
        Ok(member)
    }

    /// Share and burst, in hundredths of a percent, as the limits say.
    fn asks(&self) -> (u32, u32) {
        let page = self.limits.page();
        let share = rate(page.cores.load(Ordering::Acquire));
        (share, rate(page.burst.load(Ordering::Acquire)).max(share))
    }

    pub(crate) fn purse(&self, now: u64) -> Purse {
        Purse::new(self.asked.0, self.asked.1, now)
    }

    /// Takes over limits that were changed.
    pub(crate) fn refresh(&mut self, purse: &mut Purse, now: u64, rules: &Rules) {
        purse.fill(now, rules);
        let asks = self.asks();
        if asks != self.asked {
            self.asked = asks;
            purse.set(asks.0, asks.1);
        }
    }

    /// Whether it has a limit of compute.
    pub(crate) fn is_limited(&self) -> bool {
        self.asked.0 > 0 && self.asked.0 < WHOLE
    }

    /// Reads what its processes say.
    pub(crate) fn read(&mut self) {
        let mut high = [0; 4];
        let at = offset_of!(CountersPage, high) as u64;
        let mut readable = self.counters.read_exact_at(&mut high, at).is_ok();
        let count = (u32::from_le_bytes(high) as usize).min(SEATS);
        self.bytes.resize(count * size_of::<Seat>(), 0);
        let at = offset_of!(CountersPage, seats) as u64;
        readable &= self.counters.read_exact_at(&mut self.bytes, at).is_ok();
        self.noted.unreadable = !readable;
        let time = now();
        if !readable {
            self.seats.clear();
            return;
        }
        for (seat, bytes) in self.bytes.chunks_exact(size_of::<Seat>()).enumerate() {
            let number = u32::try_from(seat + 1).unwrap_or(u32::MAX);
            let said = Said {
                wants: u32_at(bytes, offset_of!(Seat, wants)),
                returned: u32_at(bytes, offset_of!(Seat, returned)),
                spent: u64_at(bytes, offset_of!(Seat, spent)),
                phase: u64_at(bytes, offset_of!(Seat, phase)),
                due: u64_at(bytes, offset_of!(Seat, due)),
            };
            if u64_at(bytes, offset_of!(Seat, owner)) == 0 {
                self.seats.remove(&number);
                continue;
            }
            let known = self.seats.entry(number).or_insert(Watched {
                said,
                wants_changed: time,
                changed: 0,
            });
            if known.said.wants != said.wants {
                known.wants_changed = time;
            }
            if known.said != said {
                known.changed = time;
            }
            known.said = said;
        }
    }

    /// Whether a process has a seat.
    pub(crate) fn is_taken(&self) -> bool {
        !self.seats.is_empty()
    }

    /// What a seat said last.
    pub(crate) fn said(&self, seat: u32) -> Said {
        self.seats.get(&seat).map(|watched| watched.said).unwrap_or_default()
    }

    /// Seats that want a turn.
    pub(crate) fn wishes(&self, now: u64) -> impl Iterator<Item = u32> {
        self.seats.iter().filter_map(move |(seat, it)| {
            let fresh = now.saturating_sub(it.wants_changed) < FRESH;
            (it.said.wants != 0 && fresh).then_some(*seat)
        })
    }

    /// Seats at which something happened of late.
    pub(crate) fn at_work(&self, now: u64) -> usize {
        self.seats.values().filter(|it| now.saturating_sub(it.changed) < FRESH).count()
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |raw| u32::from_le_bytes(*raw))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |raw| u64::from_le_bytes(*raw))
}
