//! How long launches will be, guessed from how long they were.
//!
//! A guess only bounds what is in flight; nobody pays by it.

use core::sync::atomic::{AtomicU64, Ordering};

/// For what was never seen. Long, so that little of it is in flight before its length is known.
pub(super) const UNKNOWN: u64 = 20_000_000;
/// Nothing is shorter.
const SHORTEST: u64 = 500;
const LONGEST: u64 = (1 << 40) - 1;
const PLACES: usize = 512;

/// A part of the key above, the guess in the low 40 bits.
static KNOWN: [AtomicU64; PLACES] = [const { AtomicU64::new(0) }; PLACES];

#[inline]
fn place(key: u64) -> Option<(&'static AtomicU64, u64)> {
    let mixed = (key ^ key >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    // The highest bits choose the place, others tell keys of one place apart.
    let word = KNOWN.get((mixed >> 55) as usize)?;
    Some((word, mixed & !LONGEST))
}

/// How long work of this key will be; 0 if nothing is known.
#[inline]
pub(super) fn of(key: u64) -> u64 {
    let Some((word, tag)) = place(key) else { return 0 };
    let known = word.load(Ordering::Relaxed);
    if known & !LONGEST == tag { known & LONGEST } else { 0 }
}

/// `count` of this key took `time` together.
pub(super) fn learn(key: u64, time: u64, count: u64) {
    let Some((word, tag)) = place(key) else { return };
    let each = time.checked_div(count).unwrap_or(0).clamp(SHORTEST, LONGEST);
    let before = of(key);
    let now = if before == 0 { each } else { before - before / 4 + each / 4 };
    word.store(tag | now.clamp(SHORTEST, LONGEST), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_is_guessed() {
        assert_eq!(of(0xabc0), 0);
        learn(0xabc0, 64_000, 64);
        assert_eq!(of(0xabc0), 1000);
        for _ in 0..40 {
            learn(0xabc0, 5_000_000, 1);
        }
        assert!(of(0xabc0).abs_diff(5_000_000) < 100_000);
        assert_eq!(of(0xabc8), 0);
    }
}
