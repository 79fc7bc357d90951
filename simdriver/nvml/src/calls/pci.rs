//! How a card hangs on its bus.

use machine::Counter;

use crate::abi::{Answer, Handle, Pointer, Status, struct_version};
use crate::session::Session;
use crate::types::{BridgeChips, PciInfo, PciInfoExt, PciInfoV1, PciInfoV2};

fn generation(session: &Session, device: Handle, answer: Pointer<u32>) -> Answer {
    answer.put(session.card(device)?.facts().pcie)
}

fn width(session: &Session, device: Handle, answer: Pointer<u32>) -> Answer {
    session.card(device)?;
    answer.put(16)
}

/// In MB/s for one lane.
fn lane_speed(generation: u32) -> u32 {
    match generation {
        ..=3 => 8000,
        4 => 16_000,
        _ => 32_000,
    }
}

calls! {
    nvmlDeviceGetPciInfo(device: Handle, info: Pointer<PciInfoV1>) |session| {
        let pci = session.device(device)?.pci();
        let PciInfo { bus_id_legacy: bus_id, domain, bus, device, pci_device_id, .. } = pci;
        info.put(PciInfoV1 { bus_id, domain, bus, device, pci_device_id })
    }

    nvmlDeviceGetPciInfo_v2(device: Handle, info: Pointer<PciInfoV2>) |session| {
        let pci = session.device(device)?.pci();
        info.put(PciInfoV2 {
            bus_id: pci.bus_id_legacy,
            domain: pci.domain,
            bus: pci.bus,
            device: pci.device,
            pci_device_id: pci.pci_device_id,
            pci_sub_system_id: pci.pci_sub_system_id,
            reserved: [0; 4],
        })
    }

    nvmlDeviceGetPciInfo_v3(device: Handle, info: Pointer<PciInfo>) |session| {
        info.put(session.device(device)?.pci())
    }

    nvmlDeviceGetPciInfoExt(device: Handle, info: Pointer<PciInfoExt>) |session| {
        let version = info.get()?.version;
        if version != struct_version::<PciInfoExt>(1) {
            return Err(Status::ARGUMENT_VERSION_MISMATCH);
        }
        let pci = session.device(device)?.pci();
        info.put(PciInfoExt {
            version,
            domain: pci.domain,
            bus: pci.bus,
            device: pci.device,
            pci_device_id: pci.pci_device_id,
            pci_sub_system_id: pci.pci_sub_system_id,
            base_class: 3,
            sub_class: 2,
            bus_id: pci.bus_id,
        })
    }

    nvmlDeviceGetMaxPcieLinkGeneration(device: Handle, answer: Pointer<u32>) |session| {
        generation(session, device, answer)
    }

    nvmlDeviceGetGpuMaxPcieLinkGeneration(device: Handle, answer: Pointer<u32>) |session| {
        generation(session, device, answer)
    }

    nvmlDeviceGetCurrPcieLinkGeneration(device: Handle, answer: Pointer<u32>) |session| {
        generation(session, device, answer)
    }

    nvmlDeviceGetMaxPcieLinkWidth(device: Handle, answer: Pointer<u32>) |session| {
        width(session, device, answer)
    }

    nvmlDeviceGetCurrPcieLinkWidth(device: Handle, answer: Pointer<u32>) |session| {
        width(session, device, answer)
    }

    nvmlDeviceGetPcieLinkMaxSpeed(device: Handle, answer: Pointer<u32>) |session| {
        // As an enumeration: 3 is 8 GT/s, and one more for each generation.
        answer.put(session.card(device)?.facts().pcie)
    }

    nvmlDeviceGetPcieSpeed(device: Handle, answer: Pointer<u32>) |session| {
        answer.put(lane_speed(session.card(device)?.facts().pcie))
    }

    nvmlDeviceGetPcieThroughput(device: Handle, counter: u32, answer: Pointer<u32>) |session| {
        session.card(device)?;
        // What goes over the bus is not simulated.
        if counter > 1 { Err(Status::INVALID_ARGUMENT) } else { answer.put(0) }
    }

    nvmlDeviceGetPcieReplayCounter(device: Handle, answer: Pointer<u32>) |session| {
        let device = session.card(device)?;
        let count = session.machine.counter(device.id, Counter::PcieReplays);
        answer.put(u32::try_from(count).unwrap_or(u32::MAX))
    }

    nvmlDeviceGetBusType(device: Handle, answer: Pointer<u32>) |session| {
        session.card(device)?;
        answer.put(2)
    }

    nvmlDeviceGetIrqNum(device: Handle, answer: Pointer<u32>) |session| {
        answer.put(100 + session.card(device)?.index)
    }

    nvmlDeviceGetBridgeChipInfo(device: Handle, answer: Pointer<BridgeChips>) |session| {
        session.card(device)?;
        answer.put(BridgeChips { count: 0, chips: [[0; 2]; 128] })
    }
}
