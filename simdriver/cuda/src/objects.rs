//! What else has a handle: objects of the caller's, textures, green contexts' parts, endpoints,
//! checkpoints; and the interop calls that always find nothing.

use std::collections::HashMap;

use crate::abi::{Answer, Code, In, Opaque, Out, api};
use crate::card::Memory;
use crate::context;
use crate::process::{Kind, Process, here, meant, process, with_stack};
use crate::shapes::Resource;

/// All of them.
#[derive(Default)]
pub(crate) struct Objects {
    users: HashMap<u64, User>,
    /// Texture and surface objects, as they were described.
    views: HashMap<u64, View>,
    /// Multiprocessors of a description for a green context.
    parts: HashMap<u64, u32>,
    /// Endpoints by number: their size, once they are made.
    endpoints: HashMap<u64, Option<u64>>,
    checkpoint: Checkpoint,
    /// What was held when the process was checkpointed: card, kind, bytes.
    held: Vec<(usize, Memory, u64)>,
}

/// An object of the caller's that lives as long as graphs refer to it.
struct User {
    count: u32,
    destroy: Option<extern "C" fn(*mut std::ffi::c_void)>,
    data: usize,
}

/// The parts of a texture object's description, kept to be handed back.
#[derive(Clone, Copy)]
struct View {
    resource: [u64; 18],
    texture: [u64; 13],
    detail: [u64; 14],
    surface: bool,
}

/// How far a checkpoint of this process is, as the API numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Checkpoint {
    #[default]
    Running = 0,
    Locked = 1,
    Done = 2,
}

/// Lets go of a caller's object; the last one destroys it.
pub(crate) fn let_go(process: &Process, object: u64, count: u32) -> Answer {
    let last = {
        let mut state = process.state();
        let user = state.objects.users.get_mut(&object).ok_or(Code::INVALID_VALUE)?;
        user.count = user.count.checked_sub(count).ok_or(Code::INVALID_VALUE)?;
        if user.count == 0 { state.objects.users.remove(&object) } else { None }
    };
    if let Some(User { destroy: Some(destroy), data, .. }) = last {
        destroy(data as *mut _);
    }
    Ok(())
}

fn retain(object: u64, count: u32) -> Answer {
    let process = process()?;
    let mut state = process.state();
    let user = state.objects.users.get_mut(&object).ok_or(Code::INVALID_VALUE)?;
    user.count = user.count.checked_add(count).filter(|_| count > 0).ok_or(Code::INVALID_VALUE)?;
    Ok(())
}

fn view(handle: u64, surface: bool) -> Answer<View> {
    let process = process()?;
    let state = process.state();
    let found = state.objects.views.get(&handle).filter(|view| view.surface == surface);
    found.copied().ok_or(Code::INVALID_VALUE)
}

fn drop_view(handle: u64, surface: bool) -> Answer {
    let process = process()?;
    view(handle, surface)?;
    process.state().objects.views.remove(&handle);
    Ok(())
}

fn add_view(view: &View) -> Answer<u64> {
    let call = here()?;
    let mut state = call.state();
    let handle = state.handle(Kind::Object);
    state.objects.views.insert(handle, *view);
    Ok(handle)
}

const MULTIPROCESSORS: u32 = 1;

fn part(multiprocessors: u32) -> Resource {
    Resource {
        kind: MULTIPROCESSORS,
        internal: [0; 92],
        multiprocessors,
        least: 2,
        alignment: 2,
        flags: 0,
        rest: [0; 32],
    }
}

/// Cuts multiprocessors into groups of at least `least`, and what is left.
fn split(all: u32, least: u32, groups: u32) -> Answer<(Vec<u32>, u32)> {
    let size = least.max(2).next_multiple_of(2);
    let most = all / size;
    if most == 0 || groups == 0 {
        return Err(Code::INVALID_RESOURCE_CONFIGURATION);
    }
    let count = groups.min(most);
    Ok((vec![size; count as usize], all - count * size))
}

/// The state of a process's checkpoint; only a process itself can be asked here.
fn own(pid: i32) -> Answer<&'static Process> {
    let process = process()?;
    if u32::try_from(pid) == Ok(std::process::id()) {
        Ok(process)
    } else {
        Err(Code::INVALID_VALUE)
    }
}

fn move_on(pid: i32, from: Checkpoint, to: Checkpoint) -> Answer<&'static Process> {
    let process = own(pid)?;
    let mut state = process.state();
    if state.objects.checkpoint != from {
        return Err(Code::ILLEGAL_STATE);
    }
    state.objects.checkpoint = to;
    drop(state);
    Ok(process)
}

/// Moves all memory to the host: the cards have it back.
fn checkpoint(pid: i32) -> Answer {
    let process = move_on(pid, Checkpoint::Locked, Checkpoint::Done)?;
    let contexts: Vec<u64> = process.state().contexts.keys().copied().collect();
    contexts.into_iter().try_for_each(|handle| context::drain(process, handle))?;
    let mut held = Vec::new();
    for (index, card) in process.cards.iter().enumerate() {
        for kind in Memory::ALL {
            let bytes = process.joined.holds(card, kind);
            if bytes > 0 {
                process.joined.release(card, kind, bytes);
                held.push((index, kind, bytes));
            }
        }
    }
    process.state().objects.held = held;
    Ok(())
}

/// Takes the memory again, all of it or none.
fn restore(pid: i32) -> Answer {
    let process = own(pid)?;
    if process.state().objects.checkpoint != Checkpoint::Done {
        return Err(Code::ILLEGAL_STATE);
    }
    let held = process.state().objects.held.clone();
    for (index, (card, kind, bytes)) in held.iter().enumerate() {
        if let Err(code) = process.joined.reserve(&process.cards[*card], *kind, *bytes) {
            for (card, kind, bytes) in &held[..index] {
                process.joined.release(&process.cards[*card], *kind, *bytes);
            }
            return Err(code);
        }
    }
    let mut state = process.state();
    state.objects.held.clear();
    state.objects.checkpoint = Checkpoint::Locked;
    Ok(())
}

/// Works on endpoints that were reserved.
fn endpoint(number: u64) -> Answer<Option<u64>> {
    let process = process()?;
    let state = process.state();
    state.objects.endpoints.get(&number).copied().ok_or(Code::INVALID_VALUE)
}

/// Checks that memory can be bound to an endpoint: it is made, and the range fits.
fn bindable(number: u64, device: i32, offset: u64, size: u64) -> Answer {
    process()?.card(device)?;
    let whole = endpoint(number)?.ok_or(Code::ILLEGAL_STATE)?;
    let end = offset.checked_add(size).ok_or(Code::INVALID_VALUE)?;
    if size == 0 || end > whole { Err(Code::INVALID_VALUE) } else { Ok(()) }
}

/// What an endpoint is to be.
#[repr(C)]
#[derive(Clone, Copy)]
struct EndpointShape {
    kind: u32,
    devices: u32,
    size: u64,
    handles: u32,
    flags: u32,
}

api! {
    fn cuUserObjectCreate(object: Out<u64>, data: usize, destroy: Option<extern "C" fn(*mut std::ffi::c_void)>, count: u32, flags: u32) {
        object.check()?;
        let process = process()?;
        if destroy.is_none() || count == 0 || flags != 1 { return Err(Code::INVALID_VALUE); }
        let mut state = process.state();
        let handle = state.handle(Kind::Object);
        state.objects.users.insert(handle, User { count, destroy, data });
        object.put(handle)
    }

    fn cuUserObjectRetain(object: u64, count: u32) { retain(object, count) }
    fn cuUserObjectRelease(object: u64, count: u32) { let_go(process()?, object, count) }

    fn cuGraphRetainUserObject(graph: u64, object: u64, count: u32, flags: u32) {
        const MOVE: u32 = 1;
        let process = process()?;
        if flags & MOVE == 0 { retain(object, count)?; }
        let mut state = process.state();
        let graph = state.graphs.get_mut(&graph).ok_or(Code::INVALID_VALUE)?;
        *graph.objects.entry(object).or_default() += count;
        Ok(())
    }

    fn cuGraphReleaseUserObject(graph: u64, object: u64, count: u32) {
        let process = process()?;
        {
            let mut state = process.state();
            let graph = state.graphs.get_mut(&graph).ok_or(Code::INVALID_VALUE)?;
            let held = graph.objects.get_mut(&object).ok_or(Code::INVALID_VALUE)?;
            *held = held.checked_sub(count).ok_or(Code::INVALID_VALUE)?;
        }
        let_go(process, object, count)
    }

    fn cuTexObjectCreate(object: Out<u64>, resource: In<[u64; 18]>, texture: In<[u64; 13]>, view: In<[u64; 14]>) {
        object.check()?;
        let detail = if view.is_null() { [0; 14] } else { view.get()? };
        let view = View { resource: resource.get()?, texture: texture.get()?, detail, surface: false };
        object.put(add_view(&view)?)
    }

    fn cuTexObjectDestroy(object: u64) { drop_view(object, false) }
    fn cuTexObjectGetResourceDesc(to: Out<[u64; 18]>, object: u64) { to.put(view(object, false)?.resource) }
    fn cuTexObjectGetTextureDesc(to: Out<[u64; 13]>, object: u64) { to.put(view(object, false)?.texture) }
    fn cuTexObjectGetResourceViewDesc(to: Out<[u64; 14]>, object: u64) { to.put(view(object, false)?.detail) }

    fn cuSurfObjectCreate(object: Out<u64>, resource: In<[u64; 18]>) {
        object.check()?;
        let view = View { resource: resource.get()?, texture: [0; 13], detail: [0; 14], surface: true };
        object.put(add_view(&view)?)
    }

    fn cuSurfObjectDestroy(object: u64) { drop_view(object, true) }
    fn cuSurfObjectGetResourceDesc(to: Out<[u64; 18]>, object: u64) { to.put(view(object, true)?.resource) }

    fn cuDeviceGetDevResource(device: i32, resource: Out<Resource>, kind: u32) {
        let (_, card) = process()?.card(device)?;
        if kind != MULTIPROCESSORS { return Err(Code::INVALID_RESOURCE_TYPE); }
        resource.put(part(card.multiprocessors))
    }

    fn cuCtxGetDevResource, cuGreenCtxGetDevResource(context: u64, resource: Out<Resource>, kind: u32) {
        let process = process()?;
        if kind != MULTIPROCESSORS { return Err(Code::INVALID_RESOURCE_TYPE); }
        let state = process.state();
        let context = state.context(context)?;
        resource.put(part(context.green.unwrap_or(process.cards[context.card].multiprocessors)))
    }

    fn cuDevSmResourceSplitByCount(groups: Out<Resource>, count: Out<u32>, from: In<Resource>, rest: Out<Resource>, flags: u32, least: u32) {
        let _ = flags;
        process()?;
        let from = from.get()?;
        if from.kind != MULTIPROCESSORS { return Err(Code::INVALID_RESOURCE_TYPE); }
        let wanted = count.get()?;
        let (sizes, left) = split(from.multiprocessors, least, if groups.is_null() { u32::MAX } else { wanted })?;
        if !groups.is_null() {
            groups.put_all(sizes.iter().map(|size| part(*size)), wanted as usize)?;
        }
        rest.put_if(part(left));
        count.put(u32::try_from(sizes.len()).unwrap_or(0))
    }

    fn cuDevResourceGenerateDesc(description: Out<u64>, resources: In<Resource>, count: u32) {
        description.check()?;
        let process = process()?;
        let all = resources.all(count as usize)?;
        if all.is_empty() || all.iter().any(|resource| resource.kind != MULTIPROCESSORS) { return Err(Code::INVALID_RESOURCE_TYPE); }
        let mut state = process.state();
        let handle = state.handle(Kind::Object);
        state.objects.parts.insert(handle, all.iter().map(|resource| resource.multiprocessors).sum());
        description.put(handle)
    }

    fn cuGreenCtxCreate(context: Out<u64>, description: u64, device: i32, flags: u32) {
        context.check()?;
        let process = process()?;
        let (card, _) = process.card(device)?;
        if flags != 1 { return Err(Code::INVALID_VALUE); }
        let wanted = *process.state().objects.parts.get(&description).ok_or(Code::INVALID_VALUE)?;
        context.put(context::make_green(process, card, wanted)?)
    }

    fn cuGreenCtxDestroy(context: u64) {
        let process = process()?;
        let card = {
            let state = process.state();
            let found = state.context(context)?;
            if found.green.is_none() { return Err(Code::INVALID_HANDLE); }
            found.card
        };
        context::end(process, context)?;
        with_stack(process, |stack| stack.retain(|other| *other != context));
        context::release(process, card)
    }

    // A green context's handle serves as its context.
    fn cuCtxFromGreenCtx(context: Out<u64>, green: u64) {
        let process = process()?;
        if process.state().context(green)?.green.is_none() { return Err(Code::INVALID_HANDLE); }
        context.put(green)
    }

    fn cuGreenCtxGetId(green: u64, id: Out<u64>) {
        let process = process()?;
        id.put(process.state().context(green)?.number)
    }

    fn cuCheckpointProcessGetState(pid: i32, to: Out<u32>) {
        let process = own(pid)?;
        to.put(process.state().objects.checkpoint as u32)
    }

    fn cuCheckpointProcessGetRestoreThreadId(pid: i32, thread: Out<i32>) { own(pid)?; thread.put(pid) }
    fn cuCheckpointProcessLock(pid: i32, arguments: Opaque) { let _ = arguments; move_on(pid, Checkpoint::Running, Checkpoint::Locked).map(|_| ()) }
    fn cuCheckpointProcessUnlock(pid: i32, arguments: Opaque) { let _ = arguments; move_on(pid, Checkpoint::Locked, Checkpoint::Running).map(|_| ()) }
    fn cuCheckpointProcessCheckpoint(pid: i32, arguments: Opaque) { let _ = arguments; checkpoint(pid) }
    fn cuCheckpointProcessRestore(pid: i32, arguments: Opaque) { let _ = arguments; restore(pid) }

    fn cuLogicalEndpointIdReserve(number: Out<u64>, count: u32) {
        number.check()?;
        let process = process()?;
        if count == 0 { return Err(Code::INVALID_VALUE); }
        let mut state = process.state();
        let endpoints = &mut state.objects.endpoints;
        let first = endpoints.keys().max().map_or(1, |last| last + 1);
        endpoints.extend((first..first + u64::from(count)).map(|number| (number, None)));
        number.put(first)
    }

    fn cuLogicalEndpointIdRelease(number: u64, count: u32) {
        let process = process()?;
        let mut state = process.state();
        for number in number..number.saturating_add(count.into()) {
            state.objects.endpoints.remove(&number).ok_or(Code::INVALID_VALUE)?;
        }
        Ok(())
    }

    fn cuLogicalEndpointCreate(number: u64, shape: In<EndpointShape>) {
        let EndpointShape { kind, devices, size, handles, flags } = shape.get()?;
        let _ = (kind, devices, handles, flags);
        if endpoint(number)?.is_some() || size == 0 { return Err(Code::INVALID_VALUE); }
        process()?.state().objects.endpoints.insert(number, Some(size));
        Ok(())
    }

    fn cuLogicalEndpointDestroy(number: u64) {
        endpoint(number)?.ok_or(Code::ILLEGAL_STATE)?;
        process()?.state().objects.endpoints.insert(number, None);
        Ok(())
    }

    fn cuLogicalEndpointAddDevice(number: u64, device: i32) {
        process()?.card(device)?;
        endpoint(number)?.map(|_| ()).ok_or(Code::ILLEGAL_STATE)
    }

    fn cuLogicalEndpointBindMem(number: u64, device: i32, offset: u64, memory: u64, from: u64, size: u64, flags: u64) {
        let _ = from;
        if flags != 0 { return Err(Code::INVALID_VALUE); }
        if !process()?.state().physical.contains_key(&memory) { return Err(Code::INVALID_VALUE); }
        bindable(number, device, offset, size)
    }

    fn cuLogicalEndpointBindAddr(number: u64, device: i32, offset: u64, address: u64, size: u64, flags: u64) {
        if flags != 0 { return Err(Code::INVALID_VALUE); }
        process()?.state().space.reach(address, size, false)?;
        bindable(number, device, offset, size)
    }

    fn cuLogicalEndpointUnbind(number: u64, device: i32, offset: u64, size: u64) { bindable(number, device, offset, size) }

    // No process of a simulated machine exports one, so there is none to import.
    fn cuLogicalEndpointImport(number: u64, handle: Opaque, kind: u32) {
        let _ = kind;
        if handle.is_null() { return Err(Code::INVALID_VALUE); }
        endpoint(number)?;
        Err(Code::INVALID_HANDLE)
    }

    // There is no display, so nothing of one can be registered: every handle is unknown.
    fn cuGraphicsMapResources, cuGraphicsUnmapResources | cuGraphicsMapResources_ptsz, cuGraphicsUnmapResources_ptsz(lane, count: u32, resources: In<u64>, stream: u64) {
        let call = here()?;
        crate::stream::find(&call, meant(stream, lane))?;
        if count == 0 { return Err(Code::INVALID_VALUE); }
        resources.get()?;
        Err(Code::INVALID_HANDLE)
    }

    fn cuEGLStreamConsumerAcquireFrame(connection: In<u64>, resource: Opaque, stream: Opaque, timeout: u32) {
        let _ = (stream, timeout);
        here()?;
        connection.get()?;
        if resource.is_null() { return Err(Code::INVALID_VALUE); }
        Err(Code::INVALID_HANDLE)
    }

    // No card that is simulated has the engine for it, as its attributes say.
    fn cuMemBatchDecompressAsync | cuMemBatchDecompressAsync_ptsz(lane, operations: In<u64>, count: usize, flags: u32, failed: Out<usize>, stream: u64) {
        let call = here()?;
        crate::stream::find(&call, meant(stream, lane))?;
        if count == 0 || flags != 0 { return Err(Code::INVALID_VALUE); }
        operations.get()?;
        failed.put_if(0);
        Err(Code::NOT_SUPPORTED)
    }
}
