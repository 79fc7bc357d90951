//! Sleeping until work is finished.
//!
//! Who waits sleeps until the earliest time at which the work can be finished, looks, and
//! sleeps again. The earliest time is never later than the true one, so nobody has to wake a
//! sleeper when others join; and as it halves what is left with every look, there are few.

use std::sync::atomic::Ordering;

use rustix::thread::futex;

use crate::clock;
use crate::description::Clock;
use crate::engine::earliest;
use crate::lock;
use crate::process::Process;
use crate::queue::{Progress, Ticket, progress};
use crate::state::{State, get};

/// The longest sleep, in nanoseconds, for what nobody wakes us for: a process that dies.
const LONGEST: u64 = 100_000_000;
/// The shortest: below it the kernel's own delay is longer.
const SHORTEST: u64 = 1_000;

/// Wakes everybody who waits for work.
pub(crate) fn wake_all(state: &State) {
    state.header.wake.fetch_add(1, Ordering::AcqRel);
    lock::wake(&state.header.wake, i32::MAX.unsigned_abs());
}

/// What a look at the work said.
enum Look {
    Over(Progress),
    /// Not before this device time.
    NotBefore(u64),
}

impl Process {
    /// How far the work of a ticket is.
    pub fn poll(&self, ticket: Ticket) -> Progress {
        self.machine.change_as(self, |change| {
            self.machine.keep_up(change);
            progress(change.state, ticket)
        })
    }

    /// Sleeps until the work of a ticket is over.
    pub fn wait(&self, ticket: Ticket) -> Progress {
        loop {
            if let Some(progress) = self.wait_at_most(ticket, u64::MAX) {
                return progress;
            }
        }
    }

    /// Sleeps until the work of a ticket is over, or for so many nanoseconds of the host's
    /// clock.
    pub fn wait_at_most(&self, ticket: Ticket, nanoseconds: u64) -> Option<Progress> {
        let deadline = clock::host().saturating_add(nanoseconds);
        let state = self.machine.state;
        loop {
            let seen = state.header.wake.load(Ordering::Acquire);
            let now = match self.look(ticket) {
                Look::Over(progress) => return Some(progress),
                Look::NotBefore(time) => time.saturating_sub(self.machine.now()),
            };
            let left = deadline.saturating_sub(clock::host());
            if left == 0 {
                return None;
            }
            self.sleep(seen, now.min(left));
        }
    }

    /// Looks once. Where time is virtual it goes on to the next event.
    fn look(&self, ticket: Ticket) -> Look {
        self.machine.change_as(self, |change| {
            self.machine.keep_up(change);
            loop {
                let progress = progress(change.state, ticket);
                if progress.is_over() {
                    return Look::Over(progress);
                }
                let next = get(&change.state.header.next_event);
                if self.machine.description().clock == Clock::Real || next == u64::MAX {
                    // Work that does not run now cannot begin before the next event; but the
                    // sum over its stream says enough.
                    return Look::NotBefore(earliest(change.state, ticket).unwrap_or(u64::MAX));
                }
                self.machine.jump(change, next);
            }
        })
    }

    /// Sleeps until the machine's plan changes, or for so long.
    pub(crate) fn sleep(&self, seen: u32, nanoseconds: u64) {
        let time = nanoseconds.clamp(SHORTEST, LONGEST);
        let time = futex::Timespec {
            tv_sec: 0,
            tv_nsec: libc::c_long::try_from(time).unwrap_or(1_000_000),
        };
        let word = &self.machine.state.header.wake;
        // Whether woken, too late or interrupted: the caller looks again.
        let _ = futex::wait(word, futex::Flags::empty(), seen, Some(&time));
    }
}
