//! What programs are told: the share is the device.

use crate::driver::hooks;
use crate::memory::linear::here;
use crate::memory::pool;
use crate::place::{self, Place};

/// Free and all memory, as the container has it.
fn seen(place: &'static Place, free: u64, total: u64) -> (u64, u64) {
    pool::synchronised();
    let allowed = place.allowed().min(total);
    (allowed.saturating_sub(place.account().held()).min(free), allowed)
}

/// Writes a number where a caller wants it, as far as it fits.
unsafe fn put<T: TryFrom<u64>>(to: *mut T, number: u64, most: T) {
    if !to.is_null() {
        // SAFETY: the caller's pointer.
        unsafe { *to = T::try_from(number).unwrap_or(most) };
    }
}

hooks! {
    cuMemGetInfo_v2(free: *mut u64, total: *mut u64) |real| {
        let code = real(free, total);
        if code == 0 && let Ok((_, place)) = here() {
            // SAFETY: the driver wrote there.
            unsafe {
                let (left, all) = seen(place, *free, *total);
                put(free, left, u64::MAX);
                put(total, all, u64::MAX);
            }
        }
        code
    }

    cuMemGetInfo(free: *mut u32, total: *mut u32) |real| {
        let code = real(free, total);
        if code == 0 && let Ok((_, place)) = here() {
            // SAFETY: the driver wrote there.
            unsafe {
                let (left, all) = seen(place, u64::from(*free), u64::from(*total));
                put(free, left, u32::MAX);
                put(total, all, u32::MAX);
            }
        }
        code
    }

    cuDeviceTotalMem_v2(total: *mut u64, device: i32) |real| {
        let code = real(total, device);
        if code == 0 && let Some(place) = place::of_device(device) {
            // SAFETY: the driver wrote there.
            unsafe { put(total, place.allowed().min(*total), u64::MAX) };
        }
        code
    }

    cuDeviceTotalMem(total: *mut u32, device: i32) |real| {
        let code = real(total, device);
        if code == 0 && let Some(place) = place::of_device(device) {
            // SAFETY: the driver wrote there.
            unsafe { put(total, place.allowed().min(u64::from(*total)), u32::MAX) };
        }
        code
    }
}
