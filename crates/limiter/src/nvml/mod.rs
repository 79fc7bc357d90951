//! NVML as the container should see it: its devices, its share of each, and its own processes.
//!
//! The driver is always asked first, so that a handle that is none and a library that was not
//! initialised get its own answer. What `nvmlInternalGetExportTable` hands out is private to NVIDIA's
//! programs and left alone.

pub(crate) mod devices;
pub(crate) mod memory;
pub(crate) mod processes;
pub(crate) mod usage;

use crate::driver::call;
use crate::place::{self, Place};

/// The place of a device by NVML's handle: none if it is not ours; or the driver's error.
fn place_of(device: u64) -> Result<Option<&'static Place>, u32> {
    let mut name = [0_u8; 96];
    match call!(nvmlDeviceGetUUID(device => u64, &raw mut name => *mut [u8; 96], 96 => u32)) {
        0 => Ok(place::of_name(&name)),
        code => Err(code),
    }
}
