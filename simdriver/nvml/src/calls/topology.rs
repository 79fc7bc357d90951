//! How near devices are to one another and to the host's CPUs.

use std::ffi::c_ulong;

use model::device::Hop;

use crate::abi::{Answer, Handle, Pointer, Status};
use crate::session::{Session, device_handle};

/// As NVML numbers levels.
fn level(hop: Hop) -> u32 {
    match hop {
        Hop::OneSwitch => 10,
        Hop::Switches => 20,
        Hop::HostBridge => 30,
        Hop::SameNode => 40,
        Hop::CrossSocket => 50,
    }
}

/// Numbers of a list such as `0-3,8-11`.
fn numbers(text: &str) -> Vec<usize> {
    let ranges = text.split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.trim().parse::<usize>().ok()?..=last.trim().parse().ok()?)
    });
    ranges.flatten().collect()
}

/// Writes a set of numbers as bits into `size` words.
fn put_set(numbers: &[usize], size: u32, set: Pointer<c_ulong>) -> Answer {
    const BITS: usize = c_ulong::BITS as usize;
    if size == 0 {
        return Err(Status::INVALID_ARGUMENT);
    }
    let room = usize::try_from(size).map_err(|_| Status::INVALID_ARGUMENT)?;
    let mut words = vec![0; room];
    for number in numbers {
        match words.get_mut(number / BITS) {
            Some(word) => *word |= 1 << (number % BITS),
            None => return Err(Status::INSUFFICIENT_SIZE),
        }
    }
    set.put_all(&words, room)
}

fn cpus(session: &Session, device: Handle, size: u32, set: Pointer<c_ulong>) -> Answer {
    let device = session.device(device)?;
    let text = device.card.cpus.as_deref().ok_or(Status::NOT_SUPPORTED)?;
    put_set(&numbers(text), size, set)
}

calls! {
    nvmlDeviceGetTopologyCommonAncestor(
        one: Handle,
        other: Handle,
        answer: Pointer<u32>,
    ) |session| {
        let (one, other) = (session.card(one)?, session.card(other)?);
        if one.id == other.id {
            return answer.put(0);
        }
        let (hop, _) = session.machine.description().link(one.place(), other.place());
        answer.put(level(hop))
    }

    nvmlDeviceGetTopologyNearestGpus(
        device: Handle,
        wanted: u32,
        count: Pointer<u32>,
        list: Pointer<Handle>,
    ) |session| {
        if !matches!(wanted, 0 | 10 | 20 | 30 | 40 | 50) {
            return Err(Status::INVALID_ARGUMENT);
        }
        let device = session.card(device)?;
        let description = session.machine.description();
        let near = session.cards.iter().filter(|other| {
            **other != device.id
                && level(description.link(device.place(), other.place()).0) == wanted
        });
        let near: Vec<Handle> = near.map(|other| device_handle(*other)).collect();
        if list.is_null() {
            return count.put(u32::try_from(near.len()).unwrap_or(0));
        }
        list.put_list(&near, count)
    }

    nvmlSystemGetTopologyGpuSet(
        cpu: u32,
        count: Pointer<u32>,
        list: Pointer<Handle>,
    ) |session| {
        let cpu = usize::try_from(cpu).map_err(|_| Status::INVALID_ARGUMENT)?;
        let cards = &session.machine.description().cards;
        let near = session.cards.iter().filter(|id| {
            let cpus = cards.get(id.place()).and_then(|card| card.cpus.as_deref());
            cpus.is_some_and(|cpus| numbers(cpus).contains(&cpu))
        });
        let near: Vec<Handle> = near.map(|id| device_handle(*id)).collect();
        if list.is_null() {
            return count.put(u32::try_from(near.len()).unwrap_or(0));
        }
        list.put_list(&near, count)
    }

    nvmlDeviceGetP2PStatus(
        one: Handle,
        other: Handle,
        kind: u32,
        answer: Pointer<u32>,
    ) |session| {
        let (one, other) = (session.card(one)?, session.card(other)?);
        let (hop, nvlinks) = session.machine.description().link(one.place(), other.place());
        // Over PCIe boards for desktops cannot, and nobody can across sockets.
        let pcie = one.facts().brand != 5 && hop != Hop::CrossSocket;
        let yes = match kind {
            0 | 1 => nvlinks > 0 || pcie,
            2 | 3 => nvlinks > 0,
            4 => pcie,
            _ => return Err(Status::INVALID_ARGUMENT),
        };
        answer.put(if yes { 0 } else { 5 })
    }

    nvmlDeviceGetCpuAffinity(device: Handle, size: u32, set: Pointer<c_ulong>) |session| {
        cpus(session, device, size, set)
    }

    nvmlDeviceGetCpuAffinityWithinScope(
        device: Handle,
        size: u32,
        set: Pointer<c_ulong>,
        scope: u32,
    ) |session| {
        if scope > 1 { Err(Status::INVALID_ARGUMENT) } else { cpus(session, device, size, set) }
    }

    nvmlDeviceGetMemoryAffinity(
        device: Handle,
        size: u32,
        set: Pointer<c_ulong>,
        scope: u32,
    ) |session| {
        if scope > 1 {
            return Err(Status::INVALID_ARGUMENT);
        }
        let numa = session.device(device)?.card.numa.ok_or(Status::NOT_SUPPORTED)?;
        put_set(&[usize::try_from(numa).unwrap_or(0)], size, set)
    }

    nvmlDeviceSetCpuAffinity(device: Handle) |session| {
        // The CPUs of the simulated machine are not those of the host.
        session.card(device)?;
        Ok(())
    }

    nvmlDeviceClearCpuAffinity(device: Handle) |session| {
        session.card(device)?;
        Ok(())
    }

    nvmlDeviceGetNumaNodeId(device: Handle, answer: Pointer<u32>) |session| {
        // This is the node of the card's own memory, which only coherent systems have.
        session.card(device)?;
        let _ = answer;
        Err(Status::NOT_SUPPORTED)
    }
}
