//! The devices of the container: each has a page of limits, a page of counters, and our seat in it.

use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use page::{Account, CountersPage, LimitsPage, Seat};

use crate::driver::call;
use crate::{log, process, sys};

/// The most devices a container can have.
pub(crate) const MOST: usize = 64;

/// Once in so many seats it is looked whether those before can be used again.
const SWEEP: usize = 8;

/// A device of the container.
#[derive(Debug)]
pub(crate) struct Place {
    limits: AtomicPtr<LimitsPage>,
    counters: AtomicPtr<CountersPage>,
    seat: AtomicPtr<Seat>,
    /// The device's UUID as the driver gives it.
    uuid: [AtomicU64; 2],
}

static PLACES: [Place; MOST] = [const {
    Place {
        limits: AtomicPtr::new(core::ptr::null_mut()),
        counters: AtomicPtr::new(core::ptr::null_mut()),
        seat: AtomicPtr::new(core::ptr::null_mut()),
        uuid: [const { AtomicU64::new(0) }; 2],
    }
}; MOST];
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// The place of each of CUDA's devices, from 1; 0: not asked yet; 255: it has none.
static OF_DEVICE: [AtomicU8; MOST] = [const { AtomicU8::new(0) }; MOST];
const NOT_OURS: u8 = 255;

/// All devices of the container.
pub(crate) fn all() -> &'static [Place] {
    PLACES.get(..COUNT.load(Ordering::Acquire)).unwrap_or_default()
}

/// Called with the pages of each device in turn.
pub(crate) fn add(number: usize, limits: &'static LimitsPage, counters: &'static CountersPage) {
    let Some(place) = PLACES.get(number) else { return };
    let uuid = uuid(&limits.device);
    place.uuid[0].store(uuid[0], Ordering::Release);
    place.uuid[1].store(uuid[1], Ordering::Release);
    place.limits.store(core::ptr::from_ref(limits).cast_mut(), Ordering::Release);
    place.counters.store(core::ptr::from_ref(counters).cast_mut(), Ordering::Release);
    COUNT.store(number + 1, Ordering::Release);
}

/// Forgets our seats: they are those of the process we were forked from.
pub(crate) fn forget() {
    for place in &PLACES {
        place.seat.store(core::ptr::null_mut(), Ordering::Release);
    }
}

/// The 16 bytes in a name such as `GPU-5f2e...`, as two numbers.
fn uuid(name: &[u8]) -> [u64; 2] {
    let text = name.split(|byte| *byte == 0).next().unwrap_or_default();
    let digits = text.split(|byte| *byte == b'-').skip(1).flatten();
    let mut number = 0_u128;
    for digit in digits.filter_map(|byte| char::from(*byte).to_digit(16)) {
        number = number << 4 | u128::from(digit);
    }
    halves(number)
}

#[expect(clippy::cast_possible_truncation, reason = "the two halves")]
fn halves(number: u128) -> [u64; 2] {
    [(number >> 64) as u64, number as u64]
}

/// The place of one of CUDA's devices; `None` if the container was not given it.
#[inline]
pub(crate) fn of_device(device: i32) -> Option<&'static Place> {
    let known = OF_DEVICE.get(usize::try_from(device).ok()?)?;
    match known.load(Ordering::Acquire) {
        0 => look_up(device, known),
        NOT_OURS => None,
        place => PLACES.get(usize::from(place) - 1),
    }
}

#[cold]
fn look_up(device: i32, known: &AtomicU8) -> Option<&'static Place> {
    let mut bytes = [0_u8; 16];
    // The newer one knows slices of cards.
    let mut code = call!(cuDeviceGetUuid_v2(&raw mut bytes => *mut [u8; 16], device => i32));
    if code != 0 {
        code = call!(cuDeviceGetUuid(&raw mut bytes => *mut [u8; 16], device => i32));
    }
    if code != 0 {
        return None;
    }
    let found = of_uuid(halves(u128::from_be_bytes(bytes)));
    let number = found.map_or(NOT_OURS, |(number, _)| u8::try_from(number + 1).unwrap_or(NOT_OURS));
    known.store(number, Ordering::Release);
    if found.is_none() {
        log::once!(
            Error,
            "a device was not given to this container and has no memory here: device ",
            device.unsigned_abs()
        );
    }
    found.map(|(_, place)| place)
}

fn of_uuid(uuid: [u64; 2]) -> Option<(usize, &'static Place)> {
    all().iter().enumerate().find(|(_, place)| {
        [place.uuid[0].load(Ordering::Acquire), place.uuid[1].load(Ordering::Acquire)] == uuid
    })
}

/// The place of a device by its name, as NVML gives it.
pub(crate) fn of_name(name: &[u8]) -> Option<&'static Place> {
    of_uuid(uuid(name)).map(|(_, place)| place)
}

/// The place of the device of the current context; `None` if there is no context or it is not ours.
pub(crate) fn current() -> Option<&'static Place> {
    let mut device = 0_i32;
    if call!(cuCtxGetDevice(&raw mut device => *mut i32)) != 0 {
        return None;
    }
    of_device(device)
}

impl Place {
    /// Its number among the container's, from 0.
    pub(crate) fn number(&self) -> usize {
        let size = size_of::<Self>();
        (core::ptr::from_ref(self) as usize).wrapping_sub(PLACES.as_ptr() as usize) / size
    }

    /// What the container may use.
    #[inline]
    pub(crate) fn limits(&self) -> &'static LimitsPage {
        // SAFETY: places are handed out only after their pages were stored, and those stay.
        unsafe { &*self.limits.load(Ordering::Acquire) }
    }

    /// What it uses.
    #[inline]
    pub(crate) fn counters(&self) -> &'static CountersPage {
        // SAFETY: as above.
        unsafe { &*self.counters.load(Ordering::Acquire) }
    }

    /// The account of memory.
    #[inline]
    pub(crate) fn account(&self) -> Account<'static> {
        self.counters().account()
    }

    /// The memory the container may use.
    #[inline]
    pub(crate) fn allowed(&self) -> u64 {
        self.limits().memory.load(Ordering::Acquire)
    }

    /// Our seat, taken at the first use; `None` if all are taken.
    #[inline]
    pub(crate) fn seat(&self) -> Option<&'static Seat> {
        let seat = self.seat.load(Ordering::Acquire);
        if seat.is_null() {
            return self.sit();
        }
        // SAFETY: a seat of the mapped page, which stays.
        Some(unsafe { &*seat })
    }

    #[cold]
    fn sit(&self) -> Option<&'static Seat> {
        let who = process::resident()?;
        let _guard = self.lock();
        let seat = self.seat.load(Ordering::Acquire);
        if !seat.is_null() {
            // Another thread was first.
            // SAFETY: a seat of the mapped page, which stays.
            return Some(unsafe { &*seat });
        }
        let account = self.account();
        // What this process held before an exec goes now; others see that only when they look.
        let before = |found: page::Resident| {
            let program = found.image != 0 && found.image != who.image;
            found.owner == who.owner && found.namespace == who.namespace && program
        };
        account.sweep(who.owner, before);
        let mut taken = account.sit_again(who);
        // Every claim adds up all seats that were ever used. So before there are more of them, the dead leave theirs;
        // not each time, as looking who lives takes longer the more there are.
        if taken.is_none() && account.reach().is_multiple_of(SWEEP) {
            account.sweep(who.owner, process::gone);
            taken = account.sit_again(who);
        }
        taken = taken.or_else(|| account.sit(who));
        if taken.is_none() {
            account.sweep(who.owner, process::gone);
            taken = account.sit(who);
        }
        if let Some(seat) = taken {
            self.seat.store(core::ptr::from_ref(seat).cast_mut(), Ordering::Release);
        } else {
            log::once!(
                Error,
                "too many processes use a device: all ",
                page::SEATS as u64,
                " seats are taken"
            );
        }
        taken
    }

    /// Empties the seats of processes that ended.
    pub(crate) fn sweep(&self) -> usize {
        let Some(who) = process::resident() else { return 0 };
        self.account().sweep(who.owner, process::gone)
    }

    /// Holds others off while seats are taken and swept. Nothing rests on it but that two do not do
    /// the same work: who holds it for too long is passed by.
    pub(crate) fn lock(&self) -> Guard {
        let word = &self.counters().lock;
        let me = sys::pid();
        for _ in 0..20 {
            let before = word.compare_exchange(0, me, Ordering::AcqRel, Ordering::Acquire);
            let Err(holder) = before else { return Guard { place: self.number(), pid: me } };
            if holder != me && !sys::exists(holder) {
                let _ = word.compare_exchange(holder, 0, Ordering::AcqRel, Ordering::Acquire);
                continue;
            }
            sys::futex_wait(word, holder, 5_000_000, sys::Reach::Everyone);
        }
        word.store(me, Ordering::Release);
        Guard { place: self.number(), pid: me }
    }
}

/// Lets others in when it goes.
#[derive(Debug)]
pub(crate) struct Guard {
    place: usize,
    pid: u32,
}

impl Drop for Guard {
    fn drop(&mut self) {
        let Some(place) = PLACES.get(self.place) else { return };
        let word = &place.counters().lock;
        let _ = word.compare_exchange(self.pid, 0, Ordering::AcqRel, Ordering::Acquire);
        sys::futex_wake(word, 1, sys::Reach::Everyone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_sixteen_bytes() {
        let name = b"GPU-00112233-4455-6677-8899-aabbccddeeff\0\0\0";
        assert_eq!(uuid(name), [0x0011_2233_4455_6677, 0x8899_aabb_ccdd_eeff]);
        assert_eq!(uuid(&name[..]), uuid(b"MIG-00112233-4455-6677-8899-aabbccddeeff"));
    }
}
