//! Contexts we have seen, and the device of each.

use core::sync::atomic::{AtomicU64, Ordering};

use super::meter::{self, Meter};
use crate::driver::{call, cuda};
use crate::{log, place};

/// Contexts that can be told apart at one time.
pub(super) const MOST: usize = 256;

/// A context: its handle, and its device's place from 1, 255 for none of ours.
#[derive(Debug)]
pub(super) struct Known {
    handle: AtomicU64,
    place: AtomicU64,
}

static KNOWN: [Known; MOST] =
    [const { Known { handle: AtomicU64::new(0), place: AtomicU64::new(0) } }; MOST];
const NONE: u64 = 255;

impl Known {
    /// The current one; `None` if there is none. Launches in more contexts than can be told apart would
    /// not be measured, so there is an error for them.
    #[inline]
    pub(super) fn current() -> Result<Option<&'static Self>, u32> {
        let mut handle = 0_u64;
        if call!(cuCtxGetCurrent(&raw mut handle => *mut u64)) != 0 || handle == 0 {
            return Ok(None);
        }
        let begin = (handle.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize;
        if let Some(first) = KNOWN.get(begin)
            && first.handle.load(Ordering::Acquire) == handle
        {
            return Ok(Some(first));
        }
        find(handle, begin).map(Some).ok_or_else(too_many)
    }

    /// Where it stands among those known.
    #[inline]
    pub(super) fn index(&self) -> usize {
        let from = core::ptr::from_ref(self) as usize;
        from.wrapping_sub(KNOWN.as_ptr() as usize) / size_of::<Self>()
    }

    /// What meters its device.
    #[inline]
    pub(super) fn meter(&self) -> Option<&'static Meter> {
        match self.place.load(Ordering::Acquire) {
            NONE => None,
            // Another thread is about to say which.
            0 => meter::of(place::current()?.number()),
            place => meter::of(usize::try_from(place - 1).ok()?),
        }
    }
}

#[cold]
fn too_many() -> u32 {
    log::once!(
        Error,
        "a launch is refused: one process has work in more contexts than ",
        MOST as u64,
        ", and what cannot be measured may not run"
    );
    cuda::LAUNCH_OUT_OF_RESOURCES
}

#[cold]
fn find(handle: u64, begin: usize) -> Option<&'static Known> {
    for step in 0..MOST {
        let known = KNOWN.get((begin + step) % MOST)?;
        match known.handle.compare_exchange(0, handle, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                let place = place::current().map_or(NONE, |place| place.number() as u64 + 1);
                known.place.store(place, Ordering::Release);
                return Some(known);
            }
            Err(found) if found == handle => return Some(known),
            Err(_) => {}
        }
    }
    None
}

/// One is gone, or all of them for 0.
pub(super) fn forget(handle: u64) {
    for known in &KNOWN {
        if handle == 0 || known.handle.load(Ordering::Acquire) == handle {
            known.place.store(0, Ordering::Release);
            known.handle.store(0, Ordering::Release);
        }
    }
}
