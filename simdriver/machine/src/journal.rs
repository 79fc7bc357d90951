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
        #[cfg(test)]
        cut::maybe();
        let journal = &self.state.journal;
        let count = at(&journal.count);
        let Some([place, before]) = journal.entries.get(count) else {
            // Cannot happen: the longest step, a process that leaves with a full queue and all
            // its cells, changes a third of it. If it did, ending the step here is wrong only
            // if this process is killed before the step ends.
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
        #[cfg(test)]
        if cut::is_dead() {
            return;
        }
        if std::thread::panicking() {
            self.take_back();
        }
        self.commit();
        (self.unlock)();
    }
}

/// Ends a change after some number of its writes, as if its process had been killed there.
#[cfg(test)]
pub(crate) mod cut {
    use std::cell::Cell;
    use std::panic::AssertUnwindSafe;

    thread_local! {
        static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
        static DEAD: Cell<bool> = const { Cell::new(false) };
    }

    struct Killed;

    /// Runs `act` and kills it before the write number `after`. Says whether it was reached.
    pub(crate) fn after(after: usize, act: impl FnOnce()) -> bool {
        LEFT.set(Some(after));
        let outcome = std::panic::catch_unwind(AssertUnwindSafe(act));
        LEFT.set(None);
        DEAD.set(false);
        match outcome {
            Ok(()) => false,
            Err(payload) if payload.is::<Killed>() => true,
            Err(payload) => std::panic::resume_unwind(payload),
        }
    }

    pub(super) fn maybe() {
        match LEFT.get() {
            Some(0) => {
                LEFT.set(None);
                DEAD.set(true);
                // Without the message that a panic prints: this one is wanted.
                std::panic::resume_unwind(Box::new(Killed));
            }
            Some(left) => LEFT.set(Some(left - 1)),
            None => {}
        }
    }

    pub(super) fn is_dead() -> bool {
        DEAD.get()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::engine::{Rules, catch_up};
    use crate::queue::{Work, append};
    use crate::roster;

    /// Something that changes the state.
    #[derive(Debug, Clone)]
    enum Act {
        Submit { slot: usize, stream: u64, width: u32, length: u64 },
        Pass { time: u64 },
        Leave { slot: usize },
    }

    fn acts() -> impl Strategy<Value = Vec<Act>> {
        let act = prop_oneof![
            4 => (0..3usize, 0..3u64, 1..60u32, 1..3_000_000u64).prop_map(
                |(slot, stream, width, length)| Act::Submit { slot, stream, width, length }
            ),
            2 => (1..5_000_000u64).prop_map(|time| Act::Pass { time }),
            1 => (0..3usize).prop_map(|slot| Act::Leave { slot }),
        ];
        prop::collection::vec(act, 1..25)
    }

    fn state() -> Box<State> {
        // SAFETY: zeroes are a valid state.
        let state = unsafe { Box::<State>::new_zeroed().assume_init() };
        state.header.slots_used.store(3, Ordering::Relaxed);
        for slot in &state.slots[..3] {
            slot.name.number.store(1, Ordering::Relaxed);
            slot.contexts[0].store(1, Ordering::Relaxed);
            slot.accounts[0].memory[0].store(300, Ordering::Relaxed);
        }
        state
    }

    fn rules() -> Rules {
        Rules { quantum: 2_000_000, jitter: 20, seed: 1, together: false, cards: vec![(40, 2)] }
    }

    fn run(state: &State, act: &Act) {
        let change = Change::begin(state, &|| ());
        let now = get(&state.header.time);
        match *act {
            Act::Submit { slot, stream, width, length } => {
                let work = Work::Kernel { multiprocessors: width, nanoseconds: length };
                append(&change, slot, 0, stream, work, now);
            }
            Act::Pass { time } => catch_up(&change, &rules(), time),
            Act::Leave { slot } => roster::leave(&change, slot),
        }
    }

    /// Every word that is not the journal's, of what is in use.
    fn words(state: &State) -> Vec<u64> {
        let change = Change { state, unlock: &|| () };
        let journal = change.place(&state.journal.count);
        let from = change.place(&state.devices[0].card);
        let until = change.place(&state.slots[3].claim);
        let places = (2..journal).chain(from..until);
        places.map(|place| get(change.word(place).unwrap())).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn who_is_killed_at_any_write_leaves_no_trace(
            acts in acts(),
            cuts in prop::collection::vec(0..200usize, 25),
        ) {
            let (whole, broken) = (state(), state());
            let mut time = 0;
            for (act, cut) in acts.into_iter().zip(cuts) {
                // Time goes on from act to act; a pass that is repeated must aim at the same.
                let act = match act {
                    Act::Pass { time: more } => {
                        time += more;
                        Act::Pass { time }
                    }
                    other => other,
                };
                run(&whole, &act);
                if cut::after(cut, || run(&broken, &act)) {
                    run(&broken, &act);
                }
                prop_assert!(words(&whole) == words(&broken));
            }
        }
    }
}
