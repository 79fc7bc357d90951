//! Who uses a device: the processes of the container, as its account has them.
//!
//! The driver's own list has the processes of everyone, or none, and their numbers may be the host's.
//! The account has exactly those of the container, with the numbers they have in it.

use core::ffi::c_void;

use page::{Account, Resident};

use super::place_of;
use crate::driver::{hooks, nvml};
use crate::place::Place;
use crate::process;

/// In the place of an instance, for a card that is not cut.
const NO_INSTANCE: u32 = u32::MAX;

/// `nvmlProcessInfo_v1_t`.
#[repr(C)]
pub(crate) struct ProcessV1 {
    pid: u32,
    memory: u64,
}

/// `nvmlProcessInfo_t` from its second version on.
#[repr(C)]
pub(crate) struct Process {
    pid: u32,
    memory: u64,
    instances: [u32; 2],
}

/// `nvmlProcessDetail_v1_t`.
#[repr(C)]
pub(crate) struct Detail {
    pid: u32,
    memory: u64,
    instances: [u32; 2],
    protected: u64,
}

/// `nvmlProcessDetailList_v1_t`.
#[repr(C)]
pub(crate) struct Details {
    version: u32,
    mode: u32,
    count: u32,
    list: *mut Detail,
}

impl From<(u32, u64)> for ProcessV1 {
    fn from((pid, memory): (u32, u64)) -> Self {
        Self { pid, memory }
    }
}

impl From<(u32, u64)> for Process {
    fn from((pid, memory): (u32, u64)) -> Self {
        Self { pid, memory, instances: [NO_INSTANCE; 2] }
    }
}

impl From<(u32, u64)> for Detail {
    fn from((pid, memory): (u32, u64)) -> Self {
        Self { pid, memory, instances: [NO_INSTANCE; 2], protected: 0 }
    }
}

/// Living processes of the container on a device, with what they hold.
pub(super) fn living(place: &'static Place) -> impl Iterator<Item = (Resident, u64, u64)> {
    let seats = place.counters().seats.iter();
    let high = place.counters().high.load(core::sync::atomic::Ordering::Acquire) as usize;
    seats.take(high).filter_map(|seat| {
        let who = Account::resident(seat)?;
        let load = |number: &core::sync::atomic::AtomicU64| {
            number.load(core::sync::atomic::Ordering::Acquire)
        };
        let known = who.namespace == process::namespace() && !process::gone(who);
        known.then(|| (who, load(&seat.memory), load(&seat.spent)))
    })
}

/// Writes the processes to a list with room for `count`, and says how many there are.
unsafe fn list<T: From<(u32, u64)>>(device: u64, count: *mut u32, to: *mut T) -> Result<(), u32> {
    let Some(place) = place_of(device)? else { return Ok(()) };
    // SAFETY: the caller's number.
    let count = unsafe { count.as_mut() }.ok_or(nvml::INVALID_ARGUMENT)?;
    let (room, mut found) = (if to.is_null() { 0 } else { *count }, 0_u32);
    for (who, memory, _) in living(place).filter(|(_, memory, _)| *memory > 0) {
        if found < room {
            // SAFETY: the caller has room for so many.
            unsafe { to.add(found as usize).write(T::from((who.owner.pid(), memory))) };
        }
        found += 1;
    }
    *count = found;
    if found > room { Err(nvml::INSUFFICIENT_SIZE) } else { Ok(()) }
}

/// A list of other kinds of processes: graphics, clients of MPS. Of them the account knows nothing.
unsafe fn none(device: u64, count: *mut u32, code: u32) -> u32 {
    if !matches!(code, nvml::SUCCESS | nvml::INSUFFICIENT_SIZE) {
        return code;
    }
    if let Err(code) = place_of(device) {
        return code;
    }
    // SAFETY: the driver took it, so it can be written.
    if let Some(count) = unsafe { count.as_mut() } {
        *count = 0;
    }
    nvml::SUCCESS
}

fn answer(result: Result<(), u32>) -> u32 {
    result.err().unwrap_or(nvml::SUCCESS)
}

hooks! {
    nvmlDeviceGetComputeRunningProcesses(device: u64, count: *mut u32, to: *mut ProcessV1) |_real| {
        // SAFETY: the caller's list.
        answer(unsafe { list(device, count, to) })
    }

    nvmlDeviceGetComputeRunningProcesses_v2(device: u64, count: *mut u32, to: *mut Process) |_real| {
        // SAFETY: the caller's list.
        answer(unsafe { list(device, count, to) })
    }

    nvmlDeviceGetComputeRunningProcesses_v3(device: u64, count: *mut u32, to: *mut Process) |_real| {
        // SAFETY: the caller's list.
        answer(unsafe { list(device, count, to) })
    }

    nvmlDeviceGetGraphicsRunningProcesses(device: u64, count: *mut u32, to: *mut c_void) |real| {
        // SAFETY: the caller's list.
        unsafe { none(device, count, real(device, count, to)) }
    }

    nvmlDeviceGetGraphicsRunningProcesses_v2(device: u64, count: *mut u32, to: *mut c_void) |real| {
        // SAFETY: the caller's list.
        unsafe { none(device, count, real(device, count, to)) }
    }

    nvmlDeviceGetGraphicsRunningProcesses_v3(device: u64, count: *mut u32, to: *mut c_void) |real| {
        // SAFETY: the caller's list.
        unsafe { none(device, count, real(device, count, to)) }
    }

    nvmlDeviceGetMPSComputeRunningProcesses(device: u64, count: *mut u32, to: *mut c_void) |real| {
        // SAFETY: the caller's list.
        unsafe { none(device, count, real(device, count, to)) }
    }

    nvmlDeviceGetMPSComputeRunningProcesses_v2(device: u64, count: *mut u32, to: *mut c_void) |real| {
        // SAFETY: the caller's list.
        unsafe { none(device, count, real(device, count, to)) }
    }

    nvmlDeviceGetMPSComputeRunningProcesses_v3(device: u64, count: *mut u32, to: *mut c_void) |real| {
        // SAFETY: the caller's list.
        unsafe { none(device, count, real(device, count, to)) }
    }

    nvmlDeviceGetRunningProcessDetailList(device: u64, details: *mut Details) |real| {
        let code = real(device, details);
        // SAFETY: the driver took it, so it is the caller's list.
        match unsafe { details.as_mut() } {
            // Mode 0 is compute.
            Some(details) if details.mode == 0 && matches!(code, nvml::SUCCESS | nvml::INSUFFICIENT_SIZE) => {
                // SAFETY: the caller's list.
                answer(unsafe { list(device, &raw mut details.count, details.list) })
            }
            Some(details) if code == nvml::SUCCESS => {
                details.count = 0;
                code
            }
            _ => code,
        }
    }
}
