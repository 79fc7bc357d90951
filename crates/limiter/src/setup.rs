//! Where our files are, and the pages in them.
//!
//! A tenant must not choose its own limits: where the fixed folder exists, the environment is not
//! asked. Without pages nothing works, rather than everything.

use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

use page::{CountersPage, LimitsPage, PageError};

use crate::sys::{self, Errno, File};
use crate::{log, place};

const FIXED: &[u8] = b"/usr/local/nanogpu";

/// A path, on the stack.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Path {
    bytes: [u8; 512],
    length: usize,
}

impl Path {
    pub(crate) fn new(begin: &[u8]) -> Self {
        let mut path = Self { bytes: [0; 512], length: 0 };
        path.push(begin);
        path
    }

    /// Adds to it. A path that is too long is cut, and then there is no such file.
    pub(crate) fn push(&mut self, more: &[u8]) {
        for byte in more {
            // The last byte stays zero.
            let Some(at) = self.bytes.get_mut(self.length).filter(|_| self.length < 511) else {
                return;
            };
            *at = *byte;
            self.length += 1;
        }
    }

    pub(crate) fn push_number(&mut self, number: usize) {
        if number >= 10 {
            self.push(&digit(number / 10));
        }
        self.push(&digit(number));
    }

    pub(crate) fn as_ptr(&self) -> *const c_char {
        self.bytes.as_ptr().cast()
    }

    pub(crate) fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or(c"")
    }
}

#[expect(clippy::cast_possible_truncation, reason = "below ten")]
fn digit(number: usize) -> [u8; 1] {
    [b'0' + (number % 10) as u8]
}

/// The value of a variable as the process was started with it; `key` ends with `=`.
pub(crate) fn variable<'a>(key: &[u8], into: &'a mut [u8]) -> Option<&'a [u8]> {
    let file = File::open(c"/proc/self/environ").ok()?;
    let mut buffer = [0; 1024];
    // How many letters of the key matched since the last zero; more than it has: no match.
    let (mut matched, mut length) = (0, 0);
    loop {
        let got = file.read(&mut buffer).ok()?;
        for byte in buffer.get(..got).unwrap_or_default() {
            if matched == key.len() {
                if *byte == 0 {
                    return into.get(..length);
                }
                *into.get_mut(length)? = *byte;
                length += 1;
            } else if *byte == 0 {
                matched = 0;
            } else if key.get(matched) == Some(byte) {
                matched += 1;
            } else {
                matched = usize::MAX;
            }
        }
        if got == 0 {
            return None;
        }
    }
}

static ROOT: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());

/// The folder with the driver and the pages.
pub(crate) fn root() -> &'static [u8] {
    let known = ROOT.load(Ordering::Acquire);
    if !known.is_null() {
        // SAFETY: set below to a text that ends with a zero and stays.
        return unsafe { CStr::from_ptr(known.cast()) }.to_bytes();
    }
    if File::open(Path::new(FIXED).as_c_str()).err() != Some(Errno(sys::ENOENT)) {
        return FIXED;
    }
    let Ok(kept) = sys::map_zeroes(4096) else { return FIXED };
    // SAFETY: a fresh mapping of that length, ours for good.
    let bytes = unsafe { core::slice::from_raw_parts_mut(kept.cast::<u8>(), 4095) };
    if variable(b"NANOGPU_ROOT=", bytes).is_none_or(<[u8]>::is_empty) {
        return FIXED;
    }
    ROOT.store(kept.cast(), Ordering::Release);
    // SAFETY: as above; the last byte is zero.
    unsafe { CStr::from_ptr(kept.cast()) }.to_bytes()
}

/// Maps the pages, once; whether they are all there and sound.
pub(crate) fn pages() -> bool {
    const MAPPED: u8 = 1;
    const FAILED: u8 = 2;
    static STATE: AtomicU8 = AtomicU8::new(0);
    match STATE.load(Ordering::Acquire) {
        MAPPED => return true,
        FAILED => return false,
        _ => {}
    }
    // Both libraries may be loaded at one time; the second mapping of a page is harmless.
    let good = map_all();
    STATE.store(if good { MAPPED } else { FAILED }, Ordering::Release);
    good
}

fn map_all() -> bool {
    let mut found = 0_u64;
    for number in 0..place::MOST {
        let path = file(number, b".limits");
        let limits = match File::open(path.as_c_str()) {
            Ok(file) => file,
            Err(Errno(sys::ENOENT)) if number > 0 => break,
            Err(error) => return missing("limits", &path, error),
        };
        let path = file(number, b".counters");
        let counters = match File::open_writable(path.as_c_str()) {
            Ok(file) => file,
            Err(error) => return missing("counters", &path, error),
        };
        let limits = mapped(&limits, LimitsPage::SIZE, sys::PROT_READ, page::check_limits);
        let writable = sys::PROT_READ | sys::PROT_WRITE;
        let counters = mapped(&counters, CountersPage::SIZE, writable, page::check_counters);
        let (Some(limits), Some(counters)) = (limits, counters) else { return false };
        // SAFETY: mappings of a whole page each, checked, that stay. Of the limits only the agent
        // writes, and of the counters all fields are atomic.
        let (limits, counters) =
            unsafe { (&*limits.cast::<LimitsPage>(), &*counters.cast::<CountersPage>()) };
        if limits.memory.load(Ordering::Acquire) == 0 {
            log::once!(
                Error,
                "the limits of device ",
                number as u64,
                " allow no memory, so nothing may run"
            );
            return false;
        }
        place::add(number, limits, counters);
        found += 1;
    }
    log::once!(Info, "devices with limits: ", found);
    true
}

fn missing(what: &str, path: &Path, error: Errno) -> bool {
    let code = error.0.unsigned_abs();
    log::once!(Error, "no ", what, ", so nothing may run: ", path.as_c_str(), ": error ", code);
    false
}

/// The path of a page.
fn file(number: usize, kind: &[u8]) -> Path {
    let mut path = Path::new(root());
    path.push(b"/pages/");
    path.push_number(number);
    path.push(kind);
    path
}

fn mapped(
    file: &File,
    size: usize,
    protection: usize,
    check: impl Fn(&[u8; 16], usize) -> Result<(), PageError>,
) -> Option<*mut core::ffi::c_void> {
    let length = file.length().ok()?;
    let mut begins = [0; 16];
    file.read(&mut begins).ok()?;
    let reason = match check(&begins, length) {
        Ok(()) => match file.map(size, protection) {
            Ok(at) => return Some(at),
            Err(_) => "cannot be mapped",
        },
        Err(PageError::Short { .. }) => "is cut off",
        Err(PageError::Version { .. }) => "is of another version: upgrade the older of the two",
        Err(PageError::Size { .. }) => "has another length than its version",
        Err(_) => "is no page of nanogpu",
    };
    log::once!(Error, "a file of limits or counters ", reason, ", so nothing may run");
    None
}
