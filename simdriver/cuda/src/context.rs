//! Contexts: primary, created and green, and the stack of them that each thread has.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::abi::{Answer, Code, In, Opaque, Out, api};
use crate::card::Memory;
use crate::module;
use crate::process::{self, Kind, Process, State, here, process, with_stack};
use crate::stream::Stream;

/// A context.
pub(crate) struct Context {
    pub(crate) card: usize,
    /// As the machine counts.
    pub(crate) place: machine::ContextId,
    pub(crate) primary: bool,
    pub(crate) flags: u32,
    pub(crate) version: u32,
    pub(crate) legacy: Arc<Stream>,
    pub(crate) streams: Vec<Arc<Stream>>,
    pub(crate) peers: HashSet<u64>,
    pub(crate) cache: u32,
    pub(crate) banks: u32,
    pub(crate) limits: HashMap<u32, usize>,
    pub(crate) attached: u32,
    /// For a green context: its multiprocessors; it shares all else with its parent.
    pub(crate) green: Option<u32>,
    pub(crate) number: u64,
    /// Its work was thrown away; every call answers so from then on.
    pub(crate) failed: Option<Code>,
}

/// Makes a context on a card; it costs memory there.
pub(crate) fn make(
    process: &Process,
    state: &mut State,
    card: usize,
    flags: u32,
    version: u32,
) -> Answer<u64> {
    process.healthy(card)?;
    let place = process.joined.open_context(&process.cards[card])?;
    Ok(add(state, card, place, flags, version, None))
}

fn add(
    state: &mut State,
    card: usize,
    place: machine::ContextId,
    flags: u32,
    version: u32,
    green: Option<u32>,
) -> u64 {
    let handle = state.handle(Kind::Context);
    let stream = state.handle(Kind::Stream);
    let legacy = Stream::new(stream, handle, card, place, 0, 0, green.map(|_| handle));
    let context = Context {
        card,
        place,
        primary: false,
        flags,
        version,
        legacy,
        streams: Vec::new(),
        peers: HashSet::new(),
        cache: 0,
        banks: 1,
        limits: default_limits(),
        attached: 1,
        green,
        number: handle >> 4 & 0xff_ffff,
        failed: None,
    };
    state.contexts.insert(handle, context);
    handle
}

fn default_limits() -> HashMap<u32, usize> {
    [(0, 1024), (1, 1 << 20), (2, 8 << 20), (3, 2), (4, 2048), (5, 64), (6, 0), (8, 0), (9, 0)]
        .into()
}

/// Ends a context and everything made in it.
pub(crate) fn end(process: &'static Process, handle: u64) -> Answer {
    // Work that was thrown away does not keep a context from ending.
    let _ = drain(process, handle);
    let mut state = process.state();
    let context = state.contexts.remove(&handle).ok_or(Code::INVALID_CONTEXT)?;
    for stream in context.streams.iter().chain([&context.legacy]) {
        stream.close();
        state.streams.remove(&stream.handle);
    }
    if context.green.is_some() {
        return Ok(());
    }
    crate::memory::linear::free_context(process, &mut state, handle);
    crate::memory::array::free_context(process, &mut state, handle);
    module::free_context(process, &mut state, handle);
    for event in state.events.extract_if(|_, event| event.context == handle).map(|(_, event)| event)
    {
        drop(event);
    }
    drop(state);
    process.joined.close_context(context.place);
    let heap: usize = context.limits.get(&2).copied().unwrap_or_default();
    release_heap(process, context.card, heap);
    Ok(())
}

fn release_heap(process: &Process, card: usize, heap: usize) {
    let extra = heap.saturating_sub(default_limits()[&2]);
    process.joined.release(&process.cards[card], Memory::Context, extra as u64);
}

/// Waits for all streams of a context.
pub(crate) fn drain(process: &'static Process, handle: u64) -> Answer {
    let streams: Vec<Arc<Stream>> = {
        let state = process.state();
        let context = state.context(handle)?;
        context.streams.iter().chain([&context.legacy]).cloned().collect()
    };
    for stream in &streams {
        stream.synchronize(process)?;
    }
    if streams.iter().any(|stream| stream.is_closed()) {
        process.state().context_mut(handle)?.streams.retain(|stream| !stream.is_closed());
    }
    crate::memory::pool::settle(process);
    Ok(())
}

fn push(handle: u64) -> Answer {
    let process = process()?;
    process.state().context(handle)?;
    with_stack(process, |stack| stack.push(handle)).ok_or(Code::UNKNOWN)
}

fn pop() -> Answer<u64> {
    let process = process()?;
    with_stack(process, Vec::pop).flatten().ok_or(Code::INVALID_CONTEXT)
}

/// Makes a context and makes it current, as `cuCtxCreate` does.
fn create(out: Out<u64>, flags: u32, device: i32, version: u32) -> Answer {
    out.check()?;
    if flags & !0xff != 0 || (flags & 7).count_ones() > 1 {
        return Err(Code::INVALID_VALUE);
    }
    let process = process()?;
    let (card, _) = process.card(device)?;
    let handle = make(process, &mut process.state(), card, flags, version)?;
    push(handle)?;
    out.put(handle)
}

/// The primary context of a card, made if it is not there.
pub(crate) fn retain(process: &Process, card: usize) -> Answer<u64> {
    let mut state = process.state();
    let primary = state.primaries[card];
    let handle = match primary.context {
        Some(handle) => {
            process.healthy(card)?;
            handle
        }
        None => make(process, &mut state, card, primary.flags, 3020)?,
    };
    state.context_mut(handle)?.primary = true;
    let primary = &mut state.primaries[card];
    primary.context = Some(handle);
    primary.holders += 1;
    Ok(handle)
}

pub(crate) fn release(process: &'static Process, card: usize) -> Answer {
    let (handle, holders) = {
        let mut state = process.state();
        let primary = &mut state.primaries[card];
        primary.holders = primary.holders.checked_sub(1).ok_or(Code::INVALID_CONTEXT)?;
        (primary.context, primary.holders)
    };
    if holders > 0 { Ok(()) } else { end_primary(process, card, handle) }
}

fn end_primary(process: &'static Process, card: usize, handle: Option<u64>) -> Answer {
    let Some(handle) = handle else { return Ok(()) };
    end(process, handle)?;
    let mut state = process.state();
    let primary = &mut state.primaries[card];
    (primary.context, primary.holders) = (None, 0);
    Ok(())
}

/// Makes a green context: part of the multiprocessors of the primary one.
pub(crate) fn make_green(process: &Process, card: usize, multiprocessors: u32) -> Answer<u64> {
    let parent = retain(process, card)?;
    let mut state = process.state();
    let place = state.context(parent)?.place;
    Ok(add(&mut state, card, place, 0, 3020, Some(multiprocessors)))
}

fn set_limit(limit: u32, value: usize) -> Answer {
    let call = here()?;
    let mut state = call.state();
    let context = state.context_mut(call.context)?;
    let before = *context.limits.get(&limit).ok_or(Code::UNSUPPORTED_LIMIT)?;
    if limit == 2 {
        // The heap of kernels lies in the card's memory.
        let card = &call.process.cards[call.card];
        if value > before {
            call.process.joined.reserve(card, Memory::Context, (value - before) as u64)?;
        } else if before > default_limits()[&2] {
            let floor = value.max(default_limits()[&2]);
            call.process.joined.release(card, Memory::Context, (before - floor) as u64);
        }
    }
    context.limits.insert(limit, value);
    Ok(())
}

/// The card of a context that a caller names, 0 for the current one.
fn device_of(context: u64) -> Answer<i32> {
    let process = process()?;
    let handle = match context {
        0 => process::current(process).ok_or(Code::INVALID_CONTEXT)?,
        handle => handle,
    };
    let state = process.state();
    i32::try_from(state.context(handle)?.card).map_err(|_| Code::UNKNOWN)
}

fn synchronize(context: u64) -> Answer {
    let call = here()?;
    drain(call.process, if context == 0 { call.context } else { context })
}

api! {
    fn cuCtxCreate(context: Out<u64>, flags: u32, device: i32) { create(context, flags, device, 3010) }
    fn cuCtxCreate_v2(context: Out<u64>, flags: u32, device: i32) { create(context, flags, device, 3020) }

    fn cuCtxCreate_v3(context: Out<u64>, affinity: In<[u32; 2]>, count: i32, flags: u32, device: i32) {
        affinity_is_sound(affinity, count)?;
        create(context, flags, device, 3020)
    }

    fn cuCtxCreate_v4(context: Out<u64>, parameters: In<CreateShape>, flags: u32, device: i32) {
        if !parameters.is_null() {
            let CreateShape { affinity, count, graphics } = parameters.get()?;
            affinity_is_sound(affinity, count)?;
            if !graphics.is_null() {
                return Err(Code::NOT_SUPPORTED);
            }
        }
        create(context, flags, device, 3020)
    }

    // Contexts that share with a display: there is none, and what is left is a context.
    fn cuGLCtxCreate, cuGLCtxCreate_v2(context: Out<u64>, flags: u32, device: i32) {
        create(context, flags, device, 3020)
    }

    fn cuVDPAUCtxCreate, cuVDPAUCtxCreate_v2(context: Out<u64>, flags: u32, device: i32, display: u32, get: Opaque) {
        let _ = (display, get);
        create(context, flags, device, 3020)
    }

    fn cuCtxDestroy, cuCtxDestroy_v2(context: u64) {
        let process = process()?;
        {
            let state = process.state();
            if state.context(context)?.primary {
                return Err(Code::INVALID_CONTEXT);
            }
        }
        end(process, context)?;
        with_stack(process, |stack| if stack.last() == Some(&context) { stack.pop(); });
        Ok(())
    }

    fn cuCtxAttach(context: Out<u64>, flags: u32) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let call = here()?;
        call.state().context_mut(call.context)?.attached += 1;
        context.put(call.context)
    }

    fn cuCtxDetach(context: u64) {
        let call = here()?;
        let left = {
            let mut state = call.state();
            let context = state.context_mut(context)?;
            context.attached = context.attached.saturating_sub(1);
            context.attached
        };
        if left > 0 {
            return Ok(());
        }
        end(call.process, context)?;
        with_stack(call.process, |stack| stack.retain(|other| *other != context));
        Ok(())
    }

    fn cuCtxPushCurrent, cuCtxPushCurrent_v2(context: u64) { push(context) }

    fn cuCtxPopCurrent, cuCtxPopCurrent_v2(context: Out<u64>) {
        let popped = pop()?;
        context.put_if(popped);
        Ok(())
    }

    fn cuCtxSetCurrent(context: u64) {
        let process = process()?;
        if context == 0 {
            with_stack(process, Vec::pop);
            return Ok(());
        }
        process.state().context(context)?;
        with_stack(process, |stack| { stack.pop(); stack.push(context); }).ok_or(Code::UNKNOWN)
    }

    fn cuCtxGetCurrent(context: Out<u64>) {
        let process = process()?;
        context.put(process::current(process).unwrap_or(0))
    }

    fn cuCtxGetDevice(device: Out<i32>) { device.put(device_of(0)?) }
    fn cuCtxGetDevice_v2(device: Out<i32>, context: u64) { device.put(device_of(context)?) }
    fn cuCtxSynchronize() { synchronize(0) }
    fn cuCtxSynchronize_v2(context: u64) { synchronize(context) }

    fn cuCtxGetFlags(flags: Out<u32>) {
        let call = here()?;
        flags.put(call.state().context(call.context)?.flags)
    }

    fn cuCtxSetFlags(flags: u32) {
        let call = here()?;
        call.state().context_mut(call.context)?.flags = flags;
        Ok(())
    }

    fn cuCtxGetId(context: u64, id: Out<u64>) {
        let process = process()?;
        let handle = if context == 0 { process::current(process).ok_or(Code::INVALID_CONTEXT)? } else { context };
        id.put(process.state().context(handle)?.number)
    }

    fn cuCtxGetApiVersion(context: u64, version: Out<u32>) {
        let process = process()?;
        let handle = if context == 0 { process::current(process).ok_or(Code::INVALID_CONTEXT)? } else { context };
        version.put(process.state().context(handle)?.version)
    }

    fn cuCtxGetCacheConfig(config: Out<u32>) {
        let call = here()?;
        config.put(call.state().context(call.context)?.cache)
    }

    fn cuCtxSetCacheConfig(config: u32) {
        let call = here()?;
        if config > 3 { return Err(Code::INVALID_VALUE); }
        call.state().context_mut(call.context)?.cache = config;
        Ok(())
    }

    fn cuCtxGetSharedMemConfig(config: Out<u32>) {
        let call = here()?;
        config.put(call.state().context(call.context)?.banks)
    }

    fn cuCtxSetSharedMemConfig(config: u32) {
        let call = here()?;
        if config > 2 { return Err(Code::INVALID_VALUE); }
        call.state().context_mut(call.context)?.banks = config;
        Ok(())
    }

    fn cuCtxGetLimit(value: Out<usize>, limit: u32) {
        let call = here()?;
        let state = call.state();
        let found = state.context(call.context)?.limits.get(&limit).copied();
        value.put(found.ok_or(Code::UNSUPPORTED_LIMIT)?)
    }

    fn cuCtxSetLimit(limit: u32, value: usize) { set_limit(limit, value) }

    fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) {
        here()?;
        least.put_if(0);
        greatest.put_if(-5);
        Ok(())
    }

    fn cuCtxResetPersistingL2Cache() { here().map(|_| ()) }

    fn cuCtxEnablePeerAccess(peer: u64, flags: u32) {
        let call = here()?;
        let mut state = call.state();
        let other = state.contexts.get(&peer).ok_or(Code::INVALID_CONTEXT)?.card;
        if flags != 0 { return Err(Code::INVALID_VALUE); }
        if !call.process.joined.reaches(call.process, call.card, other) {
            return Err(Code::PEER_ACCESS_UNSUPPORTED);
        }
        if state.context_mut(call.context)?.peers.insert(peer) { Ok(()) } else { Err(Code::PEER_ACCESS_ALREADY_ENABLED) }
    }

    fn cuCtxDisablePeerAccess(peer: u64) {
        let call = here()?;
        let mut state = call.state();
        if !state.contexts.contains_key(&peer) { return Err(Code::INVALID_CONTEXT); }
        if state.context_mut(call.context)?.peers.remove(&peer) { Ok(()) } else { Err(Code::PEER_ACCESS_NOT_ENABLED) }
    }

    fn cuDevicePrimaryCtxRetain(context: Out<u64>, device: i32) {
        context.check()?;
        let process = process()?;
        let (card, _) = process.card(device)?;
        context.put(retain(process, card)?)
    }

    fn cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2(device: i32) {
        let process = process()?;
        let (card, _) = process.card(device)?;
        release(process, card)
    }

    fn cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2(device: i32) {
        let process = process()?;
        let (card, _) = process.card(device)?;
        let handle = process.state().primaries[card].context;
        end_primary(process, card, handle)
    }

    fn cuDevicePrimaryCtxSetFlags, cuDevicePrimaryCtxSetFlags_v2(device: i32, flags: u32) {
        let process = process()?;
        let (card, _) = process.card(device)?;
        if flags & !0xff != 0 || (flags & 7).count_ones() > 1 { return Err(Code::INVALID_VALUE); }
        process.state().primaries[card].flags = flags;
        Ok(())
    }

    fn cuDevicePrimaryCtxGetState(device: i32, flags: Out<u32>, active: Out<i32>) {
        let process = process()?;
        let (card, _) = process.card(device)?;
        let primary = process.state().primaries[card];
        flags.put_if(primary.flags);
        active.put_if(i32::from(primary.context.is_some()));
        Ok(())
    }
}

/// What a context is to be.
#[repr(C)]
#[derive(Clone, Copy)]
struct CreateShape {
    affinity: In<[u32; 2]>,
    count: i32,
    graphics: Opaque,
}

/// Affinity counts multiprocessors, which only MPS can give a context a part of.
fn affinity_is_sound(affinity: In<[u32; 2]>, count: i32) -> Answer {
    for parameter in affinity.all(usize::try_from(count).map_err(|_| Code::INVALID_VALUE)?)? {
        if parameter[0] != 0 || parameter[1] == 0 {
            return Err(Code::INVALID_VALUE);
        }
    }
    Ok(())
}
