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
//!
//! Threads that launch on one stream count in different lines of cache, and whoever fills a group ends it if no other
//! thread is at the meter: nobody waits for another to have a mark set.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, Ordering};

use super::stripes::{Line, Stripes};

/// A group is at most so many launches of a thread.
const GROUP: u64 = 64;
/// A group of so many times that, or of what it may take, is not left to others.
const OVERFULL: u64 = 4;
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
    /// Whether launches only need counting: [`OPEN`], or until then by the clock. Else [`CLOSED`] or [`LATE`].
    until: AtomicU64,
    /// Of which key; [`MIXED`] if of several.
    key: AtomicU64,
    /// From which guess on a group is full.
    pub(super) full: AtomicU64,
    /// What was launched since the last mark: the guess above, the count in the low 16 bits.
    pending: Stripes<Line<AtomicU64>>,
    behind: UnsafeCell<Behind>,
}

/// A launch needs a look at the last mark.
const CLOSED: u64 = 0;
/// So it does, and a launch that had begun before was counted after the end.
const LATE: u64 = 1;
/// Something marks where the group begins.
const OPEN: u64 = u64::MAX;
/// So soon after an end the stream has not paused. Less would have programs that keep the card busy look at it for
/// every group.
const SOON: u64 = 5_000;

/// How full a group is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fill {
    Room,
    /// Its end is due.
    Full,
    /// It must end now.
    Overfull,
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
        self.until.load(Ordering::Relaxed) == OPEN
    }

    /// Whether there may be something to end.
    pub(super) fn is_in_use(&self) -> bool {
        self.until.load(Ordering::SeqCst) != CLOSED
    }

    /// Opens a group that goes on where the last one ended just now.
    pub(super) fn go_on(&self, clock: impl FnOnce() -> u64) -> bool {
        let until = self.until.load(Ordering::Relaxed);
        until > LATE
            && (until == OPEN || clock() < until)
            && self.until.compare_exchange(until, OPEN, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Where its group begins is marked. The caller holds the meter's lock.
    pub(super) fn open(&self) {
        self.until.store(OPEN, Ordering::SeqCst);
    }

    /// Counts a launch; says how full the group is, as far as this thread knows.
    #[inline]
    pub(super) fn add(&self, key: u64, guess: u64) -> Fill {
        let guess = guess.min(1 << 46);
        let before = self.pending.own().0.fetch_add(guess << 16 | 1, Ordering::SeqCst);
        let of = self.key.load(Ordering::Relaxed);
        if of != key {
            self.key.store(if of == 0 { key } else { MIXED }, Ordering::Relaxed);
        }
        if self.until.load(Ordering::SeqCst) == CLOSED {
            self.is_late();
        }
        self.filled((before & 0xffff) + 1, (before >> 16) + guess)
    }

    #[inline]
    fn filled(&self, count: u64, guess: u64) -> Fill {
        let full = self.full.load(Ordering::Relaxed);
        if count < GROUP && guess < full {
            Fill::Room
        } else if count < OVERFULL * GROUP && guess < OVERFULL * full {
            Fill::Full
        } else {
            Fill::Overfull
        }
    }

    /// How full the group is now, as far as this thread knows: another may have ended it.
    pub(super) fn fill(&self) -> Fill {
        let pending = self.pending.own().0.load(Ordering::Relaxed);
        self.filled(pending & 0xffff, pending >> 16)
    }

    /// The group ended while the launch was on its way. Who looks for something to end must find it.
    #[cold]
    fn is_late(&self) {
        let _ = self.until.compare_exchange(CLOSED, LATE, Ordering::SeqCst, Ordering::Relaxed);
    }

    /// Whether something was launched since the last mark.
    pub(super) fn is_pending(&self) -> bool {
        self.pending.all().iter().any(|one| one.0.load(Ordering::SeqCst) != 0)
    }

    /// What was counted since the last mark, which ends with this; and by how many threads. The caller holds the
    /// meter's lock.
    pub(super) fn take(&self) -> (Mark, u64) {
        let (mut mark, mut threads) = (Mark::default(), 0);
        // What the group was opened for is on its way.
        if self.is_open() && !self.is_pending() {
            return (mark, threads);
        }
        // First: who counts after its line was looked at says that it is late.
        self.until.store(CLOSED, Ordering::SeqCst);
        for one in self.pending.all() {
            if one.0.load(Ordering::SeqCst) == 0 {
                continue;
            }
            let pending = one.0.swap(0, Ordering::SeqCst);
            mark.guess = mark.guess.saturating_add(pending >> 16);
            mark.count += pending & 0xffff;
            threads += 1;
        }
        if mark.count > 0 {
            let key = self.key.swap(0, Ordering::Relaxed);
            mark.key = if key == MIXED { 0 } else { key };
        }
        (mark, threads)
    }

    /// Whether nothing is or will be counted, as far as is known.
    pub(super) fn is_at_rest(&self) -> bool {
        !self.is_open() && !self.is_pending()
    }

    /// What the group was opened for did not go. The caller holds the meter's lock.
    pub(super) fn close_if_empty(&self) {
        if !self.is_pending() {
            let _ = self.until.compare_exchange(OPEN, CLOSED, Ordering::SeqCst, Ordering::Relaxed);
        }
    }

    /// Another stream has it from now on. The caller holds the meter's lock.
    pub(super) fn begin_anew(&self) {
        self.until.store(CLOSED, Ordering::SeqCst);
    }

    /// Its end was marked at `now`, and launches are likely to follow. The caller holds the meter's lock.
    pub(super) fn ended(&self, now: u64) {
        let until = now.saturating_add(SOON);
        let _ = self.until.compare_exchange(CLOSED, until, Ordering::SeqCst, Ordering::Relaxed);
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
