//! Memory.

use crate::abi::{Handle, Pointer, Status, struct_version};
use crate::types::{Memory, MemoryV2};

calls! {
    nvmlDeviceGetMemoryInfo(device: Handle, memory: Pointer<Memory>) |session| {
        let device = session.device(device)?;
        let count = session.machine.memory(device.id).ok_or(Status::NOT_FOUND)?;
        // In this version what the driver keeps counts as used.
        memory.put(Memory { total: count.total, free: count.free, used: count.total - count.free })
    }

    nvmlDeviceGetMemoryInfo_v2(device: Handle, memory: Pointer<MemoryV2>) |session| {
        let version = memory.get()?.version;
        if version != struct_version::<MemoryV2>(2) {
            return Err(Status::ARGUMENT_VERSION_MISMATCH);
        }
        let device = session.device(device)?;
        let count = session.machine.memory(device.id).ok_or(Status::NOT_FOUND)?;
        memory.put(MemoryV2 {
            version,
            total: count.total,
            reserved: count.reserved,
            free: count.free,
            used: count.used,
        })
    }

    nvmlDeviceGetBAR1MemoryInfo(device: Handle, memory: Pointer<Memory>) |session| {
        let device = session.device(device)?;
        // A window over all of the memory, in a power of two; little of it is in use.
        let total = device.card.memory().next_power_of_two();
        let used = 4 << 20;
        memory.put(Memory { total, free: total - used, used })
    }

    nvmlDeviceGetMemoryBusWidth(device: Handle, width: Pointer<u32>) |session| {
        width.put(session.card(device)?.facts().bus_width)
    }
}
