//! Work in line: how it joins a stream, and how it leaves.

use crate::journal::Change;
use crate::state::{Item, QUEUE, STREAMS, Slot, State, Stream, at, get, wide};

/// What an item is, as a word.
pub(crate) mod kind {
    pub(crate) const KERNEL: u64 = 1;
    pub(crate) const COPY: u64 = 2;
    pub(crate) const MARKER: u64 = 3;
    pub(crate) const WAIT: u64 = 4;
    pub(crate) const GATE: u64 = 5;
}

/// Something for a device to do, in the order of its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// A kernel that keeps `multiprocessors` busy for `nanoseconds`, if it gets them all at once.
    Kernel {
        /// How many it can use; more than the device has counts as all.
        multiprocessors: u32,
        /// How long it takes with that many; 0 counts as 1.
        nanoseconds: u64,
    },
    /// A copy on one of the copy engines.
    Copy {
        /// Which; counted round if the device has fewer.
        engine: u32,
        /// How long it takes; 0 counts as 1.
        nanoseconds: u64,
    },
    /// Nothing: it is finished when all before it in its stream is.
    Marker {
        /// Where its moment is kept for as long as wanted.
        cell: Option<CellId>,
    },
    /// Nothing until other work is finished, of whatever stream, device or process.
    Wait(Ticket),
    /// Nothing until [`crate::Process::open_gate`]: for callbacks on the host.
    Gate,
}

/// One piece of work that was submitted. Plain numbers: it may go to another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket {
    pub(crate) slot: u16,
    pub(crate) item: u16,
    pub(crate) generation: u32,
    pub(crate) number: u64,
}

impl Ticket {
    /// As bytes, for a handle that another process reads.
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&self.slot.to_le_bytes());
        bytes[2..4].copy_from_slice(&self.item.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.generation.to_le_bytes());
        bytes[8..].copy_from_slice(&self.number.to_le_bytes());
        bytes
    }

    /// From the bytes of [`Ticket::to_bytes`]. Bytes that are no ticket's give one that counts
    /// as finished.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        let [slot, slot_high, item, item_high, rest @ ..] = bytes;
        let (mut generation, mut number) = ([0; 4], [0; 8]);
        generation.copy_from_slice(&rest[..4]);
        number.copy_from_slice(&rest[4..]);
        Self {
            slot: u16::from_le_bytes([slot, slot_high]),
            item: u16::from_le_bytes([item, item_high]),
            generation: u32::from_le_bytes(generation),
            number: u64::from_le_bytes(number),
        }
    }

    fn words(self) -> [u64; 3] {
        let slot = u64::from(self.slot) << 16 | u64::from(self.item);
        [slot, u64::from(self.generation), self.number]
    }
}

/// A place of a process where a moment is kept, for an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CellId(pub(crate) u16);

/// When work began and ended, in device time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Times {
    /// When it first ran.
    pub started: u64,
    /// When it was finished.
    pub ended: u64,
}

/// How far work is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Not finished.
    Pending,
    /// Finished, at these times.
    Done(Times),
    /// Finished so long ago that its times are forgotten.
    Forgotten,
    /// Thrown away: its context, its process or its card is gone.
    Cancelled,
}

impl Progress {
    /// Whether nothing more will happen to it.
    pub fn is_over(self) -> bool {
        self != Self::Pending
    }
}

/// How far the work of a ticket is, as of the time up to which was simulated.
pub(crate) fn progress(state: &State, ticket: Ticket) -> Progress {
    let Some(slot) = state.slots.get(usize::from(ticket.slot)) else { return Progress::Cancelled };
    if generation(slot) != ticket.generation {
        return Progress::Cancelled;
    }
    let Some(item) = slot.items.get(usize::from(ticket.item)) else { return Progress::Cancelled };
    if get(&item.number) == ticket.number {
        return Progress::Pending;
    }
    if get(&item.last_number) != ticket.number {
        return Progress::Forgotten;
    }
    if get(&item.cancelled) == 1 {
        return Progress::Cancelled;
    }
    Progress::Done(Times { started: get(&item.started), ended: get(&item.ended) })
}

pub(crate) fn generation(slot: &Slot) -> u32 {
    u32::try_from(get(&slot.generation) & u64::from(u32::MAX)).unwrap_or(0)
}

/// The item behind a link.
pub(crate) fn item_at(slot: &Slot, link: u64) -> Option<(usize, &Item)> {
    let place = usize::try_from(link).ok()?.checked_sub(1)?;
    slot.items.get(place).map(|item| (place, item))
}

/// What an item waits for.
pub(crate) fn target(item: &Item) -> Ticket {
    let place = get(&item.target[0]);
    let part = |value: u64| u16::try_from(value & 0xffff).unwrap_or(0);
    Ticket {
        slot: part(place >> 16),
        item: part(place),
        generation: u32::try_from(get(&item.target[1])).unwrap_or(0),
        number: get(&item.target[2]),
    }
}

/// Whether a stream has work, and a place for one that has none.
pub(crate) enum Line {
    Busy(usize),
    Idle(usize),
    /// All places are taken.
    Full,
}

/// Finds the line of a stream.
pub(crate) fn line(slot: &Slot, context: usize, key: u64) -> Line {
    let mut free = None;
    let mut left = at(&slot.active);
    for (place, stream) in slot.streams.iter().enumerate() {
        match get(&stream.context) {
            0 => free = free.or(Some(place)),
            owner if owner == wide(context + 1) && get(&stream.key) == key => {
                return Line::Busy(place);
            }
            _ => left = left.saturating_sub(1),
        }
        if left == 0 && free.is_some() {
            break;
        }
    }
    free.map_or(Line::Full, Line::Idle)
}

/// Whether a process can queue one more.
pub(crate) fn has_room(slot: &Slot) -> bool {
    at(&slot.pending) < QUEUE
}

/// Puts work at the end of a line. There must be room.
pub(crate) fn append(
    change: &Change,
    place: usize,
    context: usize,
    key: u64,
    work: Work,
    now: u64,
) -> Option<Ticket> {
    let slot = &change.state.slots[place];
    let (index, idle) = match line(slot, context, key) {
        Line::Busy(index) => (index, false),
        Line::Idle(index) => (index, true),
        Line::Full => return None,
    };
    let stream = &slot.streams[index];
    let link = take_item(change, slot)?;
    let (item_place, item) = item_at(slot, link)?;
    let number = change.next_number();
    fill(change, item, work);
    change.set(&item.number, number);
    change.set(&item.last_number, number);
    change.set(&item.context, wide(context));
    change.set(&item.stream, wide(index));
    change.set(&item.next, 0);
    change.set(&item.started, now);
    change.set(&item.running, 0);
    change.set(&item.cancelled, 0);
    change.add(&slot.pending, 1);
    if idle {
        change.set(&stream.key, key);
        change.set(&stream.context, wide(context + 1));
        change.set(&stream.first, link);
        change.set(&item.ready, number);
        change.add(&slot.active, 1);
        change.set(&change.state.header.next_event, 0);
    } else if let Some((_, last)) = item_at(slot, get(&stream.last)) {
        change.set(&last.next, link);
    }
    change.set(&stream.last, link);
    Some(Ticket {
        slot: u16::try_from(place).ok()?,
        item: u16::try_from(item_place).ok()?,
        generation: generation(slot),
        number,
    })
}

fn fill(change: &Change, item: &Item, work: Work) {
    let (kind, width, length, left) = match work {
        Work::Kernel { multiprocessors, nanoseconds } => {
            let (width, length) = (u64::from(multiprocessors.max(1)), nanoseconds.max(1));
            (kind::KERNEL, width, length, width.saturating_mul(length))
        }
        Work::Copy { engine, nanoseconds } => {
            (kind::COPY, u64::from(engine), nanoseconds.max(1), nanoseconds.max(1))
        }
        Work::Marker { .. } => (kind::MARKER, 0, 0, 0),
        Work::Wait(_) => (kind::WAIT, 0, 0, 0),
        Work::Gate => (kind::GATE, 0, 0, 0),
    };
    change.set(&item.kind, kind);
    change.set(&item.width, width);
    change.set(&item.length, length);
    change.set(&item.left, left);
    let cell = if let Work::Marker { cell: Some(cell) } = work { u64::from(cell.0) + 1 } else { 0 };
    change.set(&item.cell, cell);
    if let Work::Wait(ticket) = work {
        for (word, value) in item.target.iter().zip(ticket.words()) {
            change.set(word, value);
        }
    }
}

/// A link to an item that is free: one never used, else the one unused for longest, so that the
/// times of finished work stay readable for as long as possible.
fn take_item(change: &Change, slot: &Slot) -> Option<u64> {
    let fresh = at(&slot.fresh);
    if fresh < QUEUE {
        change.set(&slot.fresh, wide(fresh + 1));
        return Some(wide(fresh + 1));
    }
    let link = get(&slot.free_first);
    let (_, item) = item_at(slot, link)?;
    change.set(&slot.free_first, get(&item.next));
    if get(&item.next) == 0 {
        change.set(&slot.free_last, 0);
    }
    Some(link)
}

/// How an item ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Finished,
    Cancelled,
}

/// Takes the first item out of a line.
pub(crate) fn finish_first(
    change: &Change,
    slot: &Slot,
    stream: &Stream,
    time: u64,
    ending: Ending,
) {
    let link = get(&stream.first);
    let Some((_, item)) = item_at(slot, link) else { return };
    if get(&item.running) == 0 {
        change.set(&item.started, time);
    }
    change.set(&item.ended, time);
    change.set(&item.running, 0);
    if ending == Ending::Cancelled {
        change.set(&item.cancelled, 1);
    } else if let Some(cell) = at(&item.cell).checked_sub(1).and_then(|cell| slot.cells.get(cell)) {
        change.set(&cell.number, get(&item.number));
        change.set(&cell.time, time);
    }
    change.set(&item.number, 0);
    change.subtract(&slot.pending, 1);
    let next = get(&item.next);
    change.set(&stream.first, next);
    if let Some((_, behind)) = item_at(slot, next) {
        let number = change.next_number();
        change.set(&behind.ready, number);
    } else {
        change.set(&stream.last, 0);
        change.set(&stream.context, 0);
        change.subtract(&slot.active, 1);
    }
    give_item_back(change, slot, link, item);
}

fn give_item_back(change: &Change, slot: &Slot, link: u64, item: &Item) {
    change.set(&item.next, 0);
    match item_at(slot, get(&slot.free_last)) {
        Some((_, last)) => change.set(&last.next, link),
        None => change.set(&slot.free_first, link),
    }
    change.set(&slot.free_last, link);
}

/// Throws away the work of the contexts that `which` names.
pub(crate) fn cancel(change: &Change, slot: &Slot, time: u64, which: impl Fn(usize) -> bool) {
    if get(&slot.active) == 0 {
        return;
    }
    for stream in &slot.streams {
        while at(&stream.context).checked_sub(1).is_some_and(&which) {
            finish_first(change, slot, stream, time, Ending::Cancelled);
        }
    }
    change.set(&change.state.header.next_event, 0);
}

/// The lines of a process that have work.
pub(crate) fn lines(slot: &Slot) -> impl Iterator<Item = &Stream> {
    let mut left = at(&slot.active).min(STREAMS);
    let mut streams = slot.streams.iter();
    std::iter::from_fn(move || {
        // Once all were seen the rest of the array is not touched.
        left = left.checked_sub(1)?;
        streams.find(|stream| get(&stream.context) != 0)
    })
}
