//! How a turn goes from the referee to a process and back.
//!
//! ```text
//!   referee                              process
//!     offer: budget, rate, epoch, turn     take: read them, phase = busy, then read turn again
//!     withdraw: turn = 0, then read phase  pause: phase = paused; start: phase = busy, read turn
//!                                          give back: returned = epoch
//! ```
//!
//! Either side writes its own word first and reads the other's after, in one order that all agree
//! on. So if a turn is withdrawn while its holder starts, the holder sees that it is gone, or the
//! referee sees that it started; never neither.

use crate::counters::Seat;
use crate::limits::Grants;
use crate::referee::{Phase, Terms};
use crate::sync::Ordering;

const BUSY: u64 = 1;
const PAUSED: u64 = 2;

/// The word for a phase of the turn `epoch`; `start` is raised with each start.
fn word(epoch: u32, start: u32, kind: u64) -> u64 {
    u64::from(epoch) << 32 | u64::from(start & 0x3fff_ffff) << 2 | kind
}

/// The word that says whose turn it is. Two turns of one seat differ in it, so that nobody sleeps
/// through the second.
fn token(seat: u32, epoch: u32) -> u32 {
    epoch << 16 | seat & 0xffff
}

/// Where the holder of the turn `epoch` is, by the words of its seat.
#[expect(clippy::cast_possible_truncation, reason = "the halves of a word")]
pub fn phase(epoch: u32, phase: u64, returned: u32) -> Phase {
    if returned == epoch {
        return Phase::Returned;
    }
    let start = phase as u32 >> 2;
    match (phase >> 32 == u64::from(epoch), phase & 3) {
        (true, BUSY) => Phase::Busy(start),
        (true, PAUSED) => Phase::Paused(start),
        _ => Phase::Called,
    }
}

/// A turn as a process sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// Its number.
    pub epoch: u32,
    /// What may be done.
    pub terms: Terms,
}

impl Grants {
    /// Offers the turn `epoch` to `seat`, counted from 1. The caller wakes who sleeps on `turn`.
    pub fn offer(&self, seat: u32, epoch: u32, terms: Terms) {
        let (budget, rate) = match terms {
            Terms::Budget(budget) => (budget, 0),
            Terms::Open { balance, rate } => (balance.cast_unsigned(), rate),
        };
        self.budget.store(budget, Ordering::SeqCst);
        self.rate.store(rate, Ordering::SeqCst);
        self.epoch.store(epoch, Ordering::SeqCst);
        self.turn.store(token(seat, epoch), Ordering::SeqCst);
    }

    /// Takes the right to launch back. What the seat says after this is final.
    pub fn withdraw(&self) {
        self.turn.store(0, Ordering::SeqCst);
    }

    /// The turn of `seat`, counted from 1, if it has it.
    pub fn offered(&self, seat: u32) -> Option<Offer> {
        // The referee withdraws before it offers anew, so a mixture of two turns shows in the
        // epoch. It is asked again only as often as the referee can change its mind meanwhile.
        for _ in 0..4 {
            if self.turn.load(Ordering::SeqCst) & 0xffff != seat {
                return None;
            }
            let epoch = self.epoch.load(Ordering::SeqCst);
            let budget = self.budget.load(Ordering::SeqCst);
            let rate = self.rate.load(Ordering::SeqCst);
            if self.holds(seat, epoch) {
                let terms = if rate == 0 {
                    Terms::Budget(budget)
                } else {
                    Terms::Open { balance: budget.cast_signed(), rate }
                };
                return Some(Offer { epoch, terms });
            }
        }
        None
    }

    /// Whether `seat` has the turn `epoch`. Two loads.
    #[inline]
    pub fn holds(&self, seat: u32, epoch: u32) -> bool {
        self.turn.load(Ordering::SeqCst) == token(seat, epoch)
            && self.epoch.load(Ordering::SeqCst) == epoch
    }
}

impl Seat {
    /// Starts work in the turn `epoch`; whether the turn was still there. If not, nothing may be
    /// launched and the turn is to be given back.
    pub fn start(&self, grants: &Grants, seat: u32, epoch: u32, start: u32) -> bool {
        self.phase.store(word(epoch, start, BUSY), Ordering::SeqCst);
        grants.holds(seat, epoch)
    }

    /// All work of the turn is done, for now.
    pub fn pause(&self, epoch: u32, start: u32) {
        self.phase.store(word(epoch, start, PAUSED), Ordering::SeqCst);
    }

    /// Gives the turn back, all work being done. The caller rings.
    pub fn give_back(&self, epoch: u32) {
        self.returned.store(epoch, Ordering::SeqCst);
    }
}

#[cfg(all(test, loom))]
mod orders {
    extern crate std;

    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU32, AtomicU64};
    use loom::thread;

    use super::*;
    use crate::seats::tests::seat;

    fn grants() -> Grants {
        let zero = || AtomicU64::new(0);
        Grants {
            heartbeat: zero(),
            epoch: AtomicU32::new(0),
            turn: AtomicU32::new(0),
            budget: zero(),
            rate: AtomicU32::new(0),
            managed: AtomicU32::new(0),
            room: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    #[test]
    fn a_turn_is_never_withdrawn_from_a_holder_unseen() {
        loom::model(|| {
            let both = Arc::new((grants(), seat()));
            both.0.offer(1, 7, Terms::Budget(5));
            both.1.pause(7, 1);
            let holder = Arc::clone(&both);
            let holder = thread::spawn(move || holder.1.start(&holder.0, 1, 7, 2));
            both.0.withdraw();
            let seen = phase(
                7,
                both.1.phase.load(Ordering::SeqCst),
                both.1.returned.load(Ordering::SeqCst),
            );
            let launches = holder.join().unwrap();
            assert!(!launches || matches!(seen, Phase::Busy(_)), "it launches unseen");
        });
    }

    #[test]
    fn an_offer_is_read_whole_or_not_at_all() {
        loom::model(|| {
            let both = Arc::new(grants());
            both.offer(1, 7, Terms::Budget(70));
            let holder = Arc::clone(&both);
            let holder = thread::spawn(move || holder.offered(1));
            both.withdraw();
            both.offer(1, 8, Terms::Open { balance: -80, rate: 80 });
            match holder.join().unwrap() {
                None => {}
                Some(Offer { epoch: 7, terms }) => assert_eq!(terms, Terms::Budget(70)),
                Some(Offer { epoch, terms }) => {
                    assert_eq!((epoch, terms), (8, Terms::Open { balance: -80, rate: 80 }));
                }
            }
        });
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn a_phase_is_of_its_turn_only() {
        assert_eq!(phase(7, word(7, 3, BUSY), 6), Phase::Busy(3));
        assert_eq!(phase(7, word(7, 4, PAUSED), 6), Phase::Paused(4));
        assert_eq!(phase(7, word(6, 4, BUSY), 6), Phase::Called);
        assert_eq!(phase(7, word(7, 4, BUSY), 7), Phase::Returned);
        assert_eq!(phase(7, u64::MAX, 0), Phase::Called);
    }
}
