//! What the processes of a machine share, word by word.
//!
//! A file of zeroes is a valid state: every word is atomic and zero means nothing, none or free.
//! All words but the lock's, the claims' and the wake-ups' change only inside a
//! [`crate::journal::Change`], so that a process killed half-way leaves no trace.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Of this layout; a library refuses the state of another.
pub(crate) const VERSION: u64 = 3;
/// The first word of every state.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"simgpu\0\0");

/// Processes at one time. A process that loads both libraries takes two.
pub const SLOTS: usize = 512;
/// Cards of a machine.
pub const CARDS: usize = 16;
/// Cards and MIG slices: the cards come first.
pub const DEVICES: usize = CARDS + 64;
/// Work of one process that is not finished.
pub const QUEUE: usize = 1024;
/// Streams of one process that have unfinished work.
pub const STREAMS: usize = 128;
/// Moments that a process can have kept for it, one for each of its events.
pub const CELLS: usize = 4096;
/// Contexts of one process.
pub const CONTEXTS: usize = 128;
/// Faults that are remembered for those who wait for them.
pub const REPORTS: usize = 256;
/// Processes that are remembered after their end.
pub(crate) const GONE: usize = 256;
/// Kinds of memory.
pub(crate) const KINDS: usize = 8;
/// Counters of errors of a card.
pub(crate) const COUNTERS: usize = 24;
/// Settings of a card.
pub(crate) const SETTINGS: usize = 16;
/// Memory limits of control groups, over all cards.
pub(crate) const LIMITS: usize = 256;
/// Old values that one change can take back.
pub(crate) const JOURNAL: usize = 1 << 16;

/// How long a bucket of busy time is: a sixth of a second, the sampling period of the driver.
pub const BUCKET: u64 = 1_000_000_000 / 6;
/// Buckets kept of a card.
pub(crate) const CARD_BUCKETS: usize = 64;
/// Buckets kept of a process on a card.
pub(crate) const PROCESS_BUCKETS: usize = 8;

/// One word.
pub(crate) type Word = AtomicU64;

/// Reads a word.
pub(crate) fn get(word: &Word) -> u64 {
    word.load(Ordering::Acquire)
}

/// Reads a word that holds a place in an array, or a count.
pub(crate) fn at(word: &Word) -> usize {
    usize::try_from(get(word)).unwrap_or(usize::MAX)
}

/// Widens a place in an array.
pub(crate) fn wide(place: usize) -> u64 {
    place as u64
}

#[repr(C)]
pub(crate) struct State {
    pub(crate) header: Header,
    pub(crate) journal: Journal,
    pub(crate) devices: [Device; DEVICES],
    pub(crate) reports: [Report; REPORTS],
    pub(crate) limits: [Limit; LIMITS],
    pub(crate) gone: [Gone; GONE],
    pub(crate) slots: [Slot; SLOTS],
}

#[repr(C)]
pub(crate) struct Header {
    pub(crate) magic: Word,
    pub(crate) version: Word,
    /// The lock; see `lock.rs`.
    pub(crate) lock: AtomicU32,
    /// Changes when a plan did that a sleeper may depend on.
    pub(crate) wake: AtomicU32,
    /// Changes with every report of a fault.
    pub(crate) reported: AtomicU32,
    pub(crate) padding: AtomicU32,
    /// Device time up to which everything was simulated.
    pub(crate) time: Word,
    /// The host's clock at device time 0, as a signed number.
    pub(crate) epoch: Word,
    /// The clock of a machine whose time is virtual.
    pub(crate) virtual_now: Word,
    /// Nothing changes by itself before this device time; 0 if that was not worked out.
    pub(crate) next_event: Word,
    /// Slots ever used are below this.
    pub(crate) slots_used: Word,
    /// Host clock of the last search for dead processes.
    pub(crate) swept: Word,
    /// For the order in which work became ready, work was queued, processes joined, instances made.
    pub(crate) sequence: Word,
    /// How many processes were written to `gone`.
    pub(crate) gone_count: Word,
    /// How many reports there were.
    pub(crate) report_count: Word,
    /// Memory limits ever used are below this.
    pub(crate) limits_used: Word,
    /// The PID namespace that counts as the host's.
    pub(crate) host_namespace: Word,
    /// What calls to NVML suffer: a delay in nanoseconds.
    pub(crate) nvml_delay: Word,
    /// 1 while calls to NVML hang.
    pub(crate) nvml_hang: Word,
    /// 1 while library and kernel module do not match.
    pub(crate) mismatch: Word,
    /// 1 while there is no driver.
    pub(crate) no_driver: Word,
    /// 1 while NVML names no process.
    pub(crate) nameless: Word,
    /// Devices that ever had a turn are below this.
    pub(crate) turning: Word,
}

/// Old values of words, so that a change that was cut short can be taken back.
#[repr(C)]
pub(crate) struct Journal {
    pub(crate) count: Word,
    pub(crate) entries: [[Word; 2]; JOURNAL],
}

/// A card or a MIG slice.
#[repr(C)]
pub(crate) struct Device {
    /// For a slice: its card and 1, so that 0 is a slice that is not there.
    pub(crate) card: Word,
    /// For a slice: the GPU instance and 1.
    pub(crate) gpu_instance: Word,
    /// For a slice: the compute instance and 1; 0 if this holds a GPU instance's place only.
    pub(crate) compute_instance: Word,
    pub(crate) gpu_profile: Word,
    pub(crate) compute_profile: Word,
    /// First memory slice, and how many.
    pub(crate) placement: [Word; 2],
    /// Multiprocessors and memory, 0 for a card: it has what its description says.
    pub(crate) multiprocessors: Word,
    pub(crate) memory: Word,
    /// For UUIDs of slices.
    pub(crate) serial: Word,
    /// Whose turn it is: a group and 1.
    pub(crate) turn: Word,
    pub(crate) turn_ends: Word,
    /// How many turns began, which is all that jitter depends on.
    pub(crate) turns: Word,
    /// Time with a kernel running, and multiprocessors times nanoseconds.
    pub(crate) busy: Word,
    pub(crate) sm_time: Word,
    pub(crate) copied: Word,
    pub(crate) buckets: [[Word; 3]; CARD_BUCKETS],
    /// 1 while it is off the bus.
    pub(crate) lost: Word,
    /// 1 while it is not in the machine.
    pub(crate) absent: Word,
    /// 1 while every reservation is refused.
    pub(crate) out_of_memory: Word,
    pub(crate) counters: [Word; COUNTERS],
    pub(crate) settings: [Word; SETTINGS],
}

/// Something that went wrong, for event sets.
#[repr(C)]
pub(crate) struct Report {
    pub(crate) number: Word,
    pub(crate) device: Word,
    pub(crate) kind: Word,
    pub(crate) data: Word,
    pub(crate) time: Word,
}

/// How much memory a control group may take of a card.
#[repr(C)]
pub(crate) struct Limit {
    /// 0 if unused, else the card and 1.
    pub(crate) card: Word,
    pub(crate) group: Word,
    pub(crate) soft: Word,
    pub(crate) hard: Word,
}

/// A process that has ended.
#[repr(C)]
pub(crate) struct Gone {
    pub(crate) name: Name,
    pub(crate) left: Word,
    /// Busy time, multiprocessor time and most memory, by card.
    pub(crate) cards: [[Word; 3]; CARDS],
}

/// Who a process is.
#[repr(C)]
pub(crate) struct Name {
    /// Grows with every process that joins.
    pub(crate) number: Word,
    /// As it sees itself.
    pub(crate) pid: Word,
    /// As the host sees it, once someone on the host looked.
    pub(crate) host_pid: Word,
    /// Its PID namespace.
    pub(crate) namespace: Word,
    /// Its control group, as a hash of the path.
    pub(crate) group: Word,
    pub(crate) joined: Word,
    pub(crate) command: [Word; 4],
    pub(crate) tag: [Word; 8],
}

/// A process.
#[repr(C)]
pub(crate) struct Slot {
    /// Who claims it, 0 if nobody; see `slots.rs`.
    pub(crate) claim: Word,
    /// Grows whenever the slot changes hands.
    pub(crate) generation: Word,
    /// The claim of the process whose name and work are here; another claim means that they are
    /// still those of the one before.
    pub(crate) entered: Word,
    pub(crate) name: Name,
    /// Most of a device's multiprocessors it may have at one time under MPS, in percent; 0 is all.
    pub(crate) percent: Word,
    /// Streams with work.
    pub(crate) active: Word,
    /// Unfinished work.
    pub(crate) pending: Word,
    /// Items used before, oldest first, linked by `next`; then those never used.
    pub(crate) free_first: Word,
    pub(crate) free_last: Word,
    pub(crate) fresh: Word,
    /// Cells: how many were ever used, and the first of those given back.
    pub(crate) cells_used: Word,
    pub(crate) cells_free: Word,
    /// Their device and 1.
    pub(crate) contexts: [Word; CONTEXTS],
    pub(crate) accounts: [Account; DEVICES],
    pub(crate) streams: [Stream; STREAMS],
    pub(crate) items: [Item; QUEUE],
    pub(crate) cells: [Cell; CELLS],
}

/// What a process has and had of a device.
#[repr(C)]
pub(crate) struct Account {
    pub(crate) memory: [Word; KINDS],
    /// The most memory at any time.
    pub(crate) peak: Word,
    pub(crate) busy: Word,
    pub(crate) sm_time: Word,
    pub(crate) first_context: Word,
    pub(crate) buckets: [[Word; 3]; PROCESS_BUCKETS],
}

/// A stream with work, oldest first.
#[repr(C)]
pub(crate) struct Stream {
    pub(crate) key: Word,
    /// Its context and 1; 0 is a place that is free.
    pub(crate) context: Word,
    /// Items and 1.
    pub(crate) first: Word,
    pub(crate) last: Word,
}

/// One piece of work.
#[repr(C)]
pub(crate) struct Item {
    /// 0 if it is free or finished.
    pub(crate) number: Word,
    /// What it was when it was last in use.
    pub(crate) last_number: Word,
    pub(crate) kind: Word,
    pub(crate) context: Word,
    pub(crate) stream: Word,
    /// The item behind it and 1, in its stream or among those that are free.
    pub(crate) next: Word,
    /// Multiprocessors, copy engine, or how far a gate is open.
    pub(crate) width: Word,
    /// Its length in nanoseconds.
    pub(crate) length: Word,
    /// What is left: nanoseconds, for a kernel times its multiprocessors.
    pub(crate) left: Word,
    /// When it became the first of its stream, by sequence.
    pub(crate) ready: Word,
    pub(crate) started: Word,
    /// 1 if `started` is set.
    pub(crate) running: Word,
    pub(crate) ended: Word,
    /// 1 if it was thrown away rather than finished.
    pub(crate) cancelled: Word,
    /// A ticket to wait for: slot and generation, item and number.
    pub(crate) target: [Word; 3],
    /// A cell and 1.
    pub(crate) cell: Word,
}

/// A moment kept for an event.
#[repr(C)]
pub(crate) struct Cell {
    /// Of the marker that wrote it; the next free cell and 1 if given back.
    pub(crate) number: Word,
    pub(crate) time: Word,
}
