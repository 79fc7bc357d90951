//! Pools: memory that is kept when it is freed, for the next who asks.

use std::collections::HashMap;

use super::heap::Heap;
use super::pages::{self, BLOCK, Place};
use super::space::{Space, What};
use crate::abi::{Answer, Code};
use crate::card::Memory;
use crate::process::{Process, State};

/// Whose a pool is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Origin {
    /// The caller made it.
    #[default]
    Made,
    /// It is a card's own and cannot be destroyed.
    Card,
    /// It belongs to another process: memory is imported into it.
    Elsewhere,
}

/// A pool.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    pub(crate) card: usize,
    pub(crate) heap: Heap,
    /// What it may keep at the next synchronisation.
    pub(crate) threshold: u64,
    pub(crate) reserved_high: u64,
    pub(crate) used: u64,
    pub(crate) used_high: u64,
    /// The three settings of reuse.
    pub(crate) reuse: [bool; 3],
    /// Kinds of handles it may be exported as.
    pub(crate) handles: u32,
    /// The most it may hold, 0 for all.
    pub(crate) most: u64,
    /// Its memory is the host's.
    pub(crate) host: bool,
    pub(crate) origin: Origin,
    /// It was destroyed, and goes when its last memory is freed.
    pub(crate) ended: bool,
    pub(crate) access: HashMap<usize, u32>,
}

impl Pool {
    /// The pool every card has.
    pub(crate) fn default_of(card: usize) -> Self {
        Self { card, reuse: [true; 3], origin: Origin::Card, ..Self::default() }
    }

    fn note_highs(&mut self) {
        self.reserved_high = self.reserved_high.max(self.heap.reserved());
        self.used_high = self.used_high.max(self.used);
    }
}

/// Takes memory out of a pool.
pub(crate) fn allocate(process: &Process, handle: u64, context: u64, size: u64) -> Answer<u64> {
    let mut state = process.state();
    let pool =
        state.pools.get_mut(&handle).filter(|pool| !pool.ended).ok_or(Code::INVALID_HANDLE)?;
    if size == 0 || pool.origin == Origin::Elsewhere {
        return Err(Code::INVALID_VALUE);
    }
    let base = if let Some(base) = pool.heap.take(size) {
        base
    } else {
        grow(process, &mut state, handle, size)?;
        let pool = state.pools.get_mut(&handle).ok_or(Code::INVALID_HANDLE)?;
        pool.heap.take(size).ok_or(Code::OUT_OF_MEMORY)?
    };
    let pool = state.pools.get_mut(&handle).ok_or(Code::INVALID_HANDLE)?;
    pool.used += super::heap::taken(size);
    pool.note_highs();
    let card = pool.card;
    state.space.add(Space::new_range(base, size, What::Pooled { pool: handle }, card, context));
    Ok(base)
}

/// Adds a block to a pool; if the card is full, after other pools gave back what they only keep.
fn grow(process: &Process, state: &mut State, handle: u64, size: u64) -> Answer {
    let length = pages::round_up(size, BLOCK)?;
    let pool = state.pools.get(&handle).ok_or(Code::INVALID_HANDLE)?;
    if pool.most > 0 && pool.heap.reserved().saturating_add(length) > pool.most {
        return Err(Code::OUT_OF_MEMORY);
    }
    let (card, host) = (pool.card, pool.host);
    if !host {
        let reserve = || process.joined.reserve(&process.cards[card], Memory::Pool, length);
        if reserve().is_err() {
            trim_each(process, state);
            reserve()?;
        }
    }
    let mapped = pages::map(length, BLOCK, Place::Anywhere);
    let block = mapped.inspect_err(|_| {
        if !host {
            process.joined.release(&process.cards[card], Memory::Pool, length);
        }
    })?;
    if let Some(pool) = state.pools.get_mut(&handle) {
        pool.heap.add(block, length);
    }
    Ok(())
}

/// Has all pools give back what they only keep.
pub(crate) fn trim_all(process: &Process) {
    trim_each(process, &mut process.state());
}

fn trim_each(process: &Process, state: &mut State) {
    let handles: Vec<u64> = state.pools.keys().copied().collect();
    for handle in handles {
        trim(process, state, handle, 0);
    }
}

/// Gives back blocks that nobody uses, down to `keep` bytes.
pub(crate) fn trim(process: &Process, state: &mut State, handle: u64, keep: u64) {
    let State { pools, space, .. } = state;
    let Some(pool) = pools.get_mut(&handle) else { return };
    while pool.heap.reserved() > keep
        && let Some((block, length)) = pool.heap.remove_empty()
    {
        space.exports.remove(&block);
        pages::unmap(block, length);
        if !pool.host {
            process.joined.release(&process.cards[pool.card], Memory::Pool, length);
        }
    }
}

/// Puts memory back into its pool.
pub(crate) fn freed(process: &Process, address: u64) {
    let mut state = process.state();
    let Some((size, handle)) =
        state.space.starting(address).ok().and_then(|range| match range.what {
            What::Pooled { pool } => Some((range.size, pool)),
            _ => None,
        })
    else {
        return;
    };
    if state.space.remove(address).is_err() {
        return;
    }
    let Some(pool) = state.pools.get_mut(&handle) else { return };
    if pool.origin == Origin::Elsewhere {
        pages::unmap(address, size.next_multiple_of(BLOCK));
        return;
    }
    pool.heap.give(address, size);
    pool.used = pool.used.saturating_sub(super::heap::taken(size));
    if pool.ended && pool.used == 0 {
        trim(process, &mut state, handle, 0);
        state.pools.remove(&handle);
    }
}

/// At a synchronisation every pool gives back what is above its threshold.
pub(crate) fn settle(process: &Process) {
    let mut state = process.state();
    let over: Vec<(u64, u64)> = state
        .pools
        .iter()
        .filter(|(_, pool)| pool.heap.reserved() > pool.threshold.max(pool.used))
        .map(|(handle, pool)| (*handle, pool.threshold))
        .collect();
    for (handle, keep) in over {
        trim(process, &mut state, handle, keep);
    }
}

/// Ends a pool: at once, or when the last of its memory is freed.
pub(crate) fn destroy(process: &Process, handle: u64) -> Answer {
    let mut state = process.state();
    let pool =
        state.pools.get_mut(&handle).filter(|pool| !pool.ended).ok_or(Code::INVALID_HANDLE)?;
    if pool.origin == Origin::Card {
        return Err(Code::INVALID_VALUE);
    }
    pool.ended = true;
    if pool.used == 0 {
        trim(process, &mut state, handle, 0);
        state.pools.remove(&handle);
    }
    for primary in &mut state.primaries {
        if primary.current_pool == handle {
            primary.current_pool = primary.default_pool;
        }
    }
    Ok(())
}
