//! Which device it is: handles and names.

use std::ffi::{CStr, c_char};

use machine::{Card, DeviceId};

use crate::abi::{Answer, Handle, Pointer, Status};
use crate::session::{Session, device_handle, since};
use crate::types::Uuid;

fn by_index(session: &Session, index: u32, device: Pointer<Handle>) -> Answer {
    let place = usize::try_from(index).map_err(|_| Status::INVALID_ARGUMENT)?;
    let id = session.cards.get(place).ok_or(Status::INVALID_ARGUMENT)?;
    give(session, *id, device)
}

fn by(session: &Session, device: Pointer<Handle>, is: impl Fn(&Card) -> bool) -> Answer {
    let cards = &session.machine.description().cards;
    let found = session.cards.iter().find(|id| cards.get(id.place()).is_some_and(&is));
    give(session, *found.ok_or(Status::NOT_FOUND)?, device)
}

fn give(session: &Session, id: DeviceId, device: Pointer<Handle>) -> Answer {
    if device.is_null() {
        return Err(Status::INVALID_ARGUMENT);
    }
    if session.machine.is_lost(id) {
        return Err(Status::GPU_IS_LOST);
    }
    device.put(device_handle(id))
}

fn by_uuid(session: &Session, uuid: &str, device: Pointer<Handle>) -> Answer {
    if uuid.starts_with("MIG-") {
        let all = session.cards.iter();
        let mut slices = all.flat_map(|card| session.machine.compute_instances(card.place()));
        let found = slices.find(|slice| session.machine.mig_uuid(slice.device) == uuid);
        return give(session, found.ok_or(Status::NOT_FOUND)?.device, device);
    }
    by(session, device, |card| card.uuid == uuid)
}

fn by_bus_id(session: &Session, text: &str, device: Pointer<Handle>) -> Answer {
    // Domains of four and of eight digits, and none at all, are all in use.
    let with_domain =
        if text.matches(':').count() == 1 { format!("0:{text}") } else { text.to_owned() };
    let probe = Card { bus: with_domain, ..session.machine.description().cards[0].clone() };
    let wanted = probe.bus_numbers().ok_or(Status::INVALID_ARGUMENT)?;
    by(session, device, |card| card.bus_numbers() == Some(wanted))
}

/// A UUID as text, however it was given.
fn written(uuid: &Uuid) -> Answer<String> {
    let bytes: Vec<u8> = uuid.value.iter().flat_map(|letter| letter.to_ne_bytes()).collect();
    match uuid.kind {
        1 => {
            let text = CStr::from_bytes_until_nul(&bytes).ok().and_then(|text| text.to_str().ok());
            text.map(str::to_owned).ok_or(Status::INVALID_ARGUMENT)
        }
        2 => {
            let number = bytes.first_chunk().map(|bytes| u128::from_be_bytes(*bytes));
            let hex = format!("{:032x}", number.unwrap_or_default());
            let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
            Ok(format!("GPU-{}", parts.join("-")))
        }
        _ => Err(Status::INVALID_ARGUMENT),
    }
}

calls! {
    nvmlDeviceGetHandleByIndex(index: u32, device: Pointer<Handle>) |session| {
        by_index(session, index, device)
    }

    nvmlDeviceGetHandleByIndex_v2(index: u32, device: Pointer<Handle>) |session| {
        by_index(session, index, device)
    }

    nvmlDeviceGetHandleBySerial(serial: Pointer<c_char>, device: Pointer<Handle>) |session| {
        let serial = serial.text()?;
        by(session, device, |card| card.serial == serial)
    }

    nvmlDeviceGetHandleByUUID(uuid: Pointer<c_char>, device: Pointer<Handle>) |session| {
        by_uuid(session, &uuid.text()?, device)
    }

    nvmlDeviceGetHandleByUUIDV(uuid: Pointer<Uuid>, device: Pointer<Handle>) |session| {
        since(565, session, |session| {
            by_uuid(session, &written(&uuid.get()?)?, device)
        })
    }

    nvmlDeviceGetHandleByPciBusId(bus_id: Pointer<c_char>, device: Pointer<Handle>) |session| {
        by_bus_id(session, &bus_id.text()?, device)
    }

    nvmlDeviceGetHandleByPciBusId_v2(bus_id: Pointer<c_char>, device: Pointer<Handle>) |session| {
        by_bus_id(session, &bus_id.text()?, device)
    }

    nvmlDeviceGetName(device: Handle, name: Pointer<c_char>, length: u32) |session| {
        let device = session.device(device)?;
        match &device.mig {
            None => name.put_text(&device.card.model, length),
            Some(mig) => {
                let size = mig.of.profile.name;
                name.put_text(&format!("{} MIG {size}", device.card.model), length)
            }
        }
    }

    nvmlDeviceGetBrand(device: Handle, brand: Pointer<u32>) |session| {
        brand.put(session.device(device)?.facts().brand)
    }

    nvmlDeviceGetUUID(device: Handle, uuid: Pointer<c_char>, length: u32) |session| {
        let device = session.device(device)?;
        match device.mig {
            None => uuid.put_text(&device.card.uuid, length),
            Some(_) => uuid.put_text(&session.machine.mig_uuid(device.id), length),
        }
    }

    nvmlDeviceGetIndex(device: Handle, index: Pointer<u32>) |session| {
        let device = session.device(device)?;
        match &device.mig {
            None => index.put(device.index),
            Some(mig) => {
                let slices = session.machine.compute_instances(device.place());
                let place = slices.iter().position(|slice| slice == mig);
                index.put(place.and_then(|place| u32::try_from(place).ok()).unwrap_or(0))
            }
        }
    }

    nvmlDeviceGetMinorNumber(device: Handle, minor: Pointer<u32>) |session| {
        minor.put(session.card(device)?.card.minor)
    }

    nvmlDeviceGetSerial(device: Handle, serial: Pointer<c_char>, length: u32) |session| {
        let device = session.card(device)?;
        if device.facts().fans > 1 {
            // Boards for desktops have none that can be read.
            return Err(Status::NOT_SUPPORTED);
        }
        serial.put_text(&device.card.serial, length)
    }

    nvmlDeviceGetBoardId(device: Handle, board: Pointer<u32>) |session| {
        let (domain, bus, ..) = session.card(device)?.card.bus_numbers().unwrap_or_default();
        board.put(domain << 16 | bus << 8)
    }

    nvmlDeviceGetModuleId(device: Handle, module: Pointer<u32>) |session| {
        module.put(session.card(device)?.index + 1)
    }

    nvmlDeviceGetMultiGpuBoard(device: Handle, several: Pointer<u32>) |session| {
        session.card(device)?;
        several.put(0)
    }

    nvmlDeviceOnSameBoard(one: Handle, other: Handle, same: Pointer<i32>) |session| {
        let (one, other) = (session.card(one)?, session.card(other)?);
        same.put(i32::from(one.id == other.id))
    }

    nvmlDeviceGetBoardPartNumber(device: Handle, text: Pointer<c_char>, length: u32) |session| {
        let device = session.card(device)?;
        text.put_text(&format!("900-2{:04X}-0000-000", device.facts().pci >> 16), length)
    }

    nvmlDeviceGetVbiosVersion(device: Handle, text: Pointer<c_char>, length: u32) |session| {
        let device = session.card(device)?;
        text.put_text(&format!("{:02X}.00.00.00.01", 0x80 + device.facts().architecture), length)
    }

    nvmlDeviceGetInforomImageVersion(device: Handle, text: Pointer<c_char>, length: u32) |session| {
        session.card(device)?;
        text.put_text("G001.0000.00.01", length)
    }

    nvmlDeviceGetInforomVersion(
        device: Handle,
        object: u32,
        text: Pointer<c_char>,
        length: u32,
    ) |session| {
        session.card(device)?;
        let version = match object {
            0 => "2.1",
            1 => "6.16",
            2 => return Err(Status::NOT_SUPPORTED),
            _ => return Err(Status::INVALID_ARGUMENT),
        };
        text.put_text(version, length)
    }

    nvmlDeviceGetArchitecture(device: Handle, architecture: Pointer<u32>) |session| {
        architecture.put(session.device(device)?.facts().architecture)
    }

    nvmlDeviceGetCudaComputeCapability(
        device: Handle,
        major: Pointer<i32>,
        minor: Pointer<i32>,
    ) |session| {
        let (high, low) = session.device(device)?.facts().capability;
        major.put(i32::try_from(high).unwrap_or(0))?;
        minor.put(i32::try_from(low).unwrap_or(0))
    }

    nvmlDeviceGetNumGpuCores(device: Handle, cores: Pointer<u32>) |session| {
        let device = session.device(device)?;
        cores.put(session.machine.multiprocessors(device.id) * device.facts().cores)
    }

    nvmlDeviceGetGspFirmwareVersion(device: Handle, version: Pointer<c_char>) |session| {
        session.card(device)?;
        // The interface gives no room; the header says 64 letters.
        version.put_text(&session.machine.description().driver, 64)
    }

    nvmlDeviceGetGspFirmwareMode(
        device: Handle,
        enabled: Pointer<u32>,
        default: Pointer<u32>,
    ) |session| {
        session.card(device)?;
        enabled.put(1)?;
        default.put(1)
    }
}
