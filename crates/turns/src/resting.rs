//! The heartbeat of cards on which nothing happens.
//!
//! Twenty heartbeats a second are cheap, and a thread that wakes for each of them is not: a node has
//! eight cards, and most of the time nobody wants a turn on most of them. So a referee that has nothing
//! to do sleeps until somebody rings, and one thread of the process beats for all that sleep. Where no
//! process has a seat nobody would look at the heartbeat, and there is none.
//!
//! It beats only for those that wait at their door. A referee takes its heartbeat back before it does
//! anything else, so if it hangs or panics its heart stops, as it would without this.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::files::{LimitsFile, now};

/// A card that rests, until this is dropped.
#[derive(Debug)]
pub(crate) struct Rest {
    /// None if nobody needs its heartbeat.
    number: Option<u64>,
}

struct Resting {
    number: u64,
    limits: Vec<Arc<LimitsFile>>,
}

struct State {
    /// Whether the thread has been started.
    beating: bool,
    last: u64,
    resting: Vec<Resting>,
}

// Held for a look only.
static STATE: Mutex<State> = Mutex::new(State { beating: false, last: 0, resting: Vec::new() });
static CAME: Condvar = Condvar::new();

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Rest {
    /// Has the heartbeat of these pages renewed in time; nothing if there is nobody to do it.
    pub(crate) fn begin(limits: Vec<Arc<LimitsFile>>) -> Option<Self> {
        if limits.is_empty() {
            return Some(Self { number: None });
        }
        let mut state = state();
        if !state.beating {
            std::thread::Builder::new().name("heartbeat".into()).spawn(beat).ok()?;
            state.beating = true;
        }
        state.last += 1;
        let number = state.last;
        let alone = state.resting.is_empty();
        state.resting.push(Resting { number, limits });
        if alone {
            CAME.notify_one();
        }
        Some(Self { number: Some(number) })
    }
}

impl Drop for Rest {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            state().resting.retain(|one| one.number != number);
        }
    }
}

/// For as long as the process lives. While no card rests it sleeps.
fn beat() {
    loop {
        let resting = CAME
            .wait_while(state(), |state| state.resting.is_empty())
            .unwrap_or_else(PoisonError::into_inner);
        let time = now();
        for limits in resting.resting.iter().flat_map(|one| &one.limits) {
            limits.beat(time);
        }
        drop(resting);
        std::thread::sleep(Duration::from_nanos(crate::card::BEAT));
    }
}
