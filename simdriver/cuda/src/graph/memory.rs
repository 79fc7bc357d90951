//! Memory that graphs allocate: addresses are fixed when a node is added, the card pays when the
//! graph is launched, and what is freed stays with the card's graphs until it is trimmed.

use crate::abi::{Answer, Code, Opaque, api, output};
use crate::card::Memory;
use crate::memory::pages::{self, BLOCK, Place};
use crate::memory::space::{Space, What};
use crate::process::{Process, State, process};

/// What the graphs of a card have.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Held {
    used: u64,
    used_high: u64,
    reserved: u64,
    reserved_high: u64,
}

const IN_USE: u32 = 1;

/// Fixes the addresses for a node.
pub(crate) fn address(state: &mut State, card: usize, context: u64, size: u64) -> Answer<u64> {
    if size == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let base = pages::map(pages::round_up(size, BLOCK)?, BLOCK, Place::Anywhere)?;
    state.space.add(Space::new_range(base, size, What::Graph, card, context));
    Ok(base)
}

/// Makes sure that a card has room for what a launch will allocate.
pub(crate) fn admit(process: &Process, card: usize, sizes: impl Iterator<Item = u64>) -> Answer {
    let need = sizes.map(|size| size.next_multiple_of(BLOCK)).fold(0_u64, u64::saturating_add);
    let mut state = process.state();
    let held = &mut state.primaries[card].graph_memory;
    let wanted = held.used.saturating_add(need);
    if wanted > held.reserved {
        let more = wanted - held.reserved;
        process.joined.reserve(&process.cards[card], Memory::Graph, more)?;
        held.reserved = wanted;
        held.reserved_high = held.reserved_high.max(wanted);
    }
    Ok(())
}

/// Whether a node's memory is in use: launched and not freed.
pub(crate) fn in_use(state: &State, address: u64) -> bool {
    state.space.starting(address).is_ok_and(|range| range.flags & IN_USE != 0)
}

/// A node allocated its memory.
pub(crate) fn taken(process: &Process, card: usize, address: u64, size: u64) {
    let mut state = process.state();
    let Some(range) = state.space.at_mut(address) else { return };
    if range.flags & IN_USE != 0 {
        return;
    }
    range.flags |= IN_USE;
    let held = &mut state.primaries[card].graph_memory;
    held.used += size.next_multiple_of(BLOCK);
    held.used_high = held.used_high.max(held.used);
}

/// A node's memory was freed.
pub(crate) fn freed(process: &Process, card: usize, address: u64) {
    let mut state = process.state();
    let Some(range) = state.space.at_mut(address).filter(|range| range.flags & IN_USE != 0) else {
        return;
    };
    range.flags &= !IN_USE;
    let size = range.size.next_multiple_of(BLOCK);
    let held = &mut state.primaries[card].graph_memory;
    held.used = held.used.saturating_sub(size);
}

fn trim(process: &Process, card: usize) {
    let mut state = process.state();
    let held = &mut state.primaries[card].graph_memory;
    let spare = held.reserved.saturating_sub(held.used);
    held.reserved -= spare;
    process.joined.release(&process.cards[card], Memory::Graph, spare);
}

api! {
    fn cuDeviceGraphMemTrim(device: i32) {
        let process = process()?;
        let (card, _) = process.card(device)?;
        trim(process, card);
        Ok(())
    }

    fn cuDeviceGetGraphMemAttribute(device: i32, attribute: u32, to: Opaque) {
        let process = process()?;
        let (card, _) = process.card(device)?;
        let held = process.state().primaries[card].graph_memory;
        let values = [held.used, held.used_high, held.reserved, held.reserved_high];
        output::<u64>(to.cast()).put(*values.get(attribute as usize).ok_or(Code::INVALID_VALUE)?)
    }

    // The highs can be put back to what is there now, by writing zero.
    fn cuDeviceSetGraphMemAttribute(device: i32, attribute: u32, from: Opaque) {
        let process = process()?;
        let (card, _) = process.card(device)?;
        if output::<u64>(from.cast()).get()? != 0 { return Err(Code::INVALID_VALUE); }
        let mut state = process.state();
        let held = &mut state.primaries[card].graph_memory;
        match attribute {
            1 => held.used_high = held.used,
            3 => held.reserved_high = held.reserved,
            _ => return Err(Code::INVALID_VALUE),
        }
        Ok(())
    }
}
