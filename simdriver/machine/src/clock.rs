//! Device time: nanoseconds since the machine was made, or a number that is moved by hand.

use crate::description::{Clock, Description};
use crate::engine::catch_up;
use crate::journal::Change;
use crate::machine::Machine;
use crate::process::JoinError;
use crate::state::{State, get};

/// The host's clock. It is the same in all containers.
pub(crate) fn host() -> u64 {
    nanoseconds(rustix::time::clock_gettime(rustix::time::ClockId::Monotonic))
}

/// The same, some milliseconds old at times, for who asks often and need not know exactly.
pub(crate) fn host_about() -> u64 {
    nanoseconds(rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse))
}

fn nanoseconds(time: rustix::time::Timespec) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

pub(crate) fn now(description: &Description, state: &State) -> u64 {
    match description.clock {
        Clock::Real => host().wrapping_sub(get(&state.header.epoch)),
        Clock::Virtual => get(&state.header.virtual_now),
    }
}

/// After the host was started anew its clock is behind: device time goes on where it was.
pub(crate) fn mend(change: &Change) {
    let header = &change.state.header;
    let (host, time) = (host(), get(&header.time));
    let now = host.wrapping_sub(get(&header.epoch));
    if now < time || now > 1 << 62 {
        change.set(&header.epoch, host.wrapping_sub(time));
    }
}

impl Machine {
    /// Moves the clock of a machine whose time is virtual; real time cannot be moved.
    pub fn advance(&'static self, nanoseconds: u64) -> Result<(), JoinError> {
        if self.description().clock == Clock::Real {
            return Ok(());
        }
        self.change(|change| {
            let now = get(&self.state.header.virtual_now).saturating_add(nanoseconds);
            self.jump(change, now);
        })?;
        crate::wait::wake_all(self.state);
        Ok(())
    }

    /// Moves the clock to `time`, if it is not there already, and simulates up to it.
    pub(crate) fn jump(&self, change: &Change, time: u64) {
        let clock = &self.state.header.virtual_now;
        change.set(clock, get(clock).max(time));
        catch_up(change, &self.rules, get(clock));
    }

    /// The time of day, in microseconds, at some device time.
    pub fn wall_micros(&self, device_time: u64) -> u64 {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let micros = since.map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX));
        if self.description().clock == Clock::Virtual {
            return device_time / 1000;
        }
        micros.saturating_sub(self.now().saturating_sub(device_time) / 1000)
    }
}
