//! Pools, and memory in the order of a stream.
//!
//! A pool is charged with what it has reserved, not with what is in use: that is what the card has less.
//! It grows only while memory is taken from it, so what is charged is never too little. It shrinks when
//! the driver pleases; that is looked up when somebody needs room, and after every synchronisation.

use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::compute::Relaxed;
use crate::driver::{call, cuda, hooks};
use crate::lock::Lock;
use crate::memory::charge::{
    BLOCK, Changing, claim_for_pool, give_back, give_back_at, round_up, settle,
};
use crate::memory::graph;
use crate::memory::linear;
use crate::memory::table::{self, Entry, Kind};
use crate::place::{self, Place};

const RESERVED: u32 = 5;
const USED: u32 = 7;
/// A place that is not a device of ours: the host.
pub(crate) const HOST: u8 = 255;
/// The most pools that are looked at together.
const MANY: usize = 128;

/// Held while memory is taken from a pool or a pool is looked at, so that what it has reserved
/// changes under one hand.
pub(crate) static POOLS: Lock<()> = Lock::new(());
/// Memory was freed since the pools were last looked at.
static FREED: AtomicU32 = AtomicU32::new(0);

fn attribute(pool: u64, which: u32) -> Option<u64> {
    let mut value = 0_u64;
    let code = call!(cuMemPoolGetAttribute(pool => u64, which => u32, &raw mut value => *mut u64));
    (code == 0).then_some(value)
}

/// What is known of a pool; one that we have not seen made is a device's own.
fn known(pool: u64, place: &'static Place) -> Entry {
    table::get(Kind::Pool, pool).unwrap_or_else(|| {
        let number = u8::try_from(place.number()).unwrap_or(HOST);
        Entry { size: 0, place: number, extra: 0 }
    })
}

/// The device that a stream works on.
fn device_of(stream: u64) -> Result<i32, u32> {
    let (mut device, mut context, mut own) = (0_i32, 0_u64, 0_u64);
    let code = call!(cuCtxGetDevice(&raw mut device => *mut i32));
    if code != 0 || stream <= 2 || place::all().len() <= 1 {
        return if code == 0 { Ok(device) } else { Err(code) };
    }
    let asked = call!(cuStreamGetCtx(stream => u64, &raw mut context => *mut u64));
    call!(cuCtxGetCurrent(&raw mut own => *mut u64));
    if asked == 0 && context != own && call!(cuCtxPushCurrent_v2(context => u64)) == 0 {
        call!(cuCtxGetDevice(&raw mut device => *mut i32));
        call!(cuCtxPopCurrent_v2(&raw mut context => *mut u64));
    }
    Ok(device)
}

/// Takes memory from a pool; `None` is the pool of the stream's device.
fn allocate(
    address: *mut u64,
    size: usize,
    pool: Option<u64>,
    stream: u64,
    real: impl FnOnce() -> u32,
) -> u32 {
    let device = match device_of(stream) {
        Ok(device) => device,
        Err(code) => return code,
    };
    let Some(mut place) = place::of_device(device) else { return cuda::OUT_OF_MEMORY };
    let _held = POOLS.hold();
    let pool = pool.unwrap_or_else(|| {
        let mut own = 0_u64;
        call!(cuDeviceGetMemPool(&raw mut own => *mut u64, device => i32));
        own
    });
    let entry = known(pool, place);
    if entry.place == HOST {
        return real();
    }
    if let Some(of_pool) = place::all().get(usize::from(entry.place)) {
        place = of_pool;
    }
    let _changing = Changing::begin();
    let expected = round_up(size as u64, BLOCK);
    if claim_for_pool(place, expected).is_err() {
        trim(place);
        if claim_for_pool(place, expected).is_err() {
            return cuda::OUT_OF_MEMORY;
        }
    }
    // Trimming may have changed it.
    let entry = known(pool, place);
    let code = real();
    let reserved = attribute(pool, RESERVED).unwrap_or_else(|| entry.size.saturating_add(expected));
    if code != 0 {
        give_back(place, expected);
        return code;
    }
    // SAFETY: the driver wrote there.
    let got = unsafe { *address };
    if settle(place, entry.size.saturating_add(expected), reserved).is_err() {
        // It grew by more than was asked for, and there is no room.
        call!(cuMemFreeAsync(got => u64, stream => u64));
        call!(cuMemPoolTrimTo(pool => u64, 0 => usize));
        give_back(place, expected);
        return cuda::OUT_OF_MEMORY;
    }
    table::put(Kind::Pool, pool, Entry { size: reserved, ..entry });
    cuda::SUCCESS
}

/// Looks up what the pools of a device have reserved, and gives back what they let go. `POOLS` is held.
fn look(place: &'static Place, each: impl Fn(u64)) {
    let _relaxed = Relaxed::new();
    let (mut pools, mut count) = ([(0_u64, 0_u64); MANY], 0);
    let number = place.number();
    table::retain(|kind, pool, entry| {
        let ours = kind == Kind::Pool as u8 && usize::from(entry.place) == number;
        if let Some(slot) = pools.get_mut(count).filter(|_| ours && entry.size > 0) {
            *slot = (pool, entry.size);
            count += 1;
        }
        false
    });
    for (pool, charged) in pools.into_iter().take(count) {
        each(pool);
        // A pool that was destroyed and whose memory is gone does not answer.
        let reserved = attribute(pool, RESERVED).unwrap_or(0);
        if reserved < charged
            && let Some(entry) = table::get(Kind::Pool, pool)
        {
            give_back(place, charged - reserved);
            table::put(Kind::Pool, pool, Entry { size: reserved, ..entry });
        }
    }
}

/// Has the pools of a device give back what nobody uses. `POOLS` is held.
fn trim(place: &'static Place) {
    look(place, |pool| {
        call!(cuMemPoolTrimTo(pool => u64, 0 => usize));
    });
    graph::trim(place);
}

/// The same, for who does not hold `POOLS`.
pub(crate) fn trim_all(place: &'static Place) {
    let _held = POOLS.hold();
    trim(place);
}

/// Brings the account of a device's pools up to date.
pub(crate) fn refresh(place: &'static Place) {
    let _held = POOLS.hold();
    look(place, |_| {});
    graph::refresh(place);
}

/// Memory was freed in the order of a stream: at the next synchronisation pools may shrink.
pub(crate) fn freed() {
    FREED.store(1, Ordering::Relaxed);
}

/// After a synchronisation.
#[inline]
pub(crate) fn synchronised() {
    if FREED.load(Ordering::Relaxed) != 0 {
        shrink();
    }
}

#[cold]
fn shrink() {
    FREED.store(0, Ordering::Relaxed);
    for place in place::all() {
        refresh(place);
    }
}

pub(crate) fn forget() {
    POOLS.begin_anew(());
    FREED.store(0, Ordering::Relaxed);
}

/// Where a pool's memory is: the location is at byte 8 of its properties.
unsafe fn place_of(properties: *const c_void) -> u8 {
    if properties.is_null() {
        return HOST;
    }
    // SAFETY: the caller's properties.
    let [kind, device] = unsafe { properties.byte_add(8).cast::<[i32; 2]>().read_unaligned() };
    if kind != 1 {
        return HOST;
    }
    place::of_device(device).map_or(HOST, |place| u8::try_from(place.number()).unwrap_or(HOST))
}

/// A pool goes. Its memory may stay until the last of it is freed, and then it can no longer be asked;
/// so what is in use stays charged until the process ends.
fn destroy(pool: u64, real: impl FnOnce() -> u32) -> u32 {
    let _held = POOLS.hold();
    let used = attribute(pool, USED).unwrap_or(0);
    let code = real();
    if code == 0
        && let Some(entry) = table::take(Kind::Pool, pool)
    {
        let left = round_up(used, BLOCK).min(entry.size);
        give_back_at(entry.place, entry.size - left);
    }
    code
}

/// Frees in the order of a stream: memory of pools mostly, but any kind is taken.
fn free(address: u64, real: impl FnOnce() -> u32) -> u32 {
    freed();
    linear::free(address, real)
}

hooks! {
    cuMemAllocAsync(address: *mut u64, size: usize, stream: u64) |real| {
        allocate(address, size, None, stream, || real(address, size, stream))
    }

    cuMemAllocAsync_ptsz(address: *mut u64, size: usize, stream: u64) |real| {
        allocate(address, size, None, stream, || real(address, size, stream))
    }

    cuMemAllocFromPoolAsync(address: *mut u64, size: usize, pool: u64, stream: u64) |real| {
        allocate(address, size, Some(pool), stream, || real(address, size, pool, stream))
    }

    cuMemAllocFromPoolAsync_ptsz(address: *mut u64, size: usize, pool: u64, stream: u64) |real| {
        allocate(address, size, Some(pool), stream, || real(address, size, pool, stream))
    }

    cuMemFreeAsync(address: u64, stream: u64) |real| {
        free(address, || real(address, stream))
    }

    cuMemFreeAsync_ptsz(address: u64, stream: u64) |real| {
        free(address, || real(address, stream))
    }

    cuMemPoolCreate(pool: *mut u64, properties: *const c_void) |real| {
        let code = real(pool, properties);
        if code == 0 {
            // SAFETY: the caller's properties, and a handle that the driver wrote.
            let (place, pool) = unsafe { (place_of(properties), *pool) };
            table::put(Kind::Pool, pool, Entry { size: 0, place, extra: 0 });
        }
        code
    }

    cuMemPoolDestroy(pool: u64) |real| {
        destroy(pool, || real(pool))
    }

    cuMemPoolTrimTo(pool: u64, keep: usize) |real| {
        let code = real(pool, keep);
        shrink();
        code
    }
}
