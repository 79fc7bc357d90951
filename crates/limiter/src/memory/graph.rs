//! Memory that graphs allocate when they run.
//!
//! A graph that is made ready is walked for nodes that allocate. Before it is launched or uploaded, what
//! they will need above what the device's graphs have reserved is claimed; after it the claim becomes
//! what they have reserved.

use core::ffi::{c_char, c_void};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::driver::{call, cuda, hooks};
use crate::memory::charge::{self, BLOCK, claim_for_pool, give_back, round_up};
use crate::memory::pool::POOLS;
use crate::memory::table::{self, Entry, Kind};
use crate::place::{self, MOST, Place};
use crate::sys;

const USED: u32 = 0;
const RESERVED: u32 = 2;
const CHILD: u32 = 4;
const ALLOCATION: u32 = 10;

/// What the graphs of each place are charged with.
static CHARGED: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];
/// Some graph allocates. Most programs have none, and their launches need no look.
static ANY: AtomicBool = AtomicBool::new(false);

fn attribute(device: i32, which: u32) -> u64 {
    let mut value = 0_u64;
    call!(cuDeviceGetGraphMemAttribute(device => i32, which => u32, &raw mut value => *mut u64));
    value
}

/// What the nodes of a graph allocate, and on which device; graphs within it too.
fn needs(graph: u64, depth: u32) -> (u64, Option<i32>) {
    let mut count = 0_usize;
    let none = core::ptr::null_mut::<u64>();
    if call!(cuGraphGetNodes(graph => u64, none => *mut u64, &raw mut count => *mut usize)) != 0
        || count == 0
        || depth > 16
    {
        return (0, None);
    }
    let length = count.saturating_mul(8);
    let Ok(memory) = sys::map_zeroes(length) else { return (0, None) };
    let nodes = memory.cast::<u64>();
    let code =
        call!(cuGraphGetNodes(graph => u64, nodes => *mut u64, &raw mut count => *mut usize));
    let (mut sum, mut device) = (0_u64, None);
    for at in 0..if code == 0 { count } else { 0 } {
        // SAFETY: the driver wrote `count` handles there, which is at most what was asked for.
        let one = unsafe { *nodes.add(at) };
        let (size, on) = of_node(one, depth);
        sum = sum.saturating_add(size);
        device = device.or(on);
    }
    // SAFETY: nothing points there any more.
    unsafe { sys::unmap(memory, length) };
    (sum, device)
}

fn of_node(node: u64, depth: u32) -> (u64, Option<i32>) {
    let mut kind = 0_u32;
    call!(cuGraphNodeGetType(node => u64, &raw mut kind => *mut u32));
    if kind == CHILD {
        let mut child = 0_u64;
        call!(cuGraphChildGraphNodeGetGraph(node => u64, &raw mut child => *mut u64));
        return needs(child, depth + 1);
    }
    if kind != ALLOCATION {
        return (0, None);
    }
    // Properties of a pool with the location at byte 8, two words about access, size, address.
    let mut shape = [0_u64; 32];
    if call!(cuGraphMemAllocNodeGetParams(node => u64, &raw mut shape => *mut [u64; 32])) != 0 {
        return (0, None);
    }
    let device = i32::try_from(shape[1] >> 32).ok();
    (round_up(shape[13], BLOCK), device)
}

/// Remembers what a graph that was made ready will allocate.
fn made_ready(exec: u64, graph: u64) {
    let (size, device) = needs(graph, 0);
    table::take(Kind::Exec, exec);
    if let Some(place) = device.and_then(place::of_device).filter(|_| size > 0) {
        ANY.store(true, Ordering::Release);
        let number = u8::try_from(place.number()).unwrap_or(u8::MAX);
        let device = device.unwrap_or_default().unsigned_abs();
        table::put(Kind::Exec, exec, Entry { size, place: number, extra: device.into() });
    }
}

/// A graph is launched or uploaded: what it allocates is claimed first.
#[inline]
pub(crate) fn launched(exec: u64, real: impl FnOnce() -> u32) -> u32 {
    if !ANY.load(Ordering::Acquire) {
        return real();
    }
    let Some(entry) = table::get(Kind::Exec, exec) else { return real() };
    let Some(place) = place::all().get(usize::from(entry.place)) else { return real() };
    let device = i32::try_from(entry.extra).unwrap_or(0);
    let held = POOLS.hold();
    let (used, reserved) = (attribute(device, USED), attribute(device, RESERVED));
    let more = used.saturating_add(entry.size).saturating_sub(reserved);
    if claim_for_pool(place, more).is_err() {
        return cuda::OUT_OF_MEMORY;
    }
    let code = real();
    settle(place, device, more);
    drop(held);
    code
}

/// The charge becomes what the device's graphs have reserved; `claimed` was claimed besides.
fn settle(place: &'static Place, device: i32, claimed: u64) {
    let Some(charged) = CHARGED.get(place.number()) else { return };
    let reserved = attribute(device, RESERVED);
    let before = charged.swap(reserved, Ordering::AcqRel).saturating_add(claimed);
    if reserved > before {
        // Launched is launched: this is owed, whatever the limit says.
        charge::owe(place, reserved - before);
    } else {
        give_back(place, before - reserved);
    }
}

/// CUDA's number of a place.
fn device_of(place: &'static Place) -> Option<i32> {
    let same =
        |device: &i32| place::of_device(*device).is_some_and(|found| core::ptr::eq(found, place));
    (0..i32::try_from(MOST).unwrap_or(0)).find(same)
}

/// Brings the account up to date. `POOLS` is held.
pub(crate) fn refresh(place: &'static Place) {
    let charged = CHARGED.get(place.number()).map_or(0, |charged| charged.load(Ordering::Acquire));
    if charged > 0
        && let Some(device) = device_of(place)
    {
        settle(place, device, 0);
    }
}

/// Has the graphs of a device give back what they only keep. `POOLS` is held.
pub(crate) fn trim(place: &'static Place) {
    let charged = CHARGED.get(place.number()).map_or(0, |charged| charged.load(Ordering::Acquire));
    if charged > 0
        && let Some(device) = device_of(place)
    {
        call!(cuDeviceGraphMemTrim(device => i32));
        settle(place, device, 0);
    }
}

pub(crate) fn forget() {
    for charged in &CHARGED {
        charged.store(0, Ordering::Release);
    }
}

/// Makes a graph ready, and looks at what it will allocate.
unsafe fn ready(exec: *const u64, graph: u64, code: u32) -> u32 {
    if code == 0 && !exec.is_null() {
        // SAFETY: the driver wrote there.
        made_ready(unsafe { *exec }, graph);
    }
    code
}

hooks! {
    cuGraphInstantiate(exec: *mut u64, graph: u64, node: *mut u64, log: *mut c_char, size: usize) |real| {
        // SAFETY: the caller's pointer.
        unsafe { ready(exec, graph, real(exec, graph, node, log, size)) }
    }

    cuGraphInstantiate_v2(exec: *mut u64, graph: u64, node: *mut u64, log: *mut c_char, size: usize) |real| {
        // SAFETY: the caller's pointer.
        unsafe { ready(exec, graph, real(exec, graph, node, log, size)) }
    }

    cuGraphInstantiateWithFlags(exec: *mut u64, graph: u64, flags: u64) |real| {
        // SAFETY: the caller's pointer.
        unsafe { ready(exec, graph, real(exec, graph, flags)) }
    }

    cuGraphInstantiateWithParams(exec: *mut u64, graph: u64, parameters: *mut c_void) |real| {
        // SAFETY: the caller's pointer.
        unsafe { ready(exec, graph, real(exec, graph, parameters)) }
    }

    cuGraphInstantiateWithParams_ptsz(exec: *mut u64, graph: u64, parameters: *mut c_void) |real| {
        // SAFETY: the caller's pointer.
        unsafe { ready(exec, graph, real(exec, graph, parameters)) }
    }

    cuGraphExecUpdate(exec: u64, graph: u64, node: *mut u64, result: *mut u32) |real| {
        // SAFETY: points to the handle.
        unsafe { ready(&raw const exec, graph, real(exec, graph, node, result)) }
    }

    cuGraphExecUpdate_v2(exec: u64, graph: u64, result: *mut c_void) |real| {
        // SAFETY: points to the handle.
        unsafe { ready(&raw const exec, graph, real(exec, graph, result)) }
    }

    cuGraphExecDestroy(exec: u64) |real| {
        let known = table::take(Kind::Exec, exec);
        let code = real(exec);
        if let Some(entry) = known.filter(|_| code != 0) {
            table::put(Kind::Exec, exec, entry);
        }
        code
    }

    cuGraphUpload(exec: u64, stream: u64) |real| {
        launched(exec, || real(exec, stream))
    }

    cuGraphUpload_ptsz(exec: u64, stream: u64) |real| {
        launched(exec, || real(exec, stream))
    }

    cuDeviceGraphMemTrim(device: i32) |real| {
        let code = real(device);
        if let Some(place) = place::of_device(device) {
            let _held = POOLS.hold();
            settle(place, device, 0);
        }
        code
    }
}
