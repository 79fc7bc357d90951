//! What is asked of a stream, and how it is carried out.

use std::sync::Arc;

use machine::{Ticket, Work};

use super::{Effect, Stream};
use crate::abi::{Answer, Code};
use crate::copy::plan::{Fill, Plan};
use crate::event::Event;
use crate::graph;
use crate::launch::Launch;
use crate::memory::pool;
use crate::process::{Call, Process};

/// A function of the caller's, and what it wants to be told.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostCall {
    pub(crate) function: Option<extern "C" fn(*mut std::ffi::c_void)>,
    pub(crate) data: usize,
}

/// A function of the caller's of the older kind, which is told stream and status.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Callback {
    pub(crate) function: Option<extern "C" fn(u64, u32, *mut std::ffi::c_void)>,
    pub(crate) data: usize,
    pub(crate) stream: u64,
}

/// A word of memory that is written or waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WordOrder {
    pub(crate) address: u64,
    pub(crate) value: u64,
    /// 4 or 8 bytes.
    pub(crate) width: usize,
    /// How to compare, for a wait.
    pub(crate) compare: Option<u32>,
}

/// Something asked of a stream.
#[derive(Clone)]
pub(crate) enum Order {
    Kernel(Launch),
    Copy(Plan),
    Fill(Fill),
    Host(HostCall),
    Callback(Callback),
    Record(Arc<Event>),
    Wait(Arc<Event>),
    Free(u64),
    Words(Vec<WordOrder>),
    /// Memory of a graph comes and goes.
    GraphAlloc {
        card: usize,
        address: u64,
        size: u64,
    },
    GraphFree {
        card: usize,
        address: u64,
    },
    Nothing,
}

/// Does what a stream is asked, or notes it down if the stream is being captured.
pub(crate) fn issue(call: &Call, stream: &Arc<Stream>, order: Order) -> Answer {
    if let Some(member) = stream.member() {
        return super::capture::note(call, stream, &member, order);
    }
    issue_for_waiter(call, stream, order)?;
    stream.wake_worker(call.process);
    Ok(())
}

/// Does what a stream is asked, for a caller that will wait for it at once.
pub(crate) fn issue_for_waiter(call: &Call, stream: &Arc<Stream>, order: Order) -> Answer {
    step_in(call, stream)?;
    carry_out(call.process, stream, stream.key, order).map(|_| ())
}

/// Keeps the legacy stream and the streams that block with it in step.
pub(crate) fn step_in(call: &Call, stream: &Arc<Stream>) -> Answer {
    if !stream.blocking() {
        return Ok(());
    }
    let others: Vec<Arc<Stream>> = {
        let state = call.state();
        let context = state.context(stream.context)?;
        if Arc::ptr_eq(stream, &context.legacy) {
            context.streams.iter().filter(|other| other.blocking()).cloned().collect()
        } else {
            vec![Arc::clone(&context.legacy)]
        }
    };
    for other in others {
        if other.member().is_some() {
            return Err(Code::STREAM_CAPTURE_IMPLICIT);
        }
        if !other.idle(call.process) {
            stream.wait_for(call.process, &other.point())?;
        }
    }
    Ok(())
}

/// Who waits for the legacy stream waits for the streams in step with it, and the other way round.
pub(crate) fn sync_with_legacy(call: &Call, stream: &Arc<Stream>) -> Answer {
    step_in(call, stream)
}

/// Submits an order to the machine under `key`, which is the stream's own or that of a branch of
/// a graph; its effect is queued in the stream.
pub(crate) fn carry_out(
    process: &'static Process,
    stream: &Arc<Stream>,
    key: u64,
    order: Order,
) -> Answer<Option<Ticket>> {
    let submit = |work: Work| {
        if key == stream.key {
            stream.submit(process, work)
        } else {
            process.joined.submit(stream.place, key, work)
        }
    };
    let effect = |after: Ticket, early: bool, run: Box<dyn FnOnce(&Process) + Send>| {
        stream.push(process, Effect { after: Some(after), run, gate: None, early });
    };
    // What runs on the host holds up what is behind it, so it stands between a mark and a gate.
    let gated = |run: Box<dyn FnOnce(&Process) + Send>| {
        let after = submit(Work::Marker { cell: None })?;
        let gate = submit(Work::Gate)?;
        stream.push(process, Effect { after: Some(after), run, gate: Some(gate), early: false });
        Ok(gate)
    };
    let ticket = match order {
        Order::Kernel(launch) => submit(launch.work())?,
        Order::Copy(plan) => {
            let ticket = submit(plan.work(process, stream.card))?;
            effect(ticket, plan.early(), Box::new(move |_| plan.run()));
            ticket
        }
        Order::Fill(fill) => {
            let ticket = submit(fill.work(process, stream.card))?;
            effect(ticket, true, Box::new(move |_| fill.run()));
            ticket
        }
        Order::Host(host) => gated(Box::new(move |_| {
            if let Some(function) = host.function {
                function(host.data as *mut _);
            }
        }))?,
        Order::Callback(callback) => gated(Box::new(move |_| {
            if let Some(function) = callback.function {
                function(callback.stream, 0, callback.data as *mut _);
            }
        }))?,
        Order::Record(event) => {
            let ticket = event.submit(process, stream, &submit)?;
            event.recorded(process, stream.point().at(ticket));
            ticket
        }
        Order::Wait(event) => {
            let Some(point) = event.point(process)? else { return Ok(None) };
            if key == stream.key {
                stream.wait_for(process, &point)?;
                return Ok(None);
            }
            match point.ticket() {
                Some(ticket) => submit(Work::Wait(ticket))?,
                None => return Ok(None),
            }
        }
        Order::Free(address) => {
            let ticket = submit(Work::Marker { cell: None })?;
            effect(ticket, false, Box::new(move |process| pool::freed(process, address)));
            ticket
        }
        Order::Words(words) => gated(Box::new(move |_| words.iter().for_each(WordOrder::run)))?,
        Order::GraphAlloc { card, address, size } => {
            graph::memory::taken(process, card, address, size);
            return Ok(None);
        }
        Order::GraphFree { card, address } => {
            let ticket = submit(Work::Marker { cell: None })?;
            let run = move |process: &Process| graph::memory::freed(process, card, address);
            effect(ticket, false, Box::new(run));
            ticket
        }
        Order::Nothing => return Ok(None),
    };
    Ok(Some(ticket))
}

impl WordOrder {
    /// Writes the word, or waits for it; memory does not tell when it changes, so it is looked at
    /// again and again, with pauses.
    fn run(&self) {
        let Some(compare) = self.compare else {
            crate::memory::pages::store(self.address, self.value, self.width);
            return;
        };
        while !satisfied(
            crate::memory::pages::load(self.address, self.width),
            self.value,
            self.width,
            compare,
        ) {
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
    }
}

/// The comparisons of the API: not below (by cyclic difference), equal, any common bit, nor.
fn satisfied(word: u64, value: u64, width: usize, compare: u32) -> bool {
    let narrow = |wide: u64| if width == 4 { wide & u64::from(u32::MAX) } else { wide };
    let (word, value) = (narrow(word), narrow(value));
    match compare & 3 {
        0 if width == 4 => narrow(word.wrapping_sub(value)) >> 31 == 0,
        0 => word.wrapping_sub(value) >> 63 == 0,
        1 => word == value,
        2 => word & value != 0,
        _ => narrow(!(word | value)) != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::satisfied;

    #[test]
    fn words_compare_as_the_api_says() {
        assert!(satisfied(5, 5, 4, 0) && satisfied(6, 5, 4, 0) && !satisfied(4, 5, 4, 0));
        assert!(satisfied(1, u64::from(u32::MAX), 4, 0), "a counter that went round is ahead");
        assert!(satisfied(1, u64::MAX, 8, 0) && !satisfied(u64::MAX, 1, 8, 0));
        assert!(satisfied(7, 7, 8, 1) && !satisfied(6, 7, 8, 1));
        assert!(satisfied(6, 2, 4, 2) && !satisfied(6, 1, 4, 2));
        assert!(satisfied(6, 1, 4, 3) && !satisfied(u64::from(u32::MAX), 0, 4, 3));
    }
}
