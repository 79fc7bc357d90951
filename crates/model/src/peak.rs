//! What a pod holds at its largest moment, by the rule Kubernetes uses for every resource.
//!
//! Init containers run one after the other, each beside the sidecars started before it; then
//! all app containers run beside all sidecars. So init containers count as a maximum, sidecars
//! and app containers as a sum. The same rule serves cards, kubelet tickets, CPU and memory.

use std::collections::BTreeMap;

use crate::request::Role;
use crate::units::{Bytes, Cores, Mebibytes, MilliCpu};

/// Something that adds up while containers run together and peaks over a pod's life.
pub trait Peaks: Default {
    /// Both at once.
    #[must_use]
    fn plus(&self, other: &Self) -> Self;
    /// The larger, in each of its dimensions.
    #[must_use]
    fn max(&self, other: &Self) -> Self;
}

/// The peak over a pod's containers, given in the order in which they start.
pub fn peak<T: Peaks>(containers: impl IntoIterator<Item = (Role, T)>) -> T {
    let mut sidecars = T::default();
    let mut apps = T::default();
    let mut peak = T::default();
    for (role, amount) in containers {
        match role {
            Role::Init => peak = peak.max(&sidecars.plus(&amount)),
            Role::Sidecar => sidecars = sidecars.plus(&amount),
            Role::App => apps = apps.plus(&amount),
        }
    }
    peak.max(&sidecars.plus(&apps))
}

/// What is held of one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hold {
    /// Compute.
    pub cores: Cores,
    /// Memory.
    pub memory: Mebibytes,
    /// Whether nobody else may have any of it.
    pub whole: bool,
}

impl Peaks for Hold {
    fn plus(&self, other: &Self) -> Self {
        Self {
            cores: self.cores + other.cores,
            memory: self.memory + other.memory,
            whole: self.whole || other.whole,
        }
    }

    fn max(&self, other: &Self) -> Self {
        Self {
            cores: self.cores.max(other.cores),
            memory: self.memory.max(other.memory),
            whole: self.whole || other.whole,
        }
    }
}

impl<K: Ord + Clone, V: Peaks + Clone> Peaks for BTreeMap<K, V> {
    fn plus(&self, other: &Self) -> Self {
        merge(self, other, V::plus)
    }

    fn max(&self, other: &Self) -> Self {
        merge(self, other, V::max)
    }
}

fn merge<K: Ord + Clone, V: Clone>(
    one: &BTreeMap<K, V>,
    other: &BTreeMap<K, V>,
    join: impl Fn(&V, &V) -> V,
) -> BTreeMap<K, V> {
    let mut merged = one.clone();
    for (key, value) in other {
        let joined = merged.get(key).map_or_else(|| value.clone(), |held| join(held, value));
        merged.insert(key.clone(), joined);
    }
    merged
}

macro_rules! peaks_by_number {
    ($($unit:ty),*) => {
        $(impl Peaks for $unit {
            fn plus(&self, other: &Self) -> Self {
                *self + *other
            }
            fn max(&self, other: &Self) -> Self {
                Ord::max(*self, *other)
            }
        })*
    };
}
peaks_by_number!(MilliCpu, Bytes, Mebibytes);

impl Peaks for u64 {
    fn plus(&self, other: &Self) -> Self {
        self.saturating_add(*other)
    }

    fn max(&self, other: &Self) -> Self {
        Ord::max(*self, *other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Role::{App, Init, Sidecar};

    #[test]
    fn init_containers_peak_and_sidecars_add() {
        let table: &[(&[(Role, u64)], u64)] = &[
            (&[(App, 30), (App, 20)], 50),
            (&[(Init, 80), (App, 40)], 80),
            (&[(Init, 80), (Init, 60), (App, 90)], 90),
            (&[(Init, 80)], 80),
            (&[(Sidecar, 10), (App, 40)], 50),
            // An init container meets only the sidecars that started before it.
            (&[(Sidecar, 10), (Init, 80), (App, 40)], 90),
            (&[(Init, 80), (Sidecar, 10), (App, 40)], 80),
            (&[(Init, 45), (Sidecar, 10), (App, 40)], 50),
            (&[], 0),
        ];
        for (containers, expected) in table {
            assert_eq!(peak(containers.iter().copied()), *expected, "{containers:?}");
        }
    }
}
