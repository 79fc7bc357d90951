//! Waiting for something to go wrong.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use machine::{Event, FaultReport};

use crate::abi::{Answer, Handle, Pointer, Status};
use crate::session::{Session, device_handle};
use crate::types::EventData;

/// Kinds of events, as bits.
const SINGLE_BIT: u64 = 1;
const DOUBLE_BIT: u64 = 2;
const XID: u64 = 8;
/// All that a card of this kind can tell: the three above, and changes of performance state and
/// clocks, which never come.
const SUPPORTED: u64 = SINGLE_BIT | DOUBLE_BIT | 4 | XID | 0x10;

/// Sets at one time.
const SETS: usize = 1024;
/// Addresses of these are the handles.
static HANDLES: [u64; SETS] = [0; SETS];

/// What one waits for.
#[derive(Default)]
struct EventSet {
    /// Cards and the kinds of events.
    wanted: Vec<(usize, u64)>,
    /// Reports seen.
    seen: u64,
}

static OPEN: Mutex<Vec<Option<Arc<Mutex<EventSet>>>>> = Mutex::new(Vec::new());

fn create(session: &Session, answer: Pointer<Handle>) -> Answer {
    if answer.is_null() {
        return Err(Status::INVALID_ARGUMENT);
    }
    let set = EventSet { wanted: Vec::new(), seen: session.machine.report_count() };
    let set = Some(Arc::new(Mutex::new(set)));
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let place = open.iter().position(Option::is_none).unwrap_or(open.len());
    let handle = HANDLES.get(place).ok_or(Status::INSUFFICIENT_RESOURCES)?;
    if place == open.len() {
        open.push(set);
    } else {
        open[place] = set;
    }
    answer.put(Handle(std::ptr::from_ref(handle).addr()))
}

fn place(handle: Handle) -> Answer<usize> {
    let offset = handle.0.checked_sub(HANDLES.as_ptr().addr());
    offset.map(|offset| offset / size_of::<u64>()).ok_or(Status::INVALID_ARGUMENT)
}

fn set(handle: Handle) -> Answer<Arc<Mutex<EventSet>>> {
    let open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let found = open.get(place(handle)?).cloned().flatten();
    found.ok_or(Status::INVALID_ARGUMENT)
}

fn kind(report: &FaultReport) -> (u64, u64) {
    match report.event {
        Event::Xid(xid) => (XID, xid),
        Event::SingleBitEcc => (SINGLE_BIT, 0),
        Event::DoubleBitEcc => (DOUBLE_BIT, 0),
    }
}

/// The next report that the set wants, if there is one.
fn next(session: &Session, set: &Mutex<EventSet>) -> Option<EventData> {
    let mut set = set.lock().unwrap_or_else(PoisonError::into_inner);
    for report in session.machine.reports_since(set.seen) {
        set.seen = report.number;
        let (event_type, data) = kind(&report);
        let wanted = |(card, kinds): &(usize, u64)| *card == report.card && kinds & event_type != 0;
        if set.wanted.iter().any(wanted) {
            let device = machine::DeviceId::new(report.card)?;
            return Some(EventData {
                device: device_handle(device),
                event_type,
                data,
                gpu_instance_id: u32::MAX,
                compute_instance_id: u32::MAX,
            });
        }
    }
    None
}

fn wait(session: &Session, handle: Handle, data: Pointer<EventData>, millis: u32) -> Answer {
    if data.is_null() {
        return Err(Status::INVALID_ARGUMENT);
    }
    let set = set(handle)?;
    let deadline = std::time::Instant::now() + Duration::from_millis(u64::from(millis));
    loop {
        if let Some(event) = next(session, &set) {
            return data.put(event);
        }
        let seen = set.lock().unwrap_or_else(PoisonError::into_inner).seen;
        let left = deadline.saturating_duration_since(std::time::Instant::now());
        if left.is_zero() {
            return Err(Status::TIMEOUT);
        }
        session.machine.wait_for_report(seen, left);
    }
}

calls! {
    nvmlEventSetCreate(answer: Pointer<Handle>) |session| {
        create(session, answer)
    }

    nvmlEventSetFree(handle: Handle) |_session| {
        set(handle)?;
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = open.get_mut(place(handle)?) {
            *entry = None;
        }
        Ok(())
    }

    nvmlDeviceRegisterEvents(device: Handle, kinds: u64, handle: Handle) |session| {
        let set = set(handle)?;
        let device = session.card(device)?;
        if kinds & !SUPPORTED != 0 {
            return Err(Status::NOT_SUPPORTED);
        }
        let mut set = set.lock().unwrap_or_else(PoisonError::into_inner);
        set.wanted.push((device.place(), kinds));
        Ok(())
    }

    nvmlDeviceGetSupportedEventTypes(device: Handle, answer: Pointer<u64>) |session| {
        session.card(device)?;
        answer.put(SUPPORTED)
    }

    nvmlEventSetWait(handle: Handle, data: Pointer<EventData>, millis: u32) |session| {
        wait(session, handle, data, millis)
    }

    nvmlEventSetWait_v2(handle: Handle, data: Pointer<EventData>, millis: u32) |session| {
        wait(session, handle, data, millis)
    }
}
