//! Which process has which place in the state, and whether it still lives.
//!
//! A process claims a slot by a record lock on one byte of the file `locks`. The kernel takes
//! the lock away when the process ends, however it ends, and tells others the holder's PID in
//! *their* PID namespace. Two things to mind:
//!
//! - A process loses such locks when it closes any descriptor of the file. So a machine, once
//!   opened, stays open for the life of the process.
//! - A process never sees its own locks. So the claim also holds who made it: a process asks of
//!   a slot first whether it is its own, for its other library may have claimed it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::Ordering;

use crate::state::{SLOTS, Slot, State, get, wide};

/// The file with a byte for each slot.
pub(crate) const FILE: &str = "locks";

/// Who this process is: the same for both libraries in it, never the same for two processes.
///
/// The kernel hands 16 random bytes to every program it starts. A fork keeps them, so the PID is
/// part of it, and the PID namespace, as the first process of each is number 1.
pub(crate) fn identity() -> u64 {
    // SAFETY: asks for a word of the auxiliary vector; no memory of ours is involved.
    let random = unsafe { libc::getauxval(libc::AT_RANDOM) } as *const u8;
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut mix = |byte: u8| hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    if !random.is_null() {
        for place in 0..16 {
            // SAFETY: AT_RANDOM points at 16 bytes that live as long as the process.
            mix(unsafe { *random.add(place) });
        }
    }
    std::process::id().to_le_bytes().into_iter().for_each(&mut mix);
    pid_namespace().to_le_bytes().into_iter().for_each(&mut mix);
    hash | 1
}

/// The PID namespace of this process; 0 where /proc is not mounted.
pub(crate) fn pid_namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |file| file.ino())
}

/// What is known of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    /// Nobody claims it.
    Free,
    /// Its process is this one.
    Mine,
    /// Its process lives, and has this PID here, or 0 if it cannot be seen from here.
    Alive(u32),
    /// Its process has ended.
    Dead,
}

/// The file of the locks.
#[derive(Debug)]
pub(crate) struct Locks {
    file: File,
}

impl Locks {
    pub(crate) fn open(folder: &Path) -> io::Result<Self> {
        // Not created here: a kernel may forbid that for files of others in a shared folder.
        Ok(Self { file: OpenOptions::new().read(true).write(true).open(folder.join(FILE))? })
    }

    /// Whether the process of a slot lives.
    pub(crate) fn life(&self, place: usize, slot: &Slot, identity: u64) -> Life {
        match get(&slot.claim) {
            0 => Life::Free,
            claim if claim == identity => Life::Mine,
            _ => match self.holder(place) {
                Some(pid) => Life::Alive(pid),
                None => Life::Dead,
            },
        }
    }

    /// Takes a slot that nobody has, or whose process has ended: the work of that one must be
    /// cleared away before the slot is used.
    pub(crate) fn claim(&self, state: &State, identity: u64) -> Option<usize> {
        self.claim_in_steps(state, identity, || {})
    }

    /// The same, with something done between any two steps that others can see.
    fn claim_in_steps(&self, state: &State, identity: u64, between: impl Fn()) -> Option<usize> {
        let change = |slot: &Slot, from: u64, to: u64| {
            slot.claim.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
        };
        for (place, slot) in state.slots.iter().enumerate() {
            let before = get(&slot.claim);
            let dead = || before != identity && self.holder(place).is_none();
            // A dead one's claim goes before its byte is taken: with both, it would seem to live
            // and to hold again what others were given since.
            if before != 0 && !(dead() && change(slot, before, 0)) {
                continue;
            }
            between();
            if !self.take(place) {
                continue;
            }
            between();
            // Two threads or libraries of one process can both hold the byte: the claim decides.
            if change(slot, 0, identity) {
                state.header.slots_used.fetch_max(wide(place + 1), Ordering::AcqRel);
                return Some(place);
            }
        }
        None
    }

    /// Gives a slot back whose work was cleared away.
    pub(crate) fn release(&self, place: usize, slot: &Slot) {
        slot.claim.store(0, Ordering::Release);
        let mut lock = range(libc::F_UNLCK, place);
        // SAFETY: the descriptor is open and `lock` is a valid flock.
        unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_SETLK, &raw mut lock) };
    }

    fn take(&self, place: usize) -> bool {
        let mut lock = range(libc::F_WRLCK, place);
        // SAFETY: the descriptor is open and `lock` is a valid flock.
        unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_SETLK, &raw mut lock) == 0 }
    }

    /// The PID of who holds the byte, as seen from here.
    fn holder(&self, place: usize) -> Option<u32> {
        let mut lock = range(libc::F_WRLCK, place);
        // SAFETY: the descriptor is open and `lock` is a valid flock, which the call overwrites.
        let asked = unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_GETLK, &raw mut lock) };
        if asked != 0 {
            // Not known: better a slot that stays too long than one taken from the living.
            return Some(0);
        }
        let held = i32::from(lock.l_type) != libc::F_UNLCK;
        held.then(|| u32::try_from(lock.l_pid).unwrap_or(0))
    }
}

fn range(kind: libc::c_int, place: usize) -> libc::flock {
    // SAFETY: a flock is plain numbers, for which zero is valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::c_short::try_from(kind).unwrap_or_default();
    lock.l_whence = libc::c_short::try_from(libc::SEEK_SET).unwrap_or_default();
    lock.l_start = libc::off_t::try_from(place.min(SLOTS)).unwrap_or_default();
    lock.l_len = 1;
    lock
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;
    use crate::{Choices, Description, Machine};

    const DEAD: u64 = 3;

    #[test]
    fn a_dead_one_never_seems_to_live_while_its_slot_is_claimed() {
        let folder = tempfile::tempdir().unwrap();
        let description = Description::from_profile("vm-x4", &Choices::default()).unwrap();
        let state = Machine::create(folder.path(), &description).unwrap().state;
        // Who made the machine has the first.
        let slot = &state.slots[1];
        slot.claim.store(DEAD, Ordering::Release);
        // Other words of the shared memory serve to tell the two processes' steps apart.
        let (step, seen) = (&state.slots[2].name.joined, &state.slots[2].name.group);
        let pass = |from: &AtomicU64, value: u64| {
            while from.load(Ordering::Acquire) < value {
                std::thread::yield_now();
            }
        };
        // SAFETY: the child takes a slot, which depends on no other thread, and then ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let locks = Locks::open(folder.path());
            let claimed = locks.as_ref().ok().and_then(|locks| {
                locks.claim_in_steps(state, 5, || {
                    let now = step.fetch_add(1, Ordering::AcqRel) + 1;
                    pass(seen, now);
                })
            });
            step.store(if claimed == Some(1) { 3 } else { 4 }, Ordering::Release);
            pass(seen, 3);
            // SAFETY: ends this process and nothing else.
            unsafe { libc::_exit(0) };
        }
        let locks = Locks::open(folder.path()).unwrap();
        let mut lives = Vec::new();
        for now in 1..=3 {
            pass(step, now);
            lives.push((get(&slot.claim), locks.life(1, slot, 7)));
            seen.store(now, Ordering::Release);
        }
        let mut status = 0;
        // SAFETY: waits for our own child; `status` is a local that lives through the call.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        let pid = u32::try_from(child).unwrap();
        assert_eq!(lives, [(0, Life::Free), (0, Life::Free), (5, Life::Alive(pid))]);
        assert_eq!(get(step), 3, "it got the slot of the dead one");
    }
}
