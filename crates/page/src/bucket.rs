//! GPU time as money: a bucket that fills with the clock and is emptied by what kernels took.
//!
//! A launch is let through while there is something in the bucket, and paid for when its time is
//! known. So a kernel of any length may run, and a long one is paid as debt: the bucket goes below
//! zero and nothing is launched until the clock has filled it again. Over any stretch of time the
//! process gets
//!
//! ```text
//!   rate * time + what was in the bucket + at most the work that was in flight
//! ```
//!
//! What is in it never grows above [`Bucket::cap`], so that idle time is not saved up; debt has no
//! bound, or long kernels would be cheaper than short ones.

/// A whole card, in the unit of rates: hundredths of a percent.
pub const WHOLE: u32 = 10_000;

/// A rate from percent.
pub fn rate(percent: u32) -> u32 {
    percent.saturating_mul(100).min(WHOLE)
}

/// How much GPU time a process may still use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bucket {
    /// In nanoseconds; below zero it is debt.
    balance: i64,
    /// The time up to which it was filled.
    at: u64,
    /// What the last filling left over, in nanoseconds times [`WHOLE`].
    rest: u64,
}

impl Bucket {
    /// One with `balance` in it at time `now`.
    pub const fn new(balance: i64, now: u64) -> Self {
        Self { balance, at: now, rest: 0 }
    }

    /// The most that can be in it: what comes in during `window` nanoseconds.
    pub fn cap(rate: u32, window: u64) -> i64 {
        wide(window.saturating_mul(rate.into()) / u64::from(WHOLE))
    }

    /// Lets the time up to `now` come in. A clock that went back brings nothing.
    pub fn fill(&mut self, now: u64, rate: u32, window: u64) {
        let passed = now.saturating_sub(self.at);
        self.at = self.at.max(now);
        // An hour of a whole card is 3.6e12 ns: times WHOLE it fits. What is longer is cut, and
        // then the bucket is full anyway.
        let gained = passed.min(3_600_000_000_000) * u64::from(rate.min(WHOLE)) + self.rest;
        self.rest = gained % u64::from(WHOLE);
        let filled = self.balance.saturating_add(wide(gained / u64::from(WHOLE)));
        let cap = Self::cap(rate, window);
        self.balance = if filled > cap { self.balance.max(cap).min(filled) } else { filled };
    }

    /// Pays for `time` nanoseconds.
    pub fn pay(&mut self, time: u64) {
        self.balance = self.balance.saturating_sub(wide(time));
    }

    /// What is in it.
    pub fn balance(&self) -> i64 {
        self.balance
    }

    /// Cuts debt, for time that was nobody else's.
    pub fn forgive(&mut self, debt: i64) {
        self.balance = self.balance.max(debt);
    }

    /// How long until there is `wanted` in it; `None` if never.
    pub fn wait(&self, wanted: i64, rate: u32) -> Option<u64> {
        let short = wanted.saturating_sub(self.balance);
        let Ok(short @ 1..) = u64::try_from(short) else { return Some(0) };
        short.saturating_mul(u64::from(WHOLE)).checked_div(u64::from(rate)).map(|time| time + 1)
    }
}

fn wide(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const WINDOW: u64 = SECOND / 10;

    #[test]
    fn a_long_kernel_is_paid_as_debt() {
        let mut bucket = Bucket::new(0, 0);
        bucket.pay(SECOND);
        bucket.fill(SECOND, rate(30), WINDOW);
        assert_eq!(bucket.balance(), -700_000_000);
        assert_eq!(bucket.wait(0, rate(30)), Some(2_333_333_334));
        assert_eq!(bucket.wait(0, 0), None);
    }

    #[test]
    fn idle_time_is_not_saved_up() {
        let mut bucket = Bucket::new(0, 0);
        bucket.fill(3600 * SECOND, rate(50), WINDOW);
        assert_eq!(bucket.balance(), 50_000_000);
        bucket.fill(u64::MAX, rate(50), WINDOW);
        assert_eq!(bucket.balance(), 50_000_000);
    }

    #[test]
    fn a_lower_rate_takes_nothing_that_was_given() {
        let mut bucket = Bucket::new(0, 0);
        bucket.fill(SECOND, rate(80), WINDOW);
        bucket.fill(SECOND, rate(10), WINDOW);
        assert_eq!(bucket.balance(), 80_000_000);
    }

    proptest! {
        #[test]
        fn nobody_gets_more_than_the_rate(
            percent in 1..100_u32,
            steps in prop::collection::vec((0..20_000_000_u64, 0..100_000_000_u64), 1..200),
        ) {
            let mut bucket = Bucket::new(0, 0);
            let (mut now, mut used, mut last) = (0, 0, 0);
            for (pause, kernel) in steps {
                now += pause;
                bucket.fill(now, rate(percent), WINDOW);
                if bucket.balance() > 0 {
                    bucket.pay(kernel);
                    (used, last) = (used + kernel, kernel);
                    now += kernel;
                }
            }
            // All but the last kernel was paid from what had come in.
            prop_assert!((used - last) * 100 <= now * u64::from(percent));
        }

        #[test]
        fn many_small_steps_fill_like_one(percent in 0..=100_u32, steps in prop::collection::vec(0..5000_u64, 0..100)) {
            let (mut small, mut big) = (Bucket::new(0, 0), Bucket::new(0, 0));
            let mut now = 0;
            for step in steps {
                now += step;
                small.fill(now, rate(percent), SECOND);
            }
            big.fill(now, rate(percent), SECOND);
            prop_assert_eq!(small.balance(), big.balance());
        }

        #[test]
        fn no_numbers_make_it_panic(balance in any::<i64>(), at in any::<u64>(), now in any::<u64>(),
            rate in any::<u32>(), window in any::<u64>(), time in any::<u64>(), wanted in any::<i64>()) {
            let mut bucket = Bucket::new(balance, at);
            bucket.fill(now, rate, window);
            bucket.pay(time);
            bucket.forgive(balance);
            let _ = bucket.wait(wanted, rate);
        }
    }
}
