//! One process that uses the devices of a machine.

use std::sync::atomic::Ordering;

use crate::account::{Memory, Refused};
use crate::description::Clock;
use crate::machine::Machine;
use crate::queue::{self, CellId, Line, Ticket, Work, append, has_room, line};
use crate::state::{CELLS, CONTEXTS, DEVICES, Slot, at, get, wide};

/// A card or a MIG slice: its place in the machine. Cards come first, by bus id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub(crate) u8);

impl DeviceId {
    /// The device at a place, if a machine can have it.
    pub fn new(place: usize) -> Option<Self> {
        u8::try_from(place).ok().filter(|_| place < DEVICES).map(Self)
    }

    /// Its place.
    pub fn place(self) -> usize {
        usize::from(self.0)
    }
}

/// A context of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContextId(pub(crate) u8);

/// Why a process cannot join.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// Too many.
    #[error("the machine has as many processes as it can take")]
    Full,
}

/// Why work is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The context is closed.
    #[error("the context is closed")]
    NoContext,
    /// The card is off the bus.
    #[error("the card is lost")]
    Lost,
    /// As much is queued as can be; only [`Process::try_submit`] says so.
    #[error("the queue is full")]
    Full,
}

/// A process of the machine. It is a name only: what it holds is in the shared state, and goes
/// when the operating system's process does.
#[derive(Debug, Clone, Copy)]
pub struct Process {
    pub(crate) machine: &'static Machine,
    pub(crate) slot: usize,
}

impl Process {
    pub(crate) fn at(machine: &'static Machine, slot: usize) -> Self {
        Self { machine, slot }
    }

    pub(crate) fn state(&self) -> &'static Slot {
        &self.machine.state.slots[self.slot]
    }

    /// Its machine.
    pub fn machine(&self) -> &'static Machine {
        self.machine
    }

    /// Its number: it grows with every process that joins.
    pub fn number(&self) -> u64 {
        get(&self.state().name.number)
    }

    /// Ends it before the operating system's process ends: all it held is free.
    pub fn leave(self) {
        self.machine.change_as(&self, |change| {
            self.machine.catch_up(change);
            crate::roster::leave(change, self.slot);
        });
        self.machine.locks.release(self.slot, self.state());
        self.machine.forget_process(self.slot);
        crate::wait::wake_all(self.machine.state);
    }

    /// Opens a context, which costs memory.
    pub fn open_context(&self, device: DeviceId) -> Result<ContextId, Refused> {
        let slot = self.state();
        self.machine.change_as(self, |change| {
            self.machine.check_exclusive(change.state, self.slot, device)?;
            let free = slot.contexts.iter().position(|context| get(context) == 0);
            let Some(place) = free.filter(|place| *place < CONTEXTS) else {
                return Err(Refused::Contexts);
            };
            let cost = self.machine.context_cost(device);
            self.machine.reserve(change, self.slot, device, Memory::Context, cost)?;
            change.set(&slot.contexts[place], wide(device.place() + 1));
            let account = &slot.accounts[device.place()];
            if get(&account.first_context) == 0 {
                change.set(&account.first_context, self.machine.now().max(1));
            }
            Ok(ContextId(u8::try_from(place).unwrap_or(0)))
        })
    }

    /// Closes a context: its work is thrown away and its cost comes back. What was allocated in
    /// it is for the caller to give back.
    pub fn close_context(&self, context: ContextId) {
        let slot = self.state();
        self.machine.change_as(self, |change| {
            let Some(device) = self.device_of(context) else { return };
            let now = self.machine.catch_up(change);
            queue::cancel(change, slot, now, |it| it == usize::from(context.0));
            change.set(&slot.contexts[usize::from(context.0)], 0);
            let cost = self.machine.context_cost(device);
            let account = &slot.accounts[device.place()];
            change.subtract(&account.memory[Memory::Context.place()], cost);
        });
        crate::wait::wake_all(self.machine.state);
    }

    /// The device of a context, while it is open.
    pub fn device_of(&self, context: ContextId) -> Option<DeviceId> {
        let device = self.state().contexts.get(usize::from(context.0))?;
        DeviceId::new(at(device).checked_sub(1)?)
    }

    /// Queues work behind what is in the stream `stream` of a context. Streams are told apart by
    /// a number of the caller's. Sleeps while the queue is full.
    pub fn submit(
        &self,
        context: ContextId,
        stream: u64,
        work: Work,
    ) -> Result<Ticket, SubmitError> {
        loop {
            let seen = self.machine.state.header.wake.load(Ordering::Acquire);
            match self.try_submit(context, stream, work) {
                Err(SubmitError::Full) => self.sleep_until_room(seen),
                other => return other,
            }
        }
    }

    /// Queues work, or says that the queue is full.
    pub fn try_submit(
        &self,
        context: ContextId,
        stream: u64,
        work: Work,
    ) -> Result<Ticket, SubmitError> {
        let slot = self.state();
        let place = usize::from(context.0);
        self.machine.change_as(self, |change| {
            let device = self.device_of(context).ok_or(SubmitError::NoContext)?;
            if self.machine.is_lost(device) {
                return Err(SubmitError::Lost);
            }
            // Behind other work nothing happens to it yet, so nothing need be simulated.
            let behind = matches!(line(slot, place, stream), Line::Busy(_)) && has_room(slot);
            let now =
                if behind { self.machine.keep_up(change) } else { self.machine.catch_up(change) };
            if !has_room(slot) {
                return Err(SubmitError::Full);
            }
            // Catching up may have emptied the line: then the work is first in it, and the
            // simulated time must not lag behind its coming.
            if behind && matches!(line(slot, place, stream), Line::Idle(_)) {
                self.machine.catch_up(change);
            }
            let work = self.machine.within(device, work);
            append(change, self.slot, place, stream, work, now).ok_or(SubmitError::Full)
        })
    }

    fn sleep_until_room(&self, seen: u32) {
        let header = &self.machine.state.header;
        if self.machine.description().clock == Clock::Virtual {
            self.machine.change_as(self, |change| match get(&header.next_event) {
                u64::MAX => {}
                next => self.machine.jump(change, next),
            });
            if get(&header.next_event) != u64::MAX {
                return;
            }
        }
        let next = get(&header.next_event).saturating_sub(self.machine.now());
        // A few at a time: waking for each short kernel would cost more than it runs.
        self.sleep(seen, next.max(50_000));
    }

    /// Opens a gate that was submitted: what is behind it goes on.
    pub fn open_gate(&self, ticket: Ticket) {
        self.machine.change_as(self, |change| {
            let Some(slot) = change.state.slots.get(usize::from(ticket.slot)) else { return };
            let Some(item) = slot.items.get(usize::from(ticket.item)) else { return };
            let same = queue::generation(slot) == ticket.generation;
            if same && get(&item.number) == ticket.number && get(&item.kind) == queue::kind::GATE {
                self.machine.catch_up(change);
                change.set(&item.width, 1);
                change.set(&change.state.header.next_event, 0);
                self.machine.catch_up(change);
            }
        });
        crate::wait::wake_all(self.machine.state);
    }

    /// A place for the moment of an event; `None` if all are in use.
    pub fn new_cell(&self) -> Option<CellId> {
        let slot = self.state();
        self.machine.change_as(self, |change| {
            let free = at(&slot.cells_free);
            if let Some(cell) = free.checked_sub(1).and_then(|place| slot.cells.get(place)) {
                change.set(&slot.cells_free, get(&cell.number));
                change.set(&cell.number, 0);
                return u16::try_from(free - 1).ok().map(CellId);
            }
            let used = at(&slot.cells_used);
            if used >= CELLS {
                return None;
            }
            change.set(&slot.cells_used, wide(used + 1));
            u16::try_from(used).ok().map(CellId)
        })
    }

    /// Gives a cell back. No marker that writes to it may be pending.
    pub fn free_cell(&self, cell: CellId) {
        let slot = self.state();
        self.machine.change_as(self, |change| {
            change.set(&slot.cells[usize::from(cell.0)].number, get(&slot.cells_free));
            change.set(&slot.cells_free, u64::from(cell.0) + 1);
        });
    }

    /// The moment at which the marker of `ticket` was reached, if it was the last to write there.
    pub fn cell_time(&self, cell: CellId, ticket: Ticket) -> Option<u64> {
        self.machine.change_as(self, |change| {
            self.machine.keep_up(change);
            let slot = change.state.slots.get(usize::from(ticket.slot))?;
            let cell = slot.cells.get(usize::from(cell.0))?;
            let same = queue::generation(slot) == ticket.generation;
            (same && get(&cell.number) == ticket.number).then(|| get(&cell.time))
        })
    }

    /// Under MPS: the most of a device's multiprocessors it has at one time, in percent.
    pub fn set_active_percent(&self, percent: u8) {
        self.machine.change_as(self, |change| {
            self.machine.catch_up(change);
            change.set(&self.state().percent, u64::from(percent.min(100)));
            change.set(&change.state.header.next_event, 0);
        });
    }
}
