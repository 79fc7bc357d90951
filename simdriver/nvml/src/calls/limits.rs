//! Memory limits of control groups, from driver 615 on.

use std::path::Path;

use machine::LimitError;

use crate::abi::{Answer, Handle, Pointer, Status};
use crate::session::since;
use crate::types::{GetMemoryLimits, SetMemoryLimits};

/// For no limit.
const MAX: u64 = u64::MAX;

fn status(error: LimitError) -> Status {
    match error {
        LimitError::NoGroup => Status::OPERATING_SYSTEM,
        LimitError::Full => Status::INSUFFICIENT_RESOURCES,
        LimitError::Join(error) => error.into(),
    }
}

fn check(soft: u64, hard: u64, total: u64) -> Answer {
    let beyond = (hard != MAX && hard > total) || soft > total;
    if soft > hard || beyond { Err(Status::INVALID_ARGUMENT) } else { Ok(()) }
}

calls! {
    nvmlDeviceSetMemoryLimits_v1(device: Handle, limits: Pointer<SetMemoryLimits>) |session| {
        since(615, session, |session| {
            let device = session.card(device)?;
            let limits = limits.get()?;
            let group = Pointer::from(limits.group).text()?;
            check(limits.soft, limits.hard, device.card.memory())?;
            // SAFETY: asks who we are; it cannot fail.
            if unsafe { libc::geteuid() } != 0 {
                return Err(Status::NO_PERMISSION);
            }
            let (soft, hard) = (limits.soft, limits.hard);
            session
                .machine
                .set_memory_limit(device.place(), Path::new(&group), soft, hard)
                .map_err(status)
        })
    }

    nvmlDeviceGetMemoryLimits_v1(device: Handle, limits: Pointer<GetMemoryLimits>) |session| {
        since(615, session, |session| {
            let device = session.card(device)?;
            let asked = limits.get()?;
            let group = Pointer::from(asked.group).text()?;
            let found = session.machine.memory_limit(device.place(), Path::new(&group));
            let limit = found.map_err(status)?.ok_or(Status::NOT_FOUND)?;
            limits.put(GetMemoryLimits {
                soft: limit.soft,
                hard: limit.hard,
                used: limit.used,
                ..asked
            })
        })
    }
}
