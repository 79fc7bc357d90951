//! A stream, and the marks in it.
//!
//! A mark is an event of ours. Between a mark and the next lies a group of launches, and the time
//! between the two is theirs:
//!
//! ```text
//!   start | launch launch launch | end  launch launch | end  (idle)  start | launch ...
//! ```
//!
//! An end is the beginning of the next group if the stream went on without a pause. If it was
//! reached before the next launch came, or a copy or a wait stands between, a new start is needed.
//! Groups are short where launches are long, so that a mark costs little against what it measures.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, Ordering};

/// A group is at most so many launches.
pub(super) const GROUP: u64 = 64;
/// Marks of a lane that are not reached yet.
pub(super) const MARKS: usize = 64;

/// An event of ours in a stream.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Mark {
    pub(super) event: u64,
    /// What was launched since the mark before, by guess; 0 for a start.
    pub(super) guess: u64,
    pub(super) count: u64,
    /// The key of all of it, or 0 if they differ.
    pub(super) key: u64,
    /// By how much the launch came later than its start.
    pub(super) lag: u64,
    /// Nobody waits for it any more; it is paid for when it is reached.
    pub(super) given_up: bool,
}

/// A stream of a context. What changes with every launch is atomic; the rest is behind the meter's
/// lock.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Lane {
    /// Context, stream and thread, mixed; 0 if it is free.
    pub(super) name: AtomicU64,
    /// What was launched since the last mark: the guess above, the count in the low 16 bits.
    pending: AtomicU64,
    /// Of which key; [`MIXED`] if of several.
    key: AtomicU64,
    /// From which guess on a group is full.
    pub(super) full: AtomicU64,
    behind: UnsafeCell<Behind>,
}

/// Keys that are no one's.
const MIXED: u64 = 3;

/// What is behind the lock.
#[derive(Debug)]
pub(super) struct Behind {
    pub(super) context: usize,
    pub(super) stream: u64,
    /// The thread of a thread's own stream, else 0.
    pub(super) thread: u64,
    marks: [Mark; MARKS],
    first: usize,
    pub(super) count: usize,
    /// The device time of the last mark that was reached.
    pub(super) reached: u64,
    /// How much later the first launch after it came.
    pub(super) lag: u64,
    /// Something else stands behind the last mark.
    pub(super) broken: bool,
}

// SAFETY: what is not atomic is reached only through `behind`, whose callers hold the lock.
unsafe impl Sync for Lane {}

impl Lane {
    /// Whether launches only need counting.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.pending.load(Ordering::Relaxed) != 0
    }

    /// Counts a launch; whether a mark is due.
    #[inline]
    pub(super) fn add(&self, key: u64, guess: u64) -> bool {
        let guess = guess.min(1 << 46);
        let before = self.pending.fetch_add(guess << 16 | 1, Ordering::Relaxed);
        let of = self.key.load(Ordering::Relaxed);
        if of != key {
            self.key.store(if before == 0 || of == 0 { key } else { MIXED }, Ordering::Relaxed);
        }
        (before & 0xffff) + 1 >= GROUP
            || (before >> 16) + guess >= self.full.load(Ordering::Relaxed)
    }

    /// What was counted since the last mark, which ends with this.
    pub(super) fn take(&self) -> Mark {
        let pending = self.pending.swap(0, Ordering::Relaxed);
        let key = self.key.swap(0, Ordering::Relaxed);
        let key = if key == MIXED { 0 } else { key };
        Mark { guess: pending >> 16, count: pending & 0xffff, key, ..Mark::default() }
    }

    /// The rest.
    ///
    /// # Safety
    /// The caller holds the meter's lock, and keeps no other reference to it.
    #[expect(clippy::mut_from_ref, reason = "the lock makes it exclusive")]
    pub(super) unsafe fn behind(&self) -> &mut Behind {
        // SAFETY: the caller's.
        unsafe { &mut *self.behind.get() }
    }
}

impl Behind {
    pub(super) fn has_room(&self) -> bool {
        self.count < MARKS
    }

    pub(super) fn push(&mut self, mark: Mark) {
        let at = (self.first + self.count) % MARKS;
        if let Some(place) = self.marks.get_mut(at).filter(|_| self.count < MARKS) {
            *place = mark;
            self.count += 1;
        }
    }

    pub(super) fn oldest(&self) -> Option<Mark> {
        self.marks.get(self.first % MARKS).copied().filter(|_| self.count > 0)
    }

    /// A mark that is not given up.
    pub(super) fn awaited(&self) -> Option<Mark> {
        let at = |step: usize| self.marks.get((self.first + step) % MARKS).copied();
        (0..self.count).filter_map(at).find(|mark| mark.event != 0 && !mark.given_up)
    }

    /// Gives all of them up; says how much work they stand for.
    pub(super) fn give_up(&mut self) -> u64 {
        let mut guessed = 0_u64;
        for mark in &mut self.marks {
            if mark.event != 0 && !mark.given_up {
                guessed = guessed.saturating_add(core::mem::take(&mut mark.guess));
                mark.given_up = true;
            }
        }
        guessed
    }

    pub(super) fn newest(&mut self) -> Option<&mut Mark> {
        let at = (self.first + self.count.wrapping_sub(1)) % MARKS;
        self.marks.get_mut(at).filter(|_| self.count > 0)
    }

    pub(super) fn pop(&mut self) -> Option<Mark> {
        let mark = self.oldest()?;
        if let Some(place) = self.marks.get_mut(self.first % MARKS) {
            *place = Mark::default();
        }
        self.first = (self.first + 1) % MARKS;
        self.count -= 1;
        Some(mark)
    }
}

impl Lane {
    /// Whether its group should end.
    pub(super) fn is_full(&self) -> bool {
        let pending = self.pending.load(Ordering::Relaxed);
        pending & 0xffff >= GROUP || pending >> 16 >= self.full.load(Ordering::Relaxed)
    }
}
