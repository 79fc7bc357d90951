//! The calls on streams.

use std::sync::Arc;

use super::order::{Callback, HostCall, Order, WordOrder, issue};
use super::{Stream, find};
use crate::abi::{Answer, Code, In, Out, api};
use crate::event;
use crate::process::{Kind, here, meant, process};

const NON_BLOCKING: u32 = 1;

/// Priorities run from 0, the least, to -5.
fn create(flags: u32, priority: i32, green: Option<u64>) -> Answer<u64> {
    let call = here()?;
    if flags & !NON_BLOCKING != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let mut state = call.state();
    let context = green.unwrap_or(call.context);
    let handle = state.handle(Kind::Stream);
    let owner = state.context_mut(context)?;
    let green = owner.green.map(|_| context);
    let priority = priority.clamp(-5, 0);
    let stream = Stream::new(handle, context, owner.card, owner.place, flags, priority, green);
    owner.streams.push(Arc::clone(&stream));
    state.streams.insert(handle, stream);
    Ok(handle)
}

/// A stream goes at once; what was asked of it is still done.
fn destroy(handle: u64) -> Answer {
    let call = here()?;
    let stream = call.state().streams.remove(&handle).ok_or(Code::INVALID_HANDLE)?;
    super::capture::destroyed(&mut call.state(), handle);
    stream.wake_worker(call.process);
    stream.close();
    // One with work left is still waited for by who frees memory.
    if stream.idle(call.process)
        && let Some(context) = call.state().contexts.get_mut(&stream.context)
    {
        context.streams.retain(|other| other.handle != handle);
    }
    Ok(())
}

fn wait_event(stream: u64, event: u64) -> Answer {
    let call = here()?;
    let stream = find(&call, stream)?;
    let event = event::named(event)?;
    if let Some(ticket) = event.elsewhere() {
        return stream.submit(call.process, machine::Work::Wait(ticket)).map(|_| ());
    }
    super::capture::join(&call, &stream, &event)?;
    issue(&call, &stream, Order::Wait(event))
}

/// Waits for a word, or writes one.
fn word(stream: u64, address: u64, value: u64, width: usize, compare: Option<u32>) -> Answer {
    let call = here()?;
    let stream = find(&call, stream)?;
    issue(&call, &stream, Order::Words(vec![checked(address, value, width, compare)?]))
}

fn checked(address: u64, value: u64, width: usize, compare: Option<u32>) -> Answer<WordOrder> {
    let process = process()?;
    if !address.is_multiple_of(width as u64) {
        return Err(Code::INVALID_VALUE);
    }
    process.state().space.reach(address, width as u64, false)?;
    Ok(WordOrder { address, value, width, compare })
}

/// One of several operations on words: which, where, what, how.
type WordShape = [u64; 6];

/// Reads operations on words; barriers and flushes need nothing.
pub(crate) fn words(shapes: In<WordShape>, count: u32) -> Answer<Vec<WordOrder>> {
    let mut orders = Vec::new();
    for shape in shapes.all(count as usize)? {
        let [kind, address, value, flags, ..] = shape;
        let flags = u32::try_from(flags & 0xffff_ffff).unwrap_or(0);
        match kind & 0xffff_ffff {
            1 => orders.push(checked(address, value, 4, Some(flags))?),
            2 => orders.push(checked(address, value, 4, None)?),
            4 => orders.push(checked(address, value, 8, Some(flags))?),
            5 => orders.push(checked(address, value, 8, None)?),
            3 | 6 => {}
            _ => return Err(Code::INVALID_VALUE),
        }
    }
    Ok(orders)
}

/// One word of an attribute: which of them a stream has, only the synchronisation policy matters
/// to nobody here.
fn known_attribute(attribute: u32) -> Answer {
    if matches!(attribute, 1 | 3 | 8 | 9 | 10) { Ok(()) } else { Err(Code::INVALID_VALUE) }
}

fn with<T>(handle: u64, work: impl FnOnce(&Stream) -> T) -> Answer<T> {
    let call = here()?;
    Ok(work(&*find(&call, handle)?))
}

api! {
    fn cuStreamCreate(stream: Out<u64>, flags: u32) {
        stream.check()?;
        stream.put(create(flags, 0, None)?)
    }

    fn cuStreamCreateWithPriority(stream: Out<u64>, flags: u32, priority: i32) {
        stream.check()?;
        stream.put(create(flags, priority, None)?)
    }

    fn cuGreenCtxStreamCreate(stream: Out<u64>, context: u64, flags: u32, priority: i32) {
        stream.check()?;
        if flags != NON_BLOCKING { return Err(Code::INVALID_VALUE); }
        if process()?.state().context(context)?.green.is_none() { return Err(Code::INVALID_HANDLE); }
        stream.put(create(flags, priority, Some(context))?)
    }

    fn cuStreamDestroy, cuStreamDestroy_v2(stream: u64) { destroy(stream) }

    fn cuStreamSynchronize | cuStreamSynchronize_ptsz(lane, stream: u64) {
        let call = here()?;
        let stream = find(&call, meant(stream, lane))?;
        if stream.member().is_some() { return Err(Code::STREAM_CAPTURE_UNSUPPORTED); }
        super::order::sync_with_legacy(&call, &stream)?;
        stream.synchronize(call.process)?;
        crate::memory::pool::settle(call.process);
        Ok(())
    }

    fn cuStreamQuery | cuStreamQuery_ptsz(lane, stream: u64) {
        let call = here()?;
        let stream = find(&call, meant(stream, lane))?;
        if stream.member().is_some() { return Err(Code::STREAM_CAPTURE_UNSUPPORTED); }
        if stream.settled(call.process)? { Ok(()) } else { Err(Code::NOT_READY) }
    }

    fn cuStreamWaitEvent | cuStreamWaitEvent_ptsz(lane, stream: u64, event: u64, flags: u32) {
        if flags > 1 { return Err(Code::INVALID_VALUE); }
        wait_event(meant(stream, lane), event)
    }

    fn cuStreamAddCallback | cuStreamAddCallback_ptsz(lane, stream: u64, function: Option<extern "C" fn(u64, u32, *mut std::ffi::c_void)>, data: usize, flags: u32) {
        let call = here()?;
        if flags != 0 || function.is_none() { return Err(Code::INVALID_VALUE); }
        let found = find(&call, meant(stream, lane))?;
        if found.member().is_some() { return Err(Code::STREAM_CAPTURE_UNSUPPORTED); }
        issue(&call, &found, Order::Callback(Callback { function, data, stream }))
    }

    fn cuLaunchHostFunc | cuLaunchHostFunc_ptsz(lane, stream: u64, function: Option<extern "C" fn(*mut std::ffi::c_void)>, data: usize) {
        let call = here()?;
        if function.is_none() { return Err(Code::INVALID_VALUE); }
        let stream = find(&call, meant(stream, lane))?;
        issue(&call, &stream, Order::Host(HostCall { function, data }))
    }

    fn cuLaunchHostFunc_v2 | cuLaunchHostFunc_v2_ptsz(lane, stream: u64, function: Option<extern "C" fn(*mut std::ffi::c_void)>, data: usize, mode: u32) {
        let _ = mode;
        let call = here()?;
        if function.is_none() { return Err(Code::INVALID_VALUE); }
        let stream = find(&call, meant(stream, lane))?;
        issue(&call, &stream, Order::Host(HostCall { function, data }))
    }

    fn cuStreamGetFlags | cuStreamGetFlags_ptsz(lane, stream: u64, flags: Out<u32>) { flags.put(with(meant(stream, lane), |stream| stream.flags)?) }
    fn cuStreamGetPriority | cuStreamGetPriority_ptsz(lane, stream: u64, priority: Out<i32>) { priority.put(with(meant(stream, lane), |stream| stream.priority)?) }
    fn cuStreamGetId | cuStreamGetId_ptsz(lane, stream: u64, id: Out<u64>) { id.put(with(meant(stream, lane), |stream| stream.handle >> 4 & 0xff_ffff)?) }
    fn cuStreamGetCtx | cuStreamGetCtx_ptsz(lane, stream: u64, context: Out<u64>) { context.put(with(meant(stream, lane), |stream| stream.context)?) }
    fn cuStreamGetDevice | cuStreamGetDevice_ptsz(lane, stream: u64, device: Out<i32>) {
        device.put(with(meant(stream, lane), |stream| i32::try_from(stream.card).unwrap_or(0))?)
    }

    fn cuStreamGetCtx_v2 | cuStreamGetCtx_v2_ptsz(lane, stream: u64, context: Out<u64>, green: Out<u64>) {
        let (own, part) = with(meant(stream, lane), |stream| (stream.context, stream.green))?;
        green.put_if(part.unwrap_or(0));
        context.put_if(own);
        Ok(())
    }

    fn cuStreamGetGreenCtx(stream: u64, green: Out<u64>) { green.put(with(stream, |stream| stream.green.unwrap_or(0))?) }

    fn cuStreamAttachMemAsync | cuStreamAttachMemAsync_ptsz(lane, stream: u64, address: u64, length: usize, flags: u32) {
        let _ = length;
        let call = here()?;
        find(&call, meant(stream, lane))?;
        if !matches!(flags, 1 | 2 | 4) { return Err(Code::INVALID_VALUE); }
        let mut state = call.state();
        crate::memory::query::managed(&call, &mut state, address)?.flags = flags;
        Ok(())
    }

    fn cuStreamCopyAttributes | cuStreamCopyAttributes_ptsz(lane, to: u64, from: u64) {
        with(meant(to, lane), |_| ())?;
        with(meant(from, lane), |_| ())
    }

    fn cuStreamGetAttribute | cuStreamGetAttribute_ptsz(lane, stream: u64, attribute: u32, value: Out<[u64; 8]>) {
        known_attribute(attribute)?;
        let priority = with(meant(stream, lane), |stream| stream.priority)?;
        let mut words = [0; 8];
        if attribute == 8 { words[0] = u64::from(priority.cast_unsigned()); }
        value.put(words)
    }

    fn cuStreamSetAttribute | cuStreamSetAttribute_ptsz(lane, stream: u64, attribute: u32, value: In<[u64; 8]>) {
        known_attribute(attribute)?;
        value.get()?;
        with(meant(stream, lane), |_| ())
    }

    fn cuStreamWaitValue32, cuStreamWaitValue32_v2 | cuStreamWaitValue32_ptsz, cuStreamWaitValue32_v2_ptsz(lane, stream: u64, address: u64, value: u32, flags: u32) {
        word(meant(stream, lane), address, value.into(), 4, Some(flags))
    }
    fn cuStreamWaitValue64, cuStreamWaitValue64_v2 | cuStreamWaitValue64_ptsz, cuStreamWaitValue64_v2_ptsz(lane, stream: u64, address: u64, value: u64, flags: u32) {
        word(meant(stream, lane), address, value, 8, Some(flags))
    }
    fn cuStreamWriteValue32, cuStreamWriteValue32_v2 | cuStreamWriteValue32_ptsz, cuStreamWriteValue32_v2_ptsz(lane, stream: u64, address: u64, value: u32, flags: u32) {
        let _ = flags;
        word(meant(stream, lane), address, value.into(), 4, None)
    }
    fn cuStreamWriteValue64, cuStreamWriteValue64_v2 | cuStreamWriteValue64_ptsz, cuStreamWriteValue64_v2_ptsz(lane, stream: u64, address: u64, value: u64, flags: u32) {
        let _ = flags;
        word(meant(stream, lane), address, value, 8, None)
    }
    fn cuStreamBatchMemOp, cuStreamBatchMemOp_v2 | cuStreamBatchMemOp_ptsz, cuStreamBatchMemOp_v2_ptsz(lane, stream: u64, count: u32, operations: In<WordShape>, flags: u32) {
        if flags != 0 || count > 256 { return Err(Code::INVALID_VALUE); }
        let call = here()?;
        let stream = find(&call, meant(stream, lane))?;
        issue(&call, &stream, Order::Words(words(operations, count)?))
    }
}
