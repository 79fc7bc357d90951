//! This process, and whether others live.
//!
//! A forked child is another process: it has a word that the kernel wipes at a fork.

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use page::{Owner, Resident};

use crate::setup::Path;
use crate::sys::{self, File};
use crate::{compute, driver, memory, place};

const OURS: u32 = 1;
const CHANGING: u32 = 2;

/// Stands for the word until there is one.
static NONE: AtomicU32 = AtomicU32::new(0);
static WORD: AtomicPtr<AtomicU32> = AtomicPtr::new((&raw const NONE).cast_mut());

/// The PID namespace, once it was asked for. A child may be in another.
static NAMESPACE: AtomicU64 = AtomicU64::new(0);

/// Makes sure that what we remember is of this process and not of one it was forked from. Two loads.
/// Every way into the library begins with it (`hooks!`, `resolve`), before any lock.
#[inline]
pub(crate) fn settle() {
    // SAFETY: points to a static or to a mapping that stays.
    let word = unsafe { &*WORD.load(Ordering::Acquire) };
    if word.load(Ordering::Acquire) != OURS {
        begin();
    }
}

#[cold]
fn begin() {
    let mut at = WORD.load(Ordering::Acquire);
    if core::ptr::eq(at, &raw const NONE) {
        let Ok(page) = sys::map_zeroes(4096) else { return };
        // Kernels before 4.14 cannot; there a child goes on with its parent's seat.
        let _ = sys::wipe_on_fork(page, 4096);
        let kept = WORD.compare_exchange(at, page.cast(), Ordering::AcqRel, Ordering::Acquire);
        if kept.is_err() {
            // SAFETY: another thread was first, and nobody saw this page.
            unsafe { sys::unmap(page, 4096) };
        }
        at = WORD.load(Ordering::Acquire);
    }
    // SAFETY: a mapping that stays.
    let word = unsafe { &*at };
    loop {
        match word.compare_exchange(0, CHANGING, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                // In a first process this forgets nothing. In a child no other thread came along,
                // so locks that they held are nobody's.
                driver::forget();
                place::forget();
                memory::forget();
                compute::forget();
                NAMESPACE.store(0, Ordering::Relaxed);
                word.store(OURS, Ordering::Release);
                sys::futex_wake(word, u32::MAX >> 1, sys::Reach::Process);
                return;
            }
            Err(OURS) => return,
            Err(_) => sys::futex_wait(word, CHANGING, 10_000_000, sys::Reach::Process),
        }
    }
}

/// Who we are, as other processes of the container can check.
pub(crate) fn resident() -> Option<Resident> {
    let pid = sys::pid();
    let start = stat(pid).map_or(0, |stat| stat.start);
    Some(Resident { owner: Owner::new(pid, start)?, namespace: namespace(), image: image(pid) })
}

/// The PID namespace we are in; 0 if it cannot be told.
pub(crate) fn namespace() -> u64 {
    let known = NAMESPACE.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let mut link = [0; 64];
    let text = sys::read_link(c"/proc/self/ns/pid", &mut link).unwrap_or_default();
    let digits = text.iter().filter(|byte| byte.is_ascii_digit());
    let number = digits
        .fold(0_u64, |number, byte| number.wrapping_mul(10).wrapping_add(u64::from(byte - b'0')));
    NAMESPACE.store(number, Ordering::Relaxed);
    number
}

/// Whether the process in a seat has ended, or has become another program. Of processes in another
/// PID namespace nothing is known from here.
pub(crate) fn gone(who: Resident) -> bool {
    if who.namespace != namespace() || who.namespace == 0 {
        return false;
    }
    let pid = who.owner.pid();
    if !sys::exists(pid) {
        return true;
    }
    let Some(stat) = stat(pid) else { return false };
    let reused = who.owner.start() != 0 && stat.start != who.owner.start();
    // The kernel closes what a process had open before it becomes a zombie.
    let zombie = matches!(stat.state, b'Z' | b'X') && stat.threads <= 1;
    let image = image(pid);
    let another = who.image != 0 && image != 0 && image != who.image;
    reused || zombie || another
}

struct Stat {
    state: u8,
    threads: u64,
    start: u32,
}

fn of(pid: u32, file: &[u8]) -> Path {
    let mut path = Path::new(b"/proc/");
    let mut digits = [0; 10];
    let (mut rest, mut from) = (pid, digits.len());
    for (at, digit) in digits.iter_mut().enumerate().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
        from = at;
        if rest == 0 {
            break;
        }
    }
    path.push(digits.get(from..).unwrap_or_default());
    path.push(file);
    path
}

fn stat(pid: u32) -> Option<Stat> {
    let file = File::open(of(pid, b"/stat").as_c_str()).ok()?;
    let mut bytes = [0; 1024];
    let length = file.read(&mut bytes).ok()?;
    parse(bytes.get(..length)?)
}

#[expect(clippy::cast_possible_truncation, reason = "the low half tells processes apart")]
fn parse(text: &[u8]) -> Option<Stat> {
    // The name stands in brackets and may have anything in it.
    let name = text.iter().rposition(|byte| *byte == b')')?;
    let mut fields = text.get(name + 2..)?.split(|byte| *byte == b' ');
    let state = *fields.next()?.first()?;
    let threads = number(fields.nth(16)?);
    let start = number(fields.nth(1)?) as u32;
    Some(Stat { state, threads, start })
}

fn number(digits: &[u8]) -> u64 {
    digits
        .iter()
        .filter(|digit| digit.is_ascii_digit())
        .fold(0_u64, |number, digit| number.wrapping_mul(10).wrapping_add(u64::from(digit - b'0')))
}

/// What an exec changes: where the kernel put the program's random bytes. 0 if it is not ours to know.
fn image(pid: u32) -> u64 {
    const AT_RANDOM: u64 = 25;
    let Ok(file) = File::open(of(pid, b"/auxv").as_c_str()) else { return 0 };
    let mut words = [0_u8; 1024];
    let Ok(length) = file.read(&mut words) else { return 0 };
    let pairs = words.get(..length).unwrap_or_default().as_chunks::<16>().0;
    let word = |pair: &[u8; 16], at: usize| {
        let bytes = pair.get(at..at + 8).and_then(|bytes| bytes.first_chunk::<8>());
        bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
    };
    pairs.iter().find(|pair| word(pair, 0) == AT_RANDOM).map_or(0, |pair| word(pair, 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_lives_until_it_ended() {
        let me = resident().unwrap();
        assert!(!gone(me));
        assert_eq!(me.owner.pid(), std::process::id());
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let dead = Owner::new(child.id(), 1).unwrap();
        // Started at another time: the number was reused.
        assert!(gone(Resident { owner: dead, ..me }));
        child.wait().unwrap();
        assert!(gone(Resident { owner: dead, ..me }));
        assert!(!gone(Resident { owner: dead, namespace: 1, ..me }));
    }

    #[test]
    fn another_program_in_the_same_process_is_another() {
        let me = resident().unwrap();
        assert!(me.image != 0 && gone(Resident { image: me.image + 16, ..me }));
    }

    #[test]
    fn a_name_may_have_brackets_and_spaces() {
        let text = b"7 (a) S 3) Z 1 7 7 0 -1 4 1 0 0 0 0 0 0 0 20 0 3 0 4294967298 9";
        let stat = parse(text).unwrap();
        assert_eq!((stat.state, stat.threads, stat.start), (b'Z', 3, 2));
    }
}
