//! Many copies in one call, and what is done to managed memory in a stream.

use super::linear::any;
use super::plan::{End, Plan};
use crate::abi::{Answer, Code, In, Opaque, Out, api};
use crate::memory::query::{managed, place_of};
use crate::process::{Call, here, meant};
use crate::shapes::{BatchCopy, Location, Operand};
use crate::stream::find;
use crate::stream::order::{Order, issue};

/// Issues copies; what went wrong with which is told by its index.
fn issue_all(
    stream: u64,
    count: usize,
    failed: Option<Out<usize>>,
    plan: impl Fn(&Call, usize) -> Answer<Plan>,
) -> Answer {
    let call = here()?;
    let stream = find(&call, stream)?;
    if count == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let plans: Answer<Vec<Plan>> = (0..count)
        .map(|index| {
            plan(&call, index).inspect_err(|_| {
                if let Some(failed) = failed {
                    failed.put_if(index);
                }
            })
        })
        .collect();
    for plan in plans? {
        let wait = plan.dst.host && !plan.dst.pinned && stream.member().is_none();
        issue(
            &call,
            &stream,
            Order::Copy(if stream.member().is_some() { plan } else { plan.stage()? }),
        )?;
        if wait {
            stream.synchronize(call.process)?;
        }
    }
    Ok(())
}

fn rows(
    stream: u64,
    dsts: In<u64>,
    srcs: In<u64>,
    sizes: In<usize>,
    count: usize,
    failed: Option<Out<usize>>,
) -> Answer {
    issue_all(stream, count, failed, |call, index| {
        let bytes = sizes.at(index)?;
        Ok(Plan::linear(
            any(call, srcs.at(index)?, bytes)?,
            any(call, dsts.at(index)?, bytes)?,
            bytes,
        ))
    })
}

/// One end of a box: a pointer (its row length is in elements of one byte), or an array.
fn end(call: &Call, operand: Operand, extent: [u64; 3]) -> Answer<End> {
    let [first, second, third, fourth] = operand.words;
    match operand.kind {
        1 => {
            let pitch = if second == 0 { extent[0] } else { second };
            let height = if third == 0 { extent[1] } else { third };
            let layer = pitch.checked_mul(height).ok_or(Code::INVALID_VALUE)?;
            let span = super::plan::span(extent, pitch, layer).ok_or(Code::INVALID_VALUE)?;
            let (host, pinned) = call.state().space.reach(first, span, true)?;
            Ok(End { address: first, pitch, layer, host, pinned, array: false })
        }
        2 => {
            let state = call.state();
            let array = state.arrays.get(&first).ok_or(Code::INVALID_HANDLE)?;
            array.part([second, third, fourth], extent)
        }
        _ => Err(Code::INVALID_VALUE),
    }
}

fn boxed(call: &Call, copy: &BatchCopy) -> Answer<Plan> {
    let extent = [copy.width as u64, copy.height as u64, copy.depth as u64];
    Ok(Plan::new(end(call, copy.src, extent)?, end(call, copy.dst, extent)?, extent))
}

/// Moves managed memory: here it only changes what was last said of it.
fn prefetch(address: u64, bytes: usize, place: i32, stream: u64) -> Answer {
    let call = here()?;
    find(&call, stream)?;
    let mut state = call.state();
    if bytes == 0 || place < -1 || place >= i32::try_from(call.process.cards.len()).unwrap_or(0) {
        return Err(if place < -1 { Code::INVALID_DEVICE } else { Code::INVALID_VALUE });
    }
    managed(&call, &mut state, address)?.advice.prefetched = place;
    Ok(())
}

fn prefetch_all(
    addresses: In<u64>,
    sizes: In<usize>,
    count: usize,
    places: In<Location>,
    indices: In<usize>,
    kinds: usize,
    stream: u64,
) -> Answer {
    if count == 0 || kinds == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let starts = indices.all(kinds)?;
    for index in 0..count {
        let kind = starts.iter().rposition(|start| *start <= index).ok_or(Code::INVALID_VALUE)?;
        prefetch(addresses.at(index)?, sizes.at(index)?, place_of(places.at(kind)?)?, stream)?;
    }
    Ok(())
}

/// Forgets what managed memory holds: nothing has to happen for that.
fn discard(addresses: In<u64>, sizes: In<usize>, count: usize, stream: u64) -> Answer {
    let call = here()?;
    find(&call, stream)?;
    let mut state = call.state();
    for index in 0..count {
        sizes.at(index)?;
        managed(&call, &mut state, addresses.at(index)?)?;
    }
    if count == 0 { Err(Code::INVALID_VALUE) } else { Ok(()) }
}

api! {
    fn cuMemcpyBatchAsync | cuMemcpyBatchAsync_ptsz(
        lane, dsts: In<u64>, srcs: In<u64>, sizes: In<usize>, count: usize, attributes: Opaque, indices: Opaque,
        kinds: usize, failed: Out<usize>, stream: u64,
    ) {
        let _ = (attributes, indices, kinds);
        rows(meant(stream, lane), dsts, srcs, sizes, count, Some(failed))
    }

    fn cuMemcpyBatchAsync_v2 | cuMemcpyBatchAsync_v2_ptsz(
        lane, dsts: In<u64>, srcs: In<u64>, sizes: In<usize>, count: usize, attributes: Opaque, indices: Opaque,
        kinds: usize, stream: u64,
    ) {
        let _ = (attributes, indices, kinds);
        rows(meant(stream, lane), dsts, srcs, sizes, count, None)
    }

    fn cuMemcpy3DBatchAsync | cuMemcpy3DBatchAsync_ptsz(lane, count: usize, copies: In<BatchCopy>, failed: Out<usize>, flags: u64, stream: u64) {
        if flags != 0 { return Err(Code::INVALID_VALUE); }
        issue_all(meant(stream, lane), count, Some(failed), |call, index| boxed(call, &copies.at(index)?))
    }

    fn cuMemcpy3DBatchAsync_v2 | cuMemcpy3DBatchAsync_v2_ptsz(lane, count: usize, copies: In<BatchCopy>, flags: u64, stream: u64) {
        if flags != 0 { return Err(Code::INVALID_VALUE); }
        issue_all(meant(stream, lane), count, None, |call, index| boxed(call, &copies.at(index)?))
    }

    fn cuMemcpyWithAttributesAsync | cuMemcpyWithAttributesAsync_ptsz(lane, dst: u64, src: u64, bytes: usize, attributes: Opaque, stream: u64) {
        let _ = attributes;
        issue_all(meant(stream, lane), 1, None, |call, _| Ok(Plan::linear(any(call, src, bytes)?, any(call, dst, bytes)?, bytes)))
    }

    fn cuMemcpy3DWithAttributesAsync | cuMemcpy3DWithAttributesAsync_ptsz(lane, copy: In<BatchCopy>, flags: u64, stream: u64) {
        if flags != 0 { return Err(Code::INVALID_VALUE); }
        issue_all(meant(stream, lane), 1, None, |call, _| boxed(call, &copy.get()?))
    }

    fn cuMemPrefetchAsync | cuMemPrefetchAsync_ptsz(lane, address: u64, bytes: usize, device: i32, stream: u64) {
        prefetch(address, bytes, device, meant(stream, lane))
    }

    fn cuMemPrefetchAsync_v2 | cuMemPrefetchAsync_v2_ptsz(lane, address: u64, bytes: usize, place: Location, flags: u32, stream: u64) {
        if flags != 0 { return Err(Code::INVALID_VALUE); }
        prefetch(address, bytes, place_of(place)?, meant(stream, lane))
    }

    fn cuMemPrefetchBatchAsync | cuMemPrefetchBatchAsync_ptsz(
        lane, addresses: In<u64>, sizes: In<usize>, count: usize, places: In<Location>, indices: In<usize>, kinds: usize, flags: u64, stream: u64,
    ) {
        if flags != 0 { return Err(Code::INVALID_VALUE); }
        prefetch_all(addresses, sizes, count, places, indices, kinds, meant(stream, lane))
    }

    fn cuMemDiscardBatchAsync | cuMemDiscardBatchAsync_ptsz(lane, addresses: In<u64>, sizes: In<usize>, count: usize, flags: u64, stream: u64) {
        if flags != 0 { return Err(Code::INVALID_VALUE); }
        discard(addresses, sizes, count, meant(stream, lane))
    }

    fn cuMemDiscardAndPrefetchBatchAsync | cuMemDiscardAndPrefetchBatchAsync_ptsz(
        lane, addresses: In<u64>, sizes: In<usize>, count: usize, places: In<Location>, indices: In<usize>, kinds: usize, flags: u64, stream: u64,
    ) {
        if flags != 0 { return Err(Code::INVALID_VALUE); }
        prefetch_all(addresses, sizes, count, places, indices, kinds, meant(stream, lane))
    }
}
