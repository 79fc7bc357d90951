//! The machine as this library sees it: the one file that knows its interface.

use std::sync::OnceLock;

use machine::cards::{Facts, facts};
use machine::{
    CellId, ContextId, DeviceId, Event, Machine, Presence, Progress, Refused, SubmitError, Ticket,
    Work,
};

pub(crate) use machine::Memory;

use crate::abi::{Answer, Code};
use crate::copy::plan::Way;
use crate::process::Process;

/// A card that this process may use, or a slice of one.
pub(crate) struct Card {
    pub(crate) id: DeviceId,
    /// Its card's place in the machine.
    pub(crate) place: usize,
    pub(crate) name: String,
    pub(crate) uuid: [u8; 16],
    pub(crate) multiprocessors: u32,
    pub(crate) memory: u64,
    pub(crate) facts: Facts,
    pub(crate) described: machine::Card,
}

/// This process in the machine.
pub(crate) struct Joined {
    process: machine::Process,
}

/// The machine, found once; a machine that is not there stays away.
fn machine() -> Answer<&'static Machine> {
    Machine::find().map_err(|_| Code::NO_DEVICE)
}

/// As CUDA counts: 12040 is 12.4.
pub(crate) fn cuda_version() -> Answer<u32> {
    // Programs look up hundreds of names when they start.
    static KNOWN: OnceLock<u32> = OnceLock::new();
    if let Some(known) = KNOWN.get() {
        return Ok(*known);
    }
    let found = u32::try_from(machine()?.description().cuda.number()).map_err(|_| Code::UNKNOWN)?;
    Ok(*KNOWN.get_or_init(|| found))
}

/// Joins the machine, and finds the cards that are for this process.
pub(crate) fn join() -> Answer<(Joined, Vec<Card>)> {
    let machine = machine()?;
    match machine.presence() {
        Presence::Ready => {}
        Presence::NoDriver => return Err(Code::NO_DEVICE),
        Presence::Mismatch => return Err(Code::SYSTEM_DRIVER_MISMATCH),
    }
    let process = machine.process().map_err(|_| Code::OPERATING_SYSTEM)?;
    let cards: Vec<Card> =
        devices(machine).into_iter().filter_map(|id| card(machine, id)).collect();
    let cards = match std::env::var("CUDA_VISIBLE_DEVICES") {
        Ok(wanted) => only_one_slice(chosen(cards, &wanted)),
        Err(_) => only_one_slice(cards),
    };
    if let Some(percent) = active_percent() {
        process.set_active_percent(percent);
    }
    Ok((Joined { process }, cards))
}

/// Cards and slices: a card in MIG mode cannot be used as a whole.
fn devices(machine: &'static Machine) -> Vec<DeviceId> {
    let mut devices = Vec::new();
    for id in machine.visible() {
        if machine.mig(id.place()) {
            devices.extend(machine.compute_instances(id.place()).iter().map(|slice| slice.device));
        } else {
            devices.push(id);
        }
    }
    devices
}

/// A process of CUDA uses one slice and no card besides, or cards only.
fn only_one_slice(mut cards: Vec<Card>) -> Vec<Card> {
    if let Some(slice) = cards.iter().position(|card| card.id.place() != card.place) {
        cards.swap(0, slice);
        cards.truncate(1);
    }
    cards
}

/// The share of multiprocessors that a client of MPS asks for.
fn active_percent() -> Option<u8> {
    let text = std::env::var("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE").ok()?;
    text.trim().parse::<f32>().ok().filter(|percent| (0.0..=100.0).contains(percent)).map(
        |percent| {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "between 0 and 100 by the filter above"
            )]
            let whole = percent.ceil() as u8;
            whole
        },
    )
}

fn card(machine: &'static Machine, id: DeviceId) -> Option<Card> {
    let place = machine.card_of(id);
    let described = machine.description().cards.get(place)?.clone();
    let count = machine.memory(id)?;
    let slices = machine.compute_instances(place);
    let slice = slices.iter().find(|slice| slice.device == id);
    let (name, uuid) = match slice {
        Some(slice) => {
            (format!("{} MIG {}", described.model, slice.of.profile.name), machine.mig_uuid(id))
        }
        None => (described.model.clone(), described.uuid.clone()),
    };
    Some(Card {
        id,
        place,
        name,
        uuid: uuid_bytes(&uuid)?,
        multiprocessors: machine.multiprocessors(id),
        memory: count.total.saturating_sub(count.reserved),
        facts: facts(&described.model),
        described,
    })
}

/// The sixteen bytes of `GPU-` or `MIG-` and a UUID.
fn uuid_bytes(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.split_once('-')?.1.chars().filter(|c| *c != '-').collect();
    let mut bytes = [0; 16];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(digits.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(bytes)
}

/// What `CUDA_VISIBLE_DEVICES` leaves: indices or beginnings of UUIDs, up to the first that names
/// nothing.
fn chosen(cards: Vec<Card>, wanted: &str) -> Vec<Card> {
    let mut left: Vec<Option<Card>> = cards.into_iter().map(Some).collect();
    let mut order = Vec::new();
    for word in wanted.split(',').map(str::trim) {
        let index = match word.parse::<usize>() {
            Ok(index) => Some(index),
            Err(_) => left.iter().position(|card| card.as_ref().is_some_and(|card| is(card, word))),
        };
        match index.and_then(|index| left.get_mut(index)).and_then(Option::take) {
            Some(card) => order.push(card),
            None => break,
        }
    }
    order
}

fn is(card: &Card, word: &str) -> bool {
    let Some((_, digits)) = word.split_once('-') else { return false };
    let digits: Vec<u32> = digits.chars().filter_map(|c| c.to_digit(16)).collect();
    let halves = card.uuid.iter().flat_map(|byte| [u32::from(byte >> 4), u32::from(byte & 15)]);
    !digits.is_empty() && digits.iter().copied().eq(halves.take(digits.len()))
}

fn refused(refused: Refused) -> Code {
    match refused {
        Refused::OutOfMemory { .. } | Refused::Contexts => Code::OUT_OF_MEMORY,
        Refused::NoDevice => Code::INVALID_DEVICE,
        Refused::Lost => Code::UNKNOWN,
        Refused::Exclusive => Code::DEVICE_UNAVAILABLE,
    }
}

impl Joined {
    pub(crate) fn machine(&self) -> &'static Machine {
        self.process.machine()
    }

    /// This process in the machine, by number.
    pub(crate) fn number(&self) -> u64 {
        self.process.number()
    }

    /// What this process holds of a card.
    pub(crate) fn holds(&self, card: &Card, kind: Memory) -> u64 {
        self.process.holds(card.id, kind)
    }

    /// Whether a card is on the bus. A driver whose card fell off says "unknown error" to all.
    pub(crate) fn healthy(&self, card: &Card) -> Answer {
        if self.machine().is_lost(card.id) { Err(Code::UNKNOWN) } else { Ok(()) }
    }

    pub(crate) fn reserve(&self, card: &Card, kind: Memory, bytes: u64) -> Answer {
        self.process.reserve(card.id, kind, bytes).map_err(refused)
    }

    pub(crate) fn release(&self, card: &Card, kind: Memory, bytes: u64) {
        if bytes > 0 {
            self.process.give_back(card.id, kind, bytes);
        }
    }

    /// Free and all bytes of a card, as a process may use them.
    pub(crate) fn memory(&self, card: &Card) -> Answer<(u64, u64)> {
        let count = self.machine().memory(card.id).ok_or(Code::INVALID_DEVICE)?;
        Ok((count.free, count.total.saturating_sub(count.reserved)))
    }

    pub(crate) fn open_context(&self, card: &Card) -> Answer<ContextId> {
        self.process.open_context(card.id).map_err(refused)
    }

    pub(crate) fn close_context(&self, place: ContextId) {
        self.process.close_context(place);
    }

    pub(crate) fn submit(&self, context: ContextId, key: u64, work: Work) -> Answer<Ticket> {
        self.process.submit(context, key, work).map_err(|error| match error {
            SubmitError::NoContext => Code::CONTEXT_IS_DESTROYED,
            SubmitError::Lost => Code::UNKNOWN,
            SubmitError::Full => Code::OUT_OF_MEMORY,
        })
    }

    pub(crate) fn poll(&self, ticket: Ticket) -> Progress {
        self.process.poll(ticket)
    }

    pub(crate) fn is_over(&self, ticket: Ticket) -> bool {
        self.process.poll(ticket).is_over()
    }

    pub(crate) fn wait(&self, ticket: Ticket) -> Progress {
        self.process.wait(ticket)
    }

    /// Why work on a card was thrown away, by the last fault there.
    pub(crate) fn why_lost(&self, card: &Card) -> Code {
        if self.machine().is_lost(card.id) {
            return Code::UNKNOWN;
        }
        let reports = self.machine().reports_since(0);
        let last = reports.iter().rfind(|report| report.card == card.place);
        match last.map(|report| report.event) {
            Some(Event::DoubleBitEcc | Event::Xid(48 | 63 | 64 | 94 | 95)) => {
                Code::ECC_UNCORRECTABLE
            }
            Some(Event::Xid(79)) | None => Code::UNKNOWN,
            Some(_) => Code::LAUNCH_FAILED,
        }
    }

    /// Waits, and says so if the work was thrown away.
    pub(crate) fn wait_well(&self, ticket: Ticket) -> Answer {
        match self.process.wait(ticket) {
            Progress::Cancelled => Err(Code::UNKNOWN),
            _ => Ok(()),
        }
    }

    pub(crate) fn ended(&self, ticket: Ticket) -> Option<u64> {
        match self.process.poll(ticket) {
            Progress::Done(times) => Some(times.ended),
            _ => None,
        }
    }

    pub(crate) fn open_gate(&self, ticket: Ticket) {
        self.process.open_gate(ticket);
    }

    pub(crate) fn new_cell(&self) -> Option<CellId> {
        self.process.new_cell()
    }

    pub(crate) fn free_cell(&self, cell: CellId) {
        self.process.free_cell(cell);
    }

    pub(crate) fn moment(&self, cell: CellId, ticket: Ticket) -> Option<u64> {
        self.process.cell_time(cell, ticket)
    }

    /// Whether two cards can use each other's memory: over their own links, or on one socket.
    pub(crate) fn reaches(&self, process: &Process, one: usize, other: usize) -> bool {
        let (one, other) = (&process.cards[one], &process.cards[other]);
        if one.place == other.place
            || one.id.place() != one.place
            || other.id.place() != other.place
        {
            return false;
        }
        let (hop, links) = self.machine().description().link(one.place, other.place);
        links > 0 || hop != machine::Hop::CrossSocket
    }

    /// How many links of the fast kind join two cards.
    pub(crate) fn links(&self, process: &Process, one: usize, other: usize) -> u8 {
        let (one, other) = (process.cards[one].place, process.cards[other].place);
        self.machine().description().link(one, other).1
    }

    /// What the machine's description says of a kernel: nanoseconds and multiprocessors.
    pub(crate) fn scripted(&self, name: &str) -> Option<machine::Kernel> {
        self.machine().description().kernels.get(name).copied()
    }
}

impl Card {
    /// What a copy asks of the copy engines: a start, and then so many bytes a nanosecond.
    pub(crate) fn copy(&self, way: Way, bytes: u64) -> Work {
        // PCIe of generation 3 moves 12 GB/s, and each generation twice as much as the one before.
        let pcie = 12 << self.facts.pcie.saturating_sub(3).min(3);
        let (clock, _) = self.facts.clocks;
        // Memory is read and written: half its rate, which is two transfers a clock.
        let local = (u64::from(clock) * u64::from(self.facts.bus_width) / 8 / 1000).max(1);
        let (engine, rate) = match way {
            Way::ToDevice => (0, pcie),
            Way::ToHost => (1, pcie),
            Way::OnDevice => (2, local),
            Way::OnHost => (0, 10),
        };
        Work::Copy { engine, nanoseconds: 1_000 + bytes / rate }
    }

    /// Threads that a multiprocessor holds at one time.
    pub(crate) fn threads(&self) -> u32 {
        self.facts.threads
    }
}
