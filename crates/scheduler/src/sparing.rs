//! What is worth telling of one pod is not worth a write for each of a thousand.
//!
//! An Event costs the API server what a Binding costs it. So a rush of pods gets a few: what they
//! would say is on every pod, as its placement.

use std::sync::{Mutex, PoisonError};

use model::Moment;

/// So many at once.
const AT_ONCE: u64 = 20;
/// Then one in so many milliseconds.
const EVERY: u64 = 500;

/// How much has been told lately.
#[derive(Debug, Default)]
pub(crate) struct Sparing {
    /// When all that was told would have been told at the steady pace, in milliseconds.
    until: Mutex<u64>,
}

impl Sparing {
    /// Whether one more may be told now.
    pub(crate) fn may(&self, now: Moment) -> bool {
        let mut until = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        let from = (*until).max(now.0);
        let may = from - now.0 <= (AT_ONCE - 1) * EVERY;
        if may {
            *until = from.saturating_add(EVERY);
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_are_all_told_and_of_many_some() {
        let slow = Sparing::default();
        assert!((0..100).all(|n| slow.may(Moment(1_000 + n * EVERY))), "at the steady pace");
        let rush = Sparing::default();
        let told = |at: u64, count: usize| (0..count).filter(|_| rush.may(Moment(at))).count();
        assert_eq!(told(5_000, 1_000), 20);
        assert_eq!(told(5_000 + EVERY, 1_000), 1);
        assert_eq!(told(4_000, 1_000), 0, "a clock that went back tells nothing more");
        assert_eq!(told(3_600_000, 1_000), 20, "after a quiet while");
    }
}
