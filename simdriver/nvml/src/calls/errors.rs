//! Errors of memory, counted.

use machine::{Counter, Setting};

use crate::abi::{Answer, Handle, Pointer, Status};
use crate::card::Device;
use crate::session::Session;
use crate::types::{EccErrorCounts, RowRemapperHistogram};

use super::modes::needs_root;

/// The card of a handle, if it has ECC switched on.
fn with_ecc(session: &Session, device: Handle) -> Answer<Device<'_>> {
    let device = session.card(device)?;
    if device.setting(Setting::Ecc) == 1 { Ok(device) } else { Err(Status::NOT_SUPPORTED) }
}

/// Corrected or not, and since the driver was loaded or ever.
fn count(device: &Device, kind: u32, since: u32) -> Answer<u64> {
    let counter = match (kind, since) {
        (0, 0) => Counter::CorrectedVolatile,
        (1, 0) => Counter::UncorrectedVolatile,
        (0, 1) => Counter::CorrectedAggregate,
        (1, 1) => Counter::UncorrectedAggregate,
        _ => return Err(Status::INVALID_ARGUMENT),
    };
    Ok(device.machine().counter(device.id, counter))
}

/// Pages were retired up to Volta; later cards remap rows.
fn retires(session: &Session, device: Handle) -> Answer<Device<'_>> {
    let device = with_ecc(session, device)?;
    if device.facts().architecture < 7 { Ok(device) } else { Err(Status::NOT_SUPPORTED) }
}

fn remaps(session: &Session, device: Handle) -> Answer<Device<'_>> {
    let device = with_ecc(session, device)?;
    if device.facts().architecture >= 7 { Ok(device) } else { Err(Status::NOT_SUPPORTED) }
}

fn pages(session: &Session, device: Handle, cause: u32) -> Answer<Vec<u64>> {
    let device = retires(session, device)?;
    let (counter, base) = match cause {
        0 => (Counter::RetiredCorrected, 0x1000_0000),
        1 => (Counter::RetiredUncorrected, 0x2000_0000),
        _ => return Err(Status::INVALID_ARGUMENT),
    };
    let count = device.machine().counter(device.id, counter).min(64);
    Ok((0..count).map(|page| base + page * 4096).collect())
}

fn small(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

calls! {
    nvmlDeviceGetTotalEccErrors(
        device: Handle,
        kind: u32,
        since: u32,
        answer: Pointer<u64>,
    ) |session| {
        answer.put(count(&with_ecc(session, device)?, kind, since)?)
    }

    nvmlDeviceGetDetailedEccErrors(
        device: Handle,
        kind: u32,
        since: u32,
        answer: Pointer<EccErrorCounts>,
    ) |session| {
        let device_memory = count(&with_ecc(session, device)?, kind, since)?;
        answer.put(EccErrorCounts { l1_cache: 0, l2_cache: 0, device_memory, register_file: 0 })
    }

    nvmlDeviceGetMemoryErrorCounter(
        device: Handle,
        kind: u32,
        since: u32,
        location: u32,
        answer: Pointer<u64>,
    ) |session| {
        let device = with_ecc(session, device)?;
        match location {
            // 2 is the device's memory, 7 its static memory.
            2 => answer.put(count(&device, kind, since)?),
            0 | 1 | 3 | 4 | 5 | 7 => answer.put(0),
            6 => Err(Status::NOT_SUPPORTED),
            _ => Err(Status::INVALID_ARGUMENT),
        }
    }

    nvmlDeviceClearEccErrorCounts(device: Handle, since: u32) |session| {
        let device = with_ecc(session, device)?;
        needs_root()?;
        let counters = match since {
            0 => [Counter::CorrectedVolatile, Counter::UncorrectedVolatile],
            1 => [Counter::CorrectedAggregate, Counter::UncorrectedAggregate],
            _ => return Err(Status::INVALID_ARGUMENT),
        };
        Ok(session.machine.clear_counters(device.id, &counters)?)
    }

    nvmlDeviceGetRetiredPages(
        device: Handle,
        cause: u32,
        count: Pointer<u32>,
        addresses: Pointer<u64>,
    ) |session| {
        addresses.put_list(&pages(session, device, cause)?, count)
    }

    nvmlDeviceGetRetiredPages_v2(
        device: Handle,
        cause: u32,
        count: Pointer<u32>,
        addresses: Pointer<u64>,
        times: Pointer<u64>,
    ) |session| {
        let pages = pages(session, device, cause)?;
        let room = usize::try_from(count.get()?).unwrap_or(0);
        addresses.put_list(&pages, count)?;
        times.put_all(&vec![0; pages.len()], room)
    }

    nvmlDeviceGetRetiredPagesPendingStatus(device: Handle, answer: Pointer<u32>) |session| {
        let device = retires(session, device)?;
        answer.put(small(session.machine.counter(device.id, Counter::RemapPending).min(1)))
    }

    nvmlDeviceGetRemappedRows(
        device: Handle,
        corrected: Pointer<u32>,
        uncorrected: Pointer<u32>,
        pending: Pointer<u32>,
        failed: Pointer<u32>,
    ) |session| {
        let device = remaps(session, device)?;
        let value = |counter| small(session.machine.counter(device.id, counter));
        corrected.put(value(Counter::RemappedCorrected))?;
        uncorrected.put(value(Counter::RemappedUncorrected))?;
        pending.put(value(Counter::RemapPending).min(1))?;
        failed.put(value(Counter::RemapFailed).min(1))
    }

    nvmlDeviceGetRowRemapperHistogram(
        device: Handle,
        answer: Pointer<RowRemapperHistogram>,
    ) |session| {
        remaps(session, device)?;
        answer.put(RowRemapperHistogram { max: 640, high: 0, partial: 0, low: 0, none: 0 })
    }
}
