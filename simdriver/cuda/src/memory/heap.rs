//! Hands out parts of blocks, so that small memory does not cost a block each.

use std::collections::BTreeMap;

/// Alignment of everything that is handed out.
const UNIT: u64 = 512;

/// Blocks, and what of them is free.
#[derive(Debug, Default)]
pub(crate) struct Heap {
    /// Start and length of each block, and how much of it is in use.
    blocks: BTreeMap<u64, Block>,
    /// Start and length of what is free.
    free: BTreeMap<u64, u64>,
}

#[derive(Debug, Clone, Copy)]
struct Block {
    length: u64,
    used: u64,
}

/// What a request takes up.
pub(crate) fn taken(length: u64) -> u64 {
    length.max(1).next_multiple_of(UNIT)
}

impl Heap {
    /// Takes the first free part that is long enough.
    pub(crate) fn take(&mut self, length: u64) -> Option<u64> {
        let length = taken(length);
        let (&start, &room) = self.free.iter().find(|(_, room)| **room >= length)?;
        self.free.remove(&start);
        if room > length {
            self.free.insert(start + length, room - length);
        }
        if let Some((_, block)) = self.blocks.range_mut(..=start).next_back() {
            block.used += length;
        }
        Some(start)
    }

    /// Adds a block to hand out from.
    pub(crate) fn add(&mut self, start: u64, length: u64) {
        self.blocks.insert(start, Block { length, used: 0 });
        self.free.insert(start, length);
    }

    /// Takes back what [`Heap::take`] gave.
    pub(crate) fn give(&mut self, start: u64, length: u64) {
        let length = taken(length);
        let Some((&base, block)) = self.blocks.range_mut(..=start).next_back() else { return };
        block.used = block.used.saturating_sub(length);
        let end_of_block = base + block.length;
        let (mut from, mut to) = (start, start + length);
        // Blocks are given back whole, so free parts join only within one.
        if let Some((&before, &room)) = self.free.range(base..start).next_back()
            && before + room == start
        {
            self.free.remove(&before);
            from = before;
        }
        if to < end_of_block
            && let Some(room) = self.free.remove(&to)
        {
            to += room;
        }
        self.free.insert(from, to - from);
    }

    /// Removes a block that is not in use, if there is one.
    pub(crate) fn remove_empty(&mut self) -> Option<(u64, u64)> {
        let (&start, block) = self.blocks.iter().find(|(_, block)| block.used == 0)?;
        let length = block.length;
        self.blocks.remove(&start);
        self.free.remove(&start);
        Some((start, length))
    }

    /// The block an address lies in.
    pub(crate) fn block_of(&self, address: u64) -> Option<(u64, u64)> {
        let (&start, block) = self.blocks.range(..=address).next_back()?;
        (address - start < block.length).then_some((start, block.length))
    }

    #[cfg(test)]
    fn used(&self) -> u64 {
        self.blocks.values().map(|block| block.used).sum()
    }

    pub(crate) fn reserved(&self) -> u64 {
        self.blocks.values().map(|block| block.length).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = 1 << 21;

    #[test]
    fn what_is_given_back_can_be_taken_again() {
        let mut heap = Heap::default();
        heap.add(BLOCK, BLOCK);
        let taken: Vec<u64> = std::iter::from_fn(|| heap.take(1000)).collect();
        assert_eq!(taken.len(), 2048);
        assert_eq!(heap.used(), BLOCK);
        for start in taken.iter().step_by(2).chain(taken.iter().skip(1).step_by(2)) {
            heap.give(*start, 1000);
        }
        assert_eq!(heap.take(BLOCK), Some(BLOCK));
    }

    #[test]
    fn parts_do_not_join_across_blocks() {
        let mut heap = Heap::default();
        heap.add(BLOCK, BLOCK);
        heap.add(2 * BLOCK, BLOCK);
        let (first, second) = (heap.take(BLOCK), heap.take(BLOCK));
        assert_eq!((first, second), (Some(BLOCK), Some(2 * BLOCK)));
        heap.give(BLOCK, BLOCK);
        heap.give(2 * BLOCK, BLOCK);
        assert_eq!(heap.take(BLOCK + 1), None);
        assert_eq!(heap.remove_empty(), Some((BLOCK, BLOCK)));
        assert_eq!(heap.block_of(BLOCK + 5), None);
        assert_eq!(heap.reserved(), BLOCK);
    }
}
