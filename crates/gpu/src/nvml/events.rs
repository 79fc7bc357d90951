//! Waiting for Xids.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use model::DeviceId;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, EventSet, Nvml as Library};
use tokio::sync::mpsc;

use super::{Renewing, open};
use crate::driver::Driver;
use crate::found::Event;

/// How long a wait lasts before it is seen whether anybody still listens.
const WAIT_MILLIS: u32 = 2_000;
/// Cards come and go, so they are registered anew after this long.
const REGISTERED_FOR: Duration = Duration::from_mins(1);
/// How long to wait where nothing can be waited for.
const PAUSE: Duration = Duration::from_secs(5);

/// The number that NVML gives an Xid it cannot name.
const UNKNOWN: u64 = 999;

/// Sends every Xid from now on, from a thread of its own.
pub(super) fn listen(driver: Driver, renewing: Arc<Renewing>) -> mpsc::Receiver<Event> {
    let (tell, told) = mpsc::channel(64);
    let spawned = thread::Builder::new().name("nvml-events".into()).spawn(move || {
        while !tell.is_closed() {
            match follow(&driver, &renewing, &tell) {
                Ok(Ended::Renewed) => {}
                Ok(Ended::Absent) => thread::sleep(PAUSE),
                Err(error) => {
                    tracing::debug!(%error, "no events from NVML");
                    thread::sleep(PAUSE);
                }
            }
        }
    });
    if let Err(error) = spawned {
        tracing::error!(%error, "no thread for the events of NVML");
    }
    told
}

/// Why it was not followed any longer.
enum Ended {
    /// The library is to be opened anew.
    Renewed,
    /// There is none.
    Absent,
}

/// Follows the cards there are until nobody listens or NVML fails. The next set is there before the
/// last one goes, and that one is emptied: no event falls between the two.
fn follow(
    driver: &Driver,
    renewing: &Renewing,
    tell: &mpsc::Sender<Event>,
) -> Result<Ended, NvmlError> {
    // Declared first, so that the library is closed before others may open it anew.
    let _listening = renewing.listen();
    let Ok(library) = open(driver) else { return Ok(Ended::Absent) };
    let stays = || !tell.is_closed() && !renewing.is_asked();
    let mut now = register_all(&library)?;
    while stays() {
        wait(&now, REGISTERED_FOR, WAIT_MILLIS, &stays, tell)?;
        let next = register_all(&library)?;
        let last = std::mem::replace(&mut now, next);
        wait(&last, Duration::ZERO, 0, &|| true, tell)?;
    }
    Ok(Ended::Renewed)
}

/// A set of all cards that can report.
fn register_all(library: &Library) -> Result<Registered<'_>, NvmlError> {
    let mut mute = Vec::new();
    loop {
        match register(library, &mute)? {
            Ok(registered) => return Ok(registered),
            // A set is lost with a card that cannot report; the others go into a new one.
            Err(index) => mute.push(index),
        }
    }
}

type Registered<'a> = (EventSet<'a>, Vec<(usize, DeviceId)>);

/// A set of all cards but the mute ones; or the place of one more that is mute.
fn register<'a>(
    library: &'a Library,
    mute: &[u32],
) -> Result<Result<Registered<'a>, u32>, NvmlError> {
    let mut set = library.create_event_set()?;
    let mut cards = Vec::new();
    for index in (0..library.device_count()?).filter(|index| !mute.contains(index)) {
        let Ok(card) = library.device_by_index(index) else { continue };
        let Some(id) = card.uuid().ok().and_then(|id| DeviceId::parse(&id).ok()) else { continue };
        set = match card.register_events(EventTypes::CRITICAL_XID_ERROR, set) {
            Ok(set) => set,
            Err(_) => return Ok(Err(index)),
        };
        cards.push((key(&card), id));
    }
    Ok(Ok((set, cards)))
}

/// A card that fell off the bus no longer tells its UUID, so cards are told by their handles.
fn key(card: &Device<'_>) -> usize {
    // SAFETY: the handle is a number here, compared with others and never used as a handle.
    unsafe { card.handle() }.addr()
}

/// Tells what is in the set for so long, as long as it `stays`, and then until nothing has come for
/// `millis`.
fn wait(
    (set, cards): &Registered<'_>,
    long: Duration,
    millis: u32,
    stays: &dyn Fn() -> bool,
    tell: &mpsc::Sender<Event>,
) -> Result<(), NvmlError> {
    let begin = Instant::now();
    while !tell.is_closed() {
        let event = match set.wait(millis) {
            Ok(event) => event,
            Err(NvmlError::Timeout) if begin.elapsed() < long && stays() => continue,
            Err(NvmlError::Timeout) => return Ok(()),
            Err(error) => return Err(error),
        };
        let xid = match event.event_data {
            Some(XidError::Value(xid)) => xid,
            Some(XidError::Unknown) => UNKNOWN,
            None => continue,
        };
        let handle = key(&event.device);
        let device = cards.iter().find(|(card, _)| *card == handle).map(|(_, id)| id.clone());
        if tell.blocking_send(Event { device, xid }).is_err() {
            return Ok(());
        }
    }
    Ok(())
}
