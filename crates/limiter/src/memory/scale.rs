//! What something cost, by what the whole device has less afterwards.
//!
//! For drivers that do not tell us what this process holds. Others take and give back at the same time, and
//! nobody may be charged for that, so a difference is believed only if the device was at rest before and
//! after and it is no more than was claimed; or if it was the same three times in a row. Else what
//! was made is unmade and made again, and if nothing helps the claim itself is what it cost.

use crate::memory::listing::whole_device;
use crate::memory::overhead::{Estimate, PLAUSIBLE, What};
use crate::place::Place;
use crate::sys;

/// The device is at rest if it holds as much after this time as before, in nanoseconds.
const REST: u64 = 1_000_000;
/// How often that is waited for.
const WAITS: u32 = 10;
/// How often something is made anew to be weighed.
const TRIES: u32 = 6;
/// More than was claimed is believed when it was seen so often.
const TIMES: u32 = 3;

/// What everybody holds of a device, when it is at rest.
pub(crate) fn calm(place: &'static Place) -> Option<u64> {
    let mut before = whole_device(place)?;
    for _ in 0..WAITS {
        sys::sleep(REST);
        let now = whole_device(place)?;
        if now == before {
            return Some(now);
        }
        before = now;
    }
    None
}

/// What a look says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It cost that.
    Is(u64),
    /// It has to be made anew, after so many nanoseconds.
    Again(u64),
    /// It cannot be told.
    Unknown,
}

/// Weighs one thing, made once or several times.
#[derive(Debug)]
pub(crate) struct Scale {
    least: u64,
    claimed: u64,
    /// What was seen last, and how often in a row.
    last: u64,
    times: u32,
    /// How often it may be made anew if others are busy, and if it seems to be large.
    while_busy: u32,
    while_large: u32,
}

impl Scale {
    pub(crate) fn new(what: What<'_>, estimate: Estimate, claimed: u64) -> Self {
        let is_sure = matches!(estimate, Estimate::Sure(_));
        let least = if matches!(what, What::Context(_)) { *PLAUSIBLE.start() } else { 0 };
        let tries = if matches!(what, What::Use) { 0 } else { TRIES };
        // What is known already need not be weighed when that is hard.
        let while_busy = if is_sure { 0 } else { tries };
        Self { least, claimed, last: 0, times: 0, while_busy, while_large: tries }
    }

    /// `cost` is how much less the device has; `None` if others were busy.
    pub(crate) fn weigh(&mut self, cost: Option<u64>) -> Verdict {
        let left = match cost {
            Some(cost) if (self.least..=self.claimed).contains(&cost) => return Verdict::Is(cost),
            Some(cost) if cost > self.claimed => {
                self.times = if cost == self.last { self.times + 1 } else { 1 };
                self.last = cost;
                if self.times >= TIMES {
                    return Verdict::Is(cost);
                }
                &mut self.while_large
            }
            _ => &mut self.while_busy,
        };
        if *left == 0 {
            return Verdict::Unknown;
        }
        *left -= 1;
        // Who began together with us goes another way from here on.
        Verdict::Again(REST * (1 + u64::from(sys::pid()) % 7))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn context() -> u64 {
        1
    }

    fn first() -> Scale {
        Scale::new(What::Context(&context), Estimate::AtMost(512 * MIB), 512 * MIB)
    }

    #[test]
    fn what_fits_the_claim_is_believed() {
        assert_eq!(first().weigh(Some(300 * MIB)), Verdict::Is(300 * MIB));
    }

    #[test]
    fn what_others_take_is_not() {
        let mut scale = first();
        for seen in [Some(1324 * MIB), None, Some(600 * MIB), Some(0), Some(1324 * MIB)] {
            assert!(matches!(scale.weigh(seen), Verdict::Again(_)), "{seen:?}");
        }
        assert_eq!(scale.weigh(Some(300 * MIB)), Verdict::Is(300 * MIB));
    }

    #[test]
    fn more_than_claimed_is_believed_the_third_time() {
        let mut scale = first();
        assert!(matches!(scale.weigh(Some(700 * MIB)), Verdict::Again(_)));
        assert!(matches!(scale.weigh(Some(700 * MIB)), Verdict::Again(_)));
        assert_eq!(scale.weigh(Some(700 * MIB)), Verdict::Is(700 * MIB));
    }

    #[test]
    fn it_comes_to_an_end() {
        let mut scale = first();
        let looks = std::iter::repeat_with(|| scale.weigh(None));
        assert_eq!(looks.take_while(|verdict| *verdict != Verdict::Unknown).count(), 6);
        // What is known is charged as known.
        let mut known = Scale::new(What::Context(&context), Estimate::Sure(300 * MIB), 300 * MIB);
        assert_eq!(known.weigh(None), Verdict::Unknown);
    }
}
