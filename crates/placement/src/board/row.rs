//! A node packed into a few numbers, so that thousands can be ranked in microseconds.

use model::{Agent, DeviceState, Node};

use super::numbers::Numbers;

/// The device may take something new.
pub(crate) const SELLS: u8 = 1;
/// Nobody holds any of it.
pub(crate) const IDLE: u8 = 2;
/// It is busier than what was sold of it explains.
pub(crate) const HOT: u8 = 4;

/// One device. Compute in percent, memory in MiB, effective room in millionths of a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) cores: u16,
    pub(crate) all_cores: u16,
    /// The largest percentage of its memory that is still free, by the rounding of shares.
    pub(crate) percent: u16,
    pub(crate) model: u8,
    pub(crate) flags: u8,
    pub(crate) memory: u32,
    pub(crate) all_memory: u32,
    /// What its free memory is worth in compute, by how the workload asks for both.
    pub(crate) memory_effective: u32,
    /// What is really left: the smaller of compute and that, at most a card.
    pub(crate) effective: u32,
    /// What that is worth to shares.
    pub(crate) value: i32,
}

/// One node, but for its devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) cpu: u64,
    pub(crate) memory: u64,
    pub(crate) all_cpu: u64,
    /// Where its devices are.
    pub(crate) start: u32,
    pub(crate) len: u32,
    pub(crate) shape: u32,
    /// Whether it takes pods that ask for a card.
    pub(crate) open: bool,
    /// Kubelet tickets left, by the board's number of the resource.
    pub(crate) tickets: Vec<(u16, u64)>,
    /// Whether any of its devices is hot.
    pub(crate) hot: bool,
    /// How many of its devices nobody holds, and the most compute that is free on one of them.
    pub(crate) idle: u32,
    pub(crate) most_cores: u16,
    /// Effective room over all its devices, in millionths of a card.
    pub(crate) room: i64,
    /// How much of it the host's CPU or memory will strand.
    pub(crate) stranded: i64,
}

/// A row with its devices.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) row: &'a Row,
    pub(crate) slots: &'a [Slot],
    /// The state that each of them is in.
    pub(crate) states: &'a [u32],
}

impl Slot {
    pub(crate) fn of(state: &DeviceState, model: u8, numbers: &Numbers) -> Self {
        let small = |memory: u64| u32::try_from(memory).unwrap_or(u32::MAX);
        let (memory, all_memory) =
            (small(state.free_memory().0), small(state.device.memory.0).max(1));
        // A percentage of the memory is rounded down to MiB, so a little less than it will do.
        let percent = (u64::from(memory) * 100 + 99) / u64::from(all_memory);
        let mut slot = Self {
            cores: u16::try_from(state.free_cores().0).unwrap_or(u16::MAX),
            all_cores: u16::try_from(state.device.cores.0).unwrap_or(u16::MAX),
            percent: u16::try_from(percent).unwrap_or(u16::MAX),
            model,
            flags: 0,
            memory,
            all_memory,
            memory_effective: 0,
            effective: 0,
            value: 0,
        };
        if state.sells() && !state.used.hold.whole {
            slot.flags |= SELLS;
        }
        if state.is_idle() {
            slot.flags |= IDLE;
        }
        if state.load.hot {
            slot.flags |= HOT;
        }
        slot.weigh(numbers);
        slot
    }

    /// Computes the effective room anew.
    pub(crate) fn weigh(&mut self, numbers: &Numbers) {
        self.memory_effective = numbers.memory_as_compute(self.memory, self.all_memory);
        let compute = u32::from(self.cores).saturating_mul(10_000);
        let sells = self.flags & SELLS != 0;
        let left = compute.min(self.memory_effective).min(1_000_000);
        self.effective = if sells { left } else { 0 };
        self.value = numbers.value(self.effective);
    }

    /// All that tells its state from others.
    pub(crate) fn identity(&self) -> (u64, u64) {
        let pair = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        let pair_of_u16 = |high: u16, low: u16| u32::from(high) << 16 | u32::from(low);
        let kind = u16::from(self.model) << 8 | u16::from(self.flags);
        // How much is free in percent follows from the memory.
        let cores = pair_of_u16(self.cores, self.all_cores);
        (pair(cores, kind.into()), pair(self.memory, self.all_memory))
    }

    pub(crate) const fn is(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }
}

impl Row {
    /// A row whose devices start at `start`; its sums are still to be computed.
    pub(crate) fn of(node: &Node, start: u32, shape: u32, tickets: Vec<(u16, u64)>) -> Self {
        Self {
            cpu: node.free.cpu.0,
            memory: node.free.memory.0,
            all_cpu: node.allocatable.cpu.0.max(1),
            start,
            len: u32::try_from(node.devices.len()).unwrap_or(0),
            shape,
            open: node.agent == Agent::Fresh && node.problem.is_none(),
            tickets,
            hot: node.devices.iter().any(|state| state.load.hot),
            idle: 0,
            most_cores: 0,
            room: 0,
            stranded: 0,
        }
    }

    /// Computes the sums over its devices anew.
    pub(crate) fn weigh(&mut self, slots: &[Slot], numbers: &Numbers) {
        (self.idle, self.most_cores, self.room) = (0, 0, 0);
        for slot in slots {
            self.idle += u32::from(slot.is(SELLS | IDLE));
            self.most_cores = self.most_cores.max(if slot.is(SELLS) { slot.cores } else { 0 });
            self.room += i64::from(slot.effective);
        }
        let served = numbers.served(self.cpu, self.memory);
        self.stranded = self.room.saturating_sub(served).max(0);
    }
}
