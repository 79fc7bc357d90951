//! Claiming and giving back.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::log;
use crate::memory::pool;
use crate::place::Place;

/// What the driver hands large memory out in.
pub(crate) const BLOCK: u64 = 2 << 20;

/// Why nothing may be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Denied;

/// The next multiple of a power of two; nothing is that large if it does not fit a number.
#[inline]
pub(crate) fn round_up(size: u64, step: u64) -> u64 {
    size.saturating_add(step - 1) & !(step - 1)
}

/// How many calls of this process began and ended that change what both the driver and the account hold.
/// Threads seldom share one of these, so that they do not wait for one another's cache.
#[repr(align(128))]
struct Calls {
    begun: AtomicU64,
    ended: AtomicU64,
}

static CALLS: [Calls; 32] =
    [const { Calls { begun: AtomicU64::new(0), ended: AtomicU64::new(0) } }; 32];

/// A call in which driver and account do not agree: it has claimed what the driver has not handed out
/// yet, or not given back yet what the driver has taken. Whoever compares the two waits for another moment.
pub(crate) struct Changing(&'static Calls);

impl Changing {
    #[inline]
    pub(crate) fn begin() -> Self {
        // Threads lie at round distances from one another, so that plain bits of where they are would be the same.
        let spread = crate::sys::thread().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 59;
        let calls = &CALLS[spread as usize % CALLS.len()];
        calls.begun.fetch_add(1, Ordering::SeqCst);
        Self(calls)
    }
}

impl Drop for Changing {
    #[inline]
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::SeqCst);
    }
}

fn sum(which: impl Fn(&Calls) -> &AtomicU64) -> u64 {
    CALLS.iter().fold(0, |sum, calls| sum.wrapping_add(which(calls).load(Ordering::SeqCst)))
}

/// What `look` says, if no call was changing anything from before it to after it.
pub(crate) fn at_rest<T>(look: impl FnOnce() -> T) -> Option<T> {
    // In this order: whatever ends in between has begun before, so that they only seem to differ.
    let ended = sum(|calls| &calls.ended);
    if sum(|calls| &calls.begun) != ended {
        return None;
    }
    let seen = look();
    (sum(|calls| &calls.begun) == ended).then_some(seen)
}

/// In a child: the calls of the parent's threads are not its own.
pub(crate) fn forget() {
    for calls in &CALLS {
        calls.ended.store(0, Ordering::SeqCst);
        calls.begun.store(0, Ordering::SeqCst);
    }
}

/// Claims memory of a device for this process.
#[inline]
pub(crate) fn claim(place: &'static Place, size: u64) -> Result<(), Denied> {
    let seat = place.seat().ok_or(Denied)?;
    match place.account().reserve(seat, size, place.allowed()) {
        Ok(()) => Ok(()),
        Err(_) => claim_again(place, size, Pools::Trim),
    }
}

/// The same from within the pools, which are in use just then.
pub(crate) fn claim_for_pool(place: &'static Place, size: u64) -> Result<(), Denied> {
    let seat = place.seat().ok_or(Denied)?;
    match place.account().reserve(seat, size, place.allowed()) {
        Ok(()) => Ok(()),
        Err(_) => claim_again(place, size, Pools::Leave),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pools {
    Trim,
    Leave,
}

/// The account looks full. Perhaps it is not: processes may have died with what they held, claims that
/// are about to be taken back may have been in the way, and pools may keep what nobody uses.
#[cold]
fn claim_again(place: &'static Place, size: u64, pools: Pools) -> Result<(), Denied> {
    let seat = place.seat().ok_or(Denied)?;
    if size <= place.allowed() {
        if pools == Pools::Trim {
            pool::trim_all(place);
        }
        let _guard = place.lock();
        place.sweep();
        for _ in 0..4 {
            if place.account().reserve(seat, size, place.allowed()).is_ok() {
                return Ok(());
            }
        }
    }
    seat.denied.fetch_add(1, Ordering::Relaxed);
    log::once!(
        Warn,
        "out of memory: ",
        size,
        " bytes more are not within the ",
        place.allowed(),
        " of device ",
        place.number() as u64,
        "; the container holds ",
        place.account().held(),
    );
    Err(Denied)
}

/// Gives memory back.
#[inline]
pub(crate) fn give_back(place: &'static Place, size: u64) {
    if let Some(seat) = place.seat().filter(|_| size > 0) {
        seat.release(size);
    }
}

/// Brings a claim of `was` to `is`, which the driver has taken already. Above the limit only if it
/// cannot be otherwise; then `Denied`, with nothing changed.
pub(crate) fn settle(place: &'static Place, was: u64, is: u64) -> Result<(), Denied> {
    if is > was {
        return claim_for_pool(place, is - was);
    }
    give_back(place, was - is);
    Ok(())
}

/// Gives back by the number of a place.
pub(crate) fn give_back_at(place: u8, size: u64) {
    if let Some(place) = crate::place::all().get(usize::from(place)) {
        give_back(place, size);
    }
}

/// Adds what was taken already and cannot be taken back.
pub(crate) fn owe(place: &'static Place, size: u64) {
    if let Some(seat) = place.seat() {
        seat.memory.fetch_add(size, Ordering::SeqCst);
    }
}
