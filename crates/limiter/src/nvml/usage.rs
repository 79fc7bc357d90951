//! How busy a device is: of the share, what the container uses.

use core::ffi::c_void;
use core::sync::atomic::{AtomicU64, Ordering};

use super::place_of;
use super::processes::living;
use crate::driver::{hooks, nvml};
use crate::place::{MOST, Place};
use crate::sys;

/// `nvmlUtilization_t`.
#[repr(C)]
pub(crate) struct Utilization {
    gpu: u32,
    memory: u32,
}

/// `nvmlProcessUtilizationSample_t`.
#[repr(C)]
pub(crate) struct Sample {
    pid: u32,
    time: u64,
    busy: [u32; 4],
}

/// `nvmlProcessUtilizationInfo_v1_t`.
#[repr(C)]
pub(crate) struct Info {
    time: u64,
    pid: u32,
    busy: [u32; 6],
}

/// `nvmlProcessesUtilizationInfo_v1_t`.
#[repr(C)]
pub(crate) struct Infos {
    version: u32,
    count: u32,
    seen: u64,
    list: *mut Info,
}

/// When GPU time was last added up, what it was, and how busy that made the device.
struct Last {
    time: AtomicU64,
    spent: AtomicU64,
    percent: AtomicU64,
}

static LAST: [Last; MOST] = [const {
    Last { time: AtomicU64::new(0), spent: AtomicU64::new(0), percent: AtomicU64::new(0) }
}; MOST];

/// Shorter times say little.
const WINDOW: u64 = 100_000_000;

/// Percent of the device that the container used since this process last asked; `None` at first.
fn used(place: &'static Place) -> Option<u64> {
    let last = LAST.get(place.number())?;
    let now = sys::now();
    let before = last.time.load(Ordering::Acquire);
    if before != 0 && now.saturating_sub(before) < WINDOW {
        return Some(last.percent.load(Ordering::Acquire));
    }
    let spent = living(place).fold(0_u64, |sum, (_, _, spent)| sum.saturating_add(spent));
    let earlier = last.spent.swap(spent, Ordering::AcqRel);
    last.time.store(now, Ordering::Release);
    let time = now.checked_sub(before).filter(|_| before != 0)?.max(1);
    let percent = spent.saturating_sub(earlier).saturating_mul(100).checked_div(time)?.min(100);
    last.percent.store(percent, Ordering::Release);
    Some(percent)
}

/// Of the share: a container that uses all of its 30 percent is at 100.
fn of_share(place: &'static Place, percent: u64) -> u32 {
    let cores = u64::from(place.limits().cores.load(Ordering::Acquire));
    let share = if cores == 0 || cores > 100 { 100 } else { cores };
    let of_share = percent.saturating_mul(100).checked_div(share).unwrap_or(0);
    u32::try_from(of_share.min(100)).unwrap_or(100)
}

/// Whether a process is of the container.
fn is_ours(place: &'static Place, pid: u32) -> bool {
    living(place).any(|(who, _, _)| who.owner.pid() == pid)
}

/// Leaves in a list of `count` what is the container's; how much that is.
unsafe fn keep<T>(list: *mut T, count: u32, mut ours: impl FnMut(&T) -> bool) -> u32 {
    let mut kept = 0_u32;
    for at in 0..count {
        // SAFETY: the driver wrote `count` entries; what is moved moves towards the beginning.
        unsafe {
            let one = list.add(at as usize);
            if ours(&*one) {
                core::ptr::copy(one, list.add(kept as usize), 1);
                kept += 1;
            }
        }
    }
    kept
}

hooks! {
    nvmlDeviceGetUtilizationRates(device: u64, rates: *mut Utilization) |real| {
        let code = real(device, rates);
        // SAFETY: the driver wrote there, if it was not null.
        if let (0, Some(rates), Ok(Some(place))) = (code, unsafe { rates.as_mut() }, place_of(device)) {
            let percent = used(place).unwrap_or_else(|| rates.gpu.into());
            rates.gpu = of_share(place, percent);
            rates.memory = rates.memory.min(rates.gpu);
        }
        code
    }

    nvmlDeviceGetProcessUtilization(device: u64, samples: *mut Sample, count: *mut u32, seen: u64) |real| {
        let code = real(device, samples, count, seen);
        if code != nvml::SUCCESS || samples.is_null() {
            return code;
        }
        // SAFETY: the driver wrote there.
        if let (Some(count), Ok(Some(place))) = (unsafe { count.as_mut() }, place_of(device)) {
            // SAFETY: the driver wrote so many.
            *count = unsafe { keep(samples, *count, |sample| is_ours(place, sample.pid)) };
            if *count == 0 {
                return nvml::NOT_FOUND;
            }
        }
        code
    }

    nvmlDeviceGetProcessesUtilizationInfo(device: u64, infos: *mut Infos) |real| {
        let code = real(device, infos);
        // SAFETY: the driver wrote there, if it was not null.
        if let (0, Some(infos), Ok(Some(place))) = (code, unsafe { infos.as_mut() }, place_of(device))
            && !infos.list.is_null()
        {
            // SAFETY: the driver wrote so many.
            infos.count = unsafe { keep(infos.list, infos.count, |info| is_ours(place, info.pid)) };
            if infos.count == 0 {
                return nvml::NOT_FOUND;
            }
        }
        code
    }

    nvmlDeviceGetAccountingPids(device: u64, count: *mut u32, list: *mut u32) |real| {
        let code = real(device, count, list);
        // SAFETY: the driver wrote there.
        if let (0, Some(count), Ok(Some(place))) = (code, unsafe { count.as_mut() }, place_of(device))
            && !list.is_null()
        {
            // SAFETY: the driver wrote so many.
            *count = unsafe { keep(list, *count, |pid| is_ours(place, *pid)) };
        }
        code
    }

    nvmlDeviceGetAccountingStats(device: u64, pid: u32, stats: *mut c_void) |real| {
        match place_of(device) {
            Ok(Some(place)) if !is_ours(place, pid) => nvml::NOT_FOUND,
            _ => real(device, pid, stats),
        }
    }
}
