//! A lock between the threads of this process: two instructions when nobody is in the way.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering};

use crate::sys::{self, Reach};

const FREE: u32 = 0;
const HELD: u32 = 1;
const WAITED_FOR: u32 = 2;

/// What only one thread at a time may touch.
#[derive(Debug)]
pub(crate) struct Lock<T> {
    word: AtomicU32,
    inside: UnsafeCell<T>,
}

// SAFETY: `inside` is reached only through a guard, and there is one at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub(crate) const fn new(inside: T) -> Self {
        Self { word: AtomicU32::new(FREE), inside: UnsafeCell::new(inside) }
    }

    #[inline]
    pub(crate) fn hold(&self) -> Held<'_, T> {
        if self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.wait();
        }
        Held { lock: self }
    }

    #[cold]
    fn wait(&self) {
        for _ in 0..100 {
            if self.word.load(Ordering::Relaxed) == FREE
                && self
                    .word
                    .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                return;
            }
            core::hint::spin_loop();
        }
        while self.word.swap(WAITED_FOR, Ordering::Acquire) != FREE {
            sys::futex_wait(&self.word, WAITED_FOR, 1_000_000_000, Reach::Process);
        }
    }

    /// In a forked child: whoever held it stayed behind, and what is inside may be half changed.
    pub(crate) fn begin_anew(&self, fresh: T) {
        // SAFETY: the child has one thread, and it is here.
        unsafe { core::ptr::write(self.inside.get(), fresh) };
        self.word.store(FREE, Ordering::Release);
    }
}

/// Lets the next in when it goes.
#[derive(Debug)]
pub(crate) struct Held<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this guard is the only one.
        unsafe { &*self.lock.inside.get() }
    }
}

impl<T> DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard is the only one.
        unsafe { &mut *self.lock.inside.get() }
    }
}

impl<T> Drop for Held<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.lock.word.swap(FREE, Ordering::Release) == WAITED_FOR {
            sys::futex_wake(&self.lock.word, 1, Reach::Process);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_take_turns() {
        static COUNT: Lock<u64> = Lock::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| *COUNT.hold() += 1));
            }
        });
        assert_eq!(*COUNT.hold(), 40_000);
    }
}
