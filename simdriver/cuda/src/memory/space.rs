//! The map of all memory a process can name.

use std::collections::{BTreeMap, HashMap};

use super::heap::Heap;
use crate::abi::{Answer, Code};

/// What a range of addresses is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// Memory of a card.
    Device,
    /// Memory of a card, out of a pool.
    Pooled { pool: u64 },
    /// Memory of a card that a graph will have, or has.
    Graph,
    /// Memory that card and host share.
    Managed,
    /// Memory of the host that the card reaches, ours or registered by the caller.
    Host { registered: bool },
    /// Addresses with physical memory behind them.
    Mapped { handle: u64, offset: u64 },
    /// Memory of another process.
    Imported,
}

/// A range of addresses.
#[derive(Debug, Clone)]
pub(crate) struct Range {
    pub(crate) base: u64,
    pub(crate) size: u64,
    pub(crate) what: What,
    pub(crate) card: usize,
    pub(crate) context: u64,
    /// Never used again for another range.
    pub(crate) number: u64,
    pub(crate) flags: u32,
    /// Bytes taken of the card for it alone; what lies in a block is paid by the block.
    pub(crate) charged: u64,
    pub(crate) sync: bool,
    /// What was said of managed memory.
    pub(crate) advice: Advice,
    /// Which cards may use mapped memory, and how.
    pub(crate) access: HashMap<usize, u32>,
}

/// Advice on managed memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Advice {
    pub(crate) read_mostly: bool,
    pub(crate) preferred: i32,
    pub(crate) prefetched: i32,
    /// A bit for each card, and the top one for the host.
    pub(crate) accessed: u64,
}

impl Default for Advice {
    fn default() -> Self {
        // -2 is "nowhere" in the API, -1 the host.
        Self { read_mostly: false, preferred: -2, prefetched: -2, accessed: 0 }
    }
}

/// All ranges, and the blocks that small ones are cut from.
#[derive(Debug, Default)]
pub(crate) struct Space {
    ranges: BTreeMap<u64, Range>,
    /// By context.
    pub(crate) blocks: HashMap<u64, Heap>,
    /// Addresses kept free for physical memory: start and length.
    pub(crate) reserved: BTreeMap<u64, u64>,
    /// What other processes may open, by the start of the mapping.
    pub(crate) exports: HashMap<u64, super::ipc::Export>,
    numbers: u64,
}

impl Space {
    pub(crate) fn add(&mut self, mut range: Range) {
        self.numbers += 1;
        range.number = self.numbers;
        self.ranges.insert(range.base, range);
    }

    pub(crate) fn new_range(base: u64, size: u64, what: What, card: usize, context: u64) -> Range {
        Range {
            base,
            size,
            what,
            card,
            context,
            number: 0,
            flags: 0,
            charged: 0,
            sync: false,
            advice: Advice::default(),
            access: HashMap::new(),
        }
    }

    /// The range an address lies in.
    pub(crate) fn at(&self, address: u64) -> Option<&Range> {
        let (_, range) = self.ranges.range(..=address).next_back()?;
        (address - range.base < range.size).then_some(range)
    }

    pub(crate) fn at_mut(&mut self, address: u64) -> Option<&mut Range> {
        let (_, range) = self.ranges.range_mut(..=address).next_back()?;
        (address - range.base < range.size).then_some(range)
    }

    /// The range that begins at an address.
    pub(crate) fn starting(&self, address: u64) -> Answer<&Range> {
        self.ranges.get(&address).ok_or(Code::INVALID_VALUE)
    }

    pub(crate) fn remove(&mut self, address: u64) -> Answer<Range> {
        self.ranges.remove(&address).ok_or(Code::INVALID_VALUE)
    }

    pub(crate) fn ranges(&self) -> impl Iterator<Item = &Range> {
        self.ranges.values()
    }

    /// The ranges within some addresses.
    pub(crate) fn within(&self, from: u64, length: u64) -> Vec<u64> {
        let to = from.saturating_add(length);
        self.ranges.range(from..to).map(|(base, _)| *base).collect()
    }

    /// Whether the device reaches this host address by itself.
    pub(crate) fn is_pinned(&self, address: u64) -> bool {
        self.at(address).is_some()
    }

    /// Checks that `length` bytes are memory that can be used, and says whether they are the
    /// host's and whether they are pinned. `unified`: it may be any memory of the host.
    pub(crate) fn reach(&self, address: u64, length: u64, unified: bool) -> Answer<(bool, bool)> {
        let end = address.checked_add(length).ok_or(Code::INVALID_VALUE)?;
        if length == 0 {
            return Ok((false, true));
        }
        let Some(first) = self.at(address) else {
            return if unified { Ok((true, false)) } else { Err(Code::INVALID_VALUE) };
        };
        let host = matches!(first.what, What::Host { .. });
        let mut at = address;
        // Mapped memory may be several ranges side by side.
        while at < end {
            let range = self.at(at).ok_or(Code::INVALID_VALUE)?;
            // Mapped memory is nobody's until someone may use it.
            if matches!(range.what, What::Mapped { .. }) && range.access.is_empty() {
                return Err(Code::INVALID_VALUE);
            }
            at = range.base + range.size;
        }
        Ok((host, true))
    }
}
