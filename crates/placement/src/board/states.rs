//! The states that devices are in. A cluster has many devices, but most are idle, full, or taken
//! by one of a few common amounts: what is worked out for one of them holds for all like it.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use super::memo::Fnv;
use super::numbers::Numbers;
use super::row::Slot;

/// Every state that some device is or was in, by number.
#[derive(Debug, Default)]
pub(crate) struct States {
    slots: Vec<Slot>,
    numbers: HashMap<(u64, u64), u32, BuildHasherDefault<Fnv>>,
}

impl States {
    /// The number of the state of `slot`.
    pub(crate) fn number(&mut self, slot: &Slot) -> u32 {
        *self.numbers.entry(slot.identity()).or_insert_with(|| {
            self.slots.push(*slot);
            u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
        })
    }

    /// One device in each state, by its number.
    pub(crate) fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Uses what was learned since.
    pub(crate) fn weigh(&mut self, numbers: &Numbers) {
        for slot in &mut self.slots {
            slot.weigh(numbers);
        }
    }
}
