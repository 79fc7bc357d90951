//! The one lock of a machine: a futex word with its owner in it.
//!
//! ```text
//!   bit 31: others wait | 21 bits: generation of the owner's slot | 10 bits: slot and 1
//! ```
//!
//! Who waits too long asks whether the owner lives, and takes the lock from a dead one. The
//! generation is in the word so that a slot that has changed hands is not taken for the dead.

use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::futex;

const WAITERS: u32 = 1 << 31;
const SLOT_BITS: u32 = 10;
const FREE: u32 = 0;

/// How long to wait before asking whether the owner lives.
const PATIENCE: futex::Timespec = futex::Timespec { tv_sec: 0, tv_nsec: 5_000_000 };

/// The word of an owner.
pub(crate) fn owner(slot: usize, generation: u64) -> u32 {
    let slot = u32::try_from(slot + 1).unwrap_or(u32::MAX) & ((1 << SLOT_BITS) - 1);
    let generation = u32::try_from(generation & ((1 << (31 - SLOT_BITS)) - 1)).unwrap_or(0);
    (generation << SLOT_BITS) | slot
}

/// The slot in a word, and the generation it had.
fn owner_of(word: u32) -> Option<(usize, u64)> {
    let slot = usize::try_from(word & ((1 << SLOT_BITS) - 1)).ok()?.checked_sub(1)?;
    Some((slot, u64::from((word & !WAITERS) >> SLOT_BITS)))
}

/// Whether a slot still has the generation that an owner's word holds.
pub(crate) fn same_generation(held: u64, now: u64) -> bool {
    held == now & ((1 << (31 - SLOT_BITS)) - 1)
}

/// Takes the lock. `dead` is asked of the slot and generation of an owner that holds it for long.
pub(crate) fn acquire(word: &AtomicU32, me: u32, dead: impl Fn(usize, u64) -> bool) {
    for _ in 0..64 {
        if word.compare_exchange(FREE, me, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return;
        }
        std::hint::spin_loop();
    }
    loop {
        // From here on the word says that others wait: whether still true or not, it costs the
        // owner one call to wake nobody.
        let seen = word.load(Ordering::Relaxed);
        if seen == FREE {
            let taken =
                word.compare_exchange(FREE, me | WAITERS, Ordering::Acquire, Ordering::Relaxed);
            if taken.is_ok() {
                return;
            }
            continue;
        }
        let waited = seen | WAITERS;
        if seen != waited
            && word.compare_exchange(seen, waited, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            continue;
        }
        let outcome = futex::wait(word, futex::Flags::empty(), waited, Some(&PATIENCE));
        let late = outcome == Err(rustix::io::Errno::TIMEDOUT);
        if late && owner_of(waited).is_none_or(|(slot, generation)| dead(slot, generation)) {
            let taken =
                word.compare_exchange(waited, me | WAITERS, Ordering::Acquire, Ordering::Relaxed);
            if taken.is_ok() {
                return;
            }
        }
    }
}

/// Gives the lock back.
pub(crate) fn release(word: &AtomicU32) {
    if word.swap(FREE, Ordering::Release) & WAITERS != 0 {
        wake(word, 1);
    }
}

/// Wakes up to `count` who wait for a word.
pub(crate) fn wake(word: &AtomicU32, count: u32) {
    // It fails only for an address that is not mapped, and this one is.
    let _ = futex::wake(word, futex::Flags::empty(), count);
}
