//! Counters that threads do not share: each thread has its own line of cache among a few, unless there are more
//! threads than lines.

use crate::sys;

const STRIPES: usize = 8;

/// A line of cache of its own.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Line<T>(pub(super) T);

/// One for each of a few threads. All zero is the beginning.
#[derive(Debug)]
pub(super) struct Stripes<T>([T; STRIPES]);

impl<T> Stripes<T> {
    /// That of the calling thread.
    #[inline]
    pub(super) fn own(&self) -> &T {
        // Threads lie at round distances from one another, so that plain bits of where they are would be the same.
        let spread = sys::thread().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61;
        &self.0[spread as usize % STRIPES]
    }

    pub(super) fn all(&self) -> &[T] {
        &self.0
    }
}
