//! Values by number.

use machine::{Counter, Setting};

use crate::abi::{Answer, Handle, Pointer, Status};
use crate::card::{Device, SWITCH};
use crate::types::FieldValue;

use super::modes::power_range;

/// A value and its type.
enum Value {
    Int(u32),
    Long(u64),
}

/// The value of a field; `scope` is a link for those of `NVLink`.
fn value(device: &Device, field: u32, scope: u32) -> Answer<Value> {
    let count = |counter| Value::Long(device.machine().counter(device.id, counter));
    let flag = |counter| Value::Int(u32::from(device.machine().counter(device.id, counter) > 0));
    let links = device.nvlinks();
    let (least, most) = power_range(device);
    Ok(match field {
        1 => Value::Int(device.setting(Setting::Ecc)),
        2 => Value::Int(device.setting(Setting::PendingEcc)),
        3 | 11 => count(Counter::CorrectedVolatile),
        4 | 12 => count(Counter::UncorrectedVolatile),
        5 | 22 => count(Counter::CorrectedAggregate),
        6 | 23 => count(Counter::UncorrectedAggregate),
        7..=10 | 13..=21 | 24..=28 => Value::Long(0),
        29 => count(Counter::RetiredCorrected),
        30 => count(Counter::RetiredUncorrected),
        31 | 92 | 93 | 144 => flag(Counter::RemapPending),
        38 | 45 | 52 | 59 if !links.is_empty() => count(Counter::NvLinkErrors),
        82 => Value::Int(device.temperature()? + 5),
        83 | 191 => Value::Long(device.energy()?),
        90 | 164 if !links.is_empty() => Value::Int(device.nvlink_speed()),
        84..=89 if has(&links, field - 84) => Value::Int(device.nvlink_speed()),
        132..=137 if has(&links, field - 126) => Value::Int(device.nvlink_speed()),
        91 => Value::Int(u32::try_from(links.len()).unwrap_or(0)),
        94 => count(Counter::PcieReplays),
        138..=141 if !links.is_empty() => Value::Long(0),
        142 => count(Counter::RemappedCorrected),
        143 => count(Counter::RemappedUncorrected),
        145 => flag(Counter::RemapFailed),
        147 => {
            let switched = links.iter().filter(|link| **link == SWITCH).count();
            Value::Int(u32::try_from(switched).unwrap_or(0))
        }
        165 if !links.is_empty() => Value::Int(u32::from(has(&links, scope))),
        95 | 169 | 173..=183 => Value::Int(0),
        185 | 186 => Value::Int(device.power()?),
        187 => Value::Int(least),
        188 => Value::Int(most),
        189 => Value::Int(device.facts().watts.0 * 1000),
        190 | 192 => Value::Int(device.setting(Setting::PowerLimit)),
        _ => return Err(Status::NOT_SUPPORTED),
    })
}

fn has(links: &[usize], place: u32) -> bool {
    usize::try_from(place).is_ok_and(|place| place < links.len())
}

calls! {
    nvmlDeviceGetFieldValues(device: Handle, count: i32, values: Pointer<FieldValue>) |session| {
        let device = session.device(device)?;
        let count = usize::try_from(count).ok().filter(|count| *count > 0);
        let count = count.ok_or(Status::INVALID_ARGUMENT)?;
        let now = session.machine.wall_micros(session.machine.now());
        values.change_all(count, |field| {
            field.timestamp = i64::try_from(now).unwrap_or(i64::MAX);
            field.latency_usec = 0;
            match value(&device, field.field_id, field.scope_id) {
                Ok(Value::Int(value)) => {
                    field.status = Status::SUCCESS;
                    field.value_type = 1;
                    field.value = u64::from(value);
                }
                Ok(Value::Long(value)) => {
                    field.status = Status::SUCCESS;
                    field.value_type = 3;
                    field.value = value;
                }
                Err(status) => {
                    field.status = status;
                    field.value = 0;
                }
            }
        })
    }

    nvmlDeviceClearFieldValues(device: Handle, count: i32, values: Pointer<FieldValue>) |session| {
        session.device(device)?;
        let count = usize::try_from(count).map_err(|_| Status::INVALID_ARGUMENT)?;
        values.change_all(count, |field| field.status = Status::NOT_SUPPORTED)
    }
}
