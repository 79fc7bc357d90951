//! Some of a node's devices, as a mask.

/// A set of devices of one node, each by its place in the node's list.
///
/// There are 64 places. A device beyond them is in no set; the codec refuses such nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Places(u64);

impl Places {
    /// No device.
    pub const NONE: Self = Self(0);

    /// How many places there are.
    pub const MOST: usize = 64;

    /// The device at `place` alone.
    pub const fn one(place: usize) -> Self {
        if place < Self::MOST { Self(1 << place) } else { Self::NONE }
    }

    /// The first `count` places.
    pub const fn first(count: usize) -> Self {
        if count < Self::MOST { Self((1 << count) - 1) } else { Self(u64::MAX) }
    }

    /// The set of this number: place 0 is the lowest bit.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The set as a number: place 0 is the lowest bit.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Those in either.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Those in both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Those not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether all of them are in `other`.
    pub const fn is_within(self, other: Self) -> bool {
        self.without(other).is_empty()
    }

    /// Whether the device at `place` is among them.
    pub const fn contains(self, place: usize) -> bool {
        !self.and(Self::one(place)).is_empty()
    }

    /// How many they are.
    pub const fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether there are none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The lowest place.
    pub fn lowest(self) -> Option<usize> {
        self.into_iter().next()
    }
}

impl FromIterator<usize> for Places {
    fn from_iter<I: IntoIterator<Item = usize>>(places: I) -> Self {
        places.into_iter().fold(Self::NONE, |set, place| set.or(Self::one(place)))
    }
}

impl IntoIterator for Places {
    type Item = usize;
    type IntoIter = Iter;

    fn into_iter(self) -> Iter {
        Iter(self)
    }
}

/// The places of a set, lowest first.
#[derive(Debug, Clone)]
pub struct Iter(Places);

impl Iterator for Iter {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if self.0.is_empty() {
            return None;
        }
        let place = self.0.0.trailing_zeros() as usize;
        self.0 = self.0.without(Places::one(place));
        Some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_are_places_too() {
        let set: Places = [63, 0, 64, 0].into_iter().collect();
        assert_eq!(set.into_iter().collect::<Vec<_>>(), [0, 63]);
        assert_eq!((set.len(), set.lowest(), Places::first(64).len()), (2, Some(0), 64));
        assert!(!set.contains(64) && Places::one(64).is_empty());
        assert_eq!(Places::first(3).without(Places::one(1)).bits(), 0b101);
    }
}
