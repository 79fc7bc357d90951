//! Compute: what is launched is measured, and held back where the share is used up.
//!
//! ```text
//!   launch --> Meter::admit    is it our turn, is there something in the bucket? else sleep
//!          --> the driver's own
//!          --> Lane            how much was launched since the last mark; now and then a mark
//!   sync   --> close           a mark behind what was launched, so that idle time is not counted
//!          --> Meter::harvest  marks that were reached: what ran between two of them is paid for
//! ```
//!
//! What a launch costs is not known before it ran. It is guessed from what its function took
//! before, only to bound how much is in flight; what is paid is what was measured. See `lane.rs` for
//! how it is measured, `pace.rs` for how launches are held back.

pub(crate) mod between;
mod context;
mod guess;
mod lane;
pub(crate) mod launch;
mod meter;
mod pace;
mod stripes;
pub(crate) mod sync;

use core::sync::atomic::{AtomicU32, Ordering};

use crate::driver::call;
use context::Known;
use lane::{Fill, Lane};
use meter::Meter;

/// What is launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One kernel, by its function.
    Kernel(u64),
    /// A graph, by its handle.
    Graph(u64),
    /// Work on several devices, by `cuLaunchCooperativeKernelMultiDevice`.
    Several,
}

impl Kind {
    /// What tells work of one length from work of another.
    fn key(self) -> u64 {
        match self {
            Self::Kernel(function) => function,
            Self::Graph(graph) => !graph,
            Self::Several => 1,
        }
    }
}

/// What is known between the two ends of a launch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ticket {
    launched: Option<Launched>,
}

#[derive(Debug, Clone, Copy)]
struct Launched {
    meter: &'static Meter,
    lane: &'static Lane,
    key: u64,
    guess: u64,
    /// It is the first of its group, as far as is known.
    first: bool,
    /// When the call began, where the stream was idle before.
    began: u64,
}

/// Streams that are being captured. Nothing runs on them.
static CAPTURES: AtomicU32 = AtomicU32::new(0);

/// Before work is given to a stream; waits until the share allows it. The stream is the driver's
/// handle: 1 is the legacy default stream, 2 the thread's. What cannot be measured is refused with
/// CUDA's error.
#[inline]
pub(crate) fn before_launch(stream: u64, kind: Kind) -> Result<Ticket, u32> {
    Ok(Ticket { launched: admitted(stream, kind)? })
}

#[inline]
fn admitted(stream: u64, kind: Kind) -> Result<Option<Launched>, u32> {
    let Some(known) = Known::current()? else { return Ok(None) };
    let Some(meter) = known.meter() else { return Ok(None) };
    if meter.is_free() || is_captured(stream) {
        return Ok(None);
    }
    let lane = match meter.lane(known, stream) {
        Some(lane) => lane,
        None => meter.wait_for_lane(known, stream)?,
    };
    let key = kind.key();
    let guess = guess::of(key);
    if guess > 0 && meter.try_enter(guess) {
        if lane.is_open() {
            return Ok(Some(Launched { meter, lane, key, guess, first: false, began: 0 }));
        }
    } else {
        let guess = if guess == 0 { guess::UNKNOWN } else { guess };
        if !meter.admit(guess) {
            return Ok(None);
        }
    }
    let guess = if guess == 0 { guess::UNKNOWN } else { guess };
    let began = if lane.go_on(crate::sys::now) { 0 } else { meter.open(lane) };
    Ok(Some(Launched { meter, lane, key, guess, first: true, began }))
}

/// After it, with the driver's answer.
#[inline]
pub(crate) fn after_launch(ticket: Ticket, code: u32) {
    let Some(Launched { meter, lane, key, guess, first, began }) = ticket.launched else { return };
    if code != 0 {
        meter.turned_back(lane, guess, first);
        return;
    }
    let fill = lane.add(key, guess);
    if fill != Fill::Room || began != 0 {
        meter.launched(lane, fill, began);
    }
}

/// Whether nothing runs now because the stream is being captured.
#[inline]
fn is_captured(stream: u64) -> bool {
    if CAPTURES.load(Ordering::Relaxed) == 0 {
        return false;
    }
    let mut status = 0_u32;
    call!(cuStreamIsCapturing(stream => u64, &raw mut status => *mut u32)) != 0 || status != 0
}

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// All work of the context; 0 is the current one.
    Context,
    /// A stream, or an event in one.
    Part,
}

/// Around a call that waits for work, or asks whether it is done.
#[inline]
pub(crate) fn waiting(_wait: Wait, real: impl FnOnce() -> u32) -> u32 {
    for meter in meter::all() {
        meter.close_all();
    }
    let code = real();
    for meter in meter::all() {
        meter.waited();
    }
    // Pools give back what was freed.
    crate::memory::pool::synchronised();
    code
}

/// Before a copy, a fill or a wait on a stream, which is no compute.
#[inline]
pub(crate) fn before_copy(stream: u64) {
    let Ok(Some(known)) = Known::current() else { return };
    let Some(meter) = known.meter().filter(|meter| !meter.is_free()) else { return };
    if let Some(lane) = meter.lane(known, stream).filter(|lane| lane.is_in_use()) {
        meter.close(lane);
    }
}

/// Around the end of a stream: what was launched on it is marked while that can be done.
pub(crate) fn stream_goes(stream: u64, real: impl FnOnce() -> u32) -> u32 {
    let captured = is_captured(stream);
    for meter in meter::all().filter(|_| !captured) {
        meter.close_stream(stream);
    }
    let code = real();
    if code == 0 && captured {
        one_capture_less();
    }
    code
}

/// Around the beginning of a capture: what was launched before is not part of it.
pub(crate) fn capturing(real: impl FnOnce() -> u32) -> u32 {
    // All of them: a mark in another stream may be what ends a capture with an error.
    for meter in meter::all() {
        meter.close_all();
    }
    CAPTURES.fetch_add(1, Ordering::Relaxed);
    let code = real();
    if code != 0 {
        CAPTURES.fetch_sub(1, Ordering::Relaxed);
    }
    code
}

/// Around the end of one. An invalidated capture ends with an error, and an end without a beginning
/// ends nothing: what counts is whether the stream was captured and is no more.
pub(crate) fn captured(stream: u64, real: impl FnOnce() -> u32) -> u32 {
    let before = is_captured(stream);
    let code = real();
    if before && !is_captured(stream) {
        one_capture_less();
    }
    code
}

fn one_capture_less() {
    let _ =
        CAPTURES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_sub(1));
}

/// Lets calls of our own be made while a stream is captured. In the mode that is usual a question to
/// an event, from any thread, would end the capture with an error.
#[derive(Debug)]
pub(crate) struct Relaxed {
    before: Option<u32>,
}

impl Relaxed {
    const MODE: u32 = 2;

    #[inline]
    pub(crate) fn new() -> Self {
        let captures = CAPTURES.load(Ordering::Relaxed) != 0;
        Self { before: if captures { exchange(Self::MODE) } else { None } }
    }
}

impl Drop for Relaxed {
    #[inline]
    fn drop(&mut self) {
        if let Some(before) = self.before {
            exchange(before);
        }
    }
}

/// Sets how strict captures are with this thread; says how they were.
#[cold]
fn exchange(mode: u32) -> Option<u32> {
    let mut mode = mode;
    (call!(cuThreadExchangeStreamCaptureMode(&raw mut mode => *mut u32)) == 0).then_some(mode)
}

/// Around the end of a context, with its streams and events; 0 is the primary one of a device. What was
/// not measured is paid for by its guess, or by the time that the end takes if that is more.
pub(crate) fn context_goes(context: u64, real: impl FnOnce() -> u32) -> u32 {
    let begun = crate::sys::now();
    for meter in meter::all() {
        meter.leave_context(context);
    }
    let code = real();
    let time = crate::sys::now().saturating_sub(begun);
    for meter in meter::all() {
        meter.left_context(time);
    }
    context::forget(context);
    code
}

/// A forked child remembers nothing of its parent's launches.
pub(crate) fn forget() {
    meter::forget();
    context::forget(0);
    CAPTURES.store(0, Ordering::Relaxed);
}
