//! How many blocks fit a multiprocessor. A kernel here has 32 registers a thread and no shared
//! memory of its own, so threads and what a launch asks for decide.

use crate::abi::{Answer, Code, In, Out, api};
use crate::card::Card;
use crate::process::here;
use crate::shapes::LaunchShape;

/// Most blocks on a multiprocessor, and its shared memory.
const BLOCKS: u32 = 32;
const SHARED: usize = 100 << 10;

fn blocks(card: &Card, threads: i32, shared: usize) -> Answer<i32> {
    let threads =
        u32::try_from(threads).ok().filter(|threads| *threads > 0).ok_or(Code::INVALID_VALUE)?;
    if threads > 1024 {
        return Ok(0);
    }
    // Threads come in warps.
    let by_threads = card.threads() / threads.next_multiple_of(32);
    let by_shared =
        u32::try_from(SHARED.checked_div(shared).unwrap_or(usize::MAX)).unwrap_or(u32::MAX);
    Ok(by_threads.min(by_shared).min(BLOCKS).cast_signed())
}

fn with_card<T>(function: u64, work: impl FnOnce(&Card) -> Answer<T>) -> Answer<T> {
    let call = here()?;
    if !call.state().functions.contains_key(&function) {
        return Err(Code::INVALID_HANDLE);
    }
    work(&call.process.cards[call.card])
}

/// What dynamic shared memory a block of a size wants.
type Shared = Option<extern "C" fn(i32) -> usize>;

fn potential(function: u64, wants: Shared, shared: usize, limit: i32) -> Answer<(i32, i32)> {
    with_card(function, |card| {
        let most = if limit <= 0 { 1024 } else { limit.min(1024) };
        let mut best = (0, 0, 0);
        for block in (1..=most / 32).rev().map(|warps| warps * 32) {
            let shared = wants.map_or(shared, |wants| wants(block));
            let fit = blocks(card, block, shared)?;
            if fit * block > best.2 {
                best = (fit, block, fit * block);
            }
        }
        Ok((best.0 * card.multiprocessors.cast_signed(), best.1))
    })
}

api! {
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(count: Out<i32>, function: u64, threads: i32, shared: usize) {
        count.put(with_card(function, |card| blocks(card, threads, shared))?)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(count: Out<i32>, function: u64, threads: i32, shared: usize, flags: u32) {
        if flags > 1 { return Err(Code::INVALID_VALUE); }
        count.put(with_card(function, |card| blocks(card, threads, shared))?)
    }

    fn cuOccupancyMaxPotentialBlockSize(grid: Out<i32>, block: Out<i32>, function: u64, wants: Shared, shared: usize, limit: i32) {
        let (least, best) = potential(function, wants, shared, limit)?;
        grid.put(least)?;
        block.put(best)
    }

    fn cuOccupancyMaxPotentialBlockSizeWithFlags(grid: Out<i32>, block: Out<i32>, function: u64, wants: Shared, shared: usize, limit: i32, flags: u32) {
        if flags > 1 { return Err(Code::INVALID_VALUE); }
        let (least, best) = potential(function, wants, shared, limit)?;
        grid.put(least)?;
        block.put(best)
    }

    fn cuOccupancyAvailableDynamicSMemPerBlock(size: Out<usize>, function: u64, count: i32, threads: i32) {
        let count = usize::try_from(count).ok().filter(|count| *count > 0).ok_or(Code::INVALID_VALUE)?;
        with_card(function, |card| blocks(card, threads, 0))?;
        size.put(SHARED / count)
    }

    fn cuOccupancyMaxPotentialClusterSize(size: Out<i32>, function: u64, shape: In<LaunchShape>) {
        shape.get()?;
        size.put(with_card(function, |card| Ok(if card.facts.capability.0 >= 9 { 8 } else { 1 }))?)
    }

    fn cuOccupancyMaxActiveClusters(count: Out<i32>, function: u64, shape: In<LaunchShape>) {
        let shape = shape.get()?;
        let threads = shape.block.iter().product::<u32>().cast_signed();
        count.put(with_card(function, |card| Ok(blocks(card, threads, shape.shared as usize)? * card.multiprocessors.cast_signed()))?)
    }
}
