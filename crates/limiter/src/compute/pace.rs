//! Holding launches back.
//!
//! With a referee a process launches only in its turn: up to a budget while others want the card, or
//! paced by a bucket of its own while it is alone. Without one, when the heartbeat in the page is
//! old, it paces itself with its part of the container's share. It then pays for time in which
//! others ran too, so it gets less than its share and never more.
//!
//! Nobody spins: who may not launch sleeps on the word that the referee changes.

use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use page::bucket::{Bucket, WHOLE, rate};
use page::referee::Terms;
use page::turn::Offer;
use page::{LimitsPage, Seat};

use super::meter::{Locked, Meter};
use crate::place::Place;
use crate::setup::{self, Path};
use crate::sys::{self, File, Reach};

/// A heartbeat that is older is no referee's.
const STALE: u64 = 250_000_000;
/// A bucket fills for so long.
const WINDOW: u64 = 250_000_000;
/// Who waits for a turn says so again after this.
const AGAIN: u64 = 5_000_000;
/// The shortest sleep that is worth it, and the longest before looking again.
const NAP: (u64, u64) = (100_000, 50_000_000);
/// Who is alone and has used up its bucket goes on when it has filled for so long. What is launched then begins on a
/// card that waits for it, and a microsecond or two of that is charged: little against what may be launched.
const REST: u64 = 2_000_000;

/// How often work in flight is looked at by who waits for it.
const AWAIT: (u64, u64) = (100_000, 500_000);
/// Work that is not done after this, and four times its guess, may wait for who waits for it.
const STUCK: u64 = 500_000_000;

/// Where this process is. All zero is the beginning.
#[derive(Debug)]
pub(super) struct Pace {
    bucket: Bucket,
    /// The turn we have; 0 for none.
    epoch: u32,
    /// The last one we gave back.
    given: u32,
    /// Its rate if it is open, else 0.
    rate: u32,
    budget: u64,
    /// GPU time used in it.
    used: u64,
    /// The bucket was used up: what must be in it before it is gone on with; 0 if it was not.
    enough: i64,
    /// The referee was told that we are at work.
    busy: bool,
    /// There is no referee.
    without: bool,
    start: u32,
    wants: u32,
    /// GPU time that the seat does not have yet.
    unsaid: u64,
    launches: u64,
    /// Since when nothing that was launched was done, while somebody waited for it; 0 for not.
    waits_since: u64,
    /// It was given up before, and nothing was done since.
    stuck: bool,
}

/// What to do next.
enum Step {
    Go,
    Again,
    /// Until the word is not this any more, or so long.
    Sleep(u32, u64),
    /// Until work of this length may be done.
    Await(u64),
}

impl Pace {
    /// Pays for time that was measured.
    pub(super) fn pay(&mut self, time: u64) {
        self.bucket.pay(time);
        self.used = self.used.saturating_add(time);
        self.unsaid = self.unsaid.saturating_add(time);
    }

    /// Something that was launched is done.
    pub(super) fn progressed(&mut self) {
        (self.waits_since, self.stuck) = (0, false);
    }

    /// Whether work has been waited for so long that it may never be done.
    fn is_stuck(&mut self, now: u64, guess: u64) -> bool {
        if self.waits_since == 0 {
            self.waits_since = now;
        }
        let patience = if self.stuck { STUCK / 10 } else { guess.saturating_mul(4).max(STUCK) };
        let stuck = now.saturating_sub(self.waits_since) > patience;
        if stuck {
            (self.waits_since, self.stuck) = (0, true);
        }
        stuck
    }

    fn take(&mut self, offer: Offer, now: u64) {
        (self.epoch, self.used, self.busy, self.without) = (offer.epoch, 0, false, false);
        match offer.terms {
            Terms::Budget(budget) => (self.budget, self.rate) = (budget, 0),
            Terms::Open { balance, rate } => {
                self.rate = rate;
                self.bucket = Bucket::new(balance, now);
            }
        }
    }

    /// What may be in flight.
    fn ceiling(&mut self, now: u64, rate: u32) -> i64 {
        if rate == 0 {
            let left = i64::try_from(self.budget).unwrap_or(i64::MAX);
            return left.saturating_sub_unsigned(self.used);
        }
        self.bucket.fill(now, rate, WINDOW);
        self.bucket.balance()
    }

    /// Whether a launch may go with so much in flight. What is not done yet is gone on with while there is anything
    /// in the bucket; after that, when it is worth it.
    fn may_go(&mut self, in_flight: i64, ceiling: i64, rate: u32) -> bool {
        let enough = Bucket::cap(rate, REST);
        if in_flight >= ceiling {
            self.enough = enough;
            return false;
        }
        if in_flight > 0 || ceiling >= self.enough.min(enough) {
            self.enough = 0;
        }
        self.enough == 0
    }
}

impl Meter {
    /// Enters with a launch that is thought to take `guess`, if that needs no second look.
    #[inline]
    pub(super) fn try_enter(&self, guess: u64) -> bool {
        let guess = guess.cast_signed();
        // Whoever closes the gate writes it first and looks at what is in flight after.
        let before = self.enter(guess);
        if before < self.ceiling.load(Ordering::SeqCst) && self.may_go_on() {
            return true;
        }
        self.turn_back(guess);
        false
    }

    /// Whether the turn is still ours; 0 stands for no turn and no need of one.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the halves of a word")]
    fn may_go_on(&self) -> bool {
        let turn = self.turn.load(Ordering::Relaxed);
        let (seat, epoch) = ((turn >> 32) as u32, turn as u32);
        seat == 0 || self.place().is_some_and(|place| place.limits().grants.holds(seat, epoch))
    }

    /// Whether limits came where there were none.
    pub(super) fn is_managed_again(&self) -> bool {
        self.place().is_some_and(|place| {
            let limits = place.limits();
            limits.grants.managed.load(Ordering::Relaxed) != 0
                || (1..100).contains(&limits.cores.load(Ordering::Relaxed))
        })
    }

    /// Waits until a launch may go; whether it is to be measured.
    #[cold]
    pub(super) fn admit(&self, guess: u64) -> bool {
        let Some(place) = self.place() else { return false };
        let Some(seat) = place.seat() else { return false };
        let limits = place.limits();
        let mut held_back = 0_u64;
        loop {
            let mut locked = self.lock();
            locked.harvest();
            let now = sys::now();
            if held_back != 0 {
                seat.throttled.fetch_add(now.saturating_sub(held_back), Ordering::Relaxed);
                held_back = 0;
            }
            let beat = limits.grants.heartbeat.load(Ordering::Acquire);
            let alive = beat != 0 && now.saturating_sub(beat) < STALE;
            let cores = limits.cores.load(Ordering::Acquire);
            let managed = if alive {
                limits.grants.managed.load(Ordering::Acquire) != 0
            } else {
                (1..100).contains(&cores)
            };
            self.free.store(u32::from(!managed), Ordering::Relaxed);
            if !managed {
                return false;
            }
            let step = if alive {
                locked.by_turn(place, limits, seat, now)
            } else {
                locked.by_clock(place, limits, cores, now)
            };
            locked.say(seat);
            match step {
                Step::Again => {}
                Step::Go => {
                    self.enter(guess.cast_signed());
                    locked.promise();
                    return true;
                }
                Step::Sleep(seen, time) => {
                    drop(locked);
                    held_back = now;
                    sys::futex_wait(&limits.grants.turn, seen, time, Reach::Everyone);
                }
                Step::Await(guess) => {
                    // Not by waiting for the event: its work may be waiting for this thread.
                    let nap = (guess / 4).clamp(AWAIT.0, AWAIT.1);
                    if locked.inner.pace.is_stuck(now, guess) {
                        locked.give_up();
                        continue;
                    }
                    drop(locked);
                    held_back = now;
                    sys::sleep(nap);
                }
            }
        }
    }

    /// After a call that waited: if all is done, the turn is not needed for now.
    pub(super) fn waited(&self) {
        if self.turn.load(Ordering::Relaxed) == 0 && self.is_idle() {
            return;
        }
        let mut locked = self.lock();
        locked.harvest();
        locked.show_all();
        let Some((place, seat)) = self.place().and_then(|place| Some((place, place.seat()?)))
        else {
            return;
        };
        locked.say(seat);
        let own = &mut locked.inner.pace;
        if !own.busy {
            return;
        }
        self.ceiling.store(0, Ordering::SeqCst);
        if self.in_flight() > 0 {
            return;
        }
        own.busy = false;
        self.turn.store(0, Ordering::Relaxed);
        seat.pause(own.epoch, own.start);
        if !place.limits().grants.holds(number(place, seat), own.epoch) {
            locked.give_back(place, seat);
        }
    }
}

impl Locked<'_> {
    /// One look at the turn.
    fn by_turn(&mut self, place: &Place, limits: &LimitsPage, seat: &Seat, now: u64) -> Step {
        let grants = &limits.grants;
        let me = number(place, seat);
        let seen = grants.turn.load(Ordering::SeqCst);
        // One that was given back may stand there for a while.
        let given = self.inner.pace.given;
        let Some(offer) = grants.offered(me).filter(|offer| offer.epoch != given) else {
            if self.inner.pace.epoch != 0 {
                self.meter.ceiling.store(0, Ordering::SeqCst);
                self.close_all();
                if let Some(guess) = self.unfinished() {
                    return Step::Await(guess);
                }
                self.say(seat);
                self.give_back(place, seat);
            }
            self.want(place, seat);
            return Step::Sleep(seen, AGAIN);
        };
        let own = &mut self.inner.pace;
        if own.epoch != offer.epoch {
            own.take(offer, now);
            seat.wants.store(0, Ordering::SeqCst);
        }
        if !own.busy {
            own.start = own.start.wrapping_add(1);
            if !seat.start(grants, me, offer.epoch, own.start) {
                return Step::Again;
            }
            own.busy = true;
            self.meter.turn.store(u64::from(me) << 32 | u64::from(offer.epoch), Ordering::Relaxed);
        }
        // An open turn goes with the limits as they are now.
        let rate = if own.rate == 0 { 0 } else { live_rate(limits) };
        if self.has_room(now, rate) {
            return Step::Go;
        }
        // When something is done, what it really took is known.
        if let Some(event) = self.oldest() {
            return Step::Await(event);
        }
        if rate != 0 {
            return Step::Sleep(seen, self.nap(rate));
        }
        self.meter.ceiling.store(0, Ordering::SeqCst);
        if let Some(guess) = self.unfinished() {
            return Step::Await(guess);
        }
        self.say(seat);
        self.give_back(place, seat);
        Step::Again
    }

    /// Whether another launch may go; if not, what was launched is marked, so that what it took is known.
    fn has_room(&mut self, now: u64, rate: u32) -> bool {
        let ceiling = self.inner.pace.ceiling(now, rate);
        self.meter.ceiling.store(ceiling, Ordering::SeqCst);
        let in_flight = self.meter.in_flight();
        if self.inner.pace.may_go(in_flight, ceiling, rate) {
            return true;
        }
        if self.inner.pace.enough > 0 {
            // Nor may those go that do not ask.
            self.meter.ceiling.store(ceiling.min(0), Ordering::SeqCst);
        }
        self.close_all();
        false
    }

    /// Work that is not done, by its guess. A launch that was let in and has not come to its lane yet is
    /// such work, too: the turn must not be given back before it. The gate is closed.
    fn unfinished(&self) -> Option<u64> {
        let entering = !self.inner.pace.stuck && self.meter.in_flight() > 0;
        self.oldest().or(entering.then_some(0))
    }

    /// One look at the clock.
    fn by_clock(&mut self, place: &Place, limits: &LimitsPage, cores: u32, now: u64) -> Step {
        let processes = place.account().processes().max(1);
        let rate = rate(cores).checked_div(processes).unwrap_or(1).max(1);
        let own = &mut self.inner.pace;
        if !own.without {
            (own.without, own.busy, own.epoch) = (true, false, 0);
            own.bucket = Bucket::new(own.bucket.balance().min(0), now);
            self.meter.turn.store(0, Ordering::Relaxed);
            // One that rests because nobody had a seat is not gone: it looks when somebody rings.
            ring(place);
        }
        if self.has_room(now, rate) {
            return Step::Go;
        }
        if let Some(event) = self.oldest() {
            return Step::Await(event);
        }
        let seen = limits.grants.turn.load(Ordering::SeqCst);
        Step::Sleep(seen, self.nap(rate))
    }

    /// How long until enough is in the bucket.
    fn nap(&self, rate: u32) -> u64 {
        let enough = Bucket::cap(rate, REST).max(1);
        let wait = self.inner.pace.bucket.wait(enough, rate);
        wait.unwrap_or(NAP.1).max(NAP.0).min(NAP.1)
    }

    /// Tells the referee that we wait.
    fn want(&mut self, place: &Place, seat: &Seat) {
        let own = &mut self.inner.pace;
        own.wants = own.wants.wrapping_add(1).max(1);
        seat.wants.store(own.wants, Ordering::SeqCst);
        ring(place);
    }

    /// Gives the turn back; nothing of ours runs.
    fn give_back(&mut self, place: &Place, seat: &Seat) {
        let own = &mut self.inner.pace;
        self.meter.ceiling.store(0, Ordering::SeqCst);
        self.meter.turn.store(0, Ordering::Relaxed);
        seat.give_back(own.epoch);
        (own.given, own.epoch, own.busy) = (own.epoch, 0, false);
        ring(place);
    }

    /// Tells the seat what was measured.
    fn say(&mut self, seat: &Seat) {
        let own = &mut self.inner.pace;
        seat.spent.fetch_add(core::mem::take(&mut own.unsaid), Ordering::Relaxed);
        seat.launches.fetch_add(core::mem::take(&mut own.launches), Ordering::Relaxed);
    }

    /// Tells the seat when what was launched will be done; says what time it is.
    pub(super) fn promise(&mut self) -> u64 {
        let now = sys::now();
        if let Some(seat) = self.meter.place().and_then(Place::seat) {
            self.say(seat);
            let in_flight = self.meter.in_flight().max(0);
            seat.due.store(now.saturating_add_signed(in_flight), Ordering::Relaxed);
        }
        now
    }

    /// Counts launches.
    pub(super) fn count(&mut self, launches: u64) {
        self.inner.pace.launches = self.inner.pace.launches.saturating_add(launches);
    }
}

/// How fast the bucket of a process without rivals fills.
fn live_rate(limits: &LimitsPage) -> u32 {
    let cores = limits.cores.load(Ordering::Acquire);
    if cores == 0 { WHOLE } else { rate(cores.max(limits.burst.load(Ordering::Acquire))).max(1) }
}

/// The number of our seat, from 1.
fn number(place: &Place, seat: &Seat) -> u32 {
    let first = core::ptr::from_ref(&place.counters().seats) as usize;
    let at = core::ptr::from_ref(seat) as usize;
    u32::try_from(at.wrapping_sub(first) / size_of::<Seat>()).unwrap_or(0).wrapping_add(1)
}

/// Wakes the referee of the card. The word is read-only here; waking needs no more.
fn ring(place: &Place) {
    static DOORS: [AtomicPtr<AtomicU32>; crate::place::MOST] =
        [const { AtomicPtr::new(core::ptr::null_mut()) }; crate::place::MOST];
    /// Behind which nobody is.
    static WALL: AtomicU32 = AtomicU32::new(0);
    let Some(door) = DOORS.get(place.number()) else { return };
    let mut at = door.load(Ordering::Acquire);
    if at.is_null() {
        let mut path = Path::new(setup::root());
        path.push(b"/pages/");
        path.push_number(place.number());
        path.push(b".door");
        let file = File::open(path.as_c_str());
        let long = |file: &File| file.length().is_ok_and(|length| length >= 4);
        let mapped = file.ok().filter(long).and_then(|file| file.map(4, sys::PROT_READ).ok());
        at = mapped.map_or((&raw const WALL).cast_mut(), <*mut _>::cast);
        door.store(at, Ordering::Release);
    }
    if !core::ptr::eq(at, &raw const WALL) {
        // All of them: a neighbour that sleeps on the word could have the only waking.
        // SAFETY: a mapping that stays, of at least a word.
        sys::futex_wake(unsafe { &*at }, u32::MAX >> 1, Reach::Everyone);
    }
}
