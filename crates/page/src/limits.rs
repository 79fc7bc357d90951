//! The file of limits and grants.

use core::fmt;
use core::mem::offset_of;

use crate::sync::{AtomicU32, AtomicU64};
use crate::{Header, PageError, begin, check, put, u32_at, u64_at};

const MAGIC: [u8; 8] = *b"NANOGPUL";

/// A text of at most 127 bytes, ended by a zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Name([u8; 128]);

/// A name of 128 bytes or more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NameTooLong;

impl fmt::Display for NameTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name in a page has at most 127 bytes")
    }
}

impl core::error::Error for NameTooLong {}

impl Name {
    /// Keeps `text`.
    pub fn new(text: &str) -> Result<Self, NameTooLong> {
        let mut bytes = [0; 128];
        if text.len() >= bytes.len() || text.contains('\0') {
            return Err(NameTooLong);
        }
        put(&mut bytes, 0, text.as_bytes());
        Ok(Self(bytes))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(0);
        core::str::from_utf8(&self.0[..end]).unwrap_or_default()
    }

    fn read(bytes: &[u8], at: usize) -> Result<Self, PageError> {
        let found = bytes.get(at..at + 128).ok_or(PageError::BadName)?;
        let end = found.iter().position(|byte| *byte == 0).ok_or(PageError::BadName)?;
        let text = core::str::from_utf8(&found[..end]).map_err(|_| PageError::BadName)?;
        Self::new(text).map_err(|_| PageError::BadName)
    }
}

/// What a container may use of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The device.
    pub device: Name,
    /// The pod, by UID.
    pub pod: Name,
    /// The container.
    pub container: Name,
    /// Memory, in bytes.
    pub memory: u64,
    /// Compute, in percent of the device; 0 limits none.
    pub cores: u32,
    /// How far compute may go while the device is idle, in percent; at least `cores`.
    pub burst: u32,
    /// The place of the device among the container's, from 0.
    pub place: u32,
    /// Compute granted now, in hundredths of a percent. Changes while the container runs.
    pub granted: u32,
    /// Containers that share the device now. Changes while the container runs.
    pub tenants: u32,
}

/// The file as it is mapped.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct LimitsPage {
    /// How it begins.
    pub header: Header,
    /// See [`Limits::device`].
    pub device: [u8; 128],
    /// See [`Limits::pod`].
    pub pod: [u8; 128],
    /// See [`Limits::container`].
    pub container: [u8; 128],
    /// See [`Limits::memory`].
    pub memory: AtomicU64,
    /// See [`Limits::cores`].
    pub cores: AtomicU32,
    /// See [`Limits::burst`].
    pub burst: AtomicU32,
    /// See [`Limits::place`].
    pub place: u32,
    /// Odd while what follows and `memory`, `cores`, `burst` are being changed.
    pub sequence: AtomicU32,
    /// See [`Limits::granted`].
    pub granted: AtomicU32,
    /// See [`Limits::tenants`].
    pub tenants: AtomicU32,
    /// Whose turn it is. On a line of its own: it changes often.
    pub grants: Grants,
}

/// Whose turn it is on the card, as the referee decided. All zero: there is no referee.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Grants {
    /// When the referee last looked, in nanoseconds of the monotonic clock.
    pub heartbeat: AtomicU64,
    /// The number of the turn.
    pub epoch: AtomicU32,
    /// The seat of this container that has the turn, counted from 1, and above it the low half of
    /// the epoch; 0 for none. A futex.
    pub turn: AtomicU32,
    /// The GPU time of the turn, in nanoseconds; of an open one what is in its bucket, signed.
    pub budget: AtomicU64,
    /// The rate of an open turn, in hundredths of a percent; 0 if it has a budget.
    pub rate: AtomicU32,
    /// Whether somebody on the card has a limit of compute. If not, nobody needs a turn.
    pub managed: AtomicU32,
    /// For what comes.
    pub room: [AtomicU64; 4],
}

impl LimitsPage {
    /// The length of the file.
    pub const SIZE: usize = size_of::<Self>();
}

/// The file for `limits`, complete.
pub fn write_limits(limits: &Limits) -> [u8; LimitsPage::SIZE] {
    let mut bytes = [0; LimitsPage::SIZE];
    begin(&mut bytes, MAGIC);
    put(&mut bytes, offset_of!(LimitsPage, device), &limits.device.0);
    put(&mut bytes, offset_of!(LimitsPage, pod), &limits.pod.0);
    put(&mut bytes, offset_of!(LimitsPage, container), &limits.container.0);
    put(&mut bytes, offset_of!(LimitsPage, memory), &limits.memory.to_le_bytes());
    put(&mut bytes, offset_of!(LimitsPage, cores), &limits.cores.to_le_bytes());
    put(&mut bytes, offset_of!(LimitsPage, burst), &limits.burst.to_le_bytes());
    put(&mut bytes, offset_of!(LimitsPage, place), &limits.place.to_le_bytes());
    put(&mut bytes, offset_of!(LimitsPage, granted), &limits.granted.to_le_bytes());
    put(&mut bytes, offset_of!(LimitsPage, tenants), &limits.tenants.to_le_bytes());
    bytes
}

/// Checks how a file of limits begins; `length` is that of the file.
pub fn check_limits(begins: &[u8; 16], length: usize) -> Result<(), PageError> {
    crate::check_header(begins, length, MAGIC, LimitsPage::SIZE)
}

/// The limits in a file.
pub fn read_limits(bytes: &[u8]) -> Result<Limits, PageError> {
    check(bytes, MAGIC, LimitsPage::SIZE)?;
    if u32_at(bytes, offset_of!(LimitsPage, sequence)) % 2 == 1 {
        return Err(PageError::Torn);
    }
    Ok(Limits {
        device: Name::read(bytes, offset_of!(LimitsPage, device))?,
        pod: Name::read(bytes, offset_of!(LimitsPage, pod))?,
        container: Name::read(bytes, offset_of!(LimitsPage, container))?,
        memory: u64_at(bytes, offset_of!(LimitsPage, memory)),
        cores: u32_at(bytes, offset_of!(LimitsPage, cores)),
        burst: u32_at(bytes, offset_of!(LimitsPage, burst)),
        place: u32_at(bytes, offset_of!(LimitsPage, place)),
        granted: u32_at(bytes, offset_of!(LimitsPage, granted)),
        tenants: u32_at(bytes, offset_of!(LimitsPage, tenants)),
    })
}

// The layout is a promise between two programs that are upgraded apart.
#[cfg(not(all(test, loom)))]
const _: () = {
    assert!(LimitsPage::SIZE == 512);
    assert!(offset_of!(LimitsPage, device) == 16);
    assert!(offset_of!(LimitsPage, pod) == 144);
    assert!(offset_of!(LimitsPage, container) == 272);
    assert!(offset_of!(LimitsPage, memory) == 400);
    assert!(offset_of!(LimitsPage, cores) == 408);
    assert!(offset_of!(LimitsPage, burst) == 412);
    assert!(offset_of!(LimitsPage, place) == 416);
    assert!(offset_of!(LimitsPage, sequence) == 420);
    assert!(offset_of!(LimitsPage, granted) == 424);
    assert!(offset_of!(LimitsPage, tenants) == 428);
    assert!(offset_of!(LimitsPage, grants) == 448);
    assert!(offset_of!(Grants, epoch) == 8);
    assert!(offset_of!(Grants, turn) == 12);
    assert!(offset_of!(Grants, budget) == 16);
    assert!(offset_of!(Grants, rate) == 24);
    assert!(offset_of!(Grants, managed) == 28);
};

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn limits() -> Limits {
        Limits {
            device: Name::new("GPU-5f2e").unwrap(),
            pod: Name::new("0c8a").unwrap(),
            container: Name::new("main").unwrap(),
            memory: 4915 << 20,
            cores: 30,
            burst: 60,
            place: 1,
            granted: 3000,
            tenants: 2,
        }
    }

    #[test]
    fn limits_are_read_back() {
        let bytes = write_limits(&limits());
        assert_eq!(read_limits(&bytes), Ok(limits()));
        assert_eq!(limits().device.as_str(), "GPU-5f2e");
    }

    #[test]
    fn what_is_no_page_is_named() {
        let good = write_limits(&limits());
        let changed = |at: usize, to: u8| {
            let mut bytes = good;
            bytes[at] = to;
            read_limits(&bytes)
        };
        assert_eq!(read_limits(&[]), Err(PageError::Short { is: 0, needs: 16 }));
        assert_eq!(read_limits(&good[..100]), Err(PageError::Short { is: 100, needs: 512 }));
        assert_eq!(changed(0, b'X'), Err(PageError::Foreign));
        assert_eq!(changed(8, 2), Err(PageError::Version { is: 2 }));
        assert_eq!(changed(12, 1), Err(PageError::Size { says: 513, is: 512 }));
        assert_eq!(changed(420, 1), Err(PageError::Torn));
        assert_eq!(changed(16, 0xff), Err(PageError::BadName));
    }

    #[test]
    fn names_that_do_not_fit_are_refused() {
        assert!(Name::new(core::str::from_utf8(&[b'a'; 127]).unwrap()).is_ok());
        assert_eq!(Name::new(core::str::from_utf8(&[b'a'; 128]).unwrap()), Err(NameTooLong));
        assert_eq!(Name::new("a\0b"), Err(NameTooLong));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let _ = read_limits(&bytes);
            let mut page = write_limits(&limits());
            let count = bytes.len().min(page.len() - 16);
            page[16..16 + count].copy_from_slice(&bytes[..count]);
            let _ = read_limits(&page);
        }
    }
}
