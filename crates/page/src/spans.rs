//! Time that is covered by at least one of many intervals.
//!
//! Streams of a process run beside one another, and its GPU time is the time in which any of them
//! ran. Their intervals become known in no order, so the newest stretches that are covered are
//! kept, and an interval counts for what it adds.

/// Stretches that are kept. Who has more loose ends than that at one time is charged twice for
/// the oldest, never too little.
const KEPT: usize = 32;

/// What is covered.
#[derive(Debug, Clone, Copy)]
pub struct Spans {
    /// Apart from one another, in order; the first `count` are meant.
    kept: [(u64, u64); KEPT],
    count: usize,
}

impl Default for Spans {
    fn default() -> Self {
        Self::new()
    }
}

impl Spans {
    /// Nothing.
    pub const fn new() -> Self {
        Self { kept: [(0, 0); KEPT], count: 0 }
    }

    /// Adds an interval; says how much of it was not covered before.
    pub fn add(&mut self, start: u64, end: u64) -> u64 {
        if end <= start {
            return 0;
        }
        let (mut from, mut to, mut covered) = (start, end, 0);
        let mut left = Self::new();
        let mut placed = false;
        for (a, b) in self.kept.iter().copied().take(self.count) {
            if b < start || a > end {
                if a > end && !placed {
                    placed = true;
                    left.push((0, 0));
                }
                left.push((a, b));
            } else {
                covered += b.min(end).saturating_sub(a.max(start));
                (from, to) = (from.min(a), to.max(b));
            }
        }
        // The place of the joined one was kept free, or it is the newest.
        if placed {
            if let Some(place) = left.kept.iter_mut().find(|span| **span == (0, 0)) {
                *place = (from, to);
            }
        } else {
            left.push((from, to));
        }
        *self = left;
        (end - start).saturating_sub(covered)
    }

    /// Puts one at the end; the oldest leaves if there is no room.
    fn push(&mut self, span: (u64, u64)) {
        if self.count == KEPT {
            self.kept.rotate_left(1);
            self.count -= 1;
        }
        if let Some(place) = self.kept.get_mut(self.count) {
            *place = span;
            self.count += 1;
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_overlaps_counts_once() {
        let mut spans = Spans::new();
        assert_eq!(spans.add(10, 20), 10);
        assert_eq!(spans.add(30, 40), 10);
        assert_eq!(spans.add(15, 35), 10);
        assert_eq!(spans.add(0, 50), 20);
        assert_eq!(spans.add(5, 45), 0);
        assert_eq!(spans.add(7, 7), 0);
    }

    #[test]
    fn a_late_interval_counts_too() {
        let mut spans = Spans::new();
        assert_eq!(spans.add(100, 200), 100);
        assert_eq!(spans.add(20, 40), 20);
        assert_eq!(spans.add(30, 60), 20);
    }

    proptest! {
        #[test]
        fn the_sum_is_the_measure_of_the_union(
            intervals in prop::collection::vec((0..400_usize, 0..40_usize), 0..30),
        ) {
            let mut spans = Spans::new();
            let mut covered = [false; 500];
            for (start, length) in intervals {
                let new = covered[start..start + length].iter().filter(|it| !**it).count();
                covered[start..start + length].fill(true);
                prop_assert_eq!(spans.add(start as u64, (start + length) as u64), new as u64);
            }
        }

        #[test]
        fn with_too_many_loose_ends_it_is_never_too_little(
            starts in prop::collection::vec(0..2000_u64, 0..200),
        ) {
            let mut spans = Spans::new();
            let counted: u64 = starts.iter().map(|start| spans.add(start * 10, start * 10 + 5)).sum();
            let mut different = starts.clone();
            different.sort_unstable();
            different.dedup();
            prop_assert!(counted >= 5 * different.len() as u64);
        }
    }
}
