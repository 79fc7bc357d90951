//! What sensors say: load, heat, power, clocks.

use machine::Setting;

use crate::abi::{Answer, Handle, Pointer, Status, struct_version};
use crate::card::Device;
use crate::session::{Session, since};
use crate::types::{
    DynamicPstate, DynamicPstates, Sample, Temperature, ThermalSensor, ThermalSettings,
    Utilization, Versioned, ViolationTime,
};

use super::processes::memory_percent;

/// In degrees Celsius: slow down, and what is below it.
const SLOWDOWN: u32 = 90;

fn load(session: &Session, device: Handle) -> Answer<(Device<'_>, u32)> {
    let device = session.card(device)?;
    if session.machine.mig(device.place()) {
        return Err(Status::NOT_SUPPORTED);
    }
    let percent = device.percent()?;
    Ok((device, percent))
}

/// Engines that no simulated work uses.
fn idle_engine(
    session: &Session,
    device: Handle,
    percent: Pointer<u32>,
    period: Pointer<u32>,
) -> Answer {
    session.card(device)?;
    percent.put(0)?;
    period.put(167_000)
}

fn clock(session: &Session, device: Handle, kind: u32, answer: Pointer<u32>) -> Answer {
    let (memory, graphics) = session.card(device)?.clocks()?;
    answer.put(choose_clock(kind, memory, graphics)?)
}

fn max_clock(session: &Session, device: Handle, kind: u32, answer: Pointer<u32>) -> Answer {
    let (memory, graphics) = session.card(device)?.facts().clocks;
    answer.put(choose_clock(kind, memory, graphics)?)
}

fn choose_clock(kind: u32, memory: u32, graphics: u32) -> Answer<u32> {
    match kind {
        0 | 1 => Ok(graphics),
        2 => Ok(memory),
        3 => Ok(graphics / 10 * 9),
        _ => Err(Status::INVALID_ARGUMENT),
    }
}

/// P0 while somebody uses it, or always where there is no display to save for.
fn state(session: &Session, device: Handle) -> Answer<u32> {
    let device = session.card(device)?;
    Ok(if device.facts().fans == 0 || device.in_use()? { 0 } else { 8 })
}

fn reasons(session: &Session, device: Handle, answer: Pointer<u64>) -> Answer {
    let (_, percent) = load(session, device)?;
    // The first bit: idle.
    answer.put(u64::from(percent == 0))
}

fn fan(session: &Session, device: Handle, fan: u32, answer: Pointer<u32>) -> Answer {
    let device = session.card(device)?;
    if device.facts().fans == 0 {
        return Err(Status::NOT_SUPPORTED);
    }
    if fan >= device.facts().fans {
        return Err(Status::INVALID_ARGUMENT);
    }
    answer.put(30 + device.percent()? / 2)
}

calls! {
    nvmlDeviceGetUtilizationRates(device: Handle, answer: Pointer<Utilization>) |session| {
        let (_, gpu) = load(session, device)?;
        answer.put(Utilization { gpu, memory: memory_percent(gpu) })
    }

    nvmlDeviceGetEncoderUtilization(
        device: Handle,
        percent: Pointer<u32>,
        period: Pointer<u32>,
    ) |session| {
        idle_engine(session, device, percent, period)
    }

    nvmlDeviceGetDecoderUtilization(
        device: Handle,
        percent: Pointer<u32>,
        period: Pointer<u32>,
    ) |session| {
        idle_engine(session, device, percent, period)
    }

    nvmlDeviceGetJpgUtilization(
        device: Handle,
        percent: Pointer<u32>,
        period: Pointer<u32>,
    ) |session| {
        idle_engine(session, device, percent, period)
    }

    nvmlDeviceGetOfaUtilization(
        device: Handle,
        percent: Pointer<u32>,
        period: Pointer<u32>,
    ) |session| {
        idle_engine(session, device, percent, period)
    }

    nvmlDeviceGetEncoderSessions(device: Handle, count: Pointer<u32>, _list: Handle) |session| {
        session.card(device)?;
        count.put(0)
    }

    nvmlDeviceGetEncoderStats(
        device: Handle,
        sessions: Pointer<u32>,
        frames: Pointer<u32>,
        latency: Pointer<u32>,
    ) |session| {
        session.card(device)?;
        sessions.put(0)?;
        frames.put(0)?;
        latency.put(0)
    }

    nvmlDeviceGetSamples(
        device: Handle,
        kind: u32,
        seen: u64,
        value_type: Pointer<u32>,
        count: Pointer<u32>,
        list: Pointer<Sample>,
    ) |session| {
        let (device, _) = load(session, device)?;
        let value = |percent: u32| match kind {
            0 => {
                let idle = device.facts().watts.1 * 1000;
                Ok(idle + (device.setting(Setting::PowerLimit) - idle) / 100 * percent)
            }
            1 => Ok(percent),
            2 => Ok(memory_percent(percent)),
            3 | 4 | 8 | 9 => Ok(0),
            5 => Ok(device.facts().clocks.1),
            6 => Ok(device.facts().clocks.0),
            _ => Err(Status::INVALID_ARGUMENT),
        };
        let mut samples = Vec::new();
        for sample in session.machine.samples(device.id)? {
            let time_stamp = session.machine.wall_micros(sample.time);
            if time_stamp > seen {
                samples.push(Sample { time_stamp, value: u64::from(value(sample.percent())?) });
            }
        }
        value_type.put(1)?;
        if list.is_null() {
            return count.put(u32::try_from(samples.len()).unwrap_or(u32::MAX));
        }
        let room = usize::try_from(count.get()?).unwrap_or(0);
        if samples.is_empty() {
            return Err(Status::NOT_FOUND);
        }
        let newest = &samples[samples.len().saturating_sub(room)..];
        count.put(u32::try_from(newest.len()).unwrap_or(u32::MAX))?;
        list.put_all(newest, room)
    }

    nvmlDeviceGetTemperature(device: Handle, sensor: u32, answer: Pointer<u32>) |session| {
        let device = session.card(device)?;
        if sensor == 0 { answer.put(device.temperature()?) } else { Err(Status::INVALID_ARGUMENT) }
    }

    nvmlDeviceGetTemperatureV(device: Handle, answer: Pointer<Temperature>) |session| {
        since(570, session, |session| {
            let asked = answer.get()?;
            if asked.version != struct_version::<Temperature>(1) {
                return Err(Status::ARGUMENT_VERSION_MISMATCH);
            }
            let degrees = session.card(device)?.temperature()?;
            answer.put(Temperature { degrees: i32::try_from(degrees).unwrap_or(0), ..asked })
        })
    }

    nvmlDeviceGetMarginTemperature(device: Handle, answer: Pointer<Versioned>) |session| {
        since(570, session, |session| {
            let asked = answer.get()?;
            if asked.version != struct_version::<Versioned>(1) {
                return Err(Status::ARGUMENT_VERSION_MISMATCH);
            }
            let margin = SLOWDOWN - session.card(device)?.temperature()?;
            answer.put(Versioned { value: i32::try_from(margin).unwrap_or(0), ..asked })
        })
    }

    nvmlDeviceGetTemperatureThreshold(device: Handle, kind: u32, answer: Pointer<u32>) |session| {
        session.card(device)?;
        match kind {
            0 => answer.put(SLOWDOWN + 5),
            1 => answer.put(SLOWDOWN),
            2 => answer.put(95),
            3 => answer.put(85),
            4..=7 => Err(Status::NOT_SUPPORTED),
            _ => Err(Status::INVALID_ARGUMENT),
        }
    }

    nvmlDeviceGetThermalSettings(
        device: Handle,
        _sensor: u32,
        answer: Pointer<ThermalSettings>,
    ) |session| {
        let degrees = i32::try_from(session.card(device)?.temperature()?).unwrap_or(0);
        let none = ThermalSensor {
            controller: 0,
            default_min: 0,
            default_max: 0,
            current: 0,
            target: 0,
        };
        let ours = ThermalSensor {
            controller: 1,
            default_min: -40,
            default_max: 127,
            current: degrees,
            target: 1,
        };
        answer.put(ThermalSettings { count: 1, sensor: [ours, none, none] })
    }

    nvmlDeviceGetFanSpeed(device: Handle, answer: Pointer<u32>) |session| {
        fan(session, device, 0, answer)
    }

    nvmlDeviceGetFanSpeed_v2(device: Handle, place: u32, answer: Pointer<u32>) |session| {
        fan(session, device, place, answer)
    }

    nvmlDeviceGetTargetFanSpeed(device: Handle, place: u32, answer: Pointer<u32>) |session| {
        fan(session, device, place, answer)
    }

    nvmlDeviceGetNumFans(device: Handle, answer: Pointer<u32>) |session| {
        answer.put(session.card(device)?.facts().fans)
    }

    nvmlDeviceGetMinMaxFanSpeed(device: Handle, low: Pointer<u32>, high: Pointer<u32>) |session| {
        if session.card(device)?.facts().fans == 0 {
            return Err(Status::NOT_SUPPORTED);
        }
        low.put(30)?;
        high.put(100)
    }

    nvmlDeviceGetPowerUsage(device: Handle, answer: Pointer<u32>) |session| {
        answer.put(session.card(device)?.power()?)
    }

    nvmlDeviceGetTotalEnergyConsumption(device: Handle, answer: Pointer<u64>) |session| {
        answer.put(session.card(device)?.energy()?)
    }

    nvmlDeviceGetPowerSource(device: Handle, answer: Pointer<u32>) |session| {
        session.card(device)?;
        answer.put(0)
    }

    nvmlDeviceGetClockInfo(device: Handle, kind: u32, answer: Pointer<u32>) |session| {
        clock(session, device, kind, answer)
    }

    nvmlDeviceGetClock(device: Handle, kind: u32, id: u32, answer: Pointer<u32>) |session| {
        match id {
            0 => clock(session, device, kind, answer),
            1..=3 => max_clock(session, device, kind, answer),
            _ => Err(Status::INVALID_ARGUMENT),
        }
    }

    nvmlDeviceGetMaxClockInfo(device: Handle, kind: u32, answer: Pointer<u32>) |session| {
        max_clock(session, device, kind, answer)
    }

    nvmlDeviceGetMaxCustomerBoostClock(device: Handle, kind: u32, answer: Pointer<u32>) |session| {
        max_clock(session, device, kind, answer)
    }

    nvmlDeviceGetDefaultApplicationsClock(
        device: Handle,
        kind: u32,
        answer: Pointer<u32>,
    ) |session| {
        max_clock(session, device, kind, answer)
    }

    nvmlDeviceGetPerformanceState(device: Handle, answer: Pointer<u32>) |session| {
        answer.put(state(session, device)?)
    }

    nvmlDeviceGetPowerState(device: Handle, answer: Pointer<u32>) |session| {
        answer.put(state(session, device)?)
    }

    nvmlDeviceGetDynamicPstatesInfo(device: Handle, answer: Pointer<DynamicPstates>) |session| {
        let (_, percentage) = load(session, device)?;
        let none =
            DynamicPstate { present: 0, percentage: 0, inc_threshold: 0, dec_threshold: 0 };
        let mut utilization = [none; 8];
        utilization[0] = DynamicPstate { present: 1, percentage, ..none };
        utilization[1] = DynamicPstate { present: 1, percentage: percentage / 2, ..none };
        answer.put(DynamicPstates { flags: 0, utilization })
    }

    nvmlDeviceGetCurrentClocksEventReasons(device: Handle, answer: Pointer<u64>) |session| {
        reasons(session, device, answer)
    }

    nvmlDeviceGetCurrentClocksThrottleReasons(device: Handle, answer: Pointer<u64>) |session| {
        reasons(session, device, answer)
    }

    nvmlDeviceGetSupportedClocksEventReasons(device: Handle, answer: Pointer<u64>) |session| {
        session.card(device)?;
        answer.put(0x1ff)
    }

    nvmlDeviceGetSupportedClocksThrottleReasons(device: Handle, answer: Pointer<u64>) |session| {
        session.card(device)?;
        answer.put(0x1ff)
    }

    nvmlDeviceGetViolationStatus(
        device: Handle,
        policy: u32,
        answer: Pointer<ViolationTime>,
    ) |session| {
        session.card(device)?;
        if policy > 11 {
            return Err(Status::INVALID_ARGUMENT);
        }
        let reference_time = session.machine.wall_micros(session.machine.now());
        answer.put(ViolationTime { reference_time, violation_time: 0 })
    }

    nvmlDeviceGetSupportedMemoryClocks(
        device: Handle,
        count: Pointer<u32>,
        list: Pointer<u32>,
    ) |session| {
        list.put_list(&[session.card(device)?.facts().clocks.0], count)
    }

    nvmlDeviceGetSupportedGraphicsClocks(
        device: Handle,
        memory_clock: u32,
        count: Pointer<u32>,
        list: Pointer<u32>,
    ) |session| {
        let (memory, graphics) = session.card(device)?.facts().clocks;
        if memory_clock != memory {
            return Err(Status::NOT_FOUND);
        }
        let steps: Vec<u32> = (210..=graphics).rev().step_by(15).collect();
        list.put_list(&steps, count)
    }

    nvmlDeviceGetSupportedPerformanceStates(
        device: Handle,
        list: Pointer<u32>,
        size: u32,
    ) |session| {
        session.card(device)?;
        let words = usize::try_from(size).unwrap_or(0) / size_of::<u32>();
        // Those that are not there are filled with 32, which is unknown.
        let states: Vec<u32> = [0, 8].into_iter().chain(std::iter::repeat(32)).take(words).collect();
        list.put_all(&states, words)
    }

    nvmlDeviceGetMinMaxClockOfPState(
        device: Handle,
        kind: u32,
        pstate: u32,
        low: Pointer<u32>,
        high: Pointer<u32>,
    ) |session| {
        let (memory, graphics) = session.card(device)?.facts().clocks;
        let most = choose_clock(kind, memory, graphics)?;
        match pstate {
            0 => {
                low.put(210.min(most))?;
                high.put(most)
            }
            8 => {
                low.put(210.min(most))?;
                high.put(405.min(most))
            }
            _ => Err(Status::INVALID_ARGUMENT),
        }
    }
}
