//! `cuMemAlloc` and its kin: memory of a card, managed memory, memory of the host.

use super::heap;
use super::pages::{self, BLOCK, Place};
use super::space::{Range, Space, What};
use crate::abi::{Answer, Code, Out, api};
use crate::card::Memory;
use crate::process::{Call, Process, State, here, process};

/// From this size on memory comes in blocks of its own.
const LARGE: u64 = 1 << 20;

/// Takes memory of the card of a context.
pub(crate) fn allocate(call: &Call, size: u64, place: Place) -> Answer<u64> {
    if size == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let card = &call.process.cards[call.card];
    let joined = &call.process.joined;
    if size >= LARGE || place == Place::Low {
        let charged = pages::round_up(size, BLOCK)?;
        if joined.reserve(card, Memory::Allocation, charged).is_err() {
            // What pools only keep is there for whoever needs it.
            super::pool::trim_all(call.process);
            joined.reserve(card, Memory::Allocation, charged)?;
        }
        let base = pages::map(charged, BLOCK, place).inspect_err(|_| {
            joined.release(card, Memory::Allocation, charged);
        })?;
        let mut range = Space::new_range(base, size, What::Device, call.card, call.context);
        range.charged = charged;
        call.state().space.add(range);
        return Ok(base);
    }
    let mut state = call.state();
    let blocks = state.space.blocks.entry(call.context).or_default();
    let base = if let Some(base) = blocks.take(size) {
        base
    } else {
        joined.reserve(card, Memory::Allocation, BLOCK)?;
        let block = pages::map(BLOCK, BLOCK, place).inspect_err(|_| {
            joined.release(card, Memory::Allocation, BLOCK);
        })?;
        blocks.add(block, BLOCK);
        blocks.take(size).ok_or(Code::OUT_OF_MEMORY)?
    };
    let range = Space::new_range(base, size, What::Device, call.card, call.context);
    state.space.add(range);
    Ok(base)
}

/// Frees memory of any kind that `cuMemFree` takes. As in the driver, it waits for the card first.
pub(crate) fn free(address: u64) -> Answer {
    if address == 0 {
        process()?;
        return Ok(());
    }
    let call = here()?;
    let (context, what) = {
        let state = call.state();
        let range = state.space.starting(address)?;
        (range.context, range.what)
    };
    match what {
        What::Device | What::Managed => {
            if call.state().contexts.contains_key(&context) {
                crate::context::drain(call.process, context)?;
            }
            let mut state = call.state();
            let range = state.space.remove(address)?;
            give_back(call.process, &mut state, &range);
            Ok(())
        }
        What::Pooled { .. } => {
            crate::context::drain(call.process, call.context)?;
            super::pool::freed(call.process, address);
            Ok(())
        }
        What::Graph => {
            crate::context::drain(call.process, call.context)?;
            crate::graph::memory::freed(call.process, call.card, address);
            Ok(())
        }
        What::Imported => super::external::free(call.process, address),
        _ => Err(Code::INVALID_VALUE),
    }
}

/// Gives the memory of a range back to card and host.
fn give_back(process: &Process, state: &mut State, range: &Range) {
    let card = &process.cards[range.card];
    let kind = match range.what {
        What::Managed => Memory::Managed,
        _ => Memory::Allocation,
    };
    if range.charged > 0 {
        state.space.exports.remove(&range.base);
        pages::unmap(range.base, range.charged);
        process.joined.release(card, kind, range.charged);
        return;
    }
    let Space { blocks, exports, .. } = &mut state.space;
    let Some(blocks) = blocks.get_mut(&range.context) else { return };
    blocks.give(range.base, range.size);
    while let Some((block, length)) = blocks.remove_empty() {
        exports.remove(&block);
        pages::unmap(block, length);
        process.joined.release(card, Memory::Allocation, length);
    }
}

/// Frees what was allocated in a context that ends.
pub(crate) fn free_context(process: &Process, state: &mut State, context: u64) {
    let mine = |range: &&Range| {
        range.context == context && matches!(range.what, What::Device | What::Managed)
    };
    let bases: Vec<u64> = state.space.ranges().filter(mine).map(|range| range.base).collect();
    for base in bases {
        if let Ok(range) = state.space.remove(base) {
            give_back(process, state, &range);
        }
    }
    state.space.blocks.remove(&context);
}

/// Memory that card and host share. A card that is full moves some of it to the host.
fn allocate_managed(size: u64, flags: u32) -> Answer<u64> {
    let call = here()?;
    if size == 0 || !matches!(flags, 1 | 2) {
        return Err(Code::INVALID_VALUE);
    }
    let charged = pages::round_up(size, BLOCK)?;
    let card = &call.process.cards[call.card];
    call.process.joined.reserve(card, Memory::Managed, charged)?;
    let base = pages::map(charged, BLOCK, Place::Anywhere).inspect_err(|_| {
        call.process.joined.release(card, Memory::Managed, charged);
    })?;
    let mut range = Space::new_range(base, size, What::Managed, call.card, call.context);
    (range.charged, range.flags) = (charged, flags);
    call.state().space.add(range);
    Ok(base)
}

/// Rows of `width` bytes, each at a good address.
fn allocate_pitch(width: u64, height: u64, element: u32, place: Place) -> Answer<(u64, u64)> {
    let call = here()?;
    if width == 0 || height == 0 || !matches!(element, 4 | 8 | 16) {
        return Err(Code::INVALID_VALUE);
    }
    let pitch = pages::round_up(width, heap::taken(1))?;
    let size = pitch.checked_mul(height).ok_or(Code::INVALID_VALUE)?;
    Ok((allocate(&call, size, place)?, pitch))
}

fn allocate_host(size: usize, flags: u32) -> Answer<u64> {
    let call = here()?;
    if size == 0 || flags & !7 != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let length = pages::round_up(size as u64, 4096)?;
    let base = pages::map(length, 4096, Place::Anywhere)?;
    let what = What::Host { registered: false };
    let mut range = Space::new_range(base, length, what, call.card, call.context);
    range.flags = flags | 2;
    call.state().space.add(range);
    Ok(base)
}

fn free_host(address: u64) -> Answer {
    let call = here()?;
    crate::context::drain(call.process, call.context)?;
    let mut state = call.state();
    match state.space.starting(address)?.what {
        What::Host { registered: false } => {
            let range = state.space.remove(address)?;
            pages::unmap(range.base, range.size);
            Ok(())
        }
        _ => Err(Code::INVALID_VALUE),
    }
}

fn register(address: u64, size: usize, flags: u32) -> Answer {
    let call = here()?;
    if address == 0 || size == 0 || flags & !15 != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let mut state = call.state();
    let overlaps = !state.space.within(address, size as u64).is_empty();
    if overlaps || state.space.at(address).is_some() {
        return Err(Code::HOST_MEMORY_ALREADY_REGISTERED);
    }
    let what = What::Host { registered: true };
    let mut range = Space::new_range(address, size as u64, what, call.card, call.context);
    range.flags = flags | 2;
    state.space.add(range);
    Ok(())
}

fn unregister(address: u64) -> Answer {
    let call = here()?;
    crate::context::drain(call.process, call.context)?;
    let mut state = call.state();
    match state.space.starting(address).map(|range| range.what) {
        Ok(What::Host { registered: true }) => state.space.remove(address).map(|_| ()),
        _ => Err(Code::HOST_MEMORY_NOT_REGISTERED),
    }
}

/// The host's memory at an address, as the caller has it.
fn host_range(address: u64) -> Answer<Range> {
    let call = here()?;
    let state = call.state();
    let range = state.space.at(address).filter(|range| matches!(range.what, What::Host { .. }));
    range.cloned().ok_or(Code::INVALID_VALUE)
}

/// For callers whose addresses and sizes have 32 bits.
fn narrow(wide: u64) -> Answer<u32> {
    u32::try_from(wide).map_err(|_| Code::INVALID_VALUE)
}

api! {
    fn cuMemAlloc_v2(address: Out<u64>, size: usize) {
        address.check()?;
        address.put(allocate(&here()?, size as u64, Place::Anywhere)?)
    }

    fn cuMemAlloc(address: Out<u32>, size: u32) {
        address.check()?;
        address.put(narrow(allocate(&here()?, size.into(), Place::Low)?)?)
    }

    fn cuMemAllocPitch_v2(address: Out<u64>, pitch: Out<usize>, width: usize, height: usize, element: u32) {
        address.check()?;
        pitch.check()?;
        let (base, step) = allocate_pitch(width as u64, height as u64, element, Place::Anywhere)?;
        address.put(base)?;
        pitch.put(pages::size(step)?)
    }

    fn cuMemAllocPitch(address: Out<u32>, pitch: Out<u32>, width: u32, height: u32, element: u32) {
        address.check()?;
        pitch.check()?;
        let (base, step) = allocate_pitch(width.into(), height.into(), element, Place::Low)?;
        address.put(narrow(base)?)?;
        pitch.put(narrow(step)?)
    }

    fn cuMemAllocManaged(address: Out<u64>, size: usize, flags: u32) {
        address.check()?;
        address.put(allocate_managed(size as u64, flags)?)
    }

    fn cuMemFree_v2(address: u64) { free(address) }
    fn cuMemFree(address: u32) { free(address.into()) }

    fn cuMemAllocHost_v2(address: Out<u64>, size: usize) {
        address.check()?;
        address.put(allocate_host(size, 0)?)
    }

    fn cuMemAllocHost(address: Out<u64>, size: u32) {
        address.check()?;
        address.put(allocate_host(size as usize, 0)?)
    }

    fn cuMemHostAlloc(address: Out<u64>, size: usize, flags: u32) {
        address.check()?;
        address.put(allocate_host(size, flags)?)
    }

    fn cuMemFreeHost(address: u64) { free_host(address) }

    fn cuMemHostRegister, cuMemHostRegister_v2(address: u64, size: usize, flags: u32) { register(address, size, flags) }
    fn cuMemHostUnregister(address: u64) { unregister(address) }

    fn cuMemHostGetDevicePointer_v2(address: Out<u64>, host: u64, flags: u32) {
        address.check()?;
        host_range(host)?;
        if flags != 0 { return Err(Code::INVALID_VALUE); }
        address.put(host)
    }

    fn cuMemHostGetDevicePointer(address: Out<u32>, host: u64, flags: u32) {
        address.check()?;
        host_range(host)?;
        if flags != 0 { return Err(Code::INVALID_VALUE); }
        address.put(narrow(host)?)
    }

    fn cuMemHostGetFlags(flags: Out<u32>, host: u64) {
        flags.check()?;
        flags.put(host_range(host)?.flags)
    }
}
