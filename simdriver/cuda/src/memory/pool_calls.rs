//! The calls on pools, and stream-ordered memory.

use std::os::fd::IntoRawFd;

use super::pool::{self, Origin, Pool};
use super::space::What;
use super::{ipc, pages};
use crate::abi::{Answer, Code, In, Opaque, Out, api, input, output};
use crate::process::{Kind, Process, here, meant, process};
use crate::shapes::{Access, Location, PoolShape};
use crate::stream::find;
use crate::stream::order::{Order, issue};

const FILE_DESCRIPTOR: u32 = 1;
const READ_WRITE: u32 = 3;

fn create(shape: &PoolShape) -> Answer<u64> {
    let process = process()?;
    if shape.kind != 1 || shape.handles & !(FILE_DESCRIPTOR | 8) != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let (card, host) = match shape.location.kind {
        Location::DEVICE => (process.card(shape.location.id)?.0, false),
        Location::HOST | Location::HOST_NUMA | Location::HOST_NUMA_CURRENT => (0, true),
        _ => return Err(Code::INVALID_VALUE),
    };
    let pool = Pool {
        card,
        host,
        reuse: [true; 3],
        handles: shape.handles,
        most: shape.most as u64,
        ..Pool::default()
    };
    let mut state = process.state();
    let handle = state.handle(Kind::Pool);
    state.pools.insert(handle, pool);
    Ok(handle)
}

fn attribute(handle: u64, attribute: u32, to: Opaque) -> Answer {
    let process = process()?;
    let state = process.state();
    let pool = state.pools.get(&handle).ok_or(Code::INVALID_HANDLE)?;
    let word = output::<i32>(to.cast());
    let long = output::<u64>(to.cast());
    match attribute {
        1..=3 => word.put(i32::from(pool.reuse[attribute as usize - 1])),
        4 => long.put(pool.threshold),
        5 => long.put(pool.heap.reserved()),
        6 => long.put(pool.reserved_high),
        7 => long.put(pool.used),
        8 => long.put(pool.used_high),
        9 => word.put(1),
        10 => word.put(pool.handles.cast_signed()),
        11 => word.put(i32::try_from(pool.card).unwrap_or(0)),
        12 => word.put(if pool.host { 2 } else { 1 }),
        13 => long.put(pool.most),
        14 => word.put(0),
        _ => Err(Code::INVALID_VALUE),
    }
}

fn set_attribute(handle: u64, attribute: u32, from: Opaque) -> Answer {
    let process = process()?;
    let mut state = process.state();
    let pool = state.pools.get_mut(&handle).ok_or(Code::INVALID_HANDLE)?;
    let word = || input::<i32>(from.cast()).get();
    let long = || input::<u64>(from.cast()).get();
    match attribute {
        1..=3 => pool.reuse[attribute as usize - 1] = word()? != 0,
        4 => pool.threshold = long()?,
        // The highs can be put back to what is there now, by writing zero.
        6 if long()? == 0 => pool.reserved_high = pool.heap.reserved(),
        8 if long()? == 0 => pool.used_high = pool.used,
        _ => return Err(Code::INVALID_VALUE),
    }
    Ok(())
}

fn allocate(pool: Option<u64>, size: usize, stream: u64) -> Answer<u64> {
    let call = here()?;
    let stream = find(&call, stream)?;
    let pool = pool.unwrap_or_else(|| call.state().primaries[stream.card].current_pool);
    if let Some(member) = stream.member() {
        return crate::stream::capture::note_alloc(&call, &stream, &member, size as u64);
    }
    pool::allocate(call.process, pool, call.context, size as u64)
}

fn free(address: u64, stream: u64) -> Answer {
    let call = here()?;
    let stream = find(&call, stream)?;
    let what = call.state().space.starting(address)?.what;
    let order = match what {
        What::Pooled { .. } => Order::Free(address),
        What::Graph => Order::GraphFree { card: stream.card, address },
        // Other memory is freed as if by cuMemFree, once the stream is there.
        What::Device => {
            stream.synchronize(call.process)?;
            return super::linear::free(address);
        }
        _ => return Err(Code::INVALID_VALUE),
    };
    issue(&call, &stream, order)
}

/// The pool that stands for a place, the card's own or the one that was set.
fn pool_of(location: Location, kind: u32, own: bool) -> Answer<u64> {
    let process = process()?;
    if location.kind != Location::DEVICE || kind != 1 {
        return Err(Code::NOT_SUPPORTED);
    }
    let (card, _) = process.card(location.id)?;
    let primary = process.state().primaries[card];
    Ok(if own { primary.default_pool } else { primary.current_pool })
}

fn set_pool(device: i32, pool: u64) -> Answer {
    let process = process()?;
    let (card, _) = process.card(device)?;
    let mut state = process.state();
    let found = state.pools.get(&pool).filter(|pool| !pool.ended).ok_or(Code::INVALID_VALUE)?;
    if found.card != card || found.host {
        return Err(Code::INVALID_VALUE);
    }
    state.primaries[card].current_pool = pool;
    Ok(())
}

/// Sets who may use a pool.
fn set_access(process: &Process, handle: u64, access: In<Access>, count: usize) -> Answer {
    let mut state = process.state();
    let pool = state.pools.get_mut(&handle).ok_or(Code::INVALID_HANDLE)?;
    for entry in access.all(count)? {
        if entry.location.kind != Location::DEVICE || !matches!(entry.flags, 0 | 1 | 3) {
            return Err(Code::INVALID_VALUE);
        }
        let (card, _) = process.card(entry.location.id)?;
        if card == pool.card && entry.flags != READ_WRITE {
            return Err(Code::INVALID_DEVICE);
        }
        pool.access.insert(card, entry.flags);
    }
    Ok(())
}

api! {
    fn cuMemAllocAsync | cuMemAllocAsync_ptsz(lane, address: Out<u64>, size: usize, stream: u64) {
        address.check()?;
        address.put(allocate(None, size, meant(stream, lane))?)
    }

    fn cuMemAllocFromPoolAsync | cuMemAllocFromPoolAsync_ptsz(lane, address: Out<u64>, size: usize, pool: u64, stream: u64) {
        address.check()?;
        address.put(allocate(Some(pool), size, meant(stream, lane))?)
    }

    fn cuMemFreeAsync | cuMemFreeAsync_ptsz(lane, address: u64, stream: u64) { free(address, meant(stream, lane)) }

    fn cuMemPoolCreate(pool: Out<u64>, shape: In<PoolShape>) {
        pool.check()?;
        pool.put(create(&shape.get()?)?)
    }

    fn cuMemPoolDestroy(pool: u64) { pool::destroy(process()?, pool) }
    fn cuMemPoolGetAttribute(pool: u64, which: u32, to: Opaque) { attribute(pool, which, to) }
    fn cuMemPoolSetAttribute(pool: u64, which: u32, from: Opaque) { set_attribute(pool, which, from) }

    fn cuMemPoolTrimTo(pool: u64, keep: usize) {
        let process = process()?;
        let mut state = process.state();
        if !state.pools.contains_key(&pool) { return Err(Code::INVALID_HANDLE); }
        pool::trim(process, &mut state, pool, keep as u64);
        Ok(())
    }

    fn cuMemPoolSetAccess(pool: u64, access: In<Access>, count: usize) { set_access(process()?, pool, access, count) }

    fn cuMemPoolGetAccess(flags: Out<u32>, pool: u64, location: In<Location>) {
        let process = process()?;
        let location = location.get()?;
        if location.kind != Location::DEVICE { return Err(Code::INVALID_VALUE); }
        let (card, _) = process.card(location.id)?;
        let state = process.state();
        let pool = state.pools.get(&pool).ok_or(Code::INVALID_HANDLE)?;
        let own = if card == pool.card { READ_WRITE } else { 0 };
        flags.put(pool.access.get(&card).copied().unwrap_or(own))
    }

    fn cuDeviceGetDefaultMemPool(pool: Out<u64>, device: i32) {
        process()?.card(device)?;
        pool.put(pool_of(Location { kind: Location::DEVICE, id: device }, 1, true)?)
    }

    fn cuDeviceGetMemPool(pool: Out<u64>, device: i32) {
        process()?.card(device)?;
        pool.put(pool_of(Location { kind: Location::DEVICE, id: device }, 1, false)?)
    }

    fn cuDeviceSetMemPool(device: i32, pool: u64) { set_pool(device, pool) }

    fn cuMemGetDefaultMemPool(pool: Out<u64>, location: In<Location>, kind: u32) {
        pool.put(pool_of(location.get()?, kind, true)?)
    }

    fn cuMemGetMemPool(pool: Out<u64>, location: In<Location>, kind: u32) {
        pool.put(pool_of(location.get()?, kind, false)?)
    }

    fn cuMemSetMemPool(location: In<Location>, kind: u32, pool: u64) {
        let location = location.get()?;
        if location.kind != Location::DEVICE || kind != 1 { return Err(Code::NOT_SUPPORTED); }
        set_pool(location.id, pool)
    }

    // What goes to another process is a descriptor that only says which pool it is; memory goes
    // pointer by pointer.
    fn cuMemPoolExportToShareableHandle(to: Out<i32>, pool: u64, kind: u32, flags: u64) {
        to.check()?;
        let process = process()?;
        let state = process.state();
        let found = state.pools.get(&pool).ok_or(Code::INVALID_HANDLE)?;
        if kind != FILE_DESCRIPTOR || flags != 0 || found.handles & FILE_DESCRIPTOR == 0 { return Err(Code::INVALID_VALUE); }
        let file = pages::memory_file(&format!("simgpu-pool.{}", process.cards[found.card].place), 4096)?;
        to.put(file.into_raw_fd())
    }

    fn cuMemPoolImportFromShareableHandle(pool: Out<u64>, handle: usize, kind: u32, flags: u64) {
        pool.check()?;
        let process = process()?;
        if kind != FILE_DESCRIPTOR || flags != 0 { return Err(Code::INVALID_VALUE); }
        let fd = i32::try_from(handle).map_err(|_| Code::INVALID_VALUE)?;
        let place = ipc::place_in_name(fd, "simgpu-pool.")?;
        let card = process.cards.iter().position(|card| card.place == place).ok_or(Code::INVALID_DEVICE)?;
        let mut state = process.state();
        let handle = state.handle(Kind::Pool);
        let imported = Pool { card, reuse: [true; 3], origin: Origin::Elsewhere, ..Pool::default() };
        state.pools.insert(handle, imported);
        pool.put(handle)
    }

    fn cuMemPoolExportPointer(data: Out<[u8; 64]>, address: u64) {
        data.check()?;
        let process = process()?;
        {
            let state = process.state();
            let What::Pooled { pool } = state.space.starting(address)?.what else { return Err(Code::INVALID_VALUE) };
            let pool = state.pools.get(&pool).ok_or(Code::INVALID_HANDLE)?;
            if pool.handles == 0 { return Err(Code::INVALID_VALUE); }
        }
        data.put(ipc::export(process, address)?)
    }

    fn cuMemPoolImportPointer(address: Out<u64>, pool: u64, data: In<[u8; 64]>) {
        address.check()?;
        let process = process()?;
        if process.state().pools.get(&pool).ok_or(Code::INVALID_HANDLE)?.origin != Origin::Elsewhere { return Err(Code::INVALID_VALUE); }
        let context = crate::process::current(process).unwrap_or(0);
        address.put(ipc::import(process, data.get()?, context)?)
    }
}
