//! Modes that are read and set.

use machine::Setting;

use crate::abi::{Answer, Handle, Pointer, Status};
use crate::card::Device;
use crate::session::Session;

fn read(session: &Session, device: Handle, setting: Setting, answer: Pointer<u32>) -> Answer {
    answer.put(session.device(device)?.setting(setting))
}

fn write(session: &Session, device: Handle, setting: Setting, value: u32) -> Answer {
    let device = session.card(device)?;
    needs_root()?;
    Ok(session.machine.set(device.id, setting, u64::from(value))?)
}

/// The real library asks the driver, which asks for root.
pub(crate) fn needs_root() -> Answer {
    // SAFETY: asks who we are; it cannot fail.
    if unsafe { libc::geteuid() } == 0 { Ok(()) } else { Err(Status::NO_PERMISSION) }
}

fn switch(value: u32) -> Answer<u32> {
    if value > 1 { Err(Status::INVALID_ARGUMENT) } else { Ok(value) }
}

/// Lowest and highest power limit, in mW.
pub(crate) fn power_range(device: &Device) -> (u32, u32) {
    let most = device.facts().watts.0 * 1000;
    (most / 4, most)
}

fn limit(session: &Session, device: Handle, answer: Pointer<u32>) -> Answer {
    session.card(device)?;
    read(session, device, Setting::PowerLimit, answer)
}

calls! {
    nvmlDeviceGetPersistenceMode(device: Handle, answer: Pointer<u32>) |session| {
        session.card(device)?;
        read(session, device, Setting::Persistence, answer)
    }

    nvmlDeviceSetPersistenceMode(device: Handle, mode: u32) |session| {
        write(session, device, Setting::Persistence, switch(mode)?)
    }

    nvmlDeviceGetComputeMode(device: Handle, answer: Pointer<u32>) |session| {
        read(session, device, Setting::ComputeMode, answer)
    }

    nvmlDeviceSetComputeMode(device: Handle, mode: u32) |session| {
        match mode {
            0 | 2 | 3 => write(session, device, Setting::ComputeMode, mode),
            1 => Err(Status::NOT_SUPPORTED),
            _ => Err(Status::INVALID_ARGUMENT),
        }
    }

    nvmlDeviceGetDisplayMode(device: Handle, answer: Pointer<u32>) |session| {
        session.card(device)?;
        answer.put(0)
    }

    nvmlDeviceGetDisplayActive(device: Handle, answer: Pointer<u32>) |session| {
        session.card(device)?;
        answer.put(0)
    }

    nvmlDeviceGetVirtualizationMode(device: Handle, answer: Pointer<u32>) |session| {
        session.card(device)?;
        answer.put(0)
    }

    nvmlDeviceGetAPIRestriction(device: Handle, kind: u32, answer: Pointer<u32>) |session| {
        session.card(device)?;
        if kind > 1 { Err(Status::INVALID_ARGUMENT) } else { answer.put(1) }
    }

    nvmlDeviceGetPowerManagementMode(device: Handle, answer: Pointer<u32>) |session| {
        session.card(device)?;
        answer.put(1)
    }

    nvmlDeviceGetPowerManagementLimit(device: Handle, answer: Pointer<u32>) |session| {
        limit(session, device, answer)
    }

    nvmlDeviceGetEnforcedPowerLimit(device: Handle, answer: Pointer<u32>) |session| {
        limit(session, device, answer)
    }

    nvmlDeviceGetPowerManagementDefaultLimit(device: Handle, answer: Pointer<u32>) |session| {
        answer.put(session.card(device)?.facts().watts.0 * 1000)
    }

    nvmlDeviceGetPowerManagementLimitConstraints(
        device: Handle,
        low: Pointer<u32>,
        high: Pointer<u32>,
    ) |session| {
        let (least, most) = power_range(&session.card(device)?);
        low.put(least)?;
        high.put(most)
    }

    nvmlDeviceSetPowerManagementLimit(device: Handle, value: u32) |session| {
        let (least, most) = power_range(&session.card(device)?);
        if !(least..=most).contains(&value) {
            return Err(Status::INVALID_ARGUMENT);
        }
        write(session, device, Setting::PowerLimit, value)
    }

    nvmlDeviceGetApplicationsClock(device: Handle, kind: u32, answer: Pointer<u32>) |session| {
        let device = session.card(device)?;
        let (memory, graphics) = device.facts().clocks;
        let chosen = |setting, default| match device.setting(setting) {
            0 => default,
            value => value,
        };
        match kind {
            0 | 1 => answer.put(chosen(Setting::GraphicsClock, graphics)),
            2 => answer.put(chosen(Setting::MemoryClock, memory)),
            3 => Err(Status::NOT_SUPPORTED),
            _ => Err(Status::INVALID_ARGUMENT),
        }
    }

    nvmlDeviceSetApplicationsClocks(device: Handle, memory: u32, graphics: u32) |session| {
        let (most_memory, most_graphics) = session.card(device)?.facts().clocks;
        if memory != most_memory || !(210..=most_graphics).contains(&graphics) {
            return Err(Status::NOT_SUPPORTED);
        }
        write(session, device, Setting::MemoryClock, memory)?;
        write(session, device, Setting::GraphicsClock, graphics)
    }

    nvmlDeviceResetApplicationsClocks(device: Handle) |session| {
        write(session, device, Setting::MemoryClock, 0)?;
        write(session, device, Setting::GraphicsClock, 0)
    }

    nvmlDeviceSetGpuLockedClocks(device: Handle, low: u32, high: u32) |session| {
        if low > high {
            return Err(Status::INVALID_ARGUMENT);
        }
        write(session, device, Setting::LockedGraphicsClock, high)
    }

    nvmlDeviceResetGpuLockedClocks(device: Handle) |session| {
        write(session, device, Setting::LockedGraphicsClock, 0)
    }

    nvmlDeviceGetAutoBoostedClocksEnabled(
        device: Handle,
        _enabled: Pointer<u32>,
        _default: Pointer<u32>,
    ) |session| {
        session.card(device)?;
        Err(Status::NOT_SUPPORTED)
    }

    nvmlDeviceGetAdaptiveClockInfoStatus(device: Handle, answer: Pointer<u32>) |session| {
        session.card(device)?;
        answer.put(1)
    }

    nvmlDeviceGetAccountingMode(device: Handle, answer: Pointer<u32>) |session| {
        read(session, device, Setting::Accounting, answer)
    }

    nvmlDeviceSetAccountingMode(device: Handle, mode: u32) |session| {
        write(session, device, Setting::Accounting, switch(mode)?)
    }

    nvmlDeviceGetEccMode(device: Handle, now: Pointer<u32>, pending: Pointer<u32>) |session| {
        let device = session.card(device)?;
        if device.facts().brand == 5 {
            return Err(Status::NOT_SUPPORTED);
        }
        now.put(device.setting(Setting::Ecc))?;
        pending.put(device.setting(Setting::PendingEcc))
    }

    nvmlDeviceGetDefaultEccMode(device: Handle, answer: Pointer<u32>) |session| {
        answer.put(u32::from(session.card(device)?.facts().fans == 0))
    }

    nvmlDeviceSetEccMode(device: Handle, mode: u32) |session| {
        write(session, device, Setting::PendingEcc, switch(mode)?)
    }
}
