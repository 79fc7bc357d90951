//! Which devices there are: those that the container was given, in the driver's order.
//!
//! In a container the driver lists no others, as it has no device nodes for them. On a workstation it
//! does, and a program that was given one card sees one.

use core::ffi::{c_char, c_void};

use super::place_of;
use crate::driver::{call, hooks, nvml};
use crate::place;

/// Whether a device is shown. Slices hang on cards, which nobody was given as such: with slices all
/// are shown.
fn shown(device: u64) -> bool {
    let slices = place::all().iter().any(|place| place.limits().device.starts_with(b"MIG"));
    slices || matches!(place_of(device), Ok(Some(_)))
}

fn handle(index: u32) -> Result<u64, u32> {
    let mut device = 0_u64;
    match call!(nvmlDeviceGetHandleByIndex_v2(index => u32, &raw mut device => *mut u64)) {
        0 => Ok(device),
        code => Err(code),
    }
}

/// How many the driver has.
fn all() -> u32 {
    let mut count = 0_u32;
    call!(nvmlDeviceGetCount_v2(&raw mut count => *mut u32));
    count
}

/// The driver's number of the device that is shown as `wanted`.
fn index_of(wanted: u32) -> Option<u32> {
    let mine = (0..all()).filter(|index| handle(*index).is_ok_and(shown));
    mine.into_iter().nth(wanted as usize)
}

/// The number that a device is shown with.
fn shown_as(index: u32) -> u32 {
    let before = (0..index).filter(|other| handle(*other).is_ok_and(shown)).count();
    u32::try_from(before).unwrap_or(index)
}

/// The answer of a search, if what was found is shown.
fn found(code: u32, device: *const u64) -> u32 {
    // SAFETY: the driver wrote there if it found something.
    match unsafe { device.as_ref() }.filter(|_| code == 0) {
        Some(device) if !shown(*device) => nvml::NOT_FOUND,
        _ => code,
    }
}

fn counted(code: u32, count: *mut u32) -> u32 {
    // SAFETY: the driver wrote there.
    if let Some(count) = unsafe { count.as_mut() }.filter(|_| code == 0) {
        *count = shown_as(*count);
    }
    code
}

hooks! {
    nvmlDeviceGetCount(count: *mut u32) |real| {
        counted(real(count), count)
    }

    nvmlDeviceGetCount_v2(count: *mut u32) |real| {
        counted(real(count), count)
    }

    nvmlDeviceGetHandleByIndex(index: u32, device: *mut u64) |real| {
        match index_of(index) {
            Some(index) => real(index, device),
            // Beyond the last: so says the driver.
            None => real(u32::MAX, device),
        }
    }

    nvmlDeviceGetHandleByIndex_v2(index: u32, device: *mut u64) |real| {
        match index_of(index) {
            Some(index) => real(index, device),
            None => real(u32::MAX, device),
        }
    }

    nvmlDeviceGetIndex(device: u64, index: *mut u32) |real| {
        counted(real(device, index), index)
    }

    nvmlDeviceGetHandleByUUID(name: *const c_char, device: *mut u64) |real| {
        found(real(name, device), device)
    }

    nvmlDeviceGetHandleByUUIDV(name: *const c_void, device: *mut u64) |real| {
        found(real(name, device), device)
    }

    nvmlDeviceGetHandleByPciBusId(bus: *const c_char, device: *mut u64) |real| {
        found(real(bus, device), device)
    }

    nvmlDeviceGetHandleByPciBusId_v2(bus: *const c_char, device: *mut u64) |real| {
        found(real(bus, device), device)
    }

    nvmlDeviceGetHandleBySerial(serial: *const c_char, device: *mut u64) |real| {
        found(real(serial, device), device)
    }
}
