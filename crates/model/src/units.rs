//! Units as types. They cannot be mixed, and their arithmetic cannot wrap.
//!
//! `+` and `sum` stop at the largest value and `saturating_sub` at zero. A saturated sum is
//! still larger than any card, so an absurd request is refused instead of wrapping into a small one.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign};

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident($repr:ty), $suffix:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[derive(serde::Serialize, serde::Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $repr);

        impl $name {
            /// Nothing.
            pub const ZERO: Self = Self(0);
            /// The largest value; sums stop here.
            pub const MAX: Self = Self(<$repr>::MAX);

            /// What is left of `self` after taking `other`, never below zero.
            #[must_use]
            pub const fn saturating_sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }

            /// Whether this is nothing.
            pub const fn is_zero(self) -> bool {
                self.0 == 0
            }
        }

        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0.saturating_add(other.0))
            }
        }

        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                *self = *self + other;
            }
        }

        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(items: I) -> Self {
                items.fold(Self::ZERO, Add::add)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!("{}", $suffix), self.0)
            }
        }
    };
}

unit! {
    /// Compute, in percent of one card: 100 is a whole card.
    Cores(u32), "%"
}
unit! {
    /// Device memory.
    Mebibytes(u64), " MiB"
}
unit! {
    /// Thousandths of a host CPU.
    MilliCpu(u64), "m CPU"
}
unit! {
    /// Host memory.
    Bytes(u64), " B"
}
unit! {
    /// Milliseconds on the caller's own monotonic clock; never compared across processes.
    Moment(u64), " ms"
}
unit! {
    /// Nanoseconds since 1970, for annotations that other programs read.
    UnixNanos(u64), " ns"
}

impl Cores {
    /// One whole card.
    pub const CARD: Self = Self(100);
}

impl Mebibytes {
    /// `part` percent of this memory, rounded down, so that parts never add up to more.
    #[must_use]
    pub fn percent(self, part: Cores) -> Self {
        let scaled = u128::from(self.0) * u128::from(part.0) / 100;
        Self(u64::try_from(scaled).unwrap_or(u64::MAX))
    }

    /// This many blocks of `block` each.
    #[must_use]
    pub const fn times(self, count: u64) -> Self {
        Self(self.0.saturating_mul(count))
    }
}

impl Moment {
    /// The moment `millis` later.
    #[must_use]
    pub const fn after(self, millis: u64) -> Self {
        Self(self.0.saturating_add(millis))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_stops_at_the_ends() {
        assert_eq!(Mebibytes::MAX + Mebibytes(1), Mebibytes::MAX);
        assert_eq!(Mebibytes(1).saturating_sub(Mebibytes(2)), Mebibytes::ZERO);
        assert_eq!([Cores(u32::MAX), Cores(7)].into_iter().sum::<Cores>(), Cores::MAX);
        assert_eq!(Mebibytes::MAX.percent(Cores::MAX), Mebibytes::MAX);
        assert_eq!(Mebibytes(u64::MAX / 2).times(3), Mebibytes::MAX);
    }

    #[test]
    fn percents_of_memory_round_down() {
        assert_eq!(Mebibytes(16276).percent(Cores(30)), Mebibytes(4882));
        let parts: Mebibytes = (0..3).map(|_| Mebibytes(1000).percent(Cores(33))).sum();
        assert!(parts <= Mebibytes(1000));
    }
}
