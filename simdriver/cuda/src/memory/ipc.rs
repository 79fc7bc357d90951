//! Memory and events of one process in another.
//!
//! Memory starts as this process's own. When it is first exported, its pages move to a file in the
//! machine's folder and the same addresses map that file: nobody pays for sharing who does not
//! share. The exporter holds a lock on the file, so that files of processes that were killed are
//! known and go with the next export.

use std::collections::hash_map::Entry;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use machine::Ticket;

use super::pages::{self, BLOCK, Place};
use super::space::{Space, What};
use crate::abi::{Answer, Code, Out, api};
use crate::event::Event;
use crate::process::{Process, here, lock, process};

const PAGE: u64 = 4096;

/// A handle as it goes through the hands of callers.
pub(crate) type Handle = [u8; 64];

/// A handle that is passed by value, in memory.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct HandleValue {
    bytes: Handle,
}

impl HandleValue {
    pub(crate) fn bytes(self) -> Handle {
        self.bytes
    }
}

/// A mapping that others may open.
#[derive(Debug)]
pub(crate) struct Export {
    /// Open, and locked for as long as this process lives.
    _file: File,
    path: PathBuf,
    number: u64,
    length: u64,
}

impl Drop for Export {
    fn drop(&mut self) {
        // Who has it open keeps it; nobody else finds it.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// What a handle says: whose, which, and where in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Words {
    magic: u64,
    process: u64,
    number: u64,
    length: u64,
    offset: u64,
    size: u64,
    card: u64,
}

const MEMORY: u64 = 0x6e67_6d65_6d00;
const EVENT: u64 = 0x6e67_6576_7400;

impl Words {
    fn to_handle(self) -> Handle {
        let mut handle = [0; 64];
        let words =
            [self.magic, self.process, self.number, self.length, self.offset, self.size, self.card];
        for (place, word) in handle.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        handle
    }

    fn read(handle: Handle, magic: u64) -> Answer<Self> {
        let mut words = [0; 8];
        for (word, bytes) in words.iter_mut().zip(handle.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        let [found, process, number, length, offset, size, card, _] = words;
        if found != magic {
            return Err(Code::INVALID_VALUE);
        }
        Ok(Self { magic, process, number, length, offset, size, card })
    }
}

fn folder(process: &Process) -> Answer<PathBuf> {
    let folder = process.joined.machine().folder().join("shared");
    std::fs::create_dir_all(&folder).map_err(|_| Code::OPERATING_SYSTEM)?;
    // Every process of the host may use the GPUs, whoever runs it.
    let _ = std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777));
    Ok(folder)
}

fn path(process: &Process, owner: u64, number: u64) -> Answer<PathBuf> {
    Ok(folder(process)?.join(format!("{owner}-{number}")))
}

/// Removes the files of processes that are gone.
fn sweep(process: &Process) {
    let Ok(folder) = folder(process) else { return };
    let Ok(files) = std::fs::read_dir(folder) else { return };
    let mine = format!("{}-", process.joined.number());
    for entry in files.flatten() {
        if entry.file_name().to_string_lossy().starts_with(&mine) {
            continue;
        }
        let Ok(file) = File::open(entry.path()) else { continue };
        // SAFETY: the descriptor is open.
        let free = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0;
        if free {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Makes a file that lives as long as this process does.
fn make(process: &Process, length: u64) -> Answer<(File, PathBuf, u64)> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    sweep(process);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = path(process, process.joined.number(), number)?;
    let mut options = OpenOptions::new();
    let opened = options.read(true).write(true).create(true).truncate(true).mode(0o666).open(&path);
    let file = opened.map_err(|_| Code::OPERATING_SYSTEM)?;
    // SAFETY: the descriptor is open.
    let locked = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_SH | libc::LOCK_NB) } == 0;
    if !locked || file.set_len(length).is_err() {
        let _ = std::fs::remove_file(&path);
        return Err(Code::OPERATING_SYSTEM);
    }
    Ok((file, path, number))
}

/// The mapping an allocation lies in, which is shared whole.
fn mapping(process: &Process, address: u64) -> Answer<(u64, u64)> {
    let state = process.state();
    let range = state.space.at(address).ok_or(Code::INVALID_VALUE)?;
    let heap = match range.what {
        What::Device if range.charged > 0 => return Ok((range.base, range.charged)),
        What::Device => state.space.blocks.get(&range.context),
        What::Pooled { pool } => state.pools.get(&pool).map(|pool| &pool.heap),
        _ => None,
    };
    heap.and_then(|heap| heap.block_of(range.base)).ok_or(Code::INVALID_VALUE)
}

/// Makes an allocation known to other processes.
pub(crate) fn export(process: &'static Process, address: u64) -> Answer<Handle> {
    let (base, length) = mapping(process, address)?;
    let contexts: Vec<u64> = process.state().contexts.keys().copied().collect();
    contexts.into_iter().try_for_each(|context| crate::context::drain(process, context))?;
    let mut state = process.state();
    let (number, length) = match state.space.exports.entry(base) {
        Entry::Occupied(known) => (known.get().number, known.get().length),
        Entry::Vacant(place) => {
            let (file, path, number) = make(process, length)?;
            let descriptor = file.as_fd().try_clone_to_owned();
            move_to(&descriptor.map_err(|_| Code::OPERATING_SYSTEM)?, base, length)?;
            place.insert(Export { _file: file, path, number, length });
            (number, length)
        }
    };
    let range = state.space.at(address).ok_or(Code::INVALID_VALUE)?;
    let words = Words {
        magic: MEMORY,
        process: process.joined.number(),
        number,
        length,
        offset: range.base - base,
        size: range.size,
        card: process.cards[range.card].place as u64,
    };
    Ok(words.to_handle())
}

/// Moves the pages of a mapping to a file, and maps that in their place.
fn move_to(file: &OwnedFd, base: u64, length: u64) -> Answer {
    let copy = pages::reserve(length, PAGE)?;
    let moved = pages::map_file(copy, length, file, 0).map(|()| {
        // Pages that were never touched stay holes in the file.
        for at in pages::touched(base, length) {
            pages::copy(copy + (at - base), at, 4096);
        }
    });
    pages::unmap(copy, length);
    moved?;
    pages::map_file(base, length, file, 0)
}

/// Opens an allocation of another process.
pub(crate) fn import(process: &Process, handle: Handle, context: u64) -> Answer<u64> {
    let words = Words::read(handle, MEMORY)?;
    if words.process == process.joined.number() {
        return Err(Code::INVALID_CONTEXT);
    }
    let place = usize::try_from(words.card).map_err(|_| Code::INVALID_VALUE)?;
    let card =
        process.cards.iter().position(|card| card.place == place).ok_or(Code::INVALID_DEVICE)?;
    let path = path(process, words.process, words.number)?;
    let file =
        OpenOptions::new().read(true).write(true).open(path).map_err(|_| Code::INVALID_VALUE)?;
    let file: OwnedFd = file.into();
    let end = words.offset.checked_add(words.size).ok_or(Code::INVALID_VALUE)?;
    if words.length != length(&file)? || end > words.length {
        return Err(Code::INVALID_VALUE);
    }
    let base = pages::reserve(words.length, BLOCK)?;
    pages::map_file(base, words.length, &file, 0)
        .inspect_err(|_| pages::unmap(base, words.length))?;
    let mut range =
        Space::new_range(base + words.offset, words.size, What::Imported, card, context);
    // How to take the mapping away again.
    range.charged = words.length;
    range.flags = u32::try_from(words.offset / 512).unwrap_or(0);
    process.state().space.add(range);
    Ok(base + words.offset)
}

fn close(process: &'static Process, address: u64) -> Answer {
    let contexts: Vec<u64> = process.state().contexts.keys().copied().collect();
    contexts.into_iter().try_for_each(|context| crate::context::drain(process, context))?;
    let mut state = process.state();
    if state.space.starting(address)?.what != What::Imported {
        return Err(Code::INVALID_VALUE);
    }
    let range = state.space.remove(address)?;
    pages::unmap(range.base - u64::from(range.flags) * 512, range.charged);
    Ok(())
}

/// The size of a file.
pub(crate) fn length(file: &OwnedFd) -> Answer<u64> {
    let copy = file.try_clone().map_err(|_| Code::OPERATING_SYSTEM)?;
    Ok(File::from(copy).metadata().map_err(|_| Code::INVALID_VALUE)?.len())
}

/// Reads the card out of the name of a file without a name, which is how it travels with it.
pub(crate) fn place_in_name(descriptor: i32, prefix: &str) -> Answer<usize> {
    let link = std::fs::read_link(format!("/proc/self/fd/{descriptor}"));
    let link = link.map_err(|_| Code::INVALID_VALUE)?;
    let name = link.to_string_lossy().into_owned();
    let (_, rest) = name.split_once(prefix).ok_or(Code::INVALID_VALUE)?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().map_err(|_| Code::INVALID_VALUE)
}

/// A page that two processes share: which work an event stands for.
#[derive(Debug)]
pub(crate) struct SharedEvent {
    /// A count that is odd while the words change, then two words.
    page: u64,
    /// Kept by the process that made it.
    export: Option<Export>,
}

impl SharedEvent {
    fn word(&self, index: u64) -> &AtomicU64 {
        // SAFETY: the page is mapped for as long as this lives, and only ever seen as atomics.
        unsafe { &*((self.page + 8 * index) as *const AtomicU64) }
    }

    /// Says which work the event stands for now.
    pub(crate) fn tell(&self, _: &Process, ticket: Ticket) {
        let bytes = ticket.to_bytes();
        let (words, _) = bytes.as_chunks::<8>();
        self.word(0).fetch_add(1, Ordering::AcqRel);
        for (index, bytes) in (1..).zip(words) {
            self.word(index).store(u64::from_le_bytes(*bytes), Ordering::Release);
        }
        self.word(0).fetch_add(1, Ordering::AcqRel);
    }

    /// The work it stands for, if it was ever recorded.
    pub(crate) fn told(&self) -> Option<Ticket> {
        for _ in 0..1_000 {
            let before = self.word(0).load(Ordering::Acquire);
            let words = [1, 2].map(|index| self.word(index).load(Ordering::Acquire));
            let after = self.word(0).load(Ordering::Acquire);
            if before == 0 {
                return None;
            }
            if before == after && before.is_multiple_of(2) {
                let mut bytes = [0; 16];
                bytes[..8].copy_from_slice(&words[0].to_le_bytes());
                bytes[8..].copy_from_slice(&words[1].to_le_bytes());
                return Some(Ticket::from_bytes(bytes));
            }
            std::thread::yield_now();
        }
        // Its writer died in between.
        None
    }
}

impl Drop for SharedEvent {
    fn drop(&mut self) {
        pages::unmap(self.page, PAGE);
    }
}

fn share_page(file: File, export: Option<Export>) -> Answer<SharedEvent> {
    let page = pages::map(PAGE, PAGE, Place::Anywhere)?;
    pages::map_file(page, PAGE, &file.into(), 0)?;
    Ok(SharedEvent { page, export })
}

/// Makes an event known to other processes.
pub(crate) fn export_event(process: &Process, event: &Event) -> Answer<Handle> {
    let mut shared = lock(&event.shared);
    if shared.is_none() {
        let (file, path, number) = make(process, PAGE)?;
        let copy = file.try_clone().map_err(|_| Code::OPERATING_SYSTEM)?;
        let made = share_page(copy, Some(Export { _file: file, path, number, length: PAGE }))?;
        if let Some(ticket) = event.point(process)?.and_then(|point| point.ticket()) {
            made.tell(process, ticket);
        }
        *shared = Some(made);
    }
    let export = shared.as_ref().and_then(|shared| shared.export.as_ref());
    // An event that came from elsewhere is not ours to hand on.
    let export = export.ok_or(Code::INVALID_HANDLE)?;
    let words = Words {
        magic: EVENT,
        process: process.joined.number(),
        number: export.number,
        length: PAGE,
        offset: 0,
        size: PAGE,
        card: 0,
    };
    Ok(words.to_handle())
}

/// Opens an event of another process.
pub(crate) fn import_event(process: &Process, handle: Handle) -> Answer<SharedEvent> {
    let words = Words::read(handle, EVENT)?;
    if words.process == process.joined.number() {
        return Err(Code::INVALID_CONTEXT);
    }
    let path = path(process, words.process, words.number)?;
    let file =
        OpenOptions::new().read(true).write(true).open(path).map_err(|_| Code::INVALID_VALUE)?;
    share_page(file, None)
}

api! {
    fn cuIpcGetMemHandle(handle: Out<Handle>, address: u64) {
        handle.check()?;
        let call = here()?;
        handle.put(export(call.process, address)?)
    }

    fn cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2(address: Out<u64>, handle: HandleValue, flags: u32) {
        address.check()?;
        let call = here()?;
        if flags > 1 { return Err(Code::INVALID_VALUE); }
        address.put(import(call.process, handle.bytes(), call.context)?)
    }

    fn cuIpcCloseMemHandle(address: u64) { close(process()?, address) }
}
