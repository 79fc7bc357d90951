//! Faults on demand.

use std::io::Write;

use anyhow::bail;
use machine::{Counter, DeviceId, Fault as Kind, Machine, Switch};

use crate::args::{Fault, Off};

/// Injects it and says what was done.
pub(crate) fn inject(
    machine: &'static Machine,
    fault: &Fault,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let device = |place: usize| card(machine, place);
    let (kinds, said) = match fault {
        Fault::Xid { device: place, number } => {
            (vec![Kind::Xid(device(*place)?, *number)], format!("card {place}: Xid {number}"))
        }
        Fault::Lost { device: place } => {
            (vec![Kind::Lose(device(*place)?)], format!("card {place} is off the bus"))
        }
        Fault::Return { device: place } => {
            (vec![Kind::Return(device(*place)?)], format!("card {place} is back"))
        }
        Fault::Absent { device: place, off } => {
            let said = if off.off { "is plugged in" } else { "is taken out" };
            (vec![Kind::Absent(device(*place)?, off.switch())], format!("card {place} {said}"))
        }
        Fault::Ecc { device: place, corrected, uncorrected } => {
            let id = device(*place)?;
            if *corrected == 0 && *uncorrected == 0 {
                bail!("say how many: --corrected 1 or --uncorrected 1");
            }
            let all = [
                (Counter::CorrectedVolatile, *corrected),
                (Counter::UncorrectedVolatile, *uncorrected),
            ];
            let counts = all.into_iter().filter(|(_, count)| *count > 0);
            let kinds = counts.map(|(counter, count)| Kind::Count(id, counter, count)).collect();
            (kinds, format!("card {place}: {corrected} errors corrected, {uncorrected} not"))
        }
        Fault::Remap { device: place, count, failed, pending } => {
            (remap(machine, device(*place)?, *count, *failed, *pending), {
                format!("card {place}: {count} rows or pages taken out of use")
            })
        }
        Fault::OutOfMemory { device: place, off } => {
            let said = if off.off { "gives memory again" } else { "refuses all memory" };
            (vec![Kind::OutOfMemory(device(*place)?, off.switch())], format!("card {place} {said}"))
        }
        Fault::Slow { milliseconds } => {
            let time = milliseconds.saturating_mul(1_000_000);
            (vec![Kind::NvmlDelay(time)], format!("calls to NVML take {milliseconds} ms longer"))
        }
        Fault::Hang(off) => {
            let said = if off.off { "return again" } else { "do not return" };
            (vec![Kind::NvmlHang(off.switch())], format!("calls to NVML {said}"))
        }
        Fault::Mismatch(off) => {
            let said = if off.off { "match again" } else { "do not match" };
            (vec![Kind::Mismatch(off.switch())], format!("library and kernel module {said}"))
        }
        Fault::NoDriver(off) => {
            let said = if off.off { "a driver again" } else { "no driver" };
            (vec![Kind::NoDriver(off.switch())], format!("there is {said}"))
        }
        Fault::Nameless(off) => {
            let said = if off.off { "names processes again" } else { "names no process" };
            (vec![Kind::Nameless(off.switch())], format!("NVML {said}"))
        }
        Fault::Reset { device: place } => {
            let counters =
                [Counter::CorrectedVolatile, Counter::UncorrectedVolatile, Counter::RemapPending];
            machine.clear_counters(device(*place)?, &counters)?;
            (Vec::new(), format!("card {place} was reset"))
        }
        Fault::Clear => (all_that_lasts(machine), "all that lasts is ended".to_owned()),
    };
    for kind in kinds {
        machine.inject(kind)?;
    }
    writeln!(out, "{said}")?;
    Ok(())
}

/// The card at a place.
pub(crate) fn card(machine: &Machine, place: usize) -> anyhow::Result<DeviceId> {
    let count = machine.description().cards.len();
    match DeviceId::new(place).filter(|_| place < count) {
        Some(id) => Ok(id),
        None => bail!("there is no card {place}; the machine has 0 to {}", count - 1),
    }
}

fn remap(machine: &Machine, id: DeviceId, count: u64, failed: bool, pending: bool) -> Vec<Kind> {
    let model = &machine.description().cards[id.place()].model;
    let counter = if machine::cards::facts(model).architecture < 7 {
        Counter::RetiredUncorrected
    } else {
        Counter::RemappedUncorrected
    };
    let flags = [(failed, Counter::RemapFailed), (pending, Counter::RemapPending)];
    let flags = flags.into_iter().filter(|(on, _)| *on).map(|(_, flag)| Kind::Count(id, flag, 1));
    std::iter::once(Kind::Count(id, counter, count)).chain(flags).collect()
}

fn all_that_lasts(machine: &Machine) -> Vec<Kind> {
    let cards = (0..machine.description().cards.len()).filter_map(DeviceId::new);
    let of_cards = cards.flat_map(|id| {
        let off = Switch::Off;
        [Kind::Return(id), Kind::Absent(id, off), Kind::OutOfMemory(id, off)]
    });
    let of_all = [
        Kind::NvmlDelay(0),
        Kind::NvmlHang(Switch::Off),
        Kind::Mismatch(Switch::Off),
        Kind::NoDriver(Switch::Off),
        Kind::Nameless(Switch::Off),
    ];
    of_cards.chain(of_all).collect()
}

impl Off {
    fn switch(self) -> Switch {
        if self.off { Switch::Off } else { Switch::On }
    }
}
