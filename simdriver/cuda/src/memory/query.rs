//! What a process can ask about memory.

use super::space::{Range, What};
use crate::abi::{Answer, Code, In, Opaque, Out, api, output};
use crate::process::{Call, State, here, process};
use crate::shapes::Location;

const INVALID_DEVICE_ORDINAL: i32 = -2;

/// Free and all bytes of the current card.
fn info() -> Answer<(u64, u64)> {
    let call = here()?;
    call.process.joined.memory(&call.process.cards[call.card])
}

/// Start and size of the allocation an address lies in.
fn address_range(address: u64) -> Answer<(u64, u64)> {
    let call = here()?;
    let state = call.state();
    let range = state.space.at(address);
    range.map(|range| (range.base, range.size)).ok_or(Code::NOT_FOUND)
}

/// Writes one attribute of a pointer; `None` is a pointer we know nothing of.
fn put_attribute(
    state: &State,
    to: Opaque,
    attribute: u32,
    address: u64,
    range: Option<&Range>,
) -> Answer {
    let known = || range.ok_or(Code::INVALID_VALUE);
    let host = |range: &Range| matches!(range.what, What::Host { .. });
    let word = output::<u32>(to.cast());
    let long = output::<u64>(to.cast());
    let flag = output::<bool>(to.cast());
    match attribute {
        1 => long.put(known()?.context),
        2 => word.put(if host(known()?) { 1 } else { 2 }),
        3 => known().and_then(|_| long.put(address)),
        4 => match known()?.what {
            What::Host { .. } | What::Managed => long.put(address),
            _ => Err(Code::INVALID_VALUE),
        },
        6 => flag.put(known()?.sync),
        5 | 7 | 20 => long.put(known()?.number),
        8 => flag.put(known()?.what == What::Managed),
        9 => output::<i32>(to.cast()).put(i32::try_from(known()?.card).unwrap_or(0)),
        10 => flag.put(known()?.what == What::Device),
        11 | 19 => long.put(known()?.base),
        12 | 18 => long.put(known()?.size),
        13 => known().and_then(|_| flag.put(true)),
        14 => long.put(match known()?.what {
            What::Mapped { handle, .. } => {
                state.physical.get(&handle).map_or(0, |physical| physical.shape.handles.into())
            }
            What::Pooled { pool } => state.pools.get(&pool).map_or(0, |pool| pool.handles.into()),
            _ => 0,
        }),
        15 => flag.put(!host(known()?)),
        16 => word.put(3),
        17 => long.put(match known()?.what {
            What::Pooled { pool } => pool,
            _ => 0,
        }),
        21 => flag.put(false),
        _ => Err(Code::INVALID_VALUE),
    }
}

/// What stands for an attribute of memory that is not ours, where several are asked at once.
fn put_nothing(to: Opaque, attribute: u32) -> Answer {
    match attribute {
        2 | 16 => output::<u32>(to.cast()).put(0),
        6 | 8 | 10 | 13 | 15 | 21 => output::<bool>(to.cast()).put(false),
        9 => output::<i32>(to.cast()).put(INVALID_DEVICE_ORDINAL),
        1..=22 => output::<u64>(to.cast()).put(0),
        _ => Err(Code::INVALID_VALUE),
    }
}

/// One attribute of managed memory; the last `room` bytes count cards.
fn put_range_attribute(to: Opaque, room: usize, attribute: u32, range: &Range) -> Answer {
    let word = output::<i32>(to.cast());
    let kind = |place: i32| match place {
        -2 => 0,
        -1 => i32::from(u8::try_from(Location::HOST).unwrap_or(0)),
        _ => i32::from(u8::try_from(Location::DEVICE).unwrap_or(0)),
    };
    let advice = range.advice;
    match attribute {
        1 => word.put(i32::from(advice.read_mostly)),
        2 => word.put(advice.preferred),
        3 => {
            let cards = (0..63_i32).filter(|card| advice.accessed >> card & 1 == 1);
            let host = (advice.accessed >> 63 == 1).then_some(-1);
            let all = cards.chain(host).chain(std::iter::repeat(-2));
            word.put_all(all.take(room / 4), room / 4)
        }
        4 => word.put(advice.prefetched),
        5 => word.put(kind(advice.preferred)),
        6 => word.put(advice.preferred.max(0)),
        7 => word.put(kind(advice.prefetched)),
        8 => word.put(advice.prefetched.max(0)),
        _ => Err(Code::INVALID_VALUE),
    }
}

/// Managed memory that some addresses lie in.
pub(crate) fn managed<'a>(
    call: &Call,
    state: &'a mut State,
    address: u64,
) -> Answer<&'a mut Range> {
    let _ = call;
    state
        .space
        .at_mut(address)
        .filter(|range| range.what == What::Managed)
        .ok_or(Code::INVALID_VALUE)
}

fn advise(address: u64, size: usize, advice: u32, place: i32) -> Answer {
    let call = here()?;
    if size == 0 || place >= i32::try_from(call.process.cards.len()).unwrap_or(0) || place < -1 {
        return Err(if place < -1 { Code::INVALID_DEVICE } else { Code::INVALID_VALUE });
    }
    let mut state = call.state();
    let range = managed(&call, &mut state, address)?;
    let bit = 1_u64 << if place < 0 { 63 } else { place.unsigned_abs().min(62) };
    match advice {
        1 => range.advice.read_mostly = true,
        2 => range.advice.read_mostly = false,
        3 => range.advice.preferred = place,
        4 => range.advice.preferred = -2,
        5 => range.advice.accessed |= bit,
        6 => range.advice.accessed &= !bit,
        _ => return Err(Code::INVALID_VALUE),
    }
    Ok(())
}

/// A place as the older functions number it: a card, or -1 for the host.
pub(crate) fn place_of(location: Location) -> Answer<i32> {
    match location.kind {
        Location::DEVICE if location.id >= 0 => Ok(location.id),
        Location::HOST | Location::HOST_NUMA | Location::HOST_NUMA_CURRENT => Ok(-1),
        _ => Err(Code::INVALID_VALUE),
    }
}

fn narrow(wide: u64) -> u32 {
    u32::try_from(wide).unwrap_or(u32::MAX)
}

api! {
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        free.check()?;
        total.check()?;
        let (left, all) = info()?;
        free.put(super::pages::size(left)?)?;
        total.put(super::pages::size(all)?)
    }

    fn cuMemGetInfo(free: Out<u32>, total: Out<u32>) {
        free.check()?;
        total.check()?;
        let (left, all) = info()?;
        free.put(narrow(left))?;
        total.put(narrow(all))
    }

    fn cuMemGetAddressRange_v2(base: Out<u64>, size: Out<usize>, address: u64) {
        let (start, length) = address_range(address)?;
        base.put_if(start);
        size.put_if(super::pages::size(length)?);
        Ok(())
    }

    fn cuMemGetAddressRange(base: Out<u32>, size: Out<u32>, address: u32) {
        let (start, length) = address_range(address.into())?;
        base.put_if(narrow(start));
        size.put_if(narrow(length));
        Ok(())
    }

    fn cuPointerGetAttribute(to: Opaque, attribute: u32, address: u64) {
        let process = process()?;
        let state = process.state();
        put_attribute(&state, to, attribute, address, state.space.at(address))
    }

    fn cuPointerGetAttributes(count: u32, attributes: In<u32>, to: In<Opaque>, address: u64) {
        let process = process()?;
        let state = process.state();
        let range = state.space.at(address);
        for index in 0..count as usize {
            let (attribute, to) = (attributes.at(index)?, to.at(index)?);
            if put_attribute(&state, to, attribute, address, range).is_err() {
                put_nothing(to, attribute)?;
            }
        }
        Ok(())
    }

    fn cuPointerSetAttribute(value: In<u32>, attribute: u32, address: u64) {
        let process = process()?;
        let value = value.get()?;
        let mut state = process.state();
        let range = state.space.at_mut(address).ok_or(Code::INVALID_VALUE)?;
        if attribute != 6 { return Err(Code::INVALID_VALUE); }
        range.sync = value != 0;
        Ok(())
    }

    fn cuMemAdvise(address: u64, size: usize, advice: u32, device: i32) { advise(address, size, advice, device) }

    fn cuMemAdvise_v2(address: u64, size: usize, advice: u32, location: Location) {
        advise(address, size, advice, place_of(location)?)
    }

    fn cuMemRangeGetAttribute(to: Opaque, room: usize, attribute: u32, address: u64, size: usize) {
        let call = here()?;
        let mut state = call.state();
        if size == 0 || room < 4 || !room.is_multiple_of(4) { return Err(Code::INVALID_VALUE); }
        let range = managed(&call, &mut state, address)?.clone();
        put_range_attribute(to, room, attribute, &range)
    }

    fn cuMemRangeGetAttributes(to: In<Opaque>, rooms: In<usize>, attributes: In<u32>, count: usize, address: u64, size: usize) {
        let call = here()?;
        let mut state = call.state();
        if size == 0 { return Err(Code::INVALID_VALUE); }
        let range = managed(&call, &mut state, address)?.clone();
        for index in 0..count {
            let room = rooms.at(index)?;
            if room < 4 || !room.is_multiple_of(4) { return Err(Code::INVALID_VALUE); }
            put_range_attribute(to.at(index)?, room, attributes.at(index)?, &range)?;
        }
        Ok(())
    }
}
