//! Who holds how much memory.
//!
//! A process's part is in its slot, and a device's sum is added up when it is asked for: what a
//! dead process held is gone with its slot, and no sum can be wrong.

use crate::journal::Change;
use crate::machine::Machine;
use crate::process::{DeviceId, Process};
use crate::state::{Account, CARDS, State, at, get, wide};

/// What memory is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Memory {
    /// What a context costs.
    Context,
    /// Code and variables of modules.
    Module,
    /// `cuMemAlloc` and its kin, and what is made by `cuMemCreate`.
    Allocation,
    /// Managed.
    Managed,
    /// What pools keep.
    Pool,
    /// Arrays and mipmaps.
    Array,
    /// What graphs keep.
    Graph,
    /// All else.
    Other,
}

impl Memory {
    /// Every kind.
    pub const ALL: [Self; 8] = [
        Self::Context,
        Self::Module,
        Self::Allocation,
        Self::Managed,
        Self::Pool,
        Self::Array,
        Self::Graph,
        Self::Other,
    ];

    pub(crate) fn place(self) -> usize {
        self as usize
    }
}

/// Why memory or a context is not given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There is not enough.
    #[error("{asked} bytes do not fit: {free} are free")]
    OutOfMemory {
        /// How many were asked for.
        asked: u64,
        /// How many are free.
        free: u64,
    },
    /// There is no such device, or it is not there any more.
    #[error("there is no such device")]
    NoDevice,
    /// The card is off the bus.
    #[error("the card is lost")]
    Lost,
    /// Another process has the device to itself, or nobody may compute on it.
    #[error("the compute mode of the device forbids it")]
    Exclusive,
    /// A process has as many contexts as it can have.
    #[error("too many contexts")]
    Contexts,
}

/// The memory of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryCount {
    /// All of it.
    pub total: u64,
    /// What the driver keeps for itself.
    pub reserved: u64,
    /// What processes hold.
    pub used: u64,
    /// The rest.
    pub free: u64,
}

impl Process {
    /// Takes memory, if there is enough on the device.
    pub fn reserve(&self, device: DeviceId, kind: Memory, bytes: u64) -> Result<(), Refused> {
        self.machine
            .change_as(self, |change| self.machine.reserve(change, self.slot, device, kind, bytes))
    }

    /// Gives memory back.
    pub fn give_back(&self, device: DeviceId, kind: Memory, bytes: u64) {
        self.machine.change_as(self, |change| {
            let account = &self.state().accounts[device.place()];
            change.subtract(&account.memory[kind.place()], bytes);
        });
    }

    /// What it holds of a device, of one kind.
    pub fn holds(&self, device: DeviceId, kind: Memory) -> u64 {
        get(&self.state().accounts[device.place()].memory[kind.place()])
    }
}

impl Machine {
    /// The memory of a device, as of now.
    pub fn memory(&'static self, device: DeviceId) -> Option<MemoryCount> {
        let count = self.change_swept(|_, _| self.count_memory(device));
        count.ok().flatten()
    }

    /// The memory of a device, where dead processes may still be counted.
    pub(crate) fn count_memory(&self, device: DeviceId) -> Option<MemoryCount> {
        let place = device.place();
        let (total, reserved) = match self.description().cards.get(place) {
            Some(card) => (card.memory(), card.reserved()),
            None => (get(&self.state.devices[place].memory), 0),
        };
        if total == 0 {
            return None;
        }
        let used = if place < CARDS && !self.mig(place) {
            // The usual case, on the way of every allocation.
            sum(self.state, &[place])
        } else {
            let devices = 0..self.state.devices.len();
            let mine = devices.filter(|other| shares_memory(self.state, place, *other));
            sum(self.state, &mine.collect::<Vec<usize>>())
        };
        let free = total.saturating_sub(reserved).saturating_sub(used);
        Some(MemoryCount { total, reserved, used, free })
    }

    pub(crate) fn reserve(
        &self,
        change: &Change,
        slot: usize,
        device: DeviceId,
        kind: Memory,
        bytes: u64,
    ) -> Result<(), Refused> {
        if self.is_lost(device) {
            return Err(Refused::Lost);
        }
        let mut free = self.free_for(slot, device).ok_or(Refused::NoDevice)?;
        if free < bytes {
            // Perhaps someone died.
            self.sweep(change, &self.lives());
            free = self.free_for(slot, device).ok_or(Refused::NoDevice)?;
        }
        if free < bytes {
            return Err(Refused::OutOfMemory { asked: bytes, free });
        }
        let account = &self.state.slots[slot].accounts[device.place()];
        change.add(&account.memory[kind.place()], bytes);
        let holds = total(account);
        if holds > get(&account.peak) {
            change.set(&account.peak, holds);
        }
        Ok(())
    }

    /// What one process may still take of a device.
    fn free_for(&self, slot: usize, device: DeviceId) -> Option<u64> {
        if get(&self.state.devices[self.card_of(device)].out_of_memory) == 1 {
            return Some(0);
        }
        let mut free = self.count_memory(device)?.free;
        // A slice is a part of its card, but slices are cut so that they fit.
        let group = get(&self.state.slots[slot].name.group);
        if let Some(limit) = crate::limits::find(self.state, self.card_of(device), group) {
            let used = self.used_by_group(self.card_of(device), group);
            free = free.min(get(&limit.hard).saturating_sub(used));
        }
        Some(free)
    }

    /// What the processes of a control group hold of a card.
    pub(crate) fn used_by_group(&self, card: usize, group: u64) -> u64 {
        let slots = self.state.slots[..used(self.state)].iter();
        let mine = slots.filter(|slot| get(&slot.name.group) == group);
        mine.map(|slot| total(&slot.accounts[card])).sum()
    }

    /// The card of a device: of a slice, the one it was cut from.
    pub fn card_of(&self, device: DeviceId) -> usize {
        at(&self.state.devices[device.place()].card).checked_sub(1).unwrap_or(device.place())
    }

    /// What a context on a device costs.
    pub fn context_cost(&self, device: DeviceId) -> u64 {
        let card = self.description().cards.get(self.card_of(device));
        card.map_or(0, crate::description::Card::context)
    }
}

/// Whether memory held of `other` is memory of `place`: a card has its slices' too, and slices
/// of one GPU instance share theirs.
fn shares_memory(state: &State, place: usize, other: usize) -> bool {
    if place == other {
        return true;
    }
    let card = |device: usize| at(&state.devices[device].card).checked_sub(1);
    let instance = |device: usize| get(&state.devices[device].gpu_instance);
    if other < CARDS {
        return false;
    }
    if place < CARDS {
        return card(other) == Some(place);
    }
    card(other).is_some() && card(other) == card(place) && instance(other) == instance(place)
}

/// How many slots were ever used.
pub(crate) fn used(state: &State) -> usize {
    at(&state.header.slots_used).min(state.slots.len())
}

fn sum(state: &State, devices: &[usize]) -> u64 {
    let slots = state.slots[..used(state)].iter();
    let held = slots.flat_map(|slot| devices.iter().map(|device| total(&slot.accounts[*device])));
    held.fold(0, u64::saturating_add)
}

/// What a process holds of a device.
pub(crate) fn total(account: &Account) -> u64 {
    account.memory.iter().map(get).fold(0, u64::saturating_add)
}

/// Puts an account back to nothing.
pub(crate) fn clear(change: &Change, account: &Account) {
    let words = account.memory.iter().chain(account.buckets.iter().flatten());
    let counts = [&account.peak, &account.busy, &account.sm_time, &account.first_context];
    for word in words.chain(counts) {
        change.set(word, wide(0));
    }
}
