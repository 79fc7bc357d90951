//! What agent and limiter share: two files for each container and device.
//!
//! ```text
//!   limits    agent writes, tenant maps read-only:  what the container may use, and what it is granted now
//!   counters  tenant maps and writes, agent reads:  what it uses, seat by seat, one a process
//! ```
//!
//! Limits are never in the environment or in a file the tenant can write. Whatever the tenant can
//! write is hostile: the agent copies the file (it never maps it, since a tenant that shortens it would
//! kill the reader), checks every length and number, and believes none that cannot be true.
//!
//! The layout is `repr(C)`, of one byte order (little endian, that of every machine with these
//! cards), and versioned: a reader that meets another version says so and guesses nothing.
#![no_std]
#![forbid(unsafe_code)]
#![expect(unexpected_cfgs, reason = "`--cfg loom` is for the tests of the atomics")]

pub mod bucket;
mod counters;
mod error;
mod limits;
pub mod referee;
mod seats;
mod spans;
mod sync;
pub mod turn;

pub use counters::{
    Counters, CountersPage, SEATS, Seat, Used, check_counters, read_counters, write_counters,
};
pub use error::PageError;
pub use limits::{
    Grants, Limits, LimitsPage, Name, NameTooLong, check_limits, read_limits, write_limits,
};
pub use seats::{Account, Full, Owner, Resident};
pub use spans::Spans;

/// The version of both layouts.
pub const VERSION: u32 = 1;

/// How every file begins.
#[derive(Debug)]
#[repr(C)]
pub struct Header {
    /// What the file is.
    pub magic: [u8; 8],
    /// The version of its layout.
    pub version: u32,
    /// How long it is.
    pub size: u32,
}

/// Reads numbers at places that are known to be inside.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut raw = [0; 4];
    if let Some(found) = bytes.get(at..at + 4) {
        raw.copy_from_slice(found);
    }
    u32::from_le_bytes(raw)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut raw = [0; 8];
    if let Some(found) = bytes.get(at..at + 8) {
        raw.copy_from_slice(found);
    }
    u64::from_le_bytes(raw)
}

pub(crate) fn put(bytes: &mut [u8], at: usize, what: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + what.len()) {
        place.copy_from_slice(what);
    }
}

/// Checks how a file begins, and how long it is.
pub(crate) fn check(bytes: &[u8], magic: [u8; 8], size: usize) -> Result<(), PageError> {
    let Some(begins) = bytes.first_chunk::<16>() else {
        return Err(PageError::Short { is: bytes.len(), needs: 16 });
    };
    check_header(begins, bytes.len(), magic, size)
}

/// The same for a file of `length` bytes of which only the beginning is at hand.
pub(crate) fn check_header(
    begins: &[u8; 16],
    length: usize,
    magic: [u8; 8],
    size: usize,
) -> Result<(), PageError> {
    if begins[..8] != magic {
        return Err(PageError::Foreign);
    }
    let version = u32_at(begins, 8);
    if version != VERSION {
        return Err(PageError::Version { is: version });
    }
    let says = u32_at(begins, 12) as usize;
    if says != size {
        return Err(PageError::Size { says, is: size });
    }
    if length < size {
        return Err(PageError::Short { is: length, needs: size });
    }
    Ok(())
}

const _: () = assert!(size_of::<Header>() == 16);

pub(crate) fn begin(bytes: &mut [u8], magic: [u8; 8]) {
    let size = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    put(bytes, 0, &magic);
    put(bytes, 8, &VERSION.to_le_bytes());
    put(bytes, 12, &size.to_le_bytes());
}
