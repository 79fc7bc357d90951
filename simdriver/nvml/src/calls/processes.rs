//! Who uses a device, and how much.

use machine::{Machine, Sample};

use crate::abi::{Answer, Handle, Pointer, Status, struct_version};
use crate::card::Device;
use crate::session::Session;
use crate::types::{
    ProcessDetail, ProcessDetailList, ProcessInfo, ProcessInfoV1, ProcessUtilizationInfo,
    ProcessUtilizationSample, ProcessesUtilizationInfo,
};

/// In the place of an instance, for a card that is not cut.
const NO_INSTANCE: u32 = u32::MAX;

/// Whether it runs by itself or as a client of MPS.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Itself,
    Mps,
}

/// The processes on a device; on a card with slices, those on its slices too.
fn processes(session: &Session, device: Handle, way: Way) -> Answer<Vec<ProcessInfo>> {
    let device = session.device(device)?;
    let other_way = session.machine.description().mps != (way == Way::Mps);
    if other_way || !session.machine.names_processes() {
        return Ok(Vec::new());
    }
    let slices = session.machine.compute_instances(device.place());
    let mut found = Vec::new();
    let sized = session.machine.lists_memory();
    for process in session.machine.running()? {
        if process.pid == 0 {
            // It cannot be seen from here.
            continue;
        }
        for holding in &process.holds {
            let slice = slices.iter().find(|slice| slice.device == holding.device);
            let here = holding.device == device.id || (device.mig.is_none() && slice.is_some());
            if here {
                found.push(ProcessInfo {
                    pid: process.pid,
                    used_gpu_memory: if sized { holding.memory } else { 0 },
                    gpu_instance_id: slice.map_or(NO_INSTANCE, |slice| slice.of.id),
                    compute_instance_id: slice.map_or(NO_INSTANCE, |slice| slice.id),
                });
            }
        }
    }
    Ok(merged(found))
}

/// A process that loads both libraries has two places, and is one process all the same.
fn merged(mut processes: Vec<ProcessInfo>) -> Vec<ProcessInfo> {
    let key = |it: &ProcessInfo| (it.pid, it.gpu_instance_id, it.compute_instance_id);
    processes.sort_by_key(key);
    processes.dedup_by(|later, first| {
        let same = key(later) == key(first);
        if same {
            first.used_gpu_memory += later.used_gpu_memory;
        }
        same
    });
    processes
}

fn old(processes: Vec<ProcessInfo>) -> Vec<ProcessInfoV1> {
    let short =
        |it: ProcessInfo| ProcessInfoV1 { pid: it.pid, used_gpu_memory: it.used_gpu_memory };
    processes.into_iter().map(short).collect()
}

/// Each process that kept the device busy after `seen`, with its last sampling period.
fn utilization(device: &Device, seen: u64) -> Answer<Vec<(u32, u64, u32)>> {
    let machine = device.machine();
    let mut found = Vec::new();
    if !machine.names_processes() {
        return Ok(found);
    }
    for (_, pid, samples) in machine.process_samples(device.id)? {
        let Some(sample) = last_busy(&samples) else { continue };
        let time = machine.wall_micros(sample.time);
        if pid != 0 && time > seen && sample.percent() > 0 {
            found.push((pid, time, sample.percent()));
        }
    }
    Ok(found)
}

/// The last period that is over, or the one that goes on if it is the first with anything.
fn last_busy(samples: &[Sample]) -> Option<Sample> {
    let over = samples.len().checked_sub(2).and_then(|place| samples.get(place));
    over.filter(|sample| sample.busy > 0).or(samples.last()).copied()
}

/// How much of the memory's bandwidth a busy device takes is not simulated; half is usual.
pub(crate) fn memory_percent(percent: u32) -> u32 {
    percent / 2
}

fn not_in_mig(machine: &Machine, device: &Device) -> Answer {
    if machine.mig(device.place()) { Err(Status::NOT_SUPPORTED) } else { Ok(()) }
}

calls! {
    nvmlDeviceGetComputeRunningProcesses(
        device: Handle,
        count: Pointer<u32>,
        list: Pointer<ProcessInfoV1>,
    ) |session| {
        list.put_list(&old(processes(session, device, Way::Itself)?), count)
    }

    nvmlDeviceGetComputeRunningProcesses_v2(
        device: Handle,
        count: Pointer<u32>,
        list: Pointer<ProcessInfo>,
    ) |session| {
        list.put_list(&processes(session, device, Way::Itself)?, count)
    }

    nvmlDeviceGetComputeRunningProcesses_v3(
        device: Handle,
        count: Pointer<u32>,
        list: Pointer<ProcessInfo>,
    ) |session| {
        list.put_list(&processes(session, device, Way::Itself)?, count)
    }

    nvmlDeviceGetMPSComputeRunningProcesses(
        device: Handle,
        count: Pointer<u32>,
        list: Pointer<ProcessInfoV1>,
    ) |session| {
        list.put_list(&old(processes(session, device, Way::Mps)?), count)
    }

    nvmlDeviceGetMPSComputeRunningProcesses_v2(
        device: Handle,
        count: Pointer<u32>,
        list: Pointer<ProcessInfo>,
    ) |session| {
        list.put_list(&processes(session, device, Way::Mps)?, count)
    }

    nvmlDeviceGetMPSComputeRunningProcesses_v3(
        device: Handle,
        count: Pointer<u32>,
        list: Pointer<ProcessInfo>,
    ) |session| {
        list.put_list(&processes(session, device, Way::Mps)?, count)
    }

    nvmlDeviceGetGraphicsRunningProcesses(
        device: Handle,
        count: Pointer<u32>,
        list: Pointer<ProcessInfoV1>,
    ) |session| {
        session.device(device)?;
        list.put_list(&[], count)
    }

    nvmlDeviceGetGraphicsRunningProcesses_v2(
        device: Handle,
        count: Pointer<u32>,
        list: Pointer<ProcessInfo>,
    ) |session| {
        session.device(device)?;
        list.put_list(&[], count)
    }

    nvmlDeviceGetGraphicsRunningProcesses_v3(
        device: Handle,
        count: Pointer<u32>,
        list: Pointer<ProcessInfo>,
    ) |session| {
        session.device(device)?;
        list.put_list(&[], count)
    }

    nvmlDeviceGetRunningProcessDetailList(
        device: Handle,
        list: Pointer<ProcessDetailList>,
    ) |session| {
        let mut asked = list.get()?;
        if asked.version != struct_version::<ProcessDetailList>(1) {
            return Err(Status::ARGUMENT_VERSION_MISMATCH);
        }
        let way = match asked.mode {
            0 => Way::Itself,
            1 => return Err(Status::NOT_SUPPORTED),
            2 => Way::Mps,
            _ => return Err(Status::INVALID_ARGUMENT),
        };
        let found = processes(session, device, way)?;
        let room = usize::try_from(asked.count).unwrap_or(0);
        asked.count = u32::try_from(found.len()).unwrap_or(u32::MAX);
        list.put(asked)?;
        let detail = |it: &ProcessInfo| ProcessDetail {
            pid: it.pid,
            used_gpu_memory: it.used_gpu_memory,
            gpu_instance_id: it.gpu_instance_id,
            compute_instance_id: it.compute_instance_id,
            used_gpu_cc_protected_memory: 0,
        };
        let details: Vec<ProcessDetail> = found.iter().map(detail).collect();
        Pointer::from(asked.array).put_all(&details, room)
    }

    nvmlDeviceGetProcessUtilization(
        device: Handle,
        list: Pointer<ProcessUtilizationSample>,
        count: Pointer<u32>,
        seen: u64,
    ) |session| {
        let device = session.card(device)?;
        not_in_mig(session.machine, &device)?;
        let found = utilization(&device, seen)?;
        let sample = |&(pid, time_stamp, sm_util): &(u32, u64, u32)| ProcessUtilizationSample {
            pid,
            time_stamp,
            sm_util,
            mem_util: memory_percent(sm_util),
            enc_util: 0,
            dec_util: 0,
        };
        let samples: Vec<ProcessUtilizationSample> = found.iter().map(sample).collect();
        if list.is_null() {
            // Asks for how much room to make: as many as there could be at most.
            count.put(u32::try_from(samples.len().max(1)).unwrap_or(u32::MAX))?;
            return Err(Status::INSUFFICIENT_SIZE);
        }
        if samples.is_empty() {
            count.put(0)?;
            return Err(Status::NOT_FOUND);
        }
        list.put_list(&samples, count)
    }

    nvmlDeviceGetProcessesUtilizationInfo(
        device: Handle,
        list: Pointer<ProcessesUtilizationInfo>,
    ) |session| {
        let mut asked = list.get()?;
        if asked.version != struct_version::<ProcessesUtilizationInfo>(1) {
            return Err(Status::ARGUMENT_VERSION_MISMATCH);
        }
        let device = session.card(device)?;
        not_in_mig(session.machine, &device)?;
        let found = utilization(&device, asked.last_seen_time_stamp)?;
        let info = |&(pid, time_stamp, sm_util): &(u32, u64, u32)| ProcessUtilizationInfo {
            time_stamp,
            pid,
            sm_util,
            mem_util: memory_percent(sm_util),
            enc_util: 0,
            dec_util: 0,
            jpg_util: 0,
            ofa_util: 0,
        };
        let infos: Vec<ProcessUtilizationInfo> = found.iter().map(info).collect();
        let room = usize::try_from(asked.count).unwrap_or(0);
        asked.count = u32::try_from(infos.len()).unwrap_or(u32::MAX);
        let array = Pointer::from(asked.array);
        if array.is_null() {
            asked.count = asked.count.max(1);
            list.put(asked)?;
            return Err(Status::INSUFFICIENT_SIZE);
        }
        list.put(asked)?;
        if infos.is_empty() {
            return Err(Status::NOT_FOUND);
        }
        array.put_all(&infos, room)
    }
}
