//! What the driver takes for itself in the name of this process: contexts, code, heaps of kernels.
//!
//! Nobody says beforehand how much that is. An estimate is claimed before the call. Afterwards the
//! driver is asked what this process holds of the device; what is above all that we know by
//! allocation is overhead, and the claim becomes that. So code that is loaded lazily is caught at the
//! next look, too.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use crate::driver::{self, Library, call, cuda};
use crate::lock::Lock;
use crate::memory::charge::{claim, give_back, owe};
use crate::memory::pool;
use crate::place::{MOST, Place};
use crate::sys;

/// Taken for the first context of a container, until one was measured.
const FIRST_CONTEXT: u64 = 512 << 20;
/// Less than this no context costs, and more than this neither: such a difference is others' doing.
const PLAUSIBLE: core::ops::RangeInclusive<u64> = 16 << 20..=2 << 30;
/// Milliseconds to wait for another process's first context. It may never come to be measured.
const PATIENCE: u32 = 2000;
/// Processes on a device that are looked through.
const PROCESSES: usize = 2048;

/// One change at a time, so that a difference has one cause.
static STRUCTURE: Lock<Option<Listing>> = Lock::new(None);
/// The driver's list has us under the number that we know.
static LISTED: AtomicBool = AtomicBool::new(false);
/// NVML's handles, and whether it was started.
static DEVICES: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];
static STARTED: AtomicU8 = AtomicU8::new(0);
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
    fn size(self) -> u64 {
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

/// Does what makes the driver take memory for itself; `undo` takes it back if it was too much.
/// Says what it cost.
pub(crate) fn around(
    place: &'static Place,
    estimate: Estimate,
    what: What,
    undo: impl FnOnce(),
    real: impl FnOnce() -> u32,
) -> (u32, u64) {
    let mut listing = STRUCTURE.hold();
    let estimate = if what == What::Context { known_or_alone(place, estimate) } else { estimate };
    let mut claimed = estimate.size();
    if claim(place, claimed).is_err() {
        let held = place.account().held();
        let tries = matches!(estimate, Estimate::AtMost(_)) && (what == What::Code || held == 0);
        claimed = place.allowed().saturating_sub(held);
        if !tries || claimed == 0 || claim(place, claimed).is_err() {
            return (cuda::OUT_OF_MEMORY, 0);
        }
    }
    let before = whole_device(place);
    let code = real();
    if code != 0 {
        give_back(place, claimed);
        return (code, 0);
    }
    let was = overhead(place);
    let after = measured(place, &mut listing, was.saturating_add(claimed)).unwrap_or_else(|| {
        // We are not listed. What the whole device has less now is as good if nobody else was busy.
        let cost =
            whole_device(place).zip(before).map(|(after, before)| after.saturating_sub(before));
        let plausible = cost.filter(|cost| *cost <= estimate.size().saturating_mul(2));
        was.saturating_add(plausible.unwrap_or(claimed))
    });
    let now = was.saturating_add(claimed);
    if after > now && claim(place, after - now).is_err() {
        undo();
        give_back(place, claimed);
        return (cuda::OUT_OF_MEMORY, 0);
    }
    give_back(place, now.saturating_sub(after));
    store(place, after);
    let cost = after.saturating_sub(was);
    if what == What::Context {
        learn(place, cost);
    }
    (code, cost)
}

/// What is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    Context,
    Code,
}

/// After something went: looks again. `cost` is what goes if we are not listed.
pub(crate) fn lessened(place: &'static Place, cost: u64) {
    let mut listing = STRUCTURE.hold();
    let was = overhead(place);
    let after = measured(place, &mut listing, was).unwrap_or(was.saturating_sub(cost));
    if after > was {
        // Lazily loaded code came to light.
        owe(place, after - was);
    }
    give_back(place, was.saturating_sub(after));
    store(place, after);
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
fn measured(place: &'static Place, listing: &mut Option<Listing>, claimed: u64) -> Option<u64> {
    pool::refresh(place);
    let seat = place.seat()?;
    for _ in 0..3 {
        let before = seat.memory.load(Ordering::Acquire);
        let holds = holds(place, listing)?;
        if seat.memory.load(Ordering::Acquire) == before {
            return Some(holds.saturating_sub(before.saturating_sub(claimed)));
        }
    }
    None
}

/// `nvmlProcessInfo_t` from its second version on.
#[repr(C)]
#[derive(Clone, Copy)]
struct Listed {
    pid: u32,
    memory: u64,
    instances: [u32; 2],
}

/// Memory for the driver's list.
#[derive(Debug, Clone, Copy)]
struct Listing(*mut Listed);

// SAFETY: memory of our own, used under the lock it lies in.
unsafe impl Send for Listing {}

/// What this process holds of a device, by the driver's list.
fn holds(place: &'static Place, listing: &mut Option<Listing>) -> Option<u64> {
    let device = device(place)?;
    let list = match *listing {
        Some(list) => list,
        None => {
            *listing.insert(Listing(sys::map_zeroes(PROCESSES * size_of::<Listed>()).ok()?.cast()))
        }
    };
    let mut count = u32::try_from(PROCESSES).ok()?;
    let (at, room) = (list.0, &raw mut count);
    let mut code = call!(nvmlDeviceGetComputeRunningProcesses_v3(device => u64, room => *mut u32, at => *mut Listed));
    if code != 0 {
        code = call!(nvmlDeviceGetComputeRunningProcesses_v2(device => u64, room => *mut u32, at => *mut Listed));
    }
    let me = sys::pid();
    let count = if code == 0 { (count as usize).min(PROCESSES) } else { 0 };
    // SAFETY: the driver wrote so many entries, and the memory has room for them.
    let all = unsafe { core::slice::from_raw_parts(list.0, count) };
    let found = all.iter().find(|listed| listed.pid == me).map(|listed| listed.memory);
    if found.is_some() {
        LISTED.store(true, Ordering::Release);
    }
    // Who was listed once and is not now holds nothing any more.
    found.or((code == 0 && LISTED.load(Ordering::Acquire)).then_some(0))
}

/// What everybody holds of a device.
fn whole_device(place: &'static Place) -> Option<u64> {
    let device = device(place)?;
    let mut memory = [0_u64; 3];
    let code = call!(nvmlDeviceGetMemoryInfo(device => u64, &raw mut memory => *mut [u64; 3]));
    (code == 0).then_some(memory[2])
}

/// NVML's handle of a device.
pub(crate) fn device(place: &'static Place) -> Option<u64> {
    let known = DEVICES.get(place.number())?;
    let handle = known.load(Ordering::Acquire);
    if handle != 0 {
        return Some(handle);
    }
    if !driver::load(Library::Nvml) {
        return None;
    }
    if STARTED.swap(1, Ordering::AcqRel) == 0 && call!(nvmlInit_v2()) != 0 {
        STARTED.store(0, Ordering::Release);
        return None;
    }
    let mut handle = 0_u64;
    let name = place.limits().device.as_ptr();
    let code = call!(nvmlDeviceGetHandleByUUID(name => *const u8, &raw mut handle => *mut u64));
    if code != 0 {
        return None;
    }
    known.store(handle, Ordering::Release);
    Some(handle)
}

pub(crate) fn forget() {
    STRUCTURE.begin_anew(None);
    LISTED.store(false, Ordering::Release);
    STARTED.store(0, Ordering::Release);
    for known in OVERHEAD.iter().chain(&DEVICES) {
        known.store(0, Ordering::Release);
    }
}
