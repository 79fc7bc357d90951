//! Streams that are captured: what is asked of them becomes a graph.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

use super::order::Order;
use super::{Stream, find};
use crate::abi::{Answer, Code, In, Opaque, Out, api};
use crate::event::{Event, Recorded};
use crate::graph::{self, Body};
use crate::process::{Call, Process, State, here, lock, meant, process};

/// One capture, over all streams that take part.
pub(crate) struct Capture {
    number: u64,
    graph: u64,
    /// The stream that began it and must end it.
    origin: u64,
    /// The thread that began it, and how strict it is.
    thread: ThreadId,
    mode: u32,
    /// The graph was the caller's already.
    given: bool,
    invalid: Mutex<bool>,
    streams: Mutex<Vec<Arc<Stream>>>,
    /// Lists of nodes that callers were given pointers to.
    told: Mutex<Vec<Box<[u64]>>>,
}

/// A stream's part in a capture.
#[derive(Clone)]
pub(crate) struct Member {
    capture: Arc<Capture>,
    /// What the next node comes after.
    tips: Vec<u64>,
}

/// Nodes of a capture, kept by an event.
#[derive(Clone)]
pub(crate) struct Tips {
    capture: Arc<Capture>,
    nodes: Vec<u64>,
}

static NEXT: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// How strict captures are with calls on this thread.
    static MODE: Cell<u32> = const { Cell::new(GLOBAL) };
}

/// Modes of captures and of threads.
const GLOBAL: u32 = 0;
const RELAXED: u32 = 2;

/// Refuses a call that a capture may forbid to this thread, and invalidates that capture. Of the calls
/// that CUDA calls potentially unsafe, those that ask and wait for events are judged here.
pub(crate) fn permitted(process: &Process) -> Answer {
    let strict = MODE.try_with(Cell::get).unwrap_or(RELAXED);
    let state = process.state();
    if strict == RELAXED || state.captures.is_empty() {
        return Ok(());
    }
    let here = std::thread::current().id();
    let forbids = |capture: &&Arc<Capture>| {
        let own = capture.thread == here && capture.mode != RELAXED;
        own || (strict == GLOBAL && capture.mode == GLOBAL)
    };
    let mut answer = Ok(());
    for capture in state.captures.iter().filter(forbids) {
        *lock(&capture.invalid) = true;
        answer = Err(Code::STREAM_CAPTURE_UNSUPPORTED);
    }
    answer
}

/// A stream that is destroyed takes its capture along.
pub(crate) fn destroyed(state: &mut State, stream: u64) {
    state.captures.retain(|capture| capture.origin != stream);
}

impl Capture {
    fn check(&self) -> Answer {
        if *lock(&self.invalid) { Err(Code::STREAM_CAPTURE_INVALIDATED) } else { Ok(()) }
    }
}

/// Adds a node behind a stream's tips.
fn add(call: &Call, stream: &Stream, member: &Member, body: Body) -> Answer<u64> {
    let node = graph::add(&mut call.state(), member.capture.graph, &member.tips, body)?;
    stream.set_member(Some(Member { capture: Arc::clone(&member.capture), tips: vec![node] }));
    Ok(node)
}

/// Notes down what a captured stream is asked.
pub(crate) fn note(call: &Call, stream: &Arc<Stream>, member: &Member, order: Order) -> Answer {
    member.capture.check()?;
    let body = match order {
        Order::Kernel(launch) => Body::Kernel(launch),
        Order::Copy(plan) => Body::Copy(plan, stream.context),
        Order::Fill(fill) => Body::Fill(fill, stream.context),
        Order::Host(host) => Body::Host(host),
        Order::Words(words) => Body::Words(words),
        Order::GraphFree { address, .. } => Body::Free(address),
        Order::Record(event) => {
            event.noted(Tips { capture: Arc::clone(&member.capture), nodes: member.tips.clone() });
            return Ok(());
        }
        Order::Wait(event) => return wait(stream, member, &event),
        Order::Free(_) | Order::Callback(_) | Order::GraphAlloc { .. } | Order::Nothing => {
            *lock(&member.capture.invalid) = true;
            return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
        }
    };
    add(call, stream, member, body).map(|_| ())
}

/// Memory that a captured stream is asked for is the graph's.
pub(crate) fn note_alloc(
    call: &Call,
    stream: &Arc<Stream>,
    member: &Member,
    size: u64,
) -> Answer<u64> {
    member.capture.check()?;
    let card = stream.card;
    let address = graph::memory::address(&mut call.state(), card, call.context, size)?;
    add(call, stream, member, Body::Alloc { card, address, size })?;
    Ok(address)
}

fn wait(stream: &Stream, member: &Member, event: &Event) -> Answer {
    match event.last() {
        Recorded::In(tips) if Arc::ptr_eq(&tips.capture, &member.capture) => {
            let mut member = member.clone();
            for node in tips.nodes {
                if !member.tips.contains(&node) {
                    member.tips.push(node);
                }
            }
            stream.set_member(Some(member));
            Ok(())
        }
        Recorded::In(_) => Err(Code::STREAM_CAPTURE_MERGE),
        // An event from outside would tie the graph to what runs now.
        Recorded::At(_) => Err(Code::STREAM_CAPTURE_ISOLATION),
        Recorded::Never => Ok(()),
    }
}

/// A stream that waits for an event of a capture takes part from then on.
pub(crate) fn join(call: &Call, stream: &Arc<Stream>, event: &Event) -> Answer {
    let Recorded::In(tips) = event.last() else { return Ok(()) };
    if stream.member().is_some() {
        return Ok(());
    }
    tips.capture.check()?;
    let legacy = Arc::clone(&call.state().context(stream.context)?.legacy);
    if Arc::ptr_eq(&legacy, stream) {
        return Err(Code::STREAM_CAPTURE_IMPLICIT);
    }
    stream.set_member(Some(Member { capture: Arc::clone(&tips.capture), tips: Vec::new() }));
    lock(&tips.capture.streams).push(Arc::clone(stream));
    Ok(())
}

fn begin(stream: u64, graph: Option<u64>, tips: Vec<u64>, mode: u32) -> Answer {
    let call = here()?;
    let stream = find(&call, stream)?;
    let legacy = Arc::clone(&call.state().context(stream.context)?.legacy);
    if mode > 2 || stream.member().is_some() {
        return Err(if mode > 2 { Code::INVALID_VALUE } else { Code::ILLEGAL_STATE });
    }
    if Arc::ptr_eq(&legacy, &stream) {
        return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
    }
    let given = graph.is_some();
    let graph = match graph {
        Some(graph) => graph,
        None => graph::build::create()?,
    };
    {
        let state = call.state();
        let found = state.graphs.get(&graph).ok_or(Code::INVALID_VALUE)?;
        if tips.iter().any(|node| found.node(*node).is_none()) {
            return Err(Code::INVALID_VALUE);
        }
    }
    let capture = Arc::new(Capture {
        number: NEXT.fetch_add(1, Ordering::Relaxed),
        graph,
        origin: stream.handle,
        thread: std::thread::current().id(),
        mode,
        given,
        invalid: Mutex::new(false),
        streams: Mutex::new(vec![Arc::clone(&stream)]),
        told: Mutex::default(),
    });
    call.state().captures.push(Arc::clone(&capture));
    stream.set_member(Some(Member { capture, tips }));
    Ok(())
}

fn end(stream: u64) -> Answer<u64> {
    let call = here()?;
    let stream = find(&call, stream)?;
    let member = stream.member().ok_or(Code::ILLEGAL_STATE)?;
    let capture = &member.capture;
    if capture.origin != stream.handle {
        return Err(Code::STREAM_CAPTURE_UNMATCHED);
    }
    let streams = std::mem::take(&mut *lock(&capture.streams));
    let mut joined = true;
    {
        let state = call.state();
        let graph = state.graphs.get(&capture.graph).ok_or(Code::INVALID_VALUE)?;
        let known = graph.ancestors(&member.tips);
        for other in &streams {
            let tips = other.member().map_or_else(Vec::new, |member| member.tips);
            joined &= tips.iter().all(|node| known.contains(node));
        }
    }
    for stream in &streams {
        stream.set_member(None);
    }
    call.state().captures.retain(|other| other.number != capture.number);
    let outcome =
        capture.check().and(if joined { Ok(()) } else { Err(Code::STREAM_CAPTURE_UNJOINED) });
    if outcome.is_err() && !capture.given {
        graph::remove(&mut call.state(), capture.graph)?;
    }
    outcome.map(|()| capture.graph)
}

/// 0 without a capture, 1 during one, 2 if it can only be ended.
fn status(member: Option<&Member>) -> u32 {
    member.map_or(0, |member| if member.capture.check().is_ok() { 1 } else { 2 })
}

/// Where the answers of the forms of `cuStreamGetCaptureInfo` go.
struct Asked {
    status: Out<u32>,
    number: Out<u64>,
    graph: Option<Out<u64>>,
    nodes: Option<Out<*const u64>>,
    data: Option<Out<Opaque>>,
    count: Option<Out<usize>>,
}

fn tell(stream: u64, asked: &Asked) -> Answer {
    let call = here()?;
    let stream = find(&call, stream)?;
    let member = stream.member();
    asked.status.put(status(member.as_ref()))?;
    let Some(member) = member else { return Ok(()) };
    asked.number.put_if(member.capture.number);
    if let Some(graph) = asked.graph {
        graph.put_if(member.capture.graph);
    }
    if let Some(count) = asked.count {
        count.put_if(member.tips.len());
    }
    if let Some(nodes) = asked.nodes.filter(|nodes| !nodes.is_null()) {
        // The list must stay where it is for as long as the capture goes on.
        let list: Box<[u64]> = member.tips.clone().into();
        nodes.put(list.as_ptr())?;
        lock(&member.capture.told).push(list);
    }
    if let Some(data) = asked.data {
        data.put_if(std::ptr::null_mut());
    }
    Ok(())
}

fn set_tips(stream: u64, nodes: In<u64>, count: usize, flags: u32) -> Answer {
    let call = here()?;
    let stream = find(&call, stream)?;
    let mut member = stream.member().ok_or(Code::ILLEGAL_STATE)?;
    let nodes = if count == 0 { Vec::new() } else { nodes.all(count)? };
    {
        let state = call.state();
        let graph = state.graphs.get(&member.capture.graph).ok_or(Code::INVALID_VALUE)?;
        if nodes.iter().any(|node| graph.node(*node).is_none()) || flags > 1 {
            return Err(Code::INVALID_VALUE);
        }
    }
    if flags == 1 {
        member.tips = nodes;
    } else {
        member.tips.extend(nodes);
        member.tips.sort_unstable();
        member.tips.dedup();
    }
    stream.set_member(Some(member));
    Ok(())
}

api! {
    fn cuStreamBeginCapture | cuStreamBeginCapture_ptsz(lane, stream: u64) { begin(meant(stream, lane), None, Vec::new(), 0) }
    fn cuStreamBeginCapture_v2 | cuStreamBeginCapture_v2_ptsz(lane, stream: u64, mode: u32) { begin(meant(stream, lane), None, Vec::new(), mode) }

    fn cuStreamBeginCaptureToGraph | cuStreamBeginCaptureToGraph_ptsz(lane, stream: u64, graph: u64, nodes: In<u64>, data: Opaque, count: usize, mode: u32) {
        let _ = data;
        let nodes = if count == 0 { Vec::new() } else { nodes.all(count)? };
        begin(meant(stream, lane), Some(graph), nodes, mode)
    }

    fn cuStreamEndCapture | cuStreamEndCapture_ptsz(lane, stream: u64, graph: Out<u64>) {
        graph.check()?;
        graph.put(0)?;
        graph.put(end(meant(stream, lane))?)
    }

    fn cuStreamIsCapturing | cuStreamIsCapturing_ptsz(lane, stream: u64, to: Out<u32>) {
        let call = here()?;
        to.put(status(find(&call, meant(stream, lane))?.member().as_ref()))
    }

    fn cuStreamGetCaptureInfo | cuStreamGetCaptureInfo_ptsz(lane, stream: u64, status: Out<u32>, number: Out<u64>) {
        tell(meant(stream, lane), &Asked { status, number, graph: None, nodes: None, data: None, count: None })
    }

    fn cuStreamGetCaptureInfo_v2 | cuStreamGetCaptureInfo_v2_ptsz(
        lane, stream: u64, status: Out<u32>, number: Out<u64>, graph: Out<u64>, nodes: Out<*const u64>, count: Out<usize>,
    ) {
        tell(meant(stream, lane), &Asked { status, number, graph: Some(graph), nodes: Some(nodes), data: None, count: Some(count) })
    }

    fn cuStreamGetCaptureInfo_v3 | cuStreamGetCaptureInfo_v3_ptsz(
        lane, stream: u64, status: Out<u32>, number: Out<u64>, graph: Out<u64>, nodes: Out<*const u64>, data: Out<Opaque>, count: Out<usize>,
    ) {
        tell(meant(stream, lane), &Asked { status, number, graph: Some(graph), nodes: Some(nodes), data: Some(data), count: Some(count) })
    }

    fn cuStreamUpdateCaptureDependencies | cuStreamUpdateCaptureDependencies_ptsz(lane, stream: u64, nodes: In<u64>, count: usize, flags: u32) {
        set_tips(meant(stream, lane), nodes, count, flags)
    }

    fn cuStreamUpdateCaptureDependencies_v2 | cuStreamUpdateCaptureDependencies_v2_ptsz(lane, stream: u64, nodes: In<u64>, data: Opaque, count: usize, flags: u32) {
        let _ = data;
        set_tips(meant(stream, lane), nodes, count, flags)
    }

    fn cuThreadExchangeStreamCaptureMode(mode: Out<u32>) {
        process()?;
        let new = mode.get()?;
        if new > 2 { return Err(Code::INVALID_VALUE); }
        mode.put(MODE.try_with(|old| old.replace(new)).unwrap_or(0))
    }
}
