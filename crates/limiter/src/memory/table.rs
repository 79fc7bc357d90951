//! What this process holds: from a handle or an address to its size and place.
//!
//! Open addressing in 64 parts with a lock each, in memory of our own; it grows by doubling and costs
//! the same with five as with five thousand live allocations.

use core::ptr::NonNull;

use crate::lock::Lock;
use crate::sys;

/// What a key stands for. Handles of different kinds may be equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// An address with memory of its own.
    Linear = 1,
    /// An address within a block that it shares.
    Small = 2,
    /// Such a block; `extra` counts who is in it.
    Block = 3,
    /// An array.
    Array = 4,
    /// A mipmapped array.
    Mipmap = 5,
    /// A handle of physical memory; `extra` is our number for that memory.
    Handle = 6,
    /// Physical memory by our number; `extra` counts handles and mappings.
    Physical = 7,
    /// An address where it is mapped; `extra` is our number.
    Mapping = 8,
    /// A graph ready to run, with what its nodes allocate.
    Exec = 9,
    /// A module or library.
    Module = 10,
    /// A pool of the program's.
    Pool = 11,
    /// A context, with what it was taken to cost.
    Context = 12,
    /// A kernel of a library; `extra` is the library.
    Kernel = 13,
}

/// What is known of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Bytes charged.
    pub(crate) size: u64,
    /// The number of the place.
    pub(crate) place: u8,
    /// As the kind says; else the context that it ends with.
    pub(crate) extra: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Slot {
    key: u64,
    extra: u64,
    size: u64,
    /// 0: free; 255: gone, and about to be cleared away.
    kind: u8,
    place: u8,
}

const EMPTY: u8 = 0;
const GONE: u8 = 255;
const PARTS: usize = 64;
const FIRST: usize = 128;

struct Part {
    slots: Option<NonNull<Slot>>,
    /// How many slots there are, a power of two, and how many are in use: at most half.
    room: usize,
    live: usize,
}

// SAFETY: the slots are memory that only this part points to.
unsafe impl Send for Part {}

static TABLE: [Lock<Part>; PARTS] = [const { Lock::new(Part::new()) }; PARTS];

fn hash(kind: Kind, key: u64) -> u64 {
    mixed(kind as u8, key)
}

fn mixed(kind: u8, key: u64) -> u64 {
    let mixed = (key ^ u64::from(kind) << 56).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ mixed >> 29
}

/// Where a search begins.
#[expect(clippy::cast_possible_truncation, reason = "the low bits are as good")]
fn home(hash: u64, mask: usize) -> usize {
    hash as usize & mask
}

#[inline]
fn part(hash: u64) -> &'static Lock<Part> {
    &TABLE[(hash >> 58) as usize % PARTS]
}

/// Remembers; what was there before goes. `false` if there is no memory left to do so.
pub(crate) fn put(kind: Kind, key: u64, entry: Entry) -> bool {
    let hash = hash(kind, key);
    part(hash).hold().put(kind, key, hash, entry)
}

/// Forgets, and says what was known.
pub(crate) fn take(kind: Kind, key: u64) -> Option<Entry> {
    let hash = hash(kind, key);
    part(hash).hold().take(kind, key, hash)
}

/// What is known.
pub(crate) fn get(kind: Kind, key: u64) -> Option<Entry> {
    let hash = hash(kind, key);
    part(hash).hold().find(kind, key, hash).map(|slot| slot.entry())
}

/// Adds to `extra`, which counts; an entry that reaches zero goes and is returned.
pub(crate) fn count(kind: Kind, key: u64, up: bool) -> Option<(Entry, u64)> {
    let hash = hash(kind, key);
    let mut part = part(hash).hold();
    let slot = part.find(kind, key, hash)?;
    slot.extra = if up { slot.extra.saturating_add(1) } else { slot.extra.saturating_sub(1) };
    let (entry, left) = (slot.entry(), slot.extra);
    if left == 0 {
        part.take(kind, key, hash);
    }
    Some((entry, left))
}

/// Looks at every entry; those of which `goes` is true are forgotten. It must not use the table.
pub(crate) fn retain(mut goes: impl FnMut(u8, u64, Entry) -> bool) {
    for part in &TABLE {
        part.hold().retain(&mut goes);
    }
}

/// A forked child holds nothing. The memory is the child's own copy.
pub(crate) fn forget() {
    for part in &TABLE {
        part.begin_anew(Part::new());
    }
}

impl Slot {
    fn entry(&self) -> Entry {
        Entry { size: self.size, place: self.place, extra: self.extra }
    }
}

impl Part {
    const fn new() -> Self {
        Self { slots: None, room: 0, live: 0 }
    }

    /// The slot after `step` steps from where a hash begins.
    fn slot(&mut self, hash: u64, step: usize) -> Option<&mut Slot> {
        let mask = self.room.checked_sub(1)?;
        self.at(home(hash, mask).wrapping_add(step) & mask)
    }

    fn at(&mut self, place: usize) -> Option<&mut Slot> {
        let slots = self.slots.filter(|_| place < self.room)?;
        // SAFETY: `place` is below `room`, which is how many slots the memory has.
        Some(unsafe { slots.add(place).as_mut() })
    }

    fn find(&mut self, kind: Kind, key: u64, hash: u64) -> Option<&mut Slot> {
        let mut step = 0;
        while step < self.room {
            let slot = self.slot(hash, step)?;
            if slot.kind == EMPTY {
                return None;
            }
            if slot.key == key && slot.kind == kind as u8 {
                return self.slot(hash, step);
            }
            step += 1;
        }
        None
    }

    fn put(&mut self, kind: Kind, key: u64, hash: u64, entry: Entry) -> bool {
        if let Some(slot) = self.find(kind, key, hash) {
            (slot.size, slot.place, slot.extra) = (entry.size, entry.place, entry.extra);
            return true;
        }
        if self.live >= self.room / 2 && !self.grow(self.room * 2) {
            return false;
        }
        self.insert(
            Slot {
                key,
                extra: entry.extra,
                size: entry.size,
                kind: kind as u8,
                place: entry.place,
            },
            hash,
        )
    }

    fn insert(&mut self, new: Slot, hash: u64) -> bool {
        for step in 0..self.room {
            let Some(slot) = self.slot(hash, step) else { return false };
            if slot.kind == EMPTY {
                *slot = new;
                self.live += 1;
                return true;
            }
        }
        false
    }

    fn take(&mut self, kind: Kind, key: u64, hash: u64) -> Option<Entry> {
        let mask = self.room.checked_sub(1)?;
        let mut free = (0..self.room)
            .find(|step| {
                let found = self.slot(hash, *step);
                found.is_none_or(|slot| {
                    slot.kind == EMPTY || (slot.key == key && slot.kind == kind as u8)
                })
            })
            .map(|step| home(hash, mask).wrapping_add(step) & mask)?;
        let entry = self.at(free).filter(|slot| slot.kind != EMPTY)?.entry();
        // Those behind it move up, so that nothing is left in the way of a search.
        let mut next = free;
        for _ in 0..self.room {
            next = next.wrapping_add(1) & mask;
            let Some(slot) = self.at(next).filter(|slot| slot.kind != EMPTY).copied() else {
                break;
            };
            let wants = home(mixed(slot.kind, slot.key), mask);
            if wants.wrapping_sub(free).wrapping_sub(1) & mask < next.wrapping_sub(free) & mask {
                continue;
            }
            *self.at(free)? = slot;
            free = next;
        }
        self.at(free)?.kind = EMPTY;
        self.live = self.live.saturating_sub(1);
        Some(entry)
    }

    /// Moves to a memory of so many slots, without what is gone.
    fn grow(&mut self, room: usize) -> bool {
        let room = room.max(FIRST);
        let Ok(memory) = sys::map_zeroes(room * size_of::<Slot>()) else { return false };
        let mut old =
            core::mem::replace(self, Self { slots: NonNull::new(memory.cast()), room, live: 0 });
        for at in 0..old.room {
            let Some(slot) = old.at(at).copied() else { break };
            if slot.kind != EMPTY && slot.kind != GONE {
                self.insert(slot, mixed(slot.kind, slot.key));
            }
        }
        if let Some(slots) = old.slots {
            // SAFETY: everything was moved, and nobody else knows the old memory.
            unsafe { sys::unmap(slots.as_ptr().cast(), old.room * size_of::<Slot>()) };
        }
        true
    }

    fn retain(&mut self, goes: &mut impl FnMut(u8, u64, Entry) -> bool) {
        let before = self.live;
        for at in 0..self.room {
            let Some(slot) = self.at(at) else { return };
            if slot.kind != EMPTY && slot.kind != GONE && goes(slot.kind, slot.key, slot.entry()) {
                slot.kind = GONE;
                self.live = self.live.saturating_sub(1);
            }
        }
        if self.live < before && !self.grow(self.room) {
            // No memory to move to: what is gone stays in the way, and is stepped over.
            self.live = before;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn it_agrees_with_a_map_of_the_standard_library() {
        let mut model = HashMap::new();
        let mut number = 1_u64;
        for step in 0..60_000_u64 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(step);
            // Addresses as a driver hands them out.
            let key = ((number >> 33) % 3000) << 21;
            let entry = Entry { size: step, place: 3, extra: 7 };
            if number & (1 << 40) == 0 {
                assert!(put(Kind::Linear, key, entry));
                model.insert(key, entry);
            } else {
                assert_eq!(take(Kind::Linear, key), model.remove(&key));
            }
        }
        for (key, entry) in &model {
            assert_eq!(get(Kind::Linear, *key), Some(*entry));
            assert_eq!(get(Kind::Array, *key), None);
        }
        let mut left = 0;
        retain(|kind, _, _| {
            left += usize::from(kind == Kind::Linear as u8);
            kind == Kind::Linear as u8
        });
        assert_eq!(left, model.len());
        assert!(model.keys().all(|key| get(Kind::Linear, *key).is_none()));
    }

    #[test]
    fn a_count_that_reaches_zero_goes() {
        put(Kind::Physical, 5, Entry { size: 9, place: 0, extra: 1 });
        assert_eq!(count(Kind::Physical, 5, true).map(|(_, left)| left), Some(2));
        assert_eq!(count(Kind::Physical, 5, false).map(|(_, left)| left), Some(1));
        assert_eq!(
            count(Kind::Physical, 5, false).map(|(entry, left)| (entry.size, left)),
            Some((9, 0))
        );
        assert_eq!(count(Kind::Physical, 5, false), None);
    }
}
