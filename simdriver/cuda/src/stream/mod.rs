//! Streams: what is asked for in order happens in order.
//!
//! The machine keeps the order and the times of everything that takes device time. What has to be
//! done to the host's memory besides (bytes that move, functions that are called) is an
//! [`Effect`]: it is done in the order of its stream once the machine has got there. Kernels move
//! no bytes, so an effect that nothing on the host can see early is done at once if no other is
//! before it; the rest is done by whoever waits for the stream, or by a thread of the stream.

pub(crate) mod calls;
pub(crate) mod capture;
pub(crate) mod order;

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use machine::{Progress, Ticket, Work};

use crate::abi::{Answer, Code};
use crate::process::{self, Process, lock};
use capture::Member;

/// Something done on the host in the order of a stream.
pub(crate) struct Effect {
    /// What the machine must have finished before.
    pub(crate) after: Option<Ticket>,
    pub(crate) run: Box<dyn FnOnce(&Process) + Send>,
    /// What the machine may go on with behind it.
    pub(crate) gate: Option<Ticket>,
    /// Nobody could tell if it were done before its time.
    pub(crate) early: bool,
}

/// A stream of a context.
pub(crate) struct Stream {
    pub(crate) handle: u64,
    pub(crate) context: u64,
    pub(crate) card: usize,
    /// The context, as the machine counts.
    pub(crate) place: machine::ContextId,
    /// The stream, as the machine tells them apart; the low byte is for branches of graphs.
    pub(crate) key: u64,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    pub(crate) green: Option<u64>,
    line: Mutex<Line>,
    /// The line changed: an effect was queued or done.
    changed: Condvar,
    /// Held while an effect is being done: they are done one at a time.
    running: Mutex<()>,
}

#[derive(Default)]
struct Line {
    last: Option<Ticket>,
    effects: VecDeque<Effect>,
    queued: u64,
    done: u64,
    worker: bool,
    closed: bool,
    member: Option<Member>,
}

/// How long who waits for another's effect sleeps before it looks again.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Whether to wait for an effect's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Patience {
    Waits,
    None,
}

/// A moment in a stream: all that was asked of it so far.
#[derive(Clone)]
pub(crate) struct Point {
    stream: Arc<Stream>,
    ticket: Option<Ticket>,
    effects: u64,
}

impl Stream {
    pub(crate) fn new(
        handle: u64,
        context: u64,
        card: usize,
        place: machine::ContextId,
        flags: u32,
        priority: i32,
        green: Option<u64>,
    ) -> Arc<Self> {
        Arc::new(Self {
            handle,
            context,
            card,
            place,
            key: handle << 8,
            flags,
            priority,
            green,
            line: Mutex::default(),
            changed: Condvar::new(),
            running: Mutex::new(()),
        })
    }

    /// Whether it keeps in step with the legacy stream.
    pub(crate) fn blocking(&self) -> bool {
        self.flags & 1 == 0
    }

    /// Submits work at the end of the stream.
    pub(crate) fn submit(&self, process: &Process, work: Work) -> Answer<Ticket> {
        let ticket = process.joined.submit(self.place, self.key, work)?;
        lock(&self.line).last = Some(ticket);
        Ok(ticket)
    }

    /// Queues an effect behind those there are, or does it if nobody can tell.
    pub(crate) fn push(self: &Arc<Self>, process: &'static Process, effect: Effect) {
        let mut line = lock(&self.line);
        if effect.early && line.effects.is_empty() && line.done == line.queued {
            // The line stays locked, so that a later effect cannot overtake.
            (effect.run)(process);
            return;
        }
        line.effects.push_back(effect);
        line.queued += 1;
        self.changed.notify_all();
    }

    /// Has a thread do the effects if nobody waits for them.
    pub(crate) fn wake_worker(self: &Arc<Self>, process: &'static Process) {
        let mut line = lock(&self.line);
        if line.effects.is_empty() || line.worker {
            return;
        }
        let stream = Arc::clone(self);
        let started = std::thread::Builder::new()
            .name("cuda-stream".into())
            .spawn(move || stream.work_off(process));
        // Without a thread the effects are done by the next who waits.
        line.worker = started.is_ok();
    }

    fn work_off(self: Arc<Self>, process: &'static Process) {
        loop {
            let line = lock(&self.line);
            if line.effects.is_empty() {
                if self.rest(line) {
                    return;
                }
            } else {
                drop(line);
                if !self.do_next(process, u64::MAX, Patience::Waits) {
                    // Another thread does one just now.
                    let line = lock(&self.line);
                    let waited = self.changed.wait_timeout(line, LOOK_AGAIN);
                    drop(waited.unwrap_or_else(PoisonError::into_inner));
                }
            }
        }
    }

    /// Sleeps until there is something to do; says whether there never will be.
    fn rest(&self, mut line: MutexGuard<'_, Line>) -> bool {
        if line.closed {
            line.worker = false;
            return true;
        }
        drop(self.changed.wait(line).unwrap_or_else(PoisonError::into_inner));
        false
    }

    /// Does the next effect if there is one up to that number.
    fn do_next(&self, process: &Process, up_to: u64, patience: Patience) -> bool {
        let running = match self.running.try_lock() {
            Ok(running) => running,
            Err(TryLockError::Poisoned(running)) => running.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        let effect = {
            let mut line = lock(&self.line);
            let Some(next) = line.effects.front() else { return false };
            // One with a gate may be a function of the caller's that takes its time.
            let due = || {
                next.gate.is_none() && next.after.is_none_or(|work| process.joined.is_over(work))
            };
            if line.done >= up_to || (patience == Patience::None && !due()) {
                return false;
            }
            line.effects.pop_front()
        };
        let Some(effect) = effect else { return false };
        if let Some(ticket) = effect.after {
            process.joined.wait(ticket);
        }
        (effect.run)(process);
        if let Some(gate) = effect.gate {
            process.joined.open_gate(gate);
        }
        lock(&self.line).done += 1;
        drop(running);
        self.changed.notify_all();
        true
    }

    /// What was asked of it so far.
    pub(crate) fn point(self: &Arc<Self>) -> Point {
        let line = lock(&self.line);
        Point { stream: Arc::clone(self), ticket: line.last, effects: line.queued }
    }

    /// Whether all that was asked of it is done; work that was thrown away is an error.
    pub(crate) fn settled(self: &Arc<Self>, process: &Process) -> Answer<bool> {
        let point = self.point();
        let settled = point.settled(process)?;
        if settled {
            let mut line = lock(&self.line);
            if line.last == point.ticket {
                line.last = None;
            }
        }
        Ok(settled)
    }

    /// Whether nothing is left to do in it.
    pub(crate) fn idle(self: &Arc<Self>, process: &Process) -> bool {
        self.settled(process).unwrap_or(true)
    }

    /// What comes after is done after `point`.
    pub(crate) fn wait_for(self: &Arc<Self>, process: &'static Process, point: &Point) -> Answer {
        if Arc::ptr_eq(self, &point.stream) || point.reached(process) {
            return Ok(());
        }
        if let Some(ticket) = point.ticket {
            self.submit(process, Work::Wait(ticket))?;
        }
        if !point.effects_done() {
            let before = point.clone();
            let run = Box::new(move |process: &Process| before.wait_effects(process));
            self.push(process, Effect { after: None, run, gate: None, early: false });
            self.wake_worker(process);
        }
        Ok(())
    }

    /// Waits until all that was asked of it is done.
    pub(crate) fn synchronize(self: &Arc<Self>, process: &Process) -> Answer {
        if self.settled(process)? {
            return Ok(());
        }
        self.point().wait(process)
    }

    /// No more will be asked of it.
    pub(crate) fn close(&self) {
        lock(&self.line).closed = true;
        self.changed.notify_all();
    }

    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.line).closed
    }

    /// Which capture it takes part in.
    pub(crate) fn member(&self) -> Option<Member> {
        lock(&self.line).member.clone()
    }

    pub(crate) fn set_member(&self, member: Option<Member>) {
        lock(&self.line).member = member;
    }
}

impl Point {
    /// A point whose end is the given work.
    pub(crate) fn at(mut self, ticket: Ticket) -> Self {
        self.ticket = Some(ticket);
        self
    }

    pub(crate) fn ticket(&self) -> Option<Ticket> {
        self.ticket
    }

    fn effects_done(&self) -> bool {
        lock(&self.stream.line).done >= self.effects
    }

    /// Whether all before it is done; work that was thrown away is an error.
    pub(crate) fn settled(&self, process: &Process) -> Answer<bool> {
        match self.ticket.map(|ticket| process.joined.poll(ticket)) {
            Some(Progress::Pending) => Ok(false),
            Some(Progress::Cancelled) => {
                Err(process.work_lost(self.stream.context, self.stream.card))
            }
            _ => Ok(self.effects_done() || self.catch_up(process)),
        }
    }

    /// Whether nothing before it is left to do.
    pub(crate) fn reached(&self, process: &Process) -> bool {
        self.settled(process).unwrap_or(true)
    }

    /// Does effects whose time has come and that nobody does just now.
    fn catch_up(&self, process: &Process) -> bool {
        while !self.effects_done() {
            if !self.stream.do_next(process, self.effects, Patience::None) {
                return self.effects_done();
            }
        }
        true
    }

    /// Waits for the effects before it, and does them if nobody else does.
    ///
    /// Who does an effect of one stream may have to wait for another stream's. So nobody waits to
    /// become the one who does effects, only for effects to be done: those that come before were
    /// asked for earlier, and what was asked for first waits for nothing.
    fn wait_effects(&self, process: &Process) {
        while !self.effects_done() {
            if self.stream.do_next(process, self.effects, Patience::Waits) {
                continue;
            }
            let line = lock(&self.stream.line);
            if line.done < self.effects {
                // The time only bounds how long it takes to notice that the other gave up.
                let waited = self.stream.changed.wait_timeout(line, LOOK_AGAIN);
                drop(waited.unwrap_or_else(PoisonError::into_inner));
            }
        }
    }

    /// Does something when all before it is done.
    pub(crate) fn then(
        &self,
        process: &'static Process,
        work: impl FnOnce(&Process) + Send + 'static,
    ) {
        let effect = Effect { after: self.ticket, run: Box::new(work), gate: None, early: false };
        self.stream.push(process, effect);
        self.stream.wake_worker(process);
    }

    /// Waits for all before it.
    pub(crate) fn wait(&self, process: &Process) -> Answer {
        // Effects first: the machine may be waiting at a gate for one of them.
        self.wait_effects(process);
        match self.ticket.map(|ticket| process.joined.wait(ticket)) {
            Some(Progress::Cancelled) => {
                Err(process.work_lost(self.stream.context, self.stream.card))
            }
            _ => Ok(()),
        }
    }
}

/// Finds the stream of a handle in a context.
pub(crate) fn find(call: &process::Call, handle: u64) -> Answer<Arc<Stream>> {
    match handle {
        0 | 1 => Ok(Arc::clone(&call.state().context(call.context)?.legacy)),
        2 => own(call),
        _ => call.state().streams.get(&handle).cloned().ok_or(Code::INVALID_HANDLE),
    }
}

/// The calling thread's own stream, made when first used.
fn own(call: &process::Call) -> Answer<Arc<Stream>> {
    let mut state = call.state();
    let known = process::own_stream(call.process, call.context);
    if let Some(stream) = known.and_then(|handle| state.streams.get(&handle)) {
        return Ok(Arc::clone(stream));
    }
    let handle = state.handle(process::Kind::Stream);
    let context = state.context_mut(call.context)?;
    let stream = Stream::new(handle, call.context, call.card, context.place, 0, 0, None);
    context.streams.push(Arc::clone(&stream));
    state.streams.insert(handle, Arc::clone(&stream));
    process::keep_own_stream(call.process, call.context, handle);
    Ok(stream)
}
