//! The host memory that stands behind device memory.
//!
//! A device address is a host address. Mappings reserve nothing, so that eighty gigabytes cost no
//! memory before they are touched. This is the one place where memory is mapped, copied and set.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::abi::{Answer, Code};

/// What the hardware hands out memory in.
pub(crate) const BLOCK: u64 = 2 << 20;

/// How a mapping can be placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Anywhere,
    /// Where an address fits 32 bits, for callers of the oldest functions.
    Low,
}

pub(crate) fn size(length: u64) -> Answer<usize> {
    usize::try_from(length).map_err(|_| Code::INVALID_VALUE)
}

pub(crate) fn round_up(length: u64, to: u64) -> Answer<u64> {
    length.checked_next_multiple_of(to).ok_or(Code::OUT_OF_MEMORY)
}

fn mapped(address: *mut libc::c_void) -> Answer<u64> {
    if address == libc::MAP_FAILED { Err(Code::OUT_OF_MEMORY) } else { Ok(address as u64) }
}

/// Maps zeroes at an address that is a multiple of `align`, a power of two.
pub(crate) fn map(length: u64, align: u64, place: Place) -> Answer<u64> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    anonymous(length, align, place, protection)
}

/// Takes addresses without memory behind them.
pub(crate) fn reserve(length: u64, align: u64) -> Answer<u64> {
    anonymous(length, align, Place::Anywhere, libc::PROT_NONE)
}

fn anonymous(length: u64, align: u64, place: Place, protection: i32) -> Answer<u64> {
    let low = if place == Place::Low { libc::MAP_32BIT } else { 0 };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | low;
    let padded = length.checked_add(align).ok_or(Code::OUT_OF_MEMORY)?;
    // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nothing.
    let start = mapped(unsafe {
        libc::mmap(std::ptr::null_mut(), size(padded)?, protection, flags, -1, 0)
    })?;
    let base = round_up(start, align)?;
    // What is too much at both ends goes back, so that the range can be unmapped by its own size.
    unmap(start, base - start);
    unmap(base + length, start + padded - (base + length));
    Ok(base)
}

/// Puts reserved addresses back to having no memory behind them.
pub(crate) fn clear(base: u64, length: u64) -> Answer {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: the range is one that `reserve` returned and that nobody else was given.
    mapped(unsafe { libc::mmap(base as *mut _, size(length)?, libc::PROT_NONE, flags, -1, 0) })
        .map(|_| ())
}

/// Maps part of a file over addresses that are ours.
pub(crate) fn map_file(base: u64, length: u64, file: &OwnedFd, offset: u64) -> Answer {
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE | libc::MAP_FIXED;
    let offset = i64::try_from(offset).map_err(|_| Code::INVALID_VALUE)?;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the range was reserved or mapped by this module and is held by the caller.
    mapped(unsafe {
        libc::mmap(base as *mut _, size(length)?, protection, flags, file.as_raw_fd(), offset)
    })
    .map(|_| ())
}

pub(crate) fn unmap(base: u64, length: u64) {
    if let (true, Ok(length)) = (length > 0, usize::try_from(length)) {
        // SAFETY: the range came from this module and its owner is done with it.
        unsafe { libc::munmap(base as *mut _, length) };
    }
}

/// A file without a name, of that size, that costs nothing until it is written.
pub(crate) fn memory_file(name: &str, length: u64) -> Answer<OwnedFd> {
    let name = CString::new(name).map_err(|_| Code::INVALID_VALUE)?;
    // SAFETY: the name is a C string, and the descriptor, if there is one, is new.
    let file = unsafe {
        let raw = libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC);
        if raw < 0 {
            return Err(Code::OPERATING_SYSTEM);
        }
        File::from_raw_fd(raw)
    };
    file.set_len(length).map_err(|_| Code::OUT_OF_MEMORY)?;
    Ok(file.into())
}

/// Copies; the ranges may overlap.
pub(crate) fn copy(dst: u64, src: u64, length: usize) {
    if length > 0 {
        // SAFETY: device ranges were checked against the map of memory, and host ranges are the
        // caller's promise; `copy` allows overlap.
        unsafe { std::ptr::copy(src as *const u8, dst as *mut u8, length) }
    }
}

/// Reads host memory now, for a copy that happens later.
pub(crate) fn read(src: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    copy(bytes.as_mut_ptr() as u64, src, length);
    bytes
}

/// Writes `count` times the low `width` bytes of `value`.
pub(crate) fn fill(dst: u64, value: u32, width: usize, count: usize) {
    let bytes = value.to_ne_bytes();
    if width == 1 {
        // SAFETY: the range was checked against the map of memory.
        unsafe { std::ptr::write_bytes(dst as *mut u8, bytes[0], count) }
        return;
    }
    let unit = &bytes[..width.min(4)];
    for index in 0..count {
        copy(dst + (index * unit.len()) as u64, unit.as_ptr() as u64, unit.len());
    }
}

/// Writes a word of 4 or 8 bytes that others may look at meanwhile.
pub(crate) fn store(address: u64, value: u64, width: usize) {
    use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
    let low = u32::try_from(value & u64::from(u32::MAX)).unwrap_or_default();
    // SAFETY: the caller checked that the word is aligned and inside known memory.
    unsafe {
        match width {
            4 => (*(address as *const AtomicU32)).store(low, Ordering::Release),
            _ => (*(address as *const AtomicU64)).store(value, Ordering::Release),
        }
    }
}

/// Reads a word of 4 or 8 bytes that others may write meanwhile.
pub(crate) fn load(address: u64, width: usize) -> u64 {
    use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
    // SAFETY: as in `store`.
    unsafe {
        match width {
            4 => u64::from((*(address as *const AtomicU32)).load(Ordering::Acquire)),
            _ => (*(address as *const AtomicU64)).load(Ordering::Acquire),
        }
    }
}

/// The pages of a mapping that hold something.
pub(crate) fn touched(base: u64, length: u64) -> Vec<u64> {
    const PART: u64 = 1 << 30;
    let mut found = Vec::new();
    let mut at = base;
    while at < base + length {
        let part = PART.min(base + length - at);
        let mut core = vec![0_u8; usize::try_from(part / 4096).unwrap_or(0)];
        // SAFETY: the range is mapped by this module, and the vector has a byte for each page.
        let asked = unsafe { libc::mincore(at as *mut _, (core.len()) * 4096, core.as_mut_ptr()) };
        let all = asked != 0;
        let pages = (0_u64..).zip(core).filter(|(_, state)| all || state & 1 == 1);
        found.extend(pages.map(|(index, _)| at + index * 4096));
        at += part;
    }
    found
}
