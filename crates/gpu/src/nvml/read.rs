//! NVML's words turned into ours.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use model::{CardModel, Cores, Device, DeviceId, Health, Hop, Kind, Link, Mig};
use nvml_wrapper::enum_wrappers::device::{EccCounter, MemoryError, TopologyLevel};
use nvml_wrapper::enums::device::{SampleValue, UsedGpuMemory};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id::{
    NVML_FI_DEV_REMAPPED_FAILURE, NVML_FI_DEV_REMAPPED_PENDING,
};
use nvml_wrapper::{Device as Handle, Nvml as Library};

use super::failed;
use crate::found::{Absent, Found, Measured, MemoryErrors, Process, Unreadable, mebibytes};

/// The most `NVLinks` a card has.
const MOST_LINKS: u32 = 18;
/// A sample that is older says nothing of now.
const FRESH: Duration = Duration::from_secs(5);
/// NVML's scope for the memory that is near, as opposed to the socket's.
const NEAR: u32 = 0;

/// How cards reach one another changes when cards do, and when an `NVLink` fails. To ask takes a call
/// for each link and each pair, hundreds on a large machine, so it is asked anew when the cards are
/// others and every while.
#[derive(Debug, Default)]
pub(super) struct Wiring {
    read: Option<Wired>,
}

/// How these cards reached one another when they were asked.
#[derive(Debug)]
struct Wired {
    at: Instant,
    cards: Vec<(DeviceId, u32)>,
    links: Vec<Link>,
}

/// For so long it is taken to be as it was.
const WIRED: Duration = Duration::from_secs(30);

impl Wiring {
    fn links(&mut self, library: &Library, cards: &[(Handle<'_>, Device)]) -> Vec<Link> {
        let now: Vec<_> = cards.iter().map(|(_, card)| (card.id.clone(), card.index)).collect();
        if let Some(wired) = &self.read
            && wired.at.elapsed() < WIRED
            && wired.cards == now
        {
            return wired.links.clone();
        }
        let links = links(library, cards);
        self.read = Some(Wired { at: Instant::now(), cards: now, links: links.clone() });
        links
    }
}

/// What there is.
pub(super) fn look(library: &Library, wiring: &mut Wiring) -> Result<Found, Absent> {
    let driver = library.sys_driver_version().map_err(failed("driver version"))?;
    let count = library.device_count().map_err(failed("device count"))?;
    if count == 0 {
        return Err(Absent::NoCards);
    }
    let (mut devices, mut unreadable, mut handles) = (Vec::new(), Vec::new(), Vec::new());
    for index in 0..count {
        let read = library.device_by_index(index).and_then(|handle| {
            let device = card(&handle, index)?;
            Ok((handle, device))
        });
        match read {
            Ok((handle, device)) => {
                handles.push((handle, device.clone()));
                devices.push(device);
            }
            Err(error) => {
                let id = library.device_by_index(index).and_then(|handle| handle.uuid()).ok();
                let id = id.and_then(|id| DeviceId::parse(&id).ok());
                unreadable.push(Unreadable { index, id, reason: reason(&error) });
            }
        }
    }
    let mut next = count;
    for (handle, parent) in handles.iter().filter(|(_, device)| device.mig == Mig::Parent) {
        for slice in slices(handle, parent) {
            devices.push(Device { index: next, ..slice });
            next += 1;
        }
    }
    let errors =
        |(handle, device): &(Handle<'_>, Device)| Some((device.id.clone(), memory_errors(handle)?));
    let memory_errors = handles.iter().filter_map(errors).collect();
    let links = wiring.links(library, &handles);
    Ok(Found { driver, devices, links, unreadable, memory_errors })
}

/// What a card says of errors in its memory; nothing if it has no ECC, or it is off.
fn memory_errors(handle: &Handle<'_>) -> Option<MemoryErrors> {
    let count = |since| handle.total_ecc_errors(MemoryError::Uncorrected, since).ok();
    let uncorrected = count(EccCounter::Volatile)?;
    let rows = [NVML_FI_DEV_REMAPPED_PENDING, NVML_FI_DEV_REMAPPED_FAILURE].map(FieldId);
    let rows = handle.field_values_for(&rows).unwrap_or_default();
    let is_set = |place: usize| {
        let sample = rows.get(place).and_then(|sample| sample.as_ref().ok());
        let value = sample.and_then(|sample| sample.value.as_ref().ok());
        value.is_some_and(|value| match value {
            SampleValue::U32(value) => *value > 0,
            SampleValue::U64(value) => *value > 0,
            SampleValue::I64(value) => *value > 0,
            SampleValue::F64(_) => false,
        })
    };
    // Cards retire pages or remap rows. One that does the former says nothing of rows.
    let bad_page = handle.are_pages_pending_retired();
    Some(MemoryErrors {
        uncorrected,
        ever: count(EccCounter::Aggregate),
        bad_page: *bad_page.as_ref().unwrap_or(&false),
        reset_advised: bad_page.is_err() && is_set(0),
        repair_failed: is_set(1),
    })
}

fn card(handle: &Handle<'_>, index: u32) -> Result<Device, NvmlError> {
    let mig = match handle.mig_mode() {
        Ok(mode) if mode.current == 1 => Mig::Parent,
        Ok(_) | Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_)) => Mig::Off,
        Err(error) => return Err(error),
    };
    Ok(Device {
        kind: Kind::Gpu,
        id: id(handle)?,
        index,
        minor: handle.minor_number()?,
        bus: bus(&handle.pci_info()?.bus_id),
        model: CardModel::new(&handle.name()?),
        memory: mebibytes(handle.memory_info()?.total),
        cores: Cores::CARD,
        numa: numa(handle),
        nic: None,
        health: Health::Healthy,
        mig,
    })
}

fn slices(handle: &Handle<'_>, parent: &Device) -> Vec<Device> {
    let most = handle.mig_device_count().unwrap_or(0);
    let slice = |place: u32| -> Option<Device> {
        let slice = handle.mig_device_by_index(place).ok()?;
        // Its name is the card's, then `MIG`, then the size.
        let name = slice.name().ok()?;
        let profile = name.rsplit(' ').next().unwrap_or_default().to_owned();
        let memory = slice.memory_info().map(|memory| mebibytes(memory.total)).ok()?;
        let mig = Mig::Slice { parent: parent.id.clone(), profile };
        Some(Device { id: id(&slice).ok()?, memory, mig, ..parent.clone() })
    };
    (0..most).filter_map(slice).collect()
}

fn id(handle: &Handle<'_>) -> Result<DeviceId, NvmlError> {
    DeviceId::parse(&handle.uuid()?).map_err(|_| NvmlError::Unknown)
}

/// A PCI address as the kernel writes it: NVML writes four more zeros and large letters.
fn bus(text: &str) -> String {
    let text = text.to_ascii_lowercase();
    match text.split_once(':') {
        Some((domain, rest)) if domain.len() == 8 => format!("{}:{rest}", &domain[4..]),
        _ => text,
    }
}

fn numa(handle: &Handle<'_>) -> Option<u32> {
    let words = handle.memory_affinity(4, NEAR).ok()?;
    let (word, bits) = words.iter().enumerate().find(|(_, bits)| **bits != 0)?;
    u32::try_from(word).ok()?.checked_mul(u64::BITS)?.checked_add(bits.trailing_zeros())
}

fn links(library: &Library, cards: &[(Handle<'_>, Device)]) -> Vec<Link> {
    let remote: Vec<BTreeMap<String, u8>> =
        cards.iter().map(|(handle, _)| remotes(handle)).collect();
    // NVLinks that end at none of the cards end at switches, which join all cards on them.
    let is_card = |bus: &str| cards.iter().any(|(_, device)| device.bus == bus);
    let switched: Vec<u8> = remote
        .iter()
        .map(|links| links.iter().filter(|(bus, _)| !is_card(bus)).map(|(_, count)| *count).sum())
        .collect();
    let mut links = Vec::new();
    for (at, (handle, a)) in cards.iter().enumerate() {
        for (next, (other, b)) in cards.iter().enumerate().skip(at + 1) {
            let Some(hop) = library.topology_common_ancestor(handle, other).ok().map(hop) else {
                continue;
            };
            let direct = remote[at].get(&b.bus).copied().unwrap_or(0);
            let nvlinks = direct.saturating_add(switched[at].min(switched[next]));
            links.push(Link { a: a.index, b: b.index, hop, nvlinks });
        }
    }
    links
}

/// Where the `NVLinks` of a card end, by PCI address.
fn remotes(handle: &Handle<'_>) -> BTreeMap<String, u8> {
    let mut ends = BTreeMap::new();
    for number in 0..MOST_LINKS {
        let link = handle.link_wrapper_for(number);
        if link.is_active().unwrap_or(false)
            && let Ok(remote) = link.remote_pci_info()
        {
            *ends.entry(bus(&remote.bus_id)).or_insert(0) += 1;
        }
    }
    ends
}

fn hop(level: TopologyLevel) -> Hop {
    match level {
        TopologyLevel::Internal | TopologyLevel::Single => Hop::OneSwitch,
        TopologyLevel::Multiple => Hop::Switches,
        TopologyLevel::HostBridge => Hop::HostBridge,
        TopologyLevel::Node => Hop::SameNode,
        TopologyLevel::System => Hop::CrossSocket,
    }
}

fn reason(error: &NvmlError) -> &'static str {
    match error {
        NvmlError::GpuLost => "it has fallen off the bus",
        NvmlError::ResetRequired => "it needs a reset",
        NvmlError::NoPermission | NvmlError::OperatingSystem => "the system denies access to it",
        _ => "it does not answer",
    }
}

/// How it is used.
pub(super) fn measure(library: &Library) -> Result<Vec<Measured>, Absent> {
    let count = library.device_count().map_err(failed("device count"))?;
    let cards = (0..count).filter_map(|index| library.device_by_index(index).ok());
    let mut measured = Vec::new();
    for card in cards {
        measured.extend(measure_one(&card));
        let most = match card.mig_mode() {
            Ok(mode) if mode.current == 1 => card.mig_device_count().unwrap_or(0),
            _ => 0,
        };
        let slices = (0..most).filter_map(|place| card.mig_device_by_index(place).ok());
        measured.extend(slices.filter_map(|slice| measure_one(&slice)));
    }
    Ok(measured)
}

fn measure_one(handle: &Handle<'_>) -> Option<Measured> {
    let device = id(handle).ok()?;
    let memory = handle.memory_info().ok()?;
    let mut processes: BTreeMap<u32, Process> = BTreeMap::new();
    let compute = handle.running_compute_processes().unwrap_or_default();
    let graphics = handle.running_graphics_processes().unwrap_or_default();
    let served = handle.mps_running_compute_processes().unwrap_or_default();
    for running in compute.into_iter().chain(graphics).chain(served) {
        let used = match running.used_gpu_memory {
            UsedGpuMemory::Used(used) => used,
            UsedGpuMemory::Unavailable => 0,
        };
        let process = Process { pid: running.pid, used, busy: 0 };
        // One that computes and draws is listed twice with the same memory, as may be one of MPS.
        processes.entry(running.pid).or_insert(process);
    }
    let mut newest: BTreeMap<u32, (u64, u32)> = BTreeMap::new();
    let since = since(SystemTime::now());
    let samples = handle.process_utilization_stats(since).unwrap_or_default();
    for sample in samples.into_iter().filter(|sample| sample.timestamp > since) {
        let at = newest.entry(sample.pid).or_default();
        if sample.timestamp >= at.0 {
            *at = (sample.timestamp, sample.sm_util);
        }
    }
    for (pid, (_, busy)) in newest {
        if let Some(process) = processes.get_mut(&pid) {
            process.busy = busy.min(100);
        }
    }
    Some(Measured {
        device,
        used: memory.used,
        total: memory.total,
        busy: handle.utilization_rates().ok().map(|rates| rates.gpu.min(100)),
        processes: processes.into_values().collect(),
    })
}

/// The time before which a sample says nothing of now, as NVML counts: in microseconds of the day.
/// The driver keeps samples of processes that have been idle since.
fn since(now: SystemTime) -> u64 {
    let oldest = now.duration_since(UNIX_EPOCH).unwrap_or_default().saturating_sub(FRESH);
    u64::try_from(oldest.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_long_ago_are_not_asked_for() {
        assert_eq!(since(UNIX_EPOCH + FRESH + Duration::from_micros(7)), 7);
        assert_eq!(since(UNIX_EPOCH), 0);
    }

    #[test]
    fn addresses_are_written_as_the_kernel_writes_them() {
        assert_eq!(bus("00000000:3B:00.0"), "0000:3b:00.0");
        assert_eq!(bus("0000:3b:00.0"), "0000:3b:00.0");
        assert_eq!(bus("?"), "?");
    }
}
