//! Events: moments of streams, with the device's times.

use std::sync::{Arc, Mutex};

use machine::{CellId, Ticket, Work};

use crate::abi::{Answer, Code, Out, api};
use crate::memory::ipc::{self, SharedEvent};
use crate::process::{Kind, Process, here, lock, meant, process};
use crate::stream::order::{Order, issue};
use crate::stream::{Effect, Point, Stream, capture, find};

const DISABLE_TIMING: u32 = 2;
const INTERPROCESS: u32 = 4;

/// An event.
pub(crate) struct Event {
    pub(crate) handle: u64,
    pub(crate) context: u64,
    pub(crate) flags: u32,
    /// Where the machine keeps its moment.
    cell: Option<CellId>,
    pub(crate) shared: Mutex<Option<SharedEvent>>,
    state: Mutex<Recorded>,
}

/// What an event last saw.
#[derive(Clone, Default)]
pub(crate) enum Recorded {
    #[default]
    Never,
    At(Point),
    /// It is part of a capture: these nodes come before it.
    In(capture::Tips),
}

impl Event {
    /// Submits the mark that takes the moment.
    pub(crate) fn submit(
        &self,
        process: &'static Process,
        stream: &Arc<Stream>,
        submit: &dyn Fn(Work) -> Answer<Ticket>,
    ) -> Answer<Ticket> {
        if self.flags & INTERPROCESS != 0 {
            // Another process sees only what the machine sees, so the machine waits for what is
            // still to be done here.
            let after = submit(Work::Marker { cell: None })?;
            let gate = submit(Work::Gate)?;
            let run = Box::new(|_: &Process| {});
            stream
                .push(process, Effect { after: Some(after), run, gate: Some(gate), early: false });
        }
        submit(Work::Marker { cell: self.cell })
    }

    /// Notes where it was recorded last.
    pub(crate) fn recorded(&self, process: &Process, point: Point) {
        if let (Some(shared), Some(ticket)) = (&*lock(&self.shared), point.ticket()) {
            shared.tell(process, ticket);
        }
        *lock(&self.state) = Recorded::At(point);
    }

    pub(crate) fn noted(&self, tips: capture::Tips) {
        *lock(&self.state) = Recorded::In(tips);
    }

    pub(crate) fn last(&self) -> Recorded {
        lock(&self.state).clone()
    }

    /// Where it was recorded last, in this process.
    pub(crate) fn point(&self, _: &Process) -> Answer<Option<Point>> {
        match self.last() {
            Recorded::Never => Ok(None),
            Recorded::At(point) => Ok(Some(point)),
            Recorded::In(_) => Err(Code::CAPTURED_EVENT),
        }
    }

    /// The work of another process that it stands for, if it was opened from one or recorded there.
    pub(crate) fn elsewhere(&self) -> Option<Ticket> {
        lock(&self.shared).as_ref().and_then(SharedEvent::told)
    }

    fn reached(&self, process: &Process) -> Answer<bool> {
        if let Some(ticket) = self.elsewhere() {
            return Ok(process.joined.is_over(ticket));
        }
        self.point(process)?.map_or(Ok(true), |point| point.settled(process))
    }
}

/// The event of a handle.
pub(crate) fn named(handle: u64) -> Answer<Arc<Event>> {
    process()?.state().events.get(&handle).cloned().ok_or(Code::INVALID_HANDLE)
}

fn create(flags: u32) -> Answer<Arc<Event>> {
    let call = here()?;
    if flags & !7 != 0 || (flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0) {
        return Err(Code::INVALID_VALUE);
    }
    let timed = flags & DISABLE_TIMING == 0;
    let moment = if timed { call.process.joined.new_cell() } else { None };
    let mut state = call.state();
    let handle = state.handle(Kind::Event);
    let event = Arc::new(Event {
        handle,
        context: call.context,
        flags,
        cell: moment,
        shared: Mutex::default(),
        state: Mutex::default(),
    });
    state.events.insert(handle, Arc::clone(&event));
    Ok(event)
}

/// Takes an event out; its moment is forgotten.
fn destroy(handle: u64) -> Answer {
    let process = process()?;
    let event = process.state().events.remove(&handle).ok_or(Code::INVALID_HANDLE)?;
    let Some(cell) = event.cell else { return Ok(()) };
    match event.last() {
        // A mark on its way would write into a cell that is someone else's by then.
        Recorded::At(point) if !point.reached(process) => point.then(process, move |process| {
            process.joined.free_cell(cell);
        }),
        _ => process.joined.free_cell(cell),
    }
    Ok(())
}

/// Milliseconds from one event to another.
fn elapsed(start: u64, end: u64) -> Answer<f32> {
    let process = process()?;
    let (start, end) = (named(start)?, named(end)?);
    for event in [&start, &end] {
        if event.flags & DISABLE_TIMING != 0 || matches!(event.last(), Recorded::Never) {
            return Err(Code::INVALID_HANDLE);
        }
    }
    for event in [&start, &end] {
        if !event.reached(process)? {
            return Err(Code::NOT_READY);
        }
    }
    let moment = |event: &Event| {
        let ticket = event.point(process)?.and_then(|point| point.ticket()).ok_or(Code::UNKNOWN)?;
        let kept = event.cell.and_then(|cell| process.joined.moment(cell, ticket));
        kept.or_else(|| process.joined.ended(ticket)).ok_or(Code::UNKNOWN)
    };
    let (from, to) = (i128::from(moment(&start)?), i128::from(moment(&end)?));
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        reason = "the API gives milliseconds as a float, with half a microsecond's precision"
    )]
    Ok(((to - from) as f64 / 1e6) as f32)
}

fn record(event: u64, stream: u64) -> Answer {
    let call = here()?;
    let event = named(event)?;
    let stream = find(&call, stream)?;
    if event.context != stream.context && event.flags & INTERPROCESS == 0 {
        return Err(Code::INVALID_HANDLE);
    }
    issue(&call, &stream, Order::Record(event))
}

api! {
    fn cuEventCreate(event: Out<u64>, flags: u32) {
        event.check()?;
        event.put(create(flags)?.handle)
    }

    fn cuEventRecord | cuEventRecord_ptsz(lane, event: u64, stream: u64) {
        record(event, meant(stream, lane))
    }

    fn cuEventRecordWithFlags | cuEventRecordWithFlags_ptsz(lane, event: u64, stream: u64, flags: u32) {
        if flags > 1 {
            return Err(Code::INVALID_VALUE);
        }
        record(event, meant(stream, lane))
    }

    fn cuEventQuery(event: u64) {
        let process = process()?;
        capture::permitted(process)?;
        if named(event)?.reached(process)? { Ok(()) } else { Err(Code::NOT_READY) }
    }

    fn cuEventSynchronize(event: u64) {
        let process = process()?;
        capture::permitted(process)?;
        let event = named(event)?;
        if let Some(ticket) = event.elsewhere() {
            return process.joined.wait_well(ticket);
        }
        match event.point(process)? {
            Some(point) => point.wait(process),
            None => Ok(()),
        }
    }

    fn cuEventDestroy, cuEventDestroy_v2(event: u64) {
        destroy(event)
    }

    fn cuEventElapsedTime, cuEventElapsedTime_v2(milliseconds: Out<f32>, start: u64, end: u64) {
        milliseconds.check()?;
        milliseconds.put(elapsed(start, end)?)
    }

    fn cuIpcGetEventHandle(handle: Out<[u8; 64]>, event: u64) {
        handle.check()?;
        let event = named(event)?;
        if event.flags & INTERPROCESS == 0 {
            return Err(Code::INVALID_HANDLE);
        }
        handle.put(ipc::export_event(process()?, &event)?)
    }

    fn cuIpcOpenEventHandle(event: Out<u64>, handle: ipc::HandleValue) {
        event.check()?;
        let shared = ipc::import_event(process()?, handle.bytes())?;
        let opened = create(DISABLE_TIMING | INTERPROCESS)?;
        *lock(&opened.shared) = Some(shared);
        event.put(opened.handle)
    }

    // A context's or green context's streams, all at once.
    fn cuCtxRecordEvent, cuGreenCtxRecordEvent(context: u64, event: u64) {
        let call = here()?;
        let event = named(event)?;
        let (stream, others) = {
            let state = call.state();
            let context = state.context(context)?;
            (Arc::clone(&context.legacy), context.streams.clone())
        };
        for other in others {
            stream.wait_for(call.process, &other.point())?;
        }
        issue(&call, &stream, Order::Record(event))
    }

    fn cuCtxWaitEvent, cuGreenCtxWaitEvent(context: u64, event: u64) {
        let call = here()?;
        let event = named(event)?;
        let streams = call.state().context(context)?.streams.clone();
        for stream in streams {
            issue(&call, &stream, Order::Wait(Arc::clone(&event)))?;
        }
        Ok(())
    }
}
