//! `NVLinks`, one by one.

use machine::Counter;

use crate::abi::{Answer, Handle, Pointer, Status, field};
use crate::card::{Device, SWITCH, pci_info};
use crate::session::Session;
use crate::types::{FabricInfo, PciInfo};

/// The device, and where its link leads.
fn link(session: &Session, device: Handle, link: u32) -> Answer<(Device<'_>, usize)> {
    let device = session.card(device)?;
    if device.facts().nvlink == 0 {
        return Err(Status::NOT_SUPPORTED);
    }
    let links = device.nvlinks();
    let place = usize::try_from(link).map_err(|_| Status::INVALID_ARGUMENT)?;
    if place >= 18.max(links.len()) {
        return Err(Status::INVALID_ARGUMENT);
    }
    Ok((device, links.get(place).copied().unwrap_or(NOWHERE)))
}

/// A link that leads nowhere.
const NOWHERE: usize = usize::MAX - 1;

fn remote(session: &Session, device: Handle, place: u32) -> Answer<PciInfo> {
    match link(session, device, place)? {
        (_, NOWHERE) => Err(Status::NOT_SUPPORTED),
        (_, SWITCH) => Ok(pci_info((0, 0xc0 + place / 3, 0, 0), 0x22a3_10de)),
        (device, other) => {
            let card = device.machine().description().cards.get(other).ok_or(Status::NOT_FOUND)?;
            let mut info = pci_info(card.bus_numbers().unwrap_or_default(), device.facts().pci);
            info.pci_sub_system_id = 0;
            info.bus_id = field(&crate::card::bus_id(card.bus_numbers().unwrap_or_default()));
            Ok(info)
        }
    }
}

calls! {
    nvmlDeviceGetNvLinkState(device: Handle, place: u32, answer: Pointer<u32>) |session| {
        let (_, other) = link(session, device, place)?;
        answer.put(u32::from(other != NOWHERE))
    }

    nvmlDeviceGetNvLinkVersion(device: Handle, place: u32, answer: Pointer<u32>) |session| {
        let (device, _) = link(session, device, place)?;
        // As an enumeration: 2.0 is 2, 2.2 is 3, 3.0 is 4, 3.1 is 5, 4.0 is 6, 5.0 is 7.
        answer.put(match device.facts().nvlink {
            1 => 1,
            2 => 2,
            3 => 4,
            4 => 6,
            _ => 7,
        })
    }

    nvmlDeviceGetNvLinkCapability(
        device: Handle,
        place: u32,
        capability: u32,
        answer: Pointer<u32>,
    ) |session| {
        let (_, other) = link(session, device, place)?;
        let there = u32::from(other != NOWHERE);
        match capability {
            0 | 2 | 5 => answer.put(there),
            1 | 3 | 4 => answer.put(0),
            _ => Err(Status::INVALID_ARGUMENT),
        }
    }

    nvmlDeviceGetNvLinkRemotePciInfo(
        device: Handle,
        place: u32,
        answer: Pointer<PciInfo>,
    ) |session| {
        answer.put(remote(session, device, place)?)
    }

    nvmlDeviceGetNvLinkRemotePciInfo_v2(
        device: Handle,
        place: u32,
        answer: Pointer<PciInfo>,
    ) |session| {
        answer.put(remote(session, device, place)?)
    }

    nvmlDeviceGetNvLinkRemoteDeviceType(
        device: Handle,
        place: u32,
        answer: Pointer<u32>,
    ) |session| {
        match link(session, device, place)? {
            (_, NOWHERE) => Err(Status::NOT_SUPPORTED),
            (_, SWITCH) => answer.put(2),
            _ => answer.put(0),
        }
    }

    nvmlDeviceGetNvLinkErrorCounter(
        device: Handle,
        place: u32,
        counter: u32,
        answer: Pointer<u64>,
    ) |session| {
        let (device, _) = link(session, device, place)?;
        if counter > 4 {
            return Err(Status::INVALID_ARGUMENT);
        }
        // Errors are counted for the card; its first link shows them.
        let count = session.machine.counter(device.id, Counter::NvLinkErrors);
        answer.put(if place == 0 { count } else { 0 })
    }

    nvmlDeviceResetNvLinkErrorCounters(device: Handle, place: u32) |session| {
        let (device, _) = link(session, device, place)?;
        Ok(session.machine.clear_counters(device.id, &[Counter::NvLinkErrors])?)
    }

    nvmlDeviceGetGpuFabricInfo(device: Handle, answer: Pointer<FabricInfo>) |session| {
        let device = session.card(device)?;
        if !device.behind_switch() || device.facts().nvlink < 4 {
            return Err(Status::NOT_SUPPORTED);
        }
        answer.put(FabricInfo {
            cluster_uuid: [0; 16],
            status: Status::SUCCESS,
            clique_id: 0,
            state: 3,
        })
    }
}
