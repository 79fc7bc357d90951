//! Cards: what they are called and what they can do.

use std::ffi::c_char;

use crate::abi::{Answer, Code, In, Opaque, Out, Text, api, put_text};
use crate::card::Card;
use crate::process::{Process, process};

/// The attribute of a card, as the API numbers them; 0 for what this card cannot do.
fn attribute(process: &Process, card: &Card, attribute: u32) -> Answer<i32> {
    let (major, minor) = card.facts.capability;
    let (memory_clock, clock) = card.facts.clocks;
    let (domain, bus, device, _) = card.described.bus_numbers().unwrap_or_default();
    let value = match attribute {
        13 => clock * 1000,
        16 => card.multiprocessors,
        20 => compute_mode(process, card),
        33 => bus,
        34 => device,
        36 => memory_clock * 1000,
        37 => card.facts.bus_width,
        39 => card.threads(),
        40 => card.facts.copy_engines,
        50 => domain,
        75 => major,
        76 => minor,
        120 | 127 => u32::from(major >= 9),
        126 => {
            if major >= 9 {
                4
            } else {
                1
            }
        }
        131 => return Ok(-1),
        132 => u32::from(card.facts.nvlink >= 4),
        133 => u32::from(process.joined.machine().description().mps),
        134 => return Ok(card.described.numa.map_or(-1, u32::cast_signed)),
        139 => card.facts.pci,
        other => common(other)?,
    };
    i32::try_from(value).map_err(|_| Code::UNKNOWN)
}

/// What all cards have in common: the shape of launches, memory inside, textures and surfaces,
/// and what a card can do or, with 0, cannot.
fn common(attribute: u32) -> Answer<u32> {
    #[rustfmt::skip]
    const VALUES: &[(&[u32], u32)] = &[
        (&[1, 2, 3], 1024), (&[4], 64), (&[5, 11], i32::MAX.unsigned_abs()), (&[6, 7], 65_535), (&[10, 106], 32),
        (&[12, 82], 65_536),
        (&[8], 48 << 10), (&[9], 64 << 10), (&[38], 40 << 20), (&[81], 164 << 10), (&[97], 163 << 10), (&[111], 1 << 10),
        (&[108, 109], 30 << 20), (&[14, 30], 512), (&[51], 32), (&[87], 2),
        (&[21, 22, 23, 27, 28, 42, 45, 46, 52, 53, 55, 61, 63, 64, 66, 67, 73, 74, 77], 32_768),
        (&[24, 25, 26, 47, 48, 49, 58, 59, 60], 16_384), (&[29, 43, 62, 65], 2_048), (&[54, 68], 2_046),
        (&[56, 57, 70, 71], 131_072), (&[69], 268_435_456), (&[72], 2_097_120),
        (&[15, 19, 31, 32, 41, 44, 78, 79, 80, 83, 89, 90, 91, 95, 96, 98, 99, 102, 103, 110, 113, 115, 116, 117, 119,
            122, 123, 125], 1),
        (&[118], 100),
    ];
    let known = VALUES.iter().find(|(attributes, _)| attributes.contains(&attribute));
    match known {
        Some((_, value)) => Ok(*value),
        None if (1..=161).contains(&attribute) => Ok(0),
        None => Err(Code::INVALID_VALUE),
    }
}

fn compute_mode(process: &Process, card: &Card) -> u32 {
    let mode = process.joined.machine().setting(card.id, machine::Setting::ComputeMode);
    u32::try_from(mode).unwrap_or(0)
}

/// How two cards get on.
fn peer_attribute(process: &Process, one: i32, other: i32, attribute: u32) -> Answer<i32> {
    let (one, _) = process.card(one)?;
    let (other, _) = process.card(other)?;
    if one == other {
        return Err(Code::INVALID_DEVICE);
    }
    let reaches = process.joined.reaches(process, one, other);
    let links = process.joined.links(process, one, other);
    match attribute {
        1 => Ok(i32::from(links == 0)),
        2 | 4 => Ok(i32::from(reaches)),
        3 => Ok(i32::from(links > 0)),
        5 => Ok(0),
        _ => Err(Code::INVALID_VALUE),
    }
}

/// A bus id without its function, as people write it.
fn same_bus(one: &str, other: &str) -> bool {
    let numbers = |text: &str| -> Option<Vec<u32>> {
        let mut parts: Vec<&str> = text.split([':', '.']).collect();
        if text.matches(':').count() == 1 {
            parts.insert(0, "0");
        }
        parts.truncate(3);
        parts.into_iter().map(|part| u32::from_str_radix(part, 16).ok()).collect()
    };
    numbers(one).is_some_and(|one| Some(one) == numbers(other))
}

/// The properties that CUDA 2 had.
#[repr(C)]
struct OldProperties {
    most_threads: i32,
    most_block: [i32; 3],
    most_grid: [i32; 3],
    shared: i32,
    constant: i32,
    width: i32,
    pitch: i32,
    registers: i32,
    clock: i32,
    texture: i32,
}

fn old_properties(process: &Process, card: &Card) -> Answer<OldProperties> {
    let get = |number| attribute(process, card, number);
    Ok(OldProperties {
        most_threads: get(1)?,
        most_block: [get(2)?, get(3)?, get(4)?],
        most_grid: [get(5)?, get(6)?, get(7)?],
        shared: get(8)?,
        constant: get(9)?,
        width: get(10)?,
        pitch: get(11)?,
        registers: get(12)?,
        clock: get(13)?,
        texture: get(14)?,
    })
}

api! {
    fn cuDeviceGetCount(count: Out<i32>) {
        let process = process()?;
        count.put(i32::try_from(process.cards.len()).unwrap_or(0))
    }

    fn cuDeviceGet(device: Out<i32>, ordinal: i32) {
        let process = process()?;
        device.check()?;
        process.card(ordinal)?;
        device.put(ordinal)
    }

    fn cuDeviceGetName(name: Out<c_char>, room: i32, device: i32) {
        let (_, card) = process()?.card(device)?;
        put_text(name, room, &card.name)
    }

    fn cuDeviceGetUuid, cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: i32) {
        let (_, card) = process()?.card(device)?;
        uuid.put(card.uuid)
    }

    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: i32) {
        let process = process()?;
        let (_, card) = process.card(device)?;
        bytes.put(usize::try_from(card.memory).map_err(|_| Code::UNKNOWN)?)
    }

    fn cuDeviceTotalMem(bytes: Out<u32>, device: i32) {
        let (_, card) = process()?.card(device)?;
        bytes.put(u32::try_from(card.memory).unwrap_or(u32::MAX))
    }

    fn cuDeviceGetAttribute(value: Out<i32>, which: u32, device: i32) {
        let process = process()?;
        let (_, card) = process.card(device)?;
        value.put(attribute(process, card, which)?)
    }

    fn cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, device: i32) {
        let process = process()?;
        let (_, card) = process.card(device)?;
        major.put(attribute(process, card, 75)?)?;
        minor.put(attribute(process, card, 76)?)
    }

    fn cuDeviceGetProperties(properties: Out<OldProperties>, device: i32) {
        let process = process()?;
        let (_, card) = process.card(device)?;
        properties.put(old_properties(process, card)?)
    }

    fn cuDeviceGetPCIBusId(text: Out<c_char>, room: i32, device: i32) {
        let (_, card) = process()?.card(device)?;
        let (domain, bus, device, function) = card.described.bus_numbers().unwrap_or_default();
        put_text(text, room, &format!("{domain:04X}:{bus:02X}:{device:02X}.{function}"))
    }

    fn cuDeviceGetByPCIBusId(device: Out<i32>, text: Text) {
        let process = process()?;
        let text = text.get()?;
        let found = process.cards.iter().position(|card| same_bus(&card.described.bus, &text));
        device.put(found.and_then(|found| i32::try_from(found).ok()).ok_or(Code::INVALID_DEVICE)?)
    }

    fn cuDeviceCanAccessPeer(can: Out<i32>, device: i32, peer: i32) {
        let process = process()?;
        let ((one, _), (other, _)) = (process.card(device)?, process.card(peer)?);
        can.put(i32::from(process.joined.reaches(process, one, other)))
    }

    fn cuDeviceGetP2PAttribute(value: Out<i32>, which: u32, device: i32, peer: i32) {
        value.put(peer_attribute(process()?, device, peer, which)?)
    }

    fn cuDeviceGetTexture1DLinearMaxWidth(width: Out<usize>, format: u32, channels: u32, device: i32) {
        process()?.card(device)?;
        if channels == 0 || channels > 4 { return Err(Code::INVALID_VALUE); }
        let _ = format;
        width.put(1 << 28)
    }

    fn cuDeviceGetExecAffinitySupport(supported: Out<i32>, kind: u32, device: i32) {
        let process = process()?;
        process.card(device)?;
        if kind != 0 { return Err(Code::INVALID_VALUE); }
        supported.put(i32::from(process.joined.machine().description().mps))
    }

    fn cuDeviceGetHostAtomicCapabilities(capabilities: Out<u32>, operations: In<u32>, count: u32, device: i32) {
        process()?.card(device)?;
        operations.all(count as usize)?;
        capabilities.put_all(std::iter::repeat_n(0, count as usize), count as usize)
    }

    fn cuDeviceGetP2PAtomicCapabilities(capabilities: Out<u32>, operations: In<u32>, count: u32, device: i32, peer: i32) {
        let process = process()?;
        process.card(device)?;
        process.card(peer)?;
        operations.all(count as usize)?;
        capabilities.put_all(std::iter::repeat_n(0, count as usize), count as usize)
    }

    fn cuProfilerStart() { process().map(|_| ()) }
    fn cuProfilerStop() { process().map(|_| ()) }

    fn cuFlushGPUDirectRDMAWrites(target: u32, scope: u32) {
        crate::process::here()?;
        if target != 0 || !matches!(scope, 100 | 200) { return Err(Code::INVALID_VALUE); }
        Ok(())
    }

    fn cuDeviceRegisterAsyncNotification(device: i32, function: Opaque, data: Opaque, handle: Out<u64>) {
        let _ = data;
        process()?.card(device)?;
        if function.is_null() { return Err(Code::INVALID_VALUE); }
        handle.put(1)
    }

    fn cuDeviceUnregisterAsyncNotification(device: i32, handle: u64) {
        process()?.card(device)?;
        if handle == 1 { Ok(()) } else { Err(Code::INVALID_VALUE) }
    }
}

#[cfg(test)]
mod tests {
    use super::same_bus;

    #[test]
    fn bus_ids_are_found_however_they_are_written() {
        assert!(same_bus("0000:07:00.0", "00000000:07:00.0"));
        assert!(same_bus("0000:07:00.0", "07:00.0"));
        assert!(same_bus("0000:07:00.0", "0000:07:00"));
        assert!(!same_bus("0000:07:00.0", "0000:0B:00.0"));
        assert!(!same_bus("0000:07:00.0", "seven"));
    }
}
