//! What the driver lists this process to hold of a device.
//!
//! The list names processes by number. A driver that knows of PID namespaces gives the numbers that the
//! caller knows and leaves out the rest; another gives the host's, and a number like ours is then
//! somebody else's. So our own number is believed only if all that are listed exist here. Else our
//! line is found by what nobody but us does to it: it grows by memory that we take, and shrinks by the
//! same when we give that back.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::compute::Relaxed;
use crate::driver::{self, Library, call};
use crate::log;
use crate::memory::charge::{BLOCK, give_back};
use crate::place::{MOST, Place};
use crate::sys;

/// Processes on a device that are looked through.
const LINES: usize = 2048;
/// How often our line is tried for in a search, and how many searches may find nothing.
const TRIES: u64 = 8;
const SEARCHES: u32 = 3;

/// NVML's handles, and whether it was started.
static DEVICES: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];
static STARTED: AtomicU8 = AtomicU8::new(0);
/// The number that we are listed under; 0 until it is known.
static NUMBER: AtomicU32 = AtomicU32::new(0);
/// Searches that found nothing.
static SEARCHED: AtomicU32 = AtomicU32::new(0);

/// `nvmlProcessInfo_t` from its second version on.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Line {
    pid: u32,
    memory: u64,
    instances: [u32; 2],
}

/// What one process is listed to hold. Drivers that cannot say have nothing there, or all ones. A
/// number that stands there twice is nobody's.
fn of(lines: &[Line], pid: u32) -> Option<u64> {
    let mut found = lines.iter().filter(|line| line.pid == pid);
    let (line, second) = (found.next()?, found.next());
    (second.is_none() && line.memory != 0 && line.memory != u64::MAX).then_some(line.memory)
}

/// The one process that held `size` more in the second of three lists than before and after.
fn moved(before: &[Line], with: &[Line], after: &[Line], size: u64) -> Option<u32> {
    let mut found = with.iter().map(|line| line.pid).filter(|pid| {
        let high = of(with, *pid).and_then(|high| high.checked_sub(size));
        high.is_some() && of(before, *pid) == high && of(after, *pid) == high
    });
    let (one, second) = (found.next(), found.next());
    if second.is_none() { one } else { None }
}

/// Memory for the driver's list, as it was at three moments.
#[derive(Debug)]
pub(crate) struct Listing {
    memory: *mut Line,
    counts: [usize; 3],
}

// SAFETY: memory of our own, used under the lock it lies in.
unsafe impl Send for Listing {}

impl Listing {
    pub(crate) const fn new() -> Self {
        Self { memory: core::ptr::null_mut(), counts: [0; 3] }
    }

    fn sheet(&self, moment: usize) -> *mut Line {
        self.memory.wrapping_add(moment * LINES)
    }

    /// Asks the driver. `None` if it does not say.
    fn read(&mut self, place: &'static Place, moment: usize) -> Option<()> {
        let device = device(place)?;
        if self.memory.is_null() {
            self.memory = sys::map_zeroes(3 * LINES * size_of::<Line>()).ok()?.cast();
        }
        let mut count = u32::try_from(LINES).ok()?;
        let (at, room) = (self.sheet(moment), &raw mut count);
        let mut code = call!(nvmlDeviceGetComputeRunningProcesses_v3(device => u64, room => *mut u32, at => *mut Line));
        if code != 0 {
            code = call!(nvmlDeviceGetComputeRunningProcesses_v2(device => u64, room => *mut u32, at => *mut Line));
        }
        *self.counts.get_mut(moment)? = if code == 0 { (count as usize).min(LINES) } else { 0 };
        (code == 0).then_some(())
    }

    /// What the driver said then.
    fn lines(&self, moment: usize) -> &[Line] {
        let count = self.counts.get(moment).copied().unwrap_or(0);
        if count == 0 {
            return &[];
        }
        // SAFETY: the driver wrote so many lines there.
        unsafe { core::slice::from_raw_parts(self.sheet(moment), count) }
    }

    /// What this process is listed to hold; `None` if no line is known to be ours, or it is not there.
    pub(crate) fn look(&mut self, place: &'static Place) -> Option<u64> {
        if !is_known() {
            return None;
        }
        self.read(place, 0)?;
        of(self.lines(0), NUMBER.load(Ordering::Acquire))
    }

    /// The same while this process is sure to hold something in `context`, 0 for the current one: if no
    /// line is known to be ours, it is sought.
    pub(crate) fn find(&mut self, place: &'static Place, context: u64) -> Option<u64> {
        if let Some(held) = self.look(place) {
            return Some(held);
        }
        self.read(place, 0)?;
        let (lines, me) = (self.lines(0), sys::pid());
        let number = if of(lines, me).is_some() && lines.iter().all(|line| sys::exists(line.pid)) {
            Some(me)
        } else if lines.iter().any(|line| of(lines, line.pid).is_some()) {
            self.seek(place, context)
        } else {
            None
        };
        NUMBER.store(number.unwrap_or(0), Ordering::Release);
        self.look(place)
    }

    /// Finds our line by taking a little memory and giving it back.
    #[cold]
    fn seek(&mut self, place: &'static Place, context: u64) -> Option<u32> {
        if SEARCHED.load(Ordering::Acquire) >= SEARCHES {
            return None;
        }
        let _relaxed = Relaxed::new();
        let entered = context != 0 && call!(cuCtxPushCurrent_v2(context => u64)) == 0;
        let mut found = None;
        for attempt in 1..=TRIES {
            // Others that seek at this moment take other amounts, or come at other moments.
            let chance = (sys::now() ^ u64::from(sys::tid())).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            found = self.seek_with(place, BLOCK * (1 + (chance >> 62)));
            if found.is_some() {
                break;
            }
            // Up to a quarter of a millisecond, then more.
            sys::sleep((chance >> 46) * attempt);
        }
        if entered {
            let mut left = 0_u64;
            call!(cuCtxPopCurrent_v2(&raw mut left => *mut u64));
        }
        if found.is_none() {
            SEARCHED.fetch_add(1, Ordering::AcqRel);
            log::once!(
                Info,
                "the driver does not list this process so that it can be told from others"
            );
        }
        found
    }

    fn seek_with(&mut self, place: &'static Place, size: u64) -> Option<u32> {
        // Of the share, if it has room. Else the container is above it by a few blocks, for a moment, as
        // it is when a context turns out to be too large.
        let seat = place.seat()?;
        let claimed = place.account().reserve(seat, size, place.allowed()).is_ok();
        let found = self.move_by(place, size);
        if claimed {
            give_back(place, size);
        }
        found
    }

    fn move_by(&mut self, place: &'static Place, size: u64) -> Option<u32> {
        let (mut address, bytes) = (0_u64, usize::try_from(size).ok()?);
        self.read(place, 0)?;
        if call!(cuMemAlloc_v2(&raw mut address => *mut u64, bytes => usize)) != 0 {
            return None;
        }
        let with = self.read(place, 1);
        call!(cuMemFree_v2(address => u64));
        with.and(self.read(place, 2))?;
        moved(self.lines(0), self.lines(1), self.lines(2), size)
    }
}

/// Whether it is known which line is ours.
pub(crate) fn is_known() -> bool {
    NUMBER.load(Ordering::Acquire) != 0
}

/// What everybody holds of a device.
pub(crate) fn whole_device(place: &'static Place) -> Option<u64> {
    let device = device(place)?;
    let mut memory = [0_u64; 3];
    let code = call!(nvmlDeviceGetMemoryInfo(device => u64, &raw mut memory => *mut [u64; 3]));
    (code == 0).then_some(memory[2])
}

/// NVML's handle of a device.
fn device(place: &'static Place) -> Option<u64> {
    let known = DEVICES.get(place.number())?;
    let handle = known.load(Ordering::Acquire);
    if handle != 0 {
        return Some(handle);
    }
    if !driver::load(Library::Nvml) {
        return None;
    }
    if STARTED.swap(1, Ordering::AcqRel) == 0 && call!(nvmlInit_v2()) != 0 {
        STARTED.store(0, Ordering::Release);
        return None;
    }
    let mut handle = 0_u64;
    let name = place.limits().device.as_ptr();
    let code = call!(nvmlDeviceGetHandleByUUID(name => *const u8, &raw mut handle => *mut u64));
    if code != 0 {
        return None;
    }
    known.store(handle, Ordering::Release);
    Some(handle)
}

pub(crate) fn forget() {
    for word in [&NUMBER, &SEARCHED] {
        word.store(0, Ordering::Release);
    }
    STARTED.store(0, Ordering::Release);
    for known in &DEVICES {
        known.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list<const N: usize>(of: [(u32, u64); N]) -> [Line; N] {
        of.map(|(pid, memory)| Line { pid, memory, instances: [u32::MAX; 2] })
    }

    #[test]
    fn our_line_is_the_one_that_moves_with_us() {
        let before = list([(7, 300), (8, 300), (9, 300)]);
        // Another grew by the same at the same time, but kept it; a third is new.
        let with = list([(7, 304), (8, 304), (9, 300), (10, 4)]);
        let after = list([(7, 304), (8, 300), (9, 300), (10, 4)]);
        assert_eq!(moved(&before, &with, &after, 4), Some(8));
        assert_eq!(moved(&before, &with, &after, 2), None);
    }

    #[test]
    fn two_that_move_alike_are_not_told_apart() {
        let (low, high) = (list([(7, 300), (8, 300)]), list([(7, 304), (8, 304)]));
        assert_eq!(moved(&low, &high, &low, 4), None);
    }

    #[test]
    fn what_says_nothing_is_not_believed() {
        assert_eq!(of(&list([(7, 0)]), 7), None);
        assert_eq!(of(&list([(7, u64::MAX)]), 7), None);
        assert_eq!(of(&list([(7, 5), (7, 6)]), 7), None);
        assert_eq!(of(&list([(7, 5), (8, 6)]), 8), Some(6));
    }
}
