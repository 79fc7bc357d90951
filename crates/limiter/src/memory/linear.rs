//! Plain memory: `cuMemAlloc` and its kin.
//!
//! The driver hands small memory out of blocks of 2 MiB that several share. An address says which block
//! it lies in, so a block is charged once, with the first that lies in it, and given back with the
//! last: a million allocations of a byte cost what the driver takes for them.

use crate::driver::{call, cuda, hooks};
use crate::memory::charge::{BLOCK, Changing, claim, give_back, give_back_at, round_up, settle};
use crate::memory::table::{self, Entry, Kind};
use crate::place::{self, Place};

/// From this size on memory comes in blocks of its own.
const LARGE: u64 = 1 << 20;
/// What the pitch of rows is a multiple of, at least.
const PITCH: u64 = 512;

/// The current context and the place of its device; a program without a context has the driver say so.
pub(crate) fn here() -> Result<(u64, &'static Place), u32> {
    let mut context = 0_u64;
    let code = call!(cuCtxGetCurrent(&raw mut context => *mut u64));
    if code != 0 {
        return Err(code);
    }
    let mut device = 0_i32;
    let code = call!(cuCtxGetDevice(&raw mut device => *mut i32));
    if code != 0 {
        return Err(code);
    }
    place::of_device(device).map(|place| (context, place)).ok_or(cuda::OUT_OF_MEMORY)
}

fn number(place: &'static Place) -> u8 {
    u8::try_from(place.number()).unwrap_or(u8::MAX)
}

/// Allocates, with the size the driver is expected to take; `real` says what it took, and where.
fn allocate(
    expected: u64,
    free: impl FnOnce(u64),
    real: impl FnOnce() -> Result<(u64, u64), u32>,
) -> u32 {
    let (context, place) = match here() {
        Ok(here) => here,
        Err(code) => return code,
    };
    let _changing = Changing::begin();
    let claimed = round_up(expected, BLOCK);
    if claim(place, claimed).is_err() {
        return cuda::OUT_OF_MEMORY;
    }
    let (address, size) = match real() {
        Ok(got) => got,
        Err(code) => {
            give_back(place, claimed);
            return code;
        }
    };
    if size < LARGE {
        share(place, context, address, claimed);
        return cuda::SUCCESS;
    }
    let charged = round_up(size, BLOCK);
    if settle(place, claimed, charged).is_err() {
        free(address);
        give_back(place, claimed);
        return cuda::OUT_OF_MEMORY;
    }
    let entry = Entry { size: charged, place: number(place), extra: context };
    table::put(Kind::Linear, address, entry);
    cuda::SUCCESS
}

/// Small memory: its block is charged once. Who is second gives back what it claimed.
fn share(place: &'static Place, context: u64, address: u64, claimed: u64) {
    let (block, number) = (address & !(BLOCK - 1), number(place));
    if table::count(Kind::Block, block, true).is_some() {
        give_back(place, claimed);
    } else {
        table::put(Kind::Block, block, Entry { size: BLOCK, place: number, extra: 1 });
        give_back(place, claimed.saturating_sub(BLOCK));
    }
    table::put(Kind::Small, address, Entry { size: 0, place: number, extra: context });
}

/// Small memory is gone; with the last its block.
pub(crate) fn unshare(address: u64) {
    if let Some((entry, 0)) = table::count(Kind::Block, address & !(BLOCK - 1), false) {
        give_back_at(entry.place, entry.size);
    }
}

/// Frees. What is remembered goes first: once the driver has freed it, another thread may be given
/// the same address. An address that we never saw is the driver's to judge.
pub(crate) fn free(address: u64, real: impl FnOnce() -> u32) -> u32 {
    let _changing = Changing::begin();
    let large = table::take(Kind::Linear, address);
    let small = if large.is_none() { table::take(Kind::Small, address) } else { None };
    let code = real();
    match (small, large) {
        (Some(entry), _) if code != 0 => {
            table::put(Kind::Small, address, entry);
        }
        (_, Some(entry)) if code != 0 => {
            table::put(Kind::Linear, address, entry);
        }
        (Some(_), _) => unshare(address),
        (_, Some(entry)) => give_back_at(entry.place, entry.size),
        // It may have been of a pool.
        (None, None) => crate::memory::pool::freed(),
    }
    code
}

/// Reads what the driver wrote.
unsafe fn read<T: Copy + Into<u64>>(from: *const T) -> u64 {
    if from.is_null() {
        return 0;
    }
    // SAFETY: the driver just wrote there.
    unsafe { *from }.into()
}

fn done(code: u32, got: impl FnOnce() -> (u64, u64)) -> Result<(u64, u64), u32> {
    if code == 0 { Ok(got()) } else { Err(code) }
}

fn free_wide(address: u64) {
    call!(cuMemFree_v2(address => u64));
}

#[expect(clippy::cast_possible_truncation, reason = "the address has 32 bits")]
fn free_narrow(address: u64) {
    call!(cuMemFree(address as u32 => u32));
}

hooks! {
    cuMemAlloc_v2(address: *mut u64, size: usize) |real| {
        // SAFETY: the driver wrote there.
        allocate(size as u64, free_wide, || done(real(address, size), || (unsafe { read(address) }, size as u64)))
    }

    cuMemAlloc(address: *mut u32, size: u32) |real| {
        // Addresses of 32 bits come in blocks of their own.
        let size_charged = u64::from(size).max(LARGE);
        // SAFETY: the driver wrote there.
        allocate(size_charged, free_narrow, || done(real(address, size), || (unsafe { read(address) }, size_charged)))
    }

    cuMemAllocPitch_v2(address: *mut u64, pitch: *mut u64, width: usize, height: usize, element: u32) |real| {
        let expected = round_up(width as u64, PITCH).saturating_mul(height as u64);
        allocate(expected, free_wide, || {
            // SAFETY: the driver wrote there.
            done(real(address, pitch, width, height, element), || unsafe {
                (read(address), read(pitch).saturating_mul(height as u64))
            })
        })
    }

    cuMemAllocPitch(address: *mut u32, pitch: *mut u32, width: u32, height: u32, element: u32) |real| {
        let expected = round_up(width.into(), PITCH).saturating_mul(height.into()).max(LARGE);
        allocate(expected, free_narrow, || {
            // SAFETY: the driver wrote there.
            done(real(address, pitch, width, height, element), || unsafe {
                (read(address), read(pitch).saturating_mul(height.into()).max(LARGE))
            })
        })
    }

    cuMemAllocManaged(address: *mut u64, size: usize, flags: u32) |real| {
        let expected = (size as u64).max(LARGE);
        // SAFETY: the driver wrote there.
        allocate(expected, free_wide, || done(real(address, size, flags), || (unsafe { read(address) }, expected)))
    }

    cuMemFree_v2(address: u64) |real| {
        free(address, || real(address))
    }

    cuMemFree(address: u32) |real| {
        free(address.into(), || real(address))
    }
}
