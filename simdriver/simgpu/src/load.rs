//! Keeping a card busy.

#[path = "driver.rs"]
mod driver;

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::Context;
use machine::{ContextId, Machine, Memory, Process, Work};

use crate::args::Load;
use crate::fault::card;
use driver::Driver;

/// A stretch of time of which a part is busy. Ten of them are one of NVML's sampling periods, a sixth
/// of a second, so that every sample says what was asked for, wherever it begins.
const PERIOD: Duration = Duration::from_nanos(1_000_000_000 / 60);

/// Who uses the card.
enum User {
    /// Through the driver's library, with whatever stands before it.
    Library(Driver),
    /// Past all of it.
    Rogue(Process, ContextId),
}

/// Holds memory and runs kernels for as long as asked.
pub(crate) fn run(
    machine: &'static Machine,
    load: &Load,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let busy = Duration::from_nanos(nanoseconds(PERIOD) * load.busy / 100);
    let user = start(machine, load, busy)?;
    let way = if load.rogue { "past any library" } else { "through libcuda.so.1" };
    writeln!(
        out,
        "holding {} MiB of card {} and keeping it {} % busy, {way}, as process {}",
        load.memory >> 20,
        load.device,
        load.busy,
        std::process::id()
    )?;
    out.flush()?;
    let begun = Instant::now();
    let mut next = begun;
    while load.seconds == 0 || begun.elapsed() < Duration::from_secs(load.seconds) {
        if !busy.is_zero() {
            user.run(machine, busy)?;
        }
        next += PERIOD;
        // A card that others use too makes us late: what was missed is not made up for.
        next = next.max(Instant::now());
        if load.busy < 100 {
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        if load.busy == 0 {
            std::thread::sleep(PERIOD);
        }
    }
    Ok(())
}

fn start(machine: &'static Machine, load: &Load, busy: Duration) -> anyhow::Result<User> {
    let device = card(machine, load.device)?;
    if !load.rogue {
        let driver = Driver::start(load.device, load.memory, busy)?;
        return Ok(User::Library(driver));
    }
    let process = machine.process()?;
    let context = process.open_context(device).context("open a context")?;
    process
        .reserve(device, Memory::Other, load.memory)
        .with_context(|| format!("hold {} MiB", load.memory >> 20))?;
    Ok(User::Rogue(process, context))
}

impl User {
    fn run(&self, machine: &Machine, busy: Duration) -> anyhow::Result<()> {
        match self {
            Self::Library(driver) => driver.run(),
            Self::Rogue(process, context) => {
                let device = process.device_of(*context).context("the context is closed")?;
                let work = Work::Kernel {
                    multiprocessors: machine.multiprocessors(device),
                    nanoseconds: nanoseconds(busy),
                };
                let ticket = process.submit(*context, 0, work)?;
                process.wait(ticket);
                Ok(())
            }
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
