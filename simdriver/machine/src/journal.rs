//! Changes to the shared state that happen whole or not at all.
//!
//! Whoever holds the lock writes down the old value of a word before it changes the word. The
//! change is done when the count of the journal goes back to zero, in one store. Who takes the
//! lock from a dead holder finds what that one wrote down and puts it back, last first.
//!
//! Words are stored with release order and a killed process leaves its stores in the order it
//! made them, so an old value is always there before the new one is.

use std::sync::atomic::Ordering;

use crate::state::{JOURNAL, State, Word, at, get, wide};

/// The right to change the state, until it is dropped.
pub(crate) struct Change<'a> {
    pub(crate) state: &'a State,
    unlock: &'a dyn Fn(),
}

impl<'a> Change<'a> {
    /// For who just took the lock. What a dead holder left half-done is taken back first.
    pub(crate) fn begin(state: &'a State, unlock: &'a dyn Fn()) -> Self {
        let change = Self { state, unlock };
        change.take_back();
        change
    }

    /// Changes a word.
    pub(crate) fn set(&self, word: &Word, value: u64) {
        let old = get(word);
        if old == value {
            return;
        }
        let journal = &self.state.journal;
        let count = at(&journal.count);
        let Some([place, before]) = journal.entries.get(count) else {
            // Cannot happen: the longest step changes a tenth of it. If it did, ending the step
            // here is wrong only if this process is killed before the step ends.
            journal.count.store(0, Ordering::Release);
            return self.set(word, value);
        };
        place.store(wide(self.place(word)), Ordering::Release);
        before.store(old, Ordering::Release);
        journal.count.store(wide(count + 1), Ordering::Release);
        word.store(value, Ordering::Release);
    }

    /// Adds to a word, stopping at the largest value.
    pub(crate) fn add(&self, word: &Word, more: u64) {
        self.set(word, get(word).saturating_add(more));
    }

    /// Takes from a word, stopping at zero.
    pub(crate) fn subtract(&self, word: &Word, less: u64) {
        self.set(word, get(word).saturating_sub(less));
    }

    /// The next number of the machine's sequence.
    pub(crate) fn next_number(&self) -> u64 {
        let number = get(&self.state.header.sequence) + 1;
        self.set(&self.state.header.sequence, number);
        number
    }

    /// Ends a step: what was changed so far stays.
    pub(crate) fn commit(&self) {
        self.state.journal.count.store(0, Ordering::Release);
    }

    fn take_back(&self) {
        let journal = &self.state.journal;
        let count = at(&journal.count).min(JOURNAL);
        for [place, before] in journal.entries[..count].iter().rev() {
            if let Some(word) = self.word(at(place)) {
                word.store(get(before), Ordering::Release);
            }
        }
        self.commit();
    }

    fn place(&self, word: &Word) -> usize {
        (std::ptr::from_ref(word) as usize - std::ptr::from_ref(self.state) as usize)
            / size_of::<Word>()
    }

    fn word(&self, place: usize) -> Option<&Word> {
        if place >= size_of::<State>() / size_of::<Word>() {
            return None;
        }
        // SAFETY: the state is made of words and pairs of half words, all aligned to a word, and
        // the place is inside it; every part of it is atomic, so sharing it is sound.
        Some(unsafe { &*std::ptr::from_ref(self.state).cast::<Word>().add(place) })
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.take_back();
        }
        self.commit();
        (self.unlock)();
    }
}
