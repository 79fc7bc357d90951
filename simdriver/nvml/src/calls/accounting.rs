//! What processes used, also those that have ended.

use machine::{Setting, Usage};

use crate::abi::{Answer, Handle, Pointer, Status};
use crate::card::Device;
use crate::session::Session;
use crate::types::AccountingStats;

use super::modes::needs_root;

fn accounted(session: &Session, device: Handle) -> Answer<(Device<'_>, Vec<Usage>)> {
    let device = session.card(device)?;
    if device.setting(Setting::Accounting) == 0 {
        return Err(Status::NOT_SUPPORTED);
    }
    let mut usage = session.machine.usage()?;
    usage.retain(|usage| usage.card == device.place() && usage.pid != 0);
    Ok((device, usage))
}

calls! {
    nvmlDeviceGetAccountingBufferSize(device: Handle, answer: Pointer<u32>) |session| {
        session.card(device)?;
        answer.put(256)
    }

    nvmlDeviceGetAccountingPids(
        device: Handle,
        count: Pointer<u32>,
        list: Pointer<u32>,
    ) |session| {
        let (_, usage) = accounted(session, device)?;
        let pids: Vec<u32> = usage.iter().map(|usage| usage.pid).collect();
        if list.is_null() && count.get()? == 0 {
            count.put(u32::try_from(pids.len()).unwrap_or(u32::MAX))?;
            return if pids.is_empty() { Ok(()) } else { Err(Status::INSUFFICIENT_SIZE) };
        }
        list.put_list(&pids, count)
    }

    nvmlDeviceGetAccountingStats(
        device: Handle,
        pid: u32,
        answer: Pointer<AccountingStats>,
    ) |session| {
        let (_, usage) = accounted(session, device)?;
        let usage = usage.iter().rev().find(|usage| usage.pid == pid).ok_or(Status::NOT_FOUND)?;
        let time = usage.until.saturating_sub(usage.joined).max(1);
        let percent = usage.busy.saturating_mul(100) / time;
        let percent = u32::try_from(percent.min(100)).unwrap_or(100);
        answer.put(AccountingStats {
            gpu_utilization: percent,
            memory_utilization: percent / 2,
            max_memory_usage: usage.peak,
            // In ms, and 0 while it runs.
            time: if usage.alive { 0 } else { time / 1_000_000 },
            start_time: session.machine.wall_micros(usage.joined),
            is_running: u32::from(usage.alive),
            reserved: [0; 5],
        })
    }

    nvmlDeviceClearAccountingPids(device: Handle) |session| {
        session.card(device)?;
        needs_root()?;
        // The history is the truth that others measure against, so it stays.
        Err(Status::NOT_SUPPORTED)
    }
}
