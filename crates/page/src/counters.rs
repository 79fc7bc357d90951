//! The file of counters, which the tenant writes.

use core::mem::offset_of;

use crate::sync::{AtomicU32, AtomicU64};
use crate::{Header, PageError, begin, check, u32_at, u64_at};

const MAGIC: [u8; 8] = *b"NANOGPUC";

/// How many processes of a container can be counted on one device.
pub const SEATS: usize = 1024;

/// What one process counts. The first line is about memory, the second about compute.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Seat {
    /// The process, see [`Owner`](crate::Owner); 0 if the seat is free.
    pub owner: AtomicU64,
    /// The PID namespace in which the owner has its number.
    pub namespace: AtomicU64,
    /// What tells the program the process runs now from the one before an exec.
    pub image: AtomicU64,
    /// Memory it holds, in bytes.
    pub memory: AtomicU64,
    /// Allocations that were denied.
    pub denied: AtomicU64,
    /// How long its launches were held back, in nanoseconds.
    pub throttled: AtomicU64,
    /// Kernels it launched.
    pub launches: AtomicU64,
    /// For what comes.
    pub room: AtomicU64,
    /// GPU time it used, in nanoseconds, as it measured.
    pub spent: AtomicU64,
    /// Raised while it waits for a turn; 0 when it does not.
    pub wants: AtomicU32,
    /// The epoch of the last turn that it gave back.
    pub returned: AtomicU32,
    /// Where it is in its turn: see [`phase`](crate::turn::phase).
    pub phase: AtomicU64,
    /// When the work it launched will be done, as it thinks, by the monotonic clock.
    pub due: AtomicU64,
    /// For what comes.
    pub more: [AtomicU64; 4],
}

/// The file as it is mapped.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct CountersPage {
    /// How it begins.
    pub header: Header,
    /// What processes that ended had counted: denied, throttled, launches, spent.
    pub past: [AtomicU64; 4],
    /// Seats from this one on were never used.
    pub high: AtomicU32,
    /// Who sweeps or looks for a seat: a PID, 0 for nobody. A futex.
    pub lock: AtomicU32,
    /// For what comes.
    pub room: [AtomicU64; 9],
    /// One a process.
    pub seats: [Seat; SEATS],
}

impl CountersPage {
    /// The length of the file.
    pub const SIZE: usize = size_of::<Self>();
}

/// What a container says it used of a device, as far as that can be believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Processes in seats.
    pub processes: u32,
    /// Memory they hold together, in bytes, at most the device's.
    pub memory: u64,
    /// Allocations that were denied.
    pub denied: u64,
    /// How long launches were held back, in nanoseconds.
    pub throttled: u64,
    /// Kernels launched.
    pub launches: u64,
    /// Whether the tenant wrote something that cannot be.
    pub implausible: bool,
}

/// What bounds belief.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Used {
    /// All memory of the device, in bytes.
    pub most_memory: u64,
    /// How long the container has run, in nanoseconds: nobody was held back longer.
    pub longest: u64,
}

/// A file in which nothing is counted yet.
#[expect(
    clippy::large_stack_arrays,
    reason = "made once for a container, by a program with ordinary stacks"
)]
pub fn write_counters() -> [u8; CountersPage::SIZE] {
    let mut bytes = [0; CountersPage::SIZE];
    begin(&mut bytes, MAGIC);
    bytes
}

/// Checks how a file of counters begins; `length` is that of the file.
pub fn check_counters(begins: &[u8; 16], length: usize) -> Result<(), PageError> {
    crate::check_header(begins, length, MAGIC, CountersPage::SIZE)
}

/// The counters in a copy of the tenant's file. Sums stop at the largest number; what is above
/// `bounds` is cut and reported.
pub fn read_counters(bytes: &[u8], bounds: Used) -> Result<Counters, PageError> {
    check(bytes, MAGIC, CountersPage::SIZE)?;
    let past = offset_of!(CountersPage, past);
    let mut sum = Counters {
        denied: u64_at(bytes, past),
        throttled: u64_at(bytes, past + 8),
        launches: u64_at(bytes, past + 16),
        ..Counters::default()
    };
    // The mark saves reading, and a tenant that lowers it hides from its own view only: what it
    // holds is known from the card too.
    let high = u32_at(bytes, offset_of!(CountersPage, high)) as usize;
    for seat in 0..high.min(SEATS) {
        let at = offset_of!(CountersPage, seats) + seat * size_of::<Seat>();
        let field = |offset: usize| u64_at(bytes, at + offset);
        if field(offset_of!(Seat, owner)) == 0 {
            continue;
        }
        sum.processes += 1;
        sum.memory = sum.memory.saturating_add(field(offset_of!(Seat, memory)));
        sum.denied = sum.denied.saturating_add(field(offset_of!(Seat, denied)));
        sum.throttled = sum.throttled.saturating_add(field(offset_of!(Seat, throttled)));
        sum.launches = sum.launches.saturating_add(field(offset_of!(Seat, launches)));
    }
    // Every process can be held back all the time.
    let longest = bounds.longest.saturating_mul(SEATS as u64);
    sum.implausible = sum.memory > bounds.most_memory || sum.throttled > longest || high > SEATS;
    sum.memory = sum.memory.min(bounds.most_memory);
    sum.throttled = sum.throttled.min(longest);
    Ok(sum)
}

// The layout is a promise between two programs that are upgraded apart.
#[cfg(not(all(test, loom)))]
const _: () = {
    assert!(size_of::<Seat>() == 128);
    assert!(offset_of!(Seat, memory) == 24);
    assert!(offset_of!(Seat, denied) == 32);
    assert!(offset_of!(Seat, spent) == 64);
    assert!(offset_of!(Seat, wants) == 72);
    assert!(offset_of!(Seat, returned) == 76);
    assert!(offset_of!(Seat, phase) == 80);
    assert!(offset_of!(Seat, due) == 88);
    assert!(offset_of!(CountersPage, past) == 16);
    assert!(offset_of!(CountersPage, high) == 48);
    assert!(offset_of!(CountersPage, lock) == 52);
    assert!(offset_of!(CountersPage, seats) == 128);
    assert!(CountersPage::SIZE == 128 + SEATS * 128);
};

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::put;

    const BOUNDS: Used = Used { most_memory: 1 << 34, longest: 1_000_000_000 };

    fn with_seat(seat: usize, owner: u64, memory: u64, throttled: u64) -> [u8; CountersPage::SIZE] {
        let mut bytes = write_counters();
        let high = u32::try_from(seat + 1).unwrap();
        put(&mut bytes, offset_of!(CountersPage, high), &high.to_le_bytes());
        let at = offset_of!(CountersPage, seats) + seat * size_of::<Seat>();
        put(&mut bytes, at, &owner.to_le_bytes());
        put(&mut bytes, at + offset_of!(Seat, memory), &memory.to_le_bytes());
        put(&mut bytes, at + offset_of!(Seat, throttled), &throttled.to_le_bytes());
        bytes
    }

    #[test]
    fn a_new_file_has_counted_nothing() {
        assert_eq!(read_counters(&write_counters(), BOUNDS), Ok(Counters::default()));
    }

    #[test]
    fn seats_are_added_up_and_free_ones_are_not() {
        let read = read_counters(&with_seat(1023, 7, 512, 9), BOUNDS).unwrap();
        assert_eq!((read.processes, read.memory, read.throttled), (1, 512, 9));
        assert_eq!(read_counters(&with_seat(3, 0, 512, 9), BOUNDS).unwrap().memory, 0);
    }

    #[test]
    fn what_cannot_be_is_cut_and_reported() {
        let read = read_counters(&with_seat(0, 1, u64::MAX, u64::MAX), BOUNDS).unwrap();
        assert_eq!(read.memory, BOUNDS.most_memory);
        assert_eq!(read.throttled, BOUNDS.longest * SEATS as u64);
        assert!(read.implausible);
        let mut far = write_counters();
        put(&mut far, offset_of!(CountersPage, high), &5000_u32.to_le_bytes());
        assert!(read_counters(&far, BOUNDS).unwrap().implausible);
    }

    #[test]
    fn short_foreign_and_newer_files_are_named() {
        let good = write_counters();
        let short = PageError::Short { is: 64, needs: CountersPage::SIZE };
        assert_eq!(read_counters(&good[..64], BOUNDS), Err(short));
        let mut newer = good;
        newer[8] = 9;
        assert_eq!(read_counters(&newer, BOUNDS), Err(PageError::Version { is: 9 }));
        assert_eq!(read_counters(&[0; 6000], BOUNDS), Err(PageError::Foreign));
    }

    proptest! {
        #[test]
        fn nothing_a_tenant_writes_is_believed_beyond_bounds(
            at in 16..CountersPage::SIZE - 512,
            high in 0..=1024_u32,
            bytes in prop::collection::vec(any::<u8>(), 512),
        ) {
            let mut page = write_counters();
            put(&mut page, offset_of!(CountersPage, high), &high.to_le_bytes());
            put(&mut page, at, &bytes);
            let read = read_counters(&page, BOUNDS).unwrap();
            prop_assert!(read.memory <= BOUNDS.most_memory);
            prop_assert!(read.processes as usize <= SEATS);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..6000)) {
            let _ = read_counters(&bytes, BOUNDS);
        }
    }
}
