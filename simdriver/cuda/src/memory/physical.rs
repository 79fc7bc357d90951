//! Physical memory, and addresses to map it at.

use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};

use super::ipc;
use super::pages::{self, BLOCK};
use super::space::{Space, What};
use crate::abi::{Answer, Code, In, Out, api};
use crate::card::Memory;
use crate::process::{Kind, Process, State, process};
use crate::shapes::{Access, Location, MulticastShape, PhysicalShape};

const FILE_DESCRIPTOR: u32 = 1;

/// Memory without an address.
#[derive(Debug)]
pub(crate) struct Physical {
    file: OwnedFd,
    pub(crate) size: u64,
    pub(crate) shape: PhysicalShape,
    card: usize,
    /// Bytes taken of the card.
    charged: u64,
    /// Handles and mappings: it goes with the last.
    holders: u64,
    /// Cards that reach it together, and how many there are to be.
    multicast: Option<(u32, Vec<usize>)>,
}

// SAFETY: the pointer in the shape is handed back, never followed.
unsafe impl Send for Physical {}

fn create(size: usize, shape: &PhysicalShape) -> Answer<u64> {
    let process = process()?;
    let size = size as u64;
    let handles = shape.handles & !(FILE_DESCRIPTOR | 8);
    if shape.kind != 1 || size == 0 || !size.is_multiple_of(BLOCK) || handles != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let (card, charged) = match shape.location.kind {
        Location::DEVICE => (process.card(shape.location.id)?.0, size),
        Location::HOST | Location::HOST_NUMA | Location::HOST_NUMA_CURRENT => (0, 0),
        _ => return Err(Code::INVALID_VALUE),
    };
    process.healthy(card)?;
    let place = &process.cards[card];
    if charged > 0 {
        process.joined.reserve(place, Memory::Allocation, charged)?;
    }
    let file = pages::memory_file(&format!("simgpu-memory.{}", place.place), size)
        .inspect_err(|_| process.joined.release(place, Memory::Allocation, charged))?;
    let mut state = process.state();
    let handle = state.handle(Kind::Physical);
    let physical =
        Physical { file, size, shape: *shape, card, charged, holders: 1, multicast: None };
    state.physical.insert(handle, physical);
    Ok(handle)
}

/// Lets go of physical memory once.
fn let_go(process: &Process, state: &mut State, handle: u64) -> Answer {
    let physical = state.physical.get_mut(&handle).ok_or(Code::INVALID_VALUE)?;
    physical.holders -= 1;
    if physical.holders == 0 {
        let (card, charged) = (physical.card, physical.charged);
        state.physical.remove(&handle);
        process.joined.release(&process.cards[card], Memory::Allocation, charged);
    }
    Ok(())
}

fn reserve_addresses(size: usize, align: usize, fixed: u64) -> Answer<u64> {
    let process = process()?;
    let (size, align) = (size as u64, (align as u64).max(BLOCK));
    if size == 0 || !size.is_multiple_of(BLOCK) || !align.is_power_of_two() {
        return Err(Code::INVALID_VALUE);
    }
    // The wish for an address is only a wish, as in the driver.
    let _ = fixed;
    let base = pages::reserve(size, align)?;
    process.state().space.reserved.insert(base, size);
    Ok(base)
}

/// Whether addresses lie within one reservation.
fn is_reserved(space: &Space, from: u64, length: u64) -> bool {
    let found = space.reserved.range(..=from).next_back();
    let end = from.checked_add(length);
    found.is_some_and(|(base, size)| end.is_some_and(|end| end <= base + size))
}

fn map(address: u64, size: usize, offset: usize, handle: u64) -> Answer {
    let process = process()?;
    let (size, offset) = (size as u64, offset as u64);
    let mut state = process.state();
    let free = state.space.within(address, size).is_empty() && state.space.at(address).is_none();
    let sound = |length: u64| length.is_multiple_of(BLOCK);
    if size == 0 || !sound(address) || !sound(size) || !sound(offset) {
        return Err(Code::INVALID_VALUE);
    }
    if !free || !is_reserved(&state.space, address, size) {
        return Err(Code::INVALID_VALUE);
    }
    let physical = state.physical.get_mut(&handle).ok_or(Code::INVALID_VALUE)?;
    if offset.checked_add(size).is_none_or(|end| end > physical.size) {
        return Err(Code::INVALID_VALUE);
    }
    pages::map_file(address, size, &physical.file, offset)?;
    physical.holders += 1;
    let card = physical.card;
    let what = What::Mapped { handle, offset };
    state.space.add(Space::new_range(address, size, what, card, 0));
    Ok(())
}

fn unmap(address: u64, size: usize) -> Answer {
    let process = process()?;
    drain_all(process)?;
    let mut state = process.state();
    let bases = state.space.within(address, size as u64);
    let whole: u64 =
        bases.iter().filter_map(|base| state.space.starting(*base).ok()).map(|r| r.size).sum();
    if bases.is_empty() || whole != size as u64 {
        return Err(Code::INVALID_VALUE);
    }
    for base in bases {
        let range = state.space.remove(base)?;
        let What::Mapped { handle, .. } = range.what else { return Err(Code::INVALID_VALUE) };
        pages::clear(range.base, range.size)?;
        let_go(process, &mut state, handle)?;
    }
    Ok(())
}

/// Waits for every context: memory that is unmapped may be in use by any.
fn drain_all(process: &'static Process) -> Answer {
    let contexts: Vec<u64> = process.state().contexts.keys().copied().collect();
    contexts.into_iter().try_for_each(|context| crate::context::drain(process, context))
}

fn set_access(address: u64, size: usize, access: In<Access>, count: usize) -> Answer {
    let process = process()?;
    let entries = access.all(count)?;
    let mut state = process.state();
    let bases = state.space.within(address, size as u64);
    if bases.is_empty() || entries.is_empty() {
        return Err(Code::INVALID_VALUE);
    }
    for base in bases {
        let range = state.space.at_mut(base).ok_or(Code::INVALID_VALUE)?;
        for entry in &entries {
            let card = match entry.location.kind {
                Location::DEVICE => process.card(entry.location.id)?.0,
                Location::HOST | Location::HOST_NUMA | Location::HOST_NUMA_CURRENT => usize::MAX,
                _ => return Err(Code::INVALID_VALUE),
            };
            match entry.flags {
                0 => range.access.remove(&card),
                1 | 3 => range.access.insert(card, entry.flags),
                _ => return Err(Code::INVALID_VALUE),
            };
        }
    }
    Ok(())
}

fn granularity(shape: &PhysicalShape, option: u32) -> Answer<usize> {
    let process = process()?;
    if shape.kind != 1 || option > 1 {
        return Err(Code::INVALID_VALUE);
    }
    if shape.location.kind == Location::DEVICE {
        process.card(shape.location.id)?;
    }
    pages::size(BLOCK)
}

/// Takes memory that another process exported. The exporter pays for it.
fn import(fd: i32) -> Answer<u64> {
    let process = process()?;
    let place = ipc::place_in_name(fd, "simgpu-memory.")?;
    let card = process.cards.iter().position(|card| card.place == place).unwrap_or(0);
    // SAFETY: duplicates a descriptor; the new one is ours.
    let file = unsafe {
        let copy = libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0);
        if copy < 0 {
            return Err(Code::INVALID_VALUE);
        }
        OwnedFd::from_raw_fd(copy)
    };
    let size = ipc::length(&file)?;
    let location = Location { kind: Location::DEVICE, id: i32::try_from(card).unwrap_or(0) };
    let shape = PhysicalShape {
        kind: 1,
        handles: FILE_DESCRIPTOR,
        location,
        meta: std::ptr::null_mut(),
        compression: 0,
        rdma: 0,
        usage: 0,
        reserved: [0; 4],
    };
    let mut state = process.state();
    let handle = state.handle(Kind::Physical);
    let physical = Physical { file, size, shape, card, charged: 0, holders: 1, multicast: None };
    state.physical.insert(handle, physical);
    Ok(handle)
}

/// Works on the cards that a multicast handle joins.
fn with_multicast<T>(
    handle: u64,
    work: impl FnOnce(&Process, u64, &mut (u32, Vec<usize>)) -> Answer<T>,
) -> Answer<T> {
    let process = process()?;
    let mut state = process.state();
    let physical = state.physical.get_mut(&handle).ok_or(Code::INVALID_VALUE)?;
    let size = physical.size;
    work(process, size, physical.multicast.as_mut().ok_or(Code::INVALID_VALUE)?)
}

/// Checks a binding of memory to a multicast object: all cards joined, and within its size.
fn bind(handle: u64, offset: usize, size: usize, memory: impl FnOnce(&State) -> Answer) -> Answer {
    memory(&process()?.state())?;
    with_multicast(handle, |_, whole, (count, cards)| {
        let end = (offset as u64).checked_add(size as u64);
        let full = usize::try_from(*count).is_ok_and(|count| cards.len() == count);
        if size == 0
            || !(offset as u64).is_multiple_of(BLOCK)
            || !(size as u64).is_multiple_of(BLOCK)
            || end.is_none_or(|end| end > whole)
        {
            return Err(Code::INVALID_VALUE);
        }
        if full { Ok(()) } else { Err(Code::ILLEGAL_STATE) }
    })
}

fn is_physical(state: &State, handle: u64) -> Answer {
    state.physical.get(&handle).map(|_| ()).ok_or(Code::INVALID_VALUE)
}

fn is_memory(state: &State, address: u64) -> Answer {
    state.space.at(address).map(|_| ()).ok_or(Code::INVALID_VALUE)
}

api! {
    fn cuMemCreate(handle: Out<u64>, size: usize, shape: In<PhysicalShape>, flags: u64) {
        handle.check()?;
        if flags != 0 { return Err(Code::INVALID_VALUE); }
        handle.put(create(size, &shape.get()?)?)
    }

    fn cuMemRelease(handle: u64) {
        let process = process()?;
        let_go(process, &mut process.state(), handle)
    }

    fn cuMemAddressReserve(address: Out<u64>, size: usize, align: usize, wanted: u64, flags: u64) {
        address.check()?;
        if flags != 0 { return Err(Code::INVALID_VALUE); }
        address.put(reserve_addresses(size, align, wanted)?)
    }

    fn cuMemAddressFree(address: u64, size: usize) {
        let process = process()?;
        let mut state = process.state();
        if state.space.reserved.get(&address) != Some(&(size as u64)) || !state.space.within(address, size as u64).is_empty() {
            return Err(Code::INVALID_VALUE);
        }
        state.space.reserved.remove(&address);
        pages::unmap(address, size as u64);
        Ok(())
    }

    fn cuMemMap(address: u64, size: usize, offset: usize, handle: u64, flags: u64) {
        if flags != 0 { return Err(Code::INVALID_VALUE); }
        map(address, size, offset, handle)
    }

    fn cuMemUnmap(address: u64, size: usize) { unmap(address, size) }
    fn cuMemSetAccess(address: u64, size: usize, access: In<Access>, count: usize) { set_access(address, size, access, count) }

    fn cuMemGetAccess(flags: Out<u64>, location: In<Location>, address: u64) {
        let process = process()?;
        let location = location.get()?;
        let card = if location.kind == Location::DEVICE { process.card(location.id)?.0 } else { usize::MAX };
        let state = process.state();
        let range = state.space.at(address).ok_or(Code::INVALID_VALUE)?;
        flags.put(range.access.get(&card).copied().unwrap_or(0).into())
    }

    fn cuMemGetAllocationGranularity(size: Out<usize>, shape: In<PhysicalShape>, option: u32) {
        size.check()?;
        size.put(granularity(&shape.get()?, option)?)
    }

    fn cuMemGetAllocationPropertiesFromHandle(shape: Out<PhysicalShape>, handle: u64) {
        let process = process()?;
        let state = process.state();
        shape.put(state.physical.get(&handle).ok_or(Code::INVALID_VALUE)?.shape)
    }

    fn cuMemRetainAllocationHandle(handle: Out<u64>, address: u64) {
        handle.check()?;
        let process = process()?;
        let mut state = process.state();
        let What::Mapped { handle: found, .. } = state.space.at(address).ok_or(Code::INVALID_VALUE)?.what else {
            return Err(Code::INVALID_VALUE);
        };
        state.physical.get_mut(&found).ok_or(Code::INVALID_VALUE)?.holders += 1;
        handle.put(found)
    }

    fn cuMemExportToShareableHandle(to: Out<i32>, handle: u64, kind: u32, flags: u64) {
        to.check()?;
        let process = process()?;
        let state = process.state();
        let physical = state.physical.get(&handle).ok_or(Code::INVALID_VALUE)?;
        if kind != FILE_DESCRIPTOR || flags != 0 || physical.shape.handles & FILE_DESCRIPTOR == 0 { return Err(Code::INVALID_VALUE); }
        to.put(physical.file.try_clone().map_err(|_| Code::OPERATING_SYSTEM)?.into_raw_fd())
    }

    fn cuMemImportFromShareableHandle(handle: Out<u64>, descriptor: usize, kind: u32) {
        handle.check()?;
        if kind != FILE_DESCRIPTOR { return Err(Code::INVALID_VALUE); }
        handle.put(import(i32::try_from(descriptor).map_err(|_| Code::INVALID_VALUE)?)?)
    }

    fn cuMulticastCreate(handle: Out<u64>, shape: In<MulticastShape>) {
        handle.check()?;
        let process = process()?;
        let shape = shape.get()?;
        let size = shape.size as u64;
        if shape.devices == 0 || size == 0 || !size.is_multiple_of(BLOCK) || shape.flags != 0 { return Err(Code::INVALID_VALUE); }
        let able = process.cards.iter().filter(|card| card.facts.nvlink >= 4).count();
        if able < shape.devices as usize { return Err(Code::NOT_SUPPORTED); }
        let physical = PhysicalShape {
            kind: 1, handles: u32::try_from(shape.handles).unwrap_or(0), location: Location { kind: Location::DEVICE, id: 0 },
            meta: std::ptr::null_mut(), compression: 0, rdma: 0, usage: 0, reserved: [0; 4],
        };
        let file = pages::memory_file("simgpu-memory.0", size)?;
        let mut state = process.state();
        let new = state.handle(Kind::Physical);
        let multicast = Some((shape.devices, Vec::new()));
        state.physical.insert(new, Physical { file, size, shape: physical, card: 0, charged: 0, holders: 1, multicast });
        handle.put(new)
    }

    fn cuMulticastAddDevice(handle: u64, device: i32) {
        with_multicast(handle, |process, _, (count, cards)| {
            let (card, _) = process.card(device)?;
            if cards.contains(&card) || cards.len() >= *count as usize { return Err(Code::INVALID_VALUE); }
            cards.push(card);
            Ok(())
        })
    }

    fn cuMulticastBindMem(handle: u64, offset: usize, memory: u64, from: usize, size: usize, flags: u64) {
        let _ = from;
        if flags != 0 { return Err(Code::INVALID_VALUE); }
        bind(handle, offset, size, |state| is_physical(state, memory))
    }

    fn cuMulticastBindMem_v2(handle: u64, device: i32, offset: usize, memory: u64, from: usize, size: usize, flags: u64) {
        let _ = from;
        process()?.card(device)?;
        if flags != 0 { return Err(Code::INVALID_VALUE); }
        bind(handle, offset, size, |state| is_physical(state, memory))
    }

    fn cuMulticastBindAddr(handle: u64, offset: usize, address: u64, size: usize, flags: u64) {
        if flags != 0 { return Err(Code::INVALID_VALUE); }
        bind(handle, offset, size, |state| is_memory(state, address))
    }

    fn cuMulticastBindAddr_v2(handle: u64, device: i32, offset: usize, address: u64, size: usize, flags: u64) {
        process()?.card(device)?;
        if flags != 0 { return Err(Code::INVALID_VALUE); }
        bind(handle, offset, size, |state| is_memory(state, address))
    }

    fn cuMulticastUnbind(handle: u64, device: i32, offset: usize, size: usize) {
        process()?.card(device)?;
        with_multicast(handle, |_, whole, _| {
            let end = (offset as u64).checked_add(size as u64);
            if end.is_none_or(|end| end > whole) { Err(Code::INVALID_VALUE) } else { Ok(()) }
        })
    }

    fn cuMulticastGetGranularity(size: Out<usize>, shape: In<MulticastShape>, option: u32) {
        process()?;
        shape.get()?;
        if option > 1 { return Err(Code::INVALID_VALUE); }
        size.put(pages::size(BLOCK)?)
    }
}
