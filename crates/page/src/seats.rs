//! The memory account: what all processes of a container hold of a device, together.
//!
//! ```text
//!   reserve   add to the own seat, then add all seats up; above the limit: take it back
//!   release   take from the own seat
//!   sweep     a process that died leaves nothing but its seat, which is emptied as a whole
//! ```
//!
//! Every claim is written before it is weighed, and the writes and reads are in one order that all
//! agree on. So of two claims that do not fit together the later sees the earlier: both may fail,
//! never can both succeed. Nothing is locked, and a process killed between any two instructions
//! leaves at most a claim in its own seat.

use core::fmt;

use crate::counters::{CountersPage, Seat};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// A process: its PID and the low half of its start time, so that a reused PID is told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner(u64);

impl Owner {
    /// The process `pid`, which started at `start`; `None` for PID 0, which no process has.
    pub fn new(pid: u32, start: u32) -> Option<Self> {
        (pid != 0).then_some(Self(u64::from(pid) << 32 | u64::from(start)))
    }

    /// Its number.
    pub fn pid(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// When it started.
    #[expect(clippy::cast_possible_truncation, reason = "the low half is what is meant")]
    pub fn start(self) -> u32 {
        self.0 as u32
    }
}

/// In the word of a seat's owner: this process is emptying it, or sits down. No PID is that large.
const SWEEPING: u64 = 1 << 63;

/// Who sits in a seat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resident {
    /// The process.
    pub owner: Owner,
    /// Its PID namespace; 0 if that is not known.
    pub namespace: u64,
    /// Which program it runs; 0 if that is not known.
    pub image: u64,
}

/// Why nothing was reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full {
    /// What all processes held or claimed at that moment.
    pub held: u64,
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes are held or claimed already", self.held)
    }
}

impl core::error::Error for Full {}

/// The account of one device.
#[derive(Debug, Clone, Copy)]
pub struct Account<'a> {
    seats: &'a [Seat],
    high: &'a AtomicU32,
    past: &'a [AtomicU64; 4],
}

impl CountersPage {
    /// The account in this page.
    pub fn account(&self) -> Account<'_> {
        Account { seats: &self.seats, high: &self.high, past: &self.past }
    }
}

impl<'a> Account<'a> {
    /// What the processes hold and claim together.
    pub fn held(self) -> u64 {
        self.used()
            .iter()
            .fold(0_u64, |sum, seat| sum.saturating_add(seat.memory.load(Ordering::SeqCst)))
    }

    /// Claims `size` bytes for the process in `seat`, if all together stay within `limit`.
    pub fn reserve(self, seat: &Seat, size: u64, limit: u64) -> Result<(), Full> {
        if size > limit {
            return Err(Full { held: self.held() });
        }
        seat.memory.fetch_add(size, Ordering::SeqCst);
        crate::sync::after_a_claim();
        let held = self.held();
        if held <= limit {
            return Ok(());
        }
        seat.memory.fetch_sub(size, Ordering::SeqCst);
        Err(Full { held: held.saturating_sub(size) })
    }

    /// How many processes have a seat.
    pub fn processes(self) -> u32 {
        let taken = self.used().iter().filter(|seat| seat.owner.load(Ordering::SeqCst) != 0);
        u32::try_from(taken.count()).unwrap_or(u32::MAX)
    }

    /// Takes `seat`s that were ever used.
    fn used(self) -> &'a [Seat] {
        let high = self.high.load(Ordering::SeqCst) as usize;
        self.seats.get(..high.min(self.seats.len())).unwrap_or_default()
    }

    /// How many seats were ever used. Everybody adds them all up.
    pub fn reach(self) -> usize {
        self.used().len()
    }

    /// A seat for a process, or `None` if all are taken. It is taken first, as a sweeper does, and
    /// described after, so that who is late describes nobody else's seat. Callers hold the page's lock,
    /// so that the namespace and the owner that are seen in a seat belong together.
    pub fn sit(self, who: Resident) -> Option<&'a Seat> {
        self.sit_in(self.seats, who)
    }

    /// The same, but only a seat that was used before.
    pub fn sit_again(self, who: Resident) -> Option<&'a Seat> {
        self.sit_in(self.used(), who)
    }

    fn sit_in(self, seats: &'a [Seat], who: Resident) -> Option<&'a Seat> {
        let sitting = who.owner.0 | SWEEPING;
        for (place, seat) in seats.iter().enumerate() {
            let change = |from: u64, to: u64| {
                seat.owner.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
            };
            if seat.owner.load(Ordering::SeqCst) != 0 || !change(0, sitting) {
                continue;
            }
            seat.namespace.store(who.namespace, Ordering::SeqCst);
            seat.image.store(who.image, Ordering::SeqCst);
            // Raised before anything is claimed in the seat: whoever adds up without it had
            // written its own claim before.
            let above = u32::try_from(place + 1).unwrap_or(u32::MAX);
            self.high.fetch_max(above, Ordering::SeqCst);
            if change(sitting, who.owner.0) {
                return Some(seat);
            }
        }
        None
    }

    /// Who sits in a seat, or empties it. Of a sweeper the program is not known: what stands there is
    /// the program of the dead, and a sweeper must not be taken for gone because it is another.
    pub fn resident(seat: &Seat) -> Option<Resident> {
        let owner = seat.owner.load(Ordering::SeqCst);
        let image = seat.image.load(Ordering::SeqCst);
        (owner != 0).then(|| Resident {
            owner: Owner(owner & !SWEEPING),
            namespace: seat.namespace.load(Ordering::SeqCst),
            image: if owner & SWEEPING == 0 { image } else { 0 },
        })
    }

    /// Empties the seats of processes that `gone` says have ended; says how many. `sweeper` is who
    /// does it: if it dies in between, the seat is its own and swept with its others.
    pub fn sweep(self, sweeper: Owner, mut gone: impl FnMut(Resident) -> bool) -> usize {
        let mut swept = 0;
        for seat in self.used() {
            let Some(resident) = Self::resident(seat) else { continue };
            if gone(resident) && self.empty(seat, resident.owner, sweeper) {
                swept += 1;
            }
        }
        swept
    }

    /// Empties one seat, if it is still `owner`'s. From the first step to the last the seat is the
    /// sweeper's, marked as such: nobody else sits down in it or sweeps it while the sweeper lives, so a
    /// sweeper that is held up anywhere here finds what it left.
    pub fn empty(self, seat: &Seat, owner: Owner, sweeper: Owner) -> bool {
        let sweeping = sweeper.0 | SWEEPING;
        let take = |of: u64| {
            seat.owner.compare_exchange(of, sweeping, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        };
        // A sweeper that died left its mark. It is not taken from oneself: another thread may be at it.
        if !take(owner.0) && (owner == sweeper || !take(owner.0 | SWEEPING)) {
            return false;
        }
        let counted = [&seat.denied, &seat.throttled, &seat.launches, &seat.spent];
        for (past, counter) in self.past.iter().zip(counted) {
            past.fetch_add(counter.swap(0, Ordering::SeqCst), Ordering::SeqCst);
        }
        seat.wants.store(0, Ordering::SeqCst);
        seat.returned.store(0, Ordering::SeqCst);
        seat.phase.store(0, Ordering::SeqCst);
        seat.due.store(0, Ordering::SeqCst);
        seat.memory.store(0, Ordering::SeqCst);
        // Whatever a tenant wrote there meanwhile stays.
        let _ = seat.owner.compare_exchange(sweeping, 0, Ordering::SeqCst, Ordering::SeqCst);
        true
    }
}

impl Seat {
    /// Gives back what was reserved. Never below nothing: a tenant may have written anything.
    pub fn release(&self, size: u64) {
        let before = self.memory.fetch_sub(size, Ordering::SeqCst);
        if before < size {
            self.memory.fetch_add(size - before, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    pub(super) struct Page {
        seats: Vec<Seat>,
        high: AtomicU32,
        past: [AtomicU64; 4],
    }

    impl Page {
        pub(super) fn new(seats: usize) -> Self {
            let seats = (0..seats).map(|_| seat()).collect();
            Self {
                seats,
                high: AtomicU32::new(0),
                past: core::array::from_fn(|_| AtomicU64::new(0)),
            }
        }

        pub(super) fn account(&self) -> Account<'_> {
            Account { seats: &self.seats, high: &self.high, past: &self.past }
        }
    }

    pub(crate) fn seat() -> Seat {
        let zero = || AtomicU64::new(0);
        Seat {
            owner: zero(),
            namespace: zero(),
            image: zero(),
            memory: zero(),
            denied: zero(),
            throttled: zero(),
            launches: zero(),
            room: zero(),
            spent: zero(),
            wants: AtomicU32::new(0),
            returned: AtomicU32::new(0),
            phase: zero(),
            due: zero(),
            more: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    pub(super) fn who(pid: u32) -> Resident {
        Resident { owner: Owner::new(pid, 7).unwrap(), namespace: 1, image: 1 }
    }

    #[cfg(not(loom))]
    mod plain {
        use proptest::prelude::*;

        use super::*;

        #[test]
        fn what_does_not_fit_is_not_taken() {
            let page = Page::new(2);
            let account = page.account();
            let (one, two) = (account.sit(who(1)).unwrap(), account.sit(who(2)).unwrap());
            assert!(account.sit(who(3)).is_none());
            assert_eq!(account.reserve(one, 60, 100), Ok(()));
            assert_eq!(account.reserve(two, 50, 100), Err(Full { held: 60 }));
            assert_eq!(account.reserve(two, u64::MAX, 100), Err(Full { held: 60 }));
            assert_eq!(account.reserve(two, 40, 100), Ok(()));
            assert_eq!(account.held(), 100);
        }

        #[test]
        fn a_swept_seat_leaves_its_counts_and_no_memory() {
            let page = Page::new(2);
            let account = page.account();
            let one = account.sit(who(1)).unwrap();
            account.reserve(one, 60, 100).unwrap();
            one.denied.store(3, Ordering::SeqCst);
            assert_eq!(account.sweep(who(2).owner, |found| found.owner.pid() == 9), 0);
            assert_eq!(account.sweep(who(2).owner, |found| found == who(1)), 1);
            assert_eq!((account.held(), page.past[0].load(Ordering::SeqCst)), (0, 3));
            assert!(account.sit(who(3)).is_some());
        }

        #[test]
        fn a_seat_that_was_left_is_used_before_another() {
            let page = Page::new(3);
            let account = page.account();
            assert!(account.sit_again(who(1)).is_none());
            let one = account.sit(who(1)).unwrap();
            assert!(account.sit_again(who(2)).is_none());
            assert!(account.empty(one, who(1).owner, who(2).owner));
            assert!(account.sit_again(who(2)).is_some_and(|seat| core::ptr::eq(seat, one)));
            assert_eq!(account.reach(), 1);
        }

        #[test]
        fn the_seat_of_a_sweeper_that_died_is_swept_too() {
            let page = Page::new(1);
            let account = page.account();
            let one = account.sit(who(1)).unwrap();
            account.reserve(one, 60, 100).unwrap();
            // The sweeper got no further than this.
            one.owner.store(who(2).owner.0 | SWEEPING, Ordering::SeqCst);
            let found = Account::resident(one).unwrap();
            assert_eq!((found.owner, found.image), (who(2).owner, 0));
            assert_eq!(account.sweep(who(2).owner, |_| true), 0, "not by itself");
            assert_eq!(account.sweep(who(3).owner, |found| found.owner == who(2).owner), 1);
            assert_eq!((account.held(), account.processes()), (0, 0));
        }

        #[test]
        fn an_owner_is_a_number_and_a_time() {
            let owner = Owner::new(77, 0xffff_ffff).unwrap();
            assert_eq!((owner.pid(), owner.start()), (77, 0xffff_ffff));
            assert_eq!(Owner::new(0, 1), None);
        }

        proptest! {
            #[test]
            fn release_undoes_reserve_and_the_limit_holds(
                steps in prop::collection::vec((0..3_usize, 0..200_u64, any::<bool>()), 0..60),
            ) {
                let page = Page::new(3);
                let account = page.account();
                let seats: Vec<&Seat> = (1..=3).map(|pid| account.sit(who(pid)).unwrap()).collect();
                let mut live: Vec<(usize, u64)> = Vec::new();
                for (seat, size, take) in steps {
                    if take {
                        let held: u64 = live.iter().map(|(_, size)| size).sum();
                        let got = account.reserve(seats[seat], size, 500);
                        prop_assert_eq!(got.is_ok(), held + size <= 500);
                        if got.is_ok() { live.push((seat, size)); }
                    } else if let Some((seat, size)) = live.pop() {
                        seats[seat].release(size);
                    }
                    prop_assert_eq!(account.held(), live.iter().map(|(_, size)| size).sum::<u64>());
                }
            }

            #[test]
            fn whatever_stands_in_a_seat_nothing_goes_below_zero(was in any::<u64>(), size in any::<u64>()) {
                let seat = seat();
                seat.memory.store(was, Ordering::SeqCst);
                seat.release(size);
                prop_assert_eq!(seat.memory.load(Ordering::SeqCst), was.saturating_sub(size));
            }
        }
    }

    #[cfg(loom)]
    mod orders {
        use loom::sync::Arc;
        use loom::thread;

        use super::*;

        #[test]
        fn two_claims_that_do_not_fit_together_never_both_succeed() {
            loom::model(|| {
                let page = Arc::new(Page::new(2));
                let claims: Vec<_> = (1..=2)
                    .map(|pid| {
                        let page = Arc::clone(&page);
                        thread::spawn(move || {
                            let account = page.account();
                            let seat = account.sit(who(pid)).unwrap();
                            account.reserve(seat, 60, 100).is_ok()
                        })
                    })
                    .collect();
                let got: Vec<bool> =
                    claims.into_iter().map(|claim| claim.join().unwrap()).collect();
                let held = page.account().held();
                assert!(held <= 60 && held == 60 * got.iter().filter(|ok| **ok).count() as u64);
            });
        }

        #[test]
        fn a_sweeper_that_is_late_takes_nothing_from_who_sits_there_next() {
            // Who looks sees by the program that the dead is gone; a newcomer takes the only seat there
            // is as soon as it is free.
            let gone = |found: Resident| found.image == 1;
            loom::model(move || {
                let page = Arc::new(Page::new(1));
                let dead = page.account().sit(who(1)).unwrap();
                page.account().reserve(dead, 60, 100).unwrap();
                let sweeper = Arc::clone(&page);
                let sweeper = thread::spawn(move || sweeper.account().sweep(who(2).owner, gone));
                let mine = Resident { image: 3, ..who(3) };
                page.account().sweep(mine.owner, gone);
                let seat = page.account().sit(mine);
                if let Some(seat) = seat {
                    page.account().reserve(seat, 70, 100).unwrap();
                }
                sweeper.join().unwrap();
                let (held, there) = (page.account().held(), Account::resident(&page.seats[0]));
                match seat {
                    Some(_) => assert_eq!((held, there), (70, Some(mine))),
                    None => assert_eq!((held, there), (0, None)),
                }
            });
        }

        #[test]
        fn of_two_sweepers_one_empties_the_seat() {
            loom::model(|| {
                let page = Arc::new(Page::new(2));
                let dead = page.account().sit(who(1)).unwrap();
                page.account().reserve(dead, 60, 100).unwrap();
                dead.denied.store(1, Ordering::SeqCst);
                let sweepers: Vec<_> = (2..=3)
                    .map(|pid| {
                        let page = Arc::clone(&page);
                        thread::spawn(move || {
                            page.account().sweep(who(pid).owner, |found| found.owner.pid() == 1)
                        })
                    })
                    .collect();
                let swept: usize = sweepers.into_iter().map(|one| one.join().unwrap()).sum();
                assert_eq!((swept, page.account().held()), (1, 0));
                assert_eq!(page.past[0].load(Ordering::SeqCst), 1);
            });
        }
    }
}
