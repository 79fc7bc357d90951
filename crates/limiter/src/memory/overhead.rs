//! What the driver takes for itself in the name of this process: contexts, code, heaps of kernels.
//!
//! Nobody says beforehand how much that is. An estimate is claimed before the call. Afterwards the
//! driver is asked what this process holds of the device; what is above all that we know by
//! allocation is overhead, and the claim becomes that. So code that is loaded lazily is caught at the
//! next look, too. Where the driver does not list us, `scale` weighs with what the whole device has less.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::driver::cuda;
use crate::lock::Lock;
use crate::memory::charge::{self, at_rest, claim, give_back, owe};
use crate::memory::listing::{self, Listing};
use crate::memory::pool;
use crate::memory::scale::{Scale, Verdict, calm};
use crate::memory::table::{self, Kind};
use crate::place::{MOST, Place};
use crate::sys;

/// Taken for the first context of a container, until one was measured.
const FIRST_CONTEXT: u64 = 512 << 20;
/// Less than this no context costs, and more than this neither: such a difference is others' doing.
pub(crate) const PLAUSIBLE: core::ops::RangeInclusive<u64> = 16 << 20..=2 << 30;
/// Milliseconds to wait for another process's first context. It may never come to be measured.
const PATIENCE: u32 = 2000;

/// How often a moment is looked for in which no other thread is about to take or give back, and the
/// nanoseconds in between.
const TRIES: u32 = 16;
const PAUSE: u64 = 50_000;

/// One change at a time, so that a difference has one cause.
static STRUCTURE: Lock<Listing> = Lock::new(Listing::new());
static OVERHEAD: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];

/// How sure an estimate is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Estimate {
    /// It costs this: without room for it there is none.
    Sure(u64),
    /// It may cost far less: it is tried with what room there is.
    AtMost(u64),
}

impl Estimate {
    pub(crate) fn size(self) -> u64 {
        match self {
            Self::Sure(size) | Self::AtMost(size) => size,
        }
    }
}

/// What a context on this device is taken to cost.
pub(crate) fn of_context(place: &'static Place) -> Estimate {
    match place.counters().room[0].load(Ordering::Relaxed) {
        size if PLAUSIBLE.contains(&size) => Estimate::Sure(size),
        _ => Estimate::AtMost(FIRST_CONTEXT),
    }
}

/// A context was measured: the next will cost the same.
fn learn(place: &'static Place, size: u64) {
    if PLAUSIBLE.contains(&size) {
        place.counters().room[0].store(size, Ordering::Relaxed);
    }
}

/// While nobody knows what a context costs, only a process that has the share to itself may try with
/// less room than the guess: what several take at once could be more than there is. The others
/// wait until the first has measured its own.
fn known_or_alone(place: &'static Place, mut estimate: Estimate) -> Estimate {
    for _ in 0..PATIENCE {
        let held = place.account().held();
        let fits = held.saturating_add(estimate.size()) <= place.allowed();
        if matches!(estimate, Estimate::Sure(_)) || fits || held == 0 {
            break;
        }
        sys::sleep(1_000_000);
        let _guard = place.lock();
        place.sweep();
        estimate = of_context(place);
    }
    estimate
}

/// What is made.
#[derive(Clone, Copy)]
pub(crate) enum What<'a> {
    /// A context, whose handle this says.
    Context(&'a dyn Fn() -> u64),
    /// Code, which can be unloaded.
    Code,
    /// A use of code, which cannot be taken back.
    Use,
}

/// Does what makes the driver take memory for itself; `undo` takes it back if it was too much, or if it
/// must be weighed again. Says what it cost.
pub(crate) fn around(
    place: &'static Place,
    estimate: Estimate,
    what: What<'_>,
    undo: &dyn Fn(),
    real: &dyn Fn() -> u32,
) -> (u32, u64) {
    let mut listing = STRUCTURE.hold();
    let is_context = matches!(what, What::Context(_));
    let estimate = if is_context { known_or_alone(place, estimate) } else { estimate };
    let mut claimed = estimate.size();
    if claim(place, claimed).is_err() {
        let held = place.account().held();
        let tries = matches!(estimate, Estimate::AtMost(_)) && (!is_context || held == 0);
        claimed = place.allowed().saturating_sub(held);
        if !tries || claimed == 0 || claim(place, claimed).is_err() {
            return (cuda::OUT_OF_MEMORY, 0);
        }
    }
    let was = overhead(place);
    let mut scale = Scale::new(what, estimate, claimed);
    let (after, is_sure) = loop {
        let before = if listing::is_known() { None } else { calm(place) };
        let code = real();
        if code != 0 {
            give_back(place, claimed);
            return (code, 0);
        }
        let context = if let What::Context(made) = what { made() } else { 0 };
        listing.find(place, context);
        let listed = measured(place, &mut listing, was.saturating_add(claimed));
        // A context that costs nothing is a list that does not say what it should.
        let says = |after: &u64| !is_context || after.saturating_sub(was) >= *PLAUSIBLE.start();
        if let Some(after) = listed.filter(says) {
            break (after, true);
        }
        // Without a scale there is nothing to try again for.
        let blind = listing::whole_device(place).is_none();
        let cost = before.and_then(|before| calm(place)?.checked_sub(before));
        match if blind { Verdict::Unknown } else { scale.weigh(cost) } {
            Verdict::Is(cost) => break (was.saturating_add(cost), true),
            Verdict::Unknown => break (was.saturating_add(claimed), false),
            Verdict::Again(pause) => {
                undo();
                sys::sleep(pause);
            }
        }
    };
    let now = was.saturating_add(claimed);
    if after > now && claim(place, after - now).is_err() {
        undo();
        give_back(place, claimed);
        return (cuda::OUT_OF_MEMORY, 0);
    }
    give_back(place, now.saturating_sub(after));
    store(place, after);
    let cost = after.saturating_sub(was);
    if is_context && is_sure {
        learn(place, cost);
    }
    (cuda::SUCCESS, cost)
}

/// After something went: looks again. `cost` is what goes if we are not listed.
pub(crate) fn lessened(place: &'static Place, cost: u64) {
    let mut listing = STRUCTURE.hold();
    let was = overhead(place);
    let after = measured(place, &mut listing, was).unwrap_or_else(|| {
        // Who is not listed any more and has no context holds nothing.
        let nothing = listing::is_known() && !has_context(place);
        if nothing { 0 } else { was.saturating_sub(cost) }
    });
    if after > was {
        // Lazily loaded code came to light.
        owe(place, after - was);
    }
    give_back(place, was.saturating_sub(after));
    store(place, after);
}

fn has_context(place: &'static Place) -> bool {
    let mut found = false;
    table::retain(|kind, _, entry| {
        found |= kind == Kind::Context as u8 && usize::from(entry.place) == place.number();
        false
    });
    found
}

fn overhead(place: &'static Place) -> u64 {
    OVERHEAD.get(place.number()).map_or(0, |known| known.load(Ordering::Acquire))
}

fn store(place: &'static Place, size: u64) {
    if let Some(known) = OVERHEAD.get(place.number()) {
        known.store(size, Ordering::Release);
    }
}

/// What the driver says this process holds of the device above what we know. `claimed` of our seat is
/// overhead already. `None` if we are not listed, or if other threads allocate all the while.
fn measured(place: &'static Place, listing: &mut Listing, claimed: u64) -> Option<u64> {
    pool::refresh(place);
    let seat = place.seat()?;
    for _ in 0..TRIES {
        let look = || (seat.memory.load(Ordering::Acquire), listing.look(place));
        let Some((held, holds)) = at_rest(look) else {
            sys::sleep(PAUSE);
            continue;
        };
        // Pools and graphs are settled elsewhere.
        if seat.memory.load(Ordering::Acquire) == held {
            return Some(holds?.saturating_sub(held.saturating_sub(claimed)));
        }
    }
    None
}

pub(crate) fn forget() {
    STRUCTURE.begin_anew(Listing::new());
    listing::forget();
    charge::forget();
    for known in &OVERHEAD {
        known.store(0, Ordering::Release);
    }
}
