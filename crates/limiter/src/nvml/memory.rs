//! Memory: as much as the share has, and what the container holds of it.

use super::place_of;
use crate::driver::hooks;

/// `nvmlMemory_t`.
#[repr(C)]
pub(crate) struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
pub(crate) struct MemoryV2 {
    version: u32,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// All, free and used, for a container; as it is if the device is not ours.
fn seen(device: u64, total: u64) -> Option<(u64, u64, u64)> {
    let place = place_of(device).ok()??;
    let all = place.allowed().min(total);
    let used = place.account().held().min(all);
    Some((all, all - used, used))
}

hooks! {
    nvmlDeviceGetMemoryInfo(device: u64, memory: *mut Memory) |real| {
        let code = real(device, memory);
        // SAFETY: the driver wrote there, if it was not null.
        if let (0, Some(memory)) = (code, unsafe { memory.as_mut() })
            && let Some((total, free, used)) = seen(device, memory.total)
        {
            (memory.total, memory.free, memory.used) = (total, free, used);
        }
        code
    }

    nvmlDeviceGetMemoryInfo_v2(device: u64, memory: *mut MemoryV2) |real| {
        let code = real(device, memory);
        // SAFETY: the driver wrote there, if it was not null.
        if let (0, Some(memory)) = (code, unsafe { memory.as_mut() })
            && let Some((total, free, used)) = seen(device, memory.total)
        {
            (memory.total, memory.free, memory.used, memory.reserved) = (total, free, used, 0);
        }
        code
    }
}
