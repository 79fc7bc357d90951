//! What meters one device for this process.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicI64, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, Ordering};

use page::Spans;

use super::context::{self, Known};
use super::lane::{Fill, Lane, Mark};
use super::pace::Pace;
use super::stripes::{Line, Stripes};
use super::{Relaxed, guess};
use crate::driver::{call, cuda};
use crate::log;
use crate::place::{self, Place};
use crate::sys::{self, Reach};

/// Streams that are told apart at one time.
const LANES: usize = 512;
/// How long a launch waits for one of them to be done.
const PATIENCE: u64 = 2_000_000_000;
/// Events that are kept for later, of each context.
const SPARE: usize = 64;
/// A group ends after so much work, by guess.
const GROUP_TIME: (u64, u64) = (250_000, 2_000_000);
/// With so many marks that are not reached, as far as is known, it is looked whether they are.
const LOOK: usize = 4;
/// Work that a thread enters with before others see it, by guess.
const UNSEEN: i64 = 30_000;
const NOT_READY: u32 = 600;
/// An origin further back makes the driver's floats coarse.
const FAR: u64 = 400_000_000;
/// A launch that is slower than this to come on an idle stream is charged for it.
const LAG: u64 = 5_000_000;

/// A device, as this process uses it. All zero is one that was not used.
#[derive(Debug)]
pub(super) struct Meter {
    place: AtomicU32,
    lock: AtomicU32,
    /// Guessed work that is launched and not measured, less what is in `entered`.
    in_flight: AtomicI64,
    /// How much work there may be in flight.
    pub(super) ceiling: AtomicI64,
    /// The turn we are at work in: our seat above, its epoch below; 0 for none.
    pub(super) turn: AtomicU64,
    /// Not 0: no launch is held back or measured.
    pub(super) free: AtomicU32,
    /// What threads entered with and did not add to `in_flight` yet.
    entered: Stripes<Line<AtomicI64>>,
    lanes: [Lane; LANES],
    /// The numbers of those that were ever used, so that only they are looked at. Behind the lock.
    used: [AtomicU16; LANES],
    inner: UnsafeCell<Inner>,
}

/// What is behind the lock.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) pace: Pace,
    spans: Spans,
    /// How many lanes were ever used.
    lanes: usize,
    /// What a context that is about to go left unmeasured, by guess.
    left: u64,
    /// By the index of the context.
    events: [Events; context::MOST],
}

/// Events of one context.
#[derive(Debug)]
struct Events {
    context: u64,
    /// The event that times are counted from, and its time.
    origin: u64,
    begins: u64,
    spare: [u64; SPARE],
    count: usize,
}

// SAFETY: what is not atomic is reached only through `Locked`.
unsafe impl Sync for Meter {}

static METERS: [AtomicPtr<Meter>; place::MOST] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; place::MOST];

/// The meter of a place, made when first asked for.
#[inline]
pub(super) fn of(place: usize) -> Option<&'static Meter> {
    let known = METERS.get(place)?.load(Ordering::Acquire);
    if known.is_null() {
        return make(place);
    }
    // SAFETY: a mapping that stays.
    Some(unsafe { &*known })
}

#[cold]
fn make(place: usize) -> Option<&'static Meter> {
    let slot = METERS.get(place)?;
    let new = sys::map_zeroes(size_of::<Meter>()).ok()?.cast::<Meter>();
    // SAFETY: fresh and large enough; all zero is a meter.
    unsafe { &*new }.place.store(u32::try_from(place).ok()?, Ordering::Release);
    let null = core::ptr::null_mut();
    if slot.compare_exchange(null, new, Ordering::AcqRel, Ordering::Acquire).is_err() {
        // SAFETY: nobody saw it.
        unsafe { sys::unmap(new.cast(), size_of::<Meter>()) };
    }
    // SAFETY: a mapping that stays.
    Some(unsafe { &*slot.load(Ordering::Acquire) })
}

/// All that were used.
pub(super) fn all() -> impl Iterator<Item = &'static Meter> {
    let used = METERS.get(..place::all().len()).unwrap_or_default();
    used.iter().filter_map(|slot| {
        let meter = slot.load(Ordering::Acquire);
        // SAFETY: a mapping that stays.
        (!meter.is_null()).then(|| unsafe { &*meter })
    })
}

/// A child starts anew. What its parent's meters had mapped is left behind.
pub(super) fn forget() {
    for slot in &METERS {
        slot.store(core::ptr::null_mut(), Ordering::Release);
    }
}

impl Meter {
    /// Its device.
    pub(super) fn place(&self) -> Option<&'static Place> {
        place::all().get(self.place.load(Ordering::Acquire) as usize)
    }

    /// Enters with a launch; says what was in flight before, as far as this thread sees.
    #[inline]
    pub(super) fn enter(&self, guess: i64) -> i64 {
        let entered = &self.entered.own().0;
        let before = entered.fetch_add(guess, Ordering::SeqCst);
        let others = self.in_flight.load(Ordering::Relaxed);
        if before.saturating_add(guess) > UNSEEN {
            self.show(entered, before.saturating_add(guess));
        }
        others.saturating_add(before)
    }

    /// Adds work that a thread entered with to what all see. In this order, so that none is missing in between.
    fn show(&self, entered: &AtomicI64, work: i64) {
        self.in_flight.fetch_add(work, Ordering::SeqCst);
        entered.fetch_sub(work, Ordering::SeqCst);
    }

    /// A launch that entered did not go.
    #[inline]
    pub(super) fn turn_back(&self, guess: i64) {
        self.entered.own().0.fetch_sub(guess, Ordering::SeqCst);
    }

    /// What is in flight. Exact, or too much, for who has the lock: what leaves does so behind it.
    pub(super) fn in_flight(&self) -> i64 {
        let add =
            |sum: i64, one: &Line<AtomicI64>| sum.saturating_add(one.0.load(Ordering::SeqCst));
        let entered = self.entered.all().iter().fold(0, add);
        entered.saturating_add(self.in_flight.load(Ordering::SeqCst))
    }

    /// Whether nothing may be in flight, for who does not have the lock.
    pub(super) fn is_idle(&self) -> bool {
        self.entered.all().iter().all(|one| one.0.load(Ordering::SeqCst) == 0)
            && self.in_flight.load(Ordering::SeqCst) == 0
    }

    /// Whether launches are neither held back nor measured.
    #[inline]
    pub(super) fn is_free(&self) -> bool {
        self.free.load(Ordering::Relaxed) != 0 && !self.is_managed_again()
    }

    /// The lane of a stream; `None` if there are too many.
    #[inline]
    pub(super) fn lane(&self, context: &Known, stream: u64) -> Option<&Lane> {
        let own = if stream == 2 { sys::thread() } else { 0 };
        let name = mixed(context.index() as u64 ^ stream.rotate_left(8) ^ own.rotate_left(24)) | 1;
        let begin = (name >> 55) as usize;
        let first = self.lanes.get(begin)?;
        if first.name.load(Ordering::Acquire) == name {
            return Some(first);
        }
        self.find_lane(context, stream, own, name, begin)
    }

    #[cold]
    fn find_lane(
        &self,
        context: &Known,
        stream: u64,
        own: u64,
        name: u64,
        begin: usize,
    ) -> Option<&Lane> {
        let locked = self.lock();
        // A lane that was taken stays: it may be reused when all its work is measured.
        for reuse in [false, true] {
            for step in 0..LANES {
                let lane = self.lanes.get((begin + step) % LANES)?;
                let found = lane.name.load(Ordering::Acquire);
                if found == name {
                    return Some(lane);
                }
                // SAFETY: locked.
                let behind = unsafe { lane.behind() };
                if found != 0 && !(reuse && behind.count == 0 && lane.is_at_rest()) {
                    continue;
                }
                (behind.context, behind.stream, behind.thread) = (context.index(), stream, own);
                behind.broken = true;
                lane.begin_anew();
                // One that only its own thread can mark is marked at every launch.
                lane.full.store(if own == 0 { GROUP_TIME.0 } else { 0 }, Ordering::Relaxed);
                lane.name.store(name, Ordering::Release);
                if found == 0
                    && let Some(place) = self.used.get(locked.inner.lanes)
                {
                    let number = u16::try_from((begin + step) % LANES).unwrap_or(0);
                    place.store(number, Ordering::Relaxed);
                    locked.inner.lanes += 1;
                }
                return Some(lane);
            }
        }
        None
    }

    /// All lanes are busy: waits until one is not. Streams that all wait for the host may keep them so,
    /// and then a launch that could not be measured is refused.
    #[cold]
    pub(super) fn wait_for_lane(&self, context: &Known, stream: u64) -> Result<&Lane, u32> {
        let until = sys::now().saturating_add(PATIENCE);
        while sys::now() < until {
            let mut locked = self.lock();
            locked.close_all();
            locked.harvest();
            drop(locked);
            if let Some(lane) = self.lane(context, stream) {
                return Ok(lane);
            }
            sys::sleep(100_000);
        }
        log::once!(
            Error,
            "a launch is refused: ",
            LANES as u64,
            " streams have work that is not done, and what cannot be measured may not run"
        );
        Err(cuda::LAUNCH_OUT_OF_RESOURCES)
    }

    /// Locks it for this thread.
    pub(super) fn lock(&self) -> Locked<'_> {
        self.try_lock().unwrap_or_else(|| {
            while self.lock.swap(2, Ordering::Acquire) != 0 {
                sys::futex_wait(&self.lock, 2, 20_000_000, Reach::Process);
            }
            self.locked()
        })
    }

    /// Locks it if no other thread has it.
    fn try_lock(&self) -> Option<Locked<'_>> {
        let free = self.lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed);
        free.is_ok().then(|| self.locked())
    }

    fn locked(&self) -> Locked<'_> {
        // SAFETY: whoever has the lock is alone with it.
        Locked { meter: self, inner: unsafe { &mut *self.inner.get() }, _relaxed: Relaxed::new() }
    }

    /// Before a launch on a lane without a group; says when it began if the stream is idle.
    #[cold]
    pub(super) fn open(&self, lane: &Lane) -> u64 {
        let mut locked = self.lock();
        locked.harvest();
        // SAFETY: locked.
        let behind = unsafe { lane.behind() };
        // What still waits for a mark that was not reached goes on without a pause.
        let start = behind.count == 0;
        let goes_on = lane.is_pending() || (!start && !behind.broken);
        if !goes_on {
            locked.mark(lane, Mark::default());
        }
        lane.open();
        if start && !goes_on { sys::now() } else { 0 }
    }

    /// A launch failed. If it was to be the first of its group there may be none.
    #[cold]
    pub(super) fn turned_back(&self, lane: &Lane, guess: u64, first: bool) {
        if first {
            let _locked = self.lock();
            lane.close_if_empty();
        }
        self.turn_back(guess.cast_signed());
    }

    /// After a launch that filled its group, or that was the first on an idle stream.
    #[cold]
    pub(super) fn launched(&self, lane: &Lane, fill: Fill, began: u64) {
        // The launch reached the device somewhere between the two.
        let returned = if began == 0 { 0 } else { sys::now() };
        let locked = if fill == Fill::Full && began == 0 {
            // Whoever is there may be ending this very group. If not, the next launch does.
            self.try_lock()
        } else {
            Some(self.lock())
        };
        let Some(mut locked) = locked else { return };
        if began != 0 {
            // SAFETY: locked.
            if let Some(mark) = unsafe { lane.behind() }.newest().filter(|mark| mark.guess == 0) {
                // If it was not reached yet the launch comes in time.
                if call!(cuEventQuery(mark.event => u64)) == 0 {
                    mark.lag = (returned.saturating_sub(began) / 2).min(LAG);
                }
            }
        }
        if lane.fill() != Fill::Room {
            locked.end(lane);
            // SAFETY: locked.
            if unsafe { lane.behind() }.count > LOOK {
                locked.harvest();
            }
            lane.ended(locked.promise());
        }
    }

    /// Ends the group of a lane: what follows is no compute.
    #[cold]
    pub(super) fn close(&self, lane: &Lane) {
        self.lock().close(lane);
    }

    /// Ends all groups, before somebody waits for them.
    pub(super) fn close_all(&self) {
        if !self.is_idle() {
            self.lock().close_all();
        }
    }

    /// A stream is about to go, and with it the way to put an end behind what was launched on it.
    pub(super) fn close_stream(&self, stream: u64) {
        if self.is_idle() {
            return;
        }
        let mut locked = self.lock();
        for lane in locked.lanes().filter(|lane| lane.is_in_use()) {
            // SAFETY: locked.
            if unsafe { lane.behind() }.stream == stream {
                locked.close(lane);
            }
        }
    }

    /// A context is about to go: nothing of it can be asked any more.
    pub(super) fn leave_context(&self, handle: u64) {
        let mut locked = self.lock();
        if self.in_flight() > 0 {
            locked.close_all();
            locked.harvest();
        }
        locked.inner.left = 0;
        for index in 0..context::MOST {
            let Some(events) = locked.inner.events.get_mut(index) else { return };
            if events.context != 0 && (handle == 0 || events.context == handle) {
                (events.context, events.origin, events.count) = (0, 0, 0);
                locked.drop_lanes(index);
            }
        }
    }

    /// It is gone, after so long.
    pub(super) fn left_context(&self, time: u64) {
        let mut locked = self.lock();
        let left = core::mem::take(&mut locked.inner.left);
        if left > 0 {
            locked.pay(time.saturating_sub(left));
        }
    }
}

/// A meter that is ours for now.
pub(super) struct Locked<'a> {
    pub(super) meter: &'a Meter,
    pub(super) inner: &'a mut Inner,
    _relaxed: Relaxed,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if self.meter.lock.swap(0, Ordering::Release) == 2 {
            sys::futex_wake(&self.meter.lock, 1, Reach::Process);
        }
    }
}

impl<'a> Locked<'a> {
    /// The lanes that were ever used; those that come while it is looked at are not among them.
    fn lanes(&self) -> impl Iterator<Item = &'a Lane> + use<'a> {
        let meter = self.meter;
        let used = meter.used.get(..self.inner.lanes).unwrap_or_default();
        let number = |one: &AtomicU16| usize::from(one.load(Ordering::Relaxed));
        used.iter().filter_map(move |one| meter.lanes.get(number(one)))
    }

    /// Ends the groups of all lanes that this thread can mark.
    pub(super) fn close_all(&mut self) {
        for lane in self.lanes().filter(|lane| lane.is_in_use()) {
            self.close(lane);
        }
    }

    /// Ends the group of a lane, if there is one: what follows does not go on with it.
    fn close(&mut self, lane: &Lane) {
        let pending = lane.is_pending();
        self.end(lane);
        if pending {
            // SAFETY: locked.
            unsafe { lane.behind() }.broken = true;
        }
    }

    /// Puts an end behind what was launched.
    fn end(&mut self, lane: &Lane) {
        // SAFETY: locked.
        let behind = unsafe { lane.behind() };
        if behind.thread != 0 && behind.thread != sys::thread() {
            return;
        }
        if !behind.has_room() {
            self.harvest();
            // SAFETY: locked.
            if !unsafe { lane.behind() }.has_room() {
                return;
            }
        }
        let (mark, threads) = lane.take();
        if mark.count > 0 {
            self.count(mark.count);
            if behind.thread == 0 {
                let ceiling = self.meter.ceiling.load(Ordering::Relaxed);
                let full =
                    u64::try_from(ceiling / 32).unwrap_or(0).clamp(GROUP_TIME.0, GROUP_TIME.1);
                // Each thread fills its own part of the group.
                let full = full.checked_div(threads).unwrap_or(full);
                lane.full.store(full, Ordering::Relaxed);
            }
            self.mark(lane, mark);
        }
    }

    /// Records a mark. Where that cannot be done, what it was for is paid by guess.
    fn mark(&mut self, lane: &Lane, mut mark: Mark) {
        // SAFETY: locked.
        let behind = unsafe { lane.behind() };
        let (index, stream) = (behind.context, behind.stream);
        for _ in 0..2 {
            if let Some(event) = self.event(index)
                && self.record(index, event, stream)
            {
                mark.event = event;
                behind.broken = false;
                behind.push(mark);
                return;
            }
            // Events of a context that is gone. Others are made.
            if let Some(events) = self.inner.events.get_mut(index) {
                (events.context, events.origin, events.count) = (0, 0, 0);
            }
            self.drop_lanes(index);
        }
        self.pay(mark.guess);
        self.leave(mark.guess);
    }

    /// Nothing is known of the marks of a context any more. They are paid by guess.
    fn drop_lanes(&mut self, context: usize) {
        for lane in self.lanes() {
            // SAFETY: locked.
            let behind = unsafe { lane.behind() };
            if behind.context == context {
                let mut guessed = lane.take().0.guess;
                while let Some(mark) = behind.pop() {
                    guessed = guessed.saturating_add(mark.guess);
                }
                self.pay(guessed);
                self.leave(guessed);
                self.inner.left = self.inner.left.saturating_add(guessed);
                behind.broken = true;
            }
        }
    }

    /// Records an event in a stream of a context.
    fn record(&mut self, index: usize, event: u64, stream: u64) -> bool {
        let Some(context) = self.inner.events.get(index).map(|events| events.context) else {
            return false;
        };
        let mut current = 0_u64;
        call!(cuCtxGetCurrent(&raw mut current => *mut u64));
        if current == context {
            return call!(cuEventRecord(event => u64, stream => u64)) == 0;
        }
        if call!(cuCtxPushCurrent_v2(context => u64)) != 0 {
            return false;
        }
        let code = call!(cuEventRecord(event => u64, stream => u64));
        let mut popped = 0_u64;
        call!(cuCtxPopCurrent_v2(&raw mut popped => *mut u64));
        code == 0
    }

    /// An event of a context, one that was used before or a new one.
    fn event(&mut self, index: usize) -> Option<u64> {
        let events = self.inner.events.get_mut(index)?;
        if events.context == 0 {
            let mut current = 0_u64;
            call!(cuCtxGetCurrent(&raw mut current => *mut u64));
            events.context = current;
            (events.origin, events.begins) = origin()?;
        }
        if let Some(at) = events.count.checked_sub(1) {
            events.count = at;
            return events.spare.get(at).copied();
        }
        create()
    }

    /// Takes what was reached off the lanes and pays for it.
    pub(super) fn harvest(&mut self) {
        for lane in self.lanes() {
            loop {
                // SAFETY: locked, and not kept over calls that look at lanes.
                let behind = unsafe { lane.behind() };
                let Some(mark) = behind.oldest() else { break };
                let code = call!(cuEventQuery(mark.event => u64));
                if code == NOT_READY {
                    break;
                }
                let time = (code == 0).then(|| self.time(behind.context, mark.event)).flatten();
                // SAFETY: locked.
                let behind = unsafe { lane.behind() };
                behind.pop();
                self.inner.pace.progressed();
                let Some(time) = time else {
                    // The device failed, or the context is gone.
                    self.pay(mark.guess);
                    self.leave(mark.guess);
                    behind.broken = true;
                    continue;
                };
                if mark.count > 0 {
                    // The device may have waited for the launch. That is believed as far as the
                    // launches took longer than usual.
                    let used = time.saturating_sub(behind.reached);
                    let lag = core::mem::take(&mut behind.lag);
                    if mark.key != 0 {
                        guess::learn(mark.key, used.saturating_sub(lag), mark.count);
                    }
                    let usual = guess::of(mark.key).saturating_mul(mark.count).max(mark.guess / 2);
                    let lag = lag.min(used.saturating_sub(usual));
                    behind.reached = behind.reached.saturating_add(lag);
                    let new = self.inner.spans.add(behind.reached, time);
                    self.pay(new);
                    self.leave(mark.guess);
                }
                (behind.reached, behind.lag) = (time, mark.lag);
                self.keep(behind.context, mark.event, time);
            }
        }
    }

    /// Pays for time that was measured.
    fn pay(&mut self, time: u64) {
        self.inner.pace.pay(time);
        self.meter.ceiling.fetch_sub(time.cast_signed(), Ordering::SeqCst);
    }

    /// The time of an event that was reached.
    fn time(&self, index: usize, event: u64) -> Option<u64> {
        let events = self.inner.events.get(index)?;
        let mut milliseconds = 0_f32;
        let code = call!(cuEventElapsedTime(
            &raw mut milliseconds => *mut f32, events.origin => u64, event => u64));
        #[expect(clippy::cast_possible_truncation, reason = "far below what an integer holds")]
        let since = (f64::from(milliseconds) * 1e6) as i64;
        (code == 0).then(|| events.begins.saturating_add_signed(since))
    }

    /// Keeps an event for later. Now and then it becomes the origin.
    fn keep(&mut self, index: usize, event: u64, time: u64) {
        let Some(events) = self.inner.events.get_mut(index) else { return };
        let mut event = event;
        if time.saturating_sub(events.begins) > FAR {
            event = core::mem::replace(&mut events.origin, event);
            events.begins = time;
        }
        match events.spare.get_mut(events.count) {
            Some(place) => {
                *place = event;
                events.count += 1;
            }
            None => {
                call!(cuEventDestroy_v2(event => u64));
            }
        }
    }

    /// Adds what threads entered with to what all see; nothing is in flight after it if nothing was before.
    pub(super) fn show_all(&self) {
        for one in self.meter.entered.all() {
            let work = one.0.load(Ordering::SeqCst);
            if work != 0 {
                self.meter.show(&one.0, work);
            }
        }
    }

    /// Work that was measured, or never will be, is not in flight any more.
    pub(super) fn leave(&self, guess: u64) {
        self.meter.in_flight.fetch_sub(guess.cast_signed(), Ordering::SeqCst);
    }

    /// A mark that is not reached, by the guess of the work before it.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.lanes().find_map(|lane| {
            // SAFETY: locked.
            unsafe { lane.behind() }.awaited().map(|mark| mark.guess)
        })
    }

    /// Stops waiting for what is in flight. It may be waiting for us: a function on the host, a word
    /// in memory.
    pub(super) fn give_up(&mut self) {
        for lane in self.lanes() {
            // SAFETY: locked.
            self.leave(unsafe { lane.behind() }.give_up());
        }
    }
}

/// A timed event whose waiters sleep.
fn create() -> Option<u64> {
    let mut event = 0_u64;
    (call!(cuEventCreate(&raw mut event => *mut u64, 1 => u32)) == 0).then_some(event)
}

/// An event that lies behind us, and its time by our clock. It is in a stream of its own, so that it
/// waits for nothing.
fn origin() -> Option<(u64, u64)> {
    let event = create()?;
    let mut stream = 0_u64;
    if call!(cuStreamCreate(&raw mut stream => *mut u64, 1 => u32)) != 0 {
        return None;
    }
    call!(cuEventRecord(event => u64, stream => u64));
    call!(cuEventSynchronize(event => u64));
    call!(cuStreamDestroy_v2(stream => u64));
    Some((event, sys::now()))
}

fn mixed(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb)
}
