//! The system calls that are needed, made without the C library: a function of it might be newer than
//! the machine, or somebody else's.

use core::ffi::{CStr, c_void};
use core::sync::atomic::AtomicU32;

pub(crate) const PROT_READ: usize = 1;
pub(crate) const PROT_WRITE: usize = 2;
pub(crate) const MAP_SHARED: usize = 1;
pub(crate) const MAP_PRIVATE: usize = 2;
pub(crate) const MAP_ANONYMOUS: usize = 0x20;
pub(crate) const ENOENT: i32 = 2;
pub(crate) const ESRCH: i32 = 3;
const MADV_WIPEONFORK: usize = 18;
const O_RDONLY: usize = 0;
const O_RDWR: usize = 2;
const O_CLOEXEC: usize = 0o2_000_000;
const AT_FDCWD: usize = (-100_isize).cast_unsigned();

#[cfg(target_arch = "x86_64")]
mod number {
    pub(super) const READ: usize = 0;
    pub(super) const WRITE: usize = 1;
    pub(super) const CLOSE: usize = 3;
    pub(super) const LSEEK: usize = 8;
    pub(super) const MMAP: usize = 9;
    pub(super) const MUNMAP: usize = 11;
    pub(super) const MADVISE: usize = 28;
    pub(super) const NANOSLEEP: usize = 35;
    pub(super) const GETPID: usize = 39;
    pub(super) const KILL: usize = 62;
    pub(super) const GETTID: usize = 186;
    pub(super) const FUTEX: usize = 202;
    pub(super) const OPENAT: usize = 257;
    pub(super) const READLINKAT: usize = 267;
}

#[cfg(target_arch = "aarch64")]
mod number {
    pub(super) const OPENAT: usize = 56;
    pub(super) const CLOSE: usize = 57;
    pub(super) const LSEEK: usize = 62;
    pub(super) const READ: usize = 63;
    pub(super) const WRITE: usize = 64;
    pub(super) const READLINKAT: usize = 78;
    pub(super) const FUTEX: usize = 98;
    pub(super) const NANOSLEEP: usize = 101;
    pub(super) const KILL: usize = 129;
    pub(super) const GETPID: usize = 172;
    pub(super) const GETTID: usize = 178;
    pub(super) const MUNMAP: usize = 215;
    pub(super) const MMAP: usize = 222;
    pub(super) const MADVISE: usize = 233;
}

/// A system call; negative results are errors.
///
/// # Safety
/// As the call says of its arguments.
#[cfg(target_arch = "x86_64")]
#[expect(clippy::many_single_char_names, reason = "arguments, by place")]
#[expect(clippy::cast_possible_wrap, reason = "numbers of calls are small")]
unsafe fn call(number: usize, [a, b, c, d, e, f]: [usize; 6]) -> isize {
    let result;
    // SAFETY: the kernel changes rcx, r11 and what the arguments point to, and nothing else.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// A system call; negative results are errors.
///
/// # Safety
/// As the call says of its arguments.
#[cfg(target_arch = "aarch64")]
#[expect(clippy::many_single_char_names, reason = "arguments, by place")]
#[expect(clippy::cast_possible_wrap, reason = "the register holds either")]
unsafe fn call(number: usize, [a, b, c, d, e, f]: [usize; 6]) -> isize {
    let result;
    // SAFETY: the kernel changes x0 and what the arguments point to, and nothing else.
    unsafe {
        core::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a as isize => result,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack),
        );
    }
    result
}

/// An error of the kernel, as a positive number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

fn checked(result: isize) -> Result<usize, Errno> {
    // The kernel's errors end at 4095.
    usize::try_from(result)
        .map_err(|_| Errno(i32::try_from(result.unsigned_abs()).unwrap_or(i32::MAX)))
}

/// An open file, closed when it goes.
#[derive(Debug)]
pub(crate) struct File(usize);

impl File {
    pub(crate) fn open(path: &CStr) -> Result<Self, Errno> {
        Self::open_as(path, O_RDONLY)
    }

    pub(crate) fn open_writable(path: &CStr) -> Result<Self, Errno> {
        Self::open_as(path, O_RDWR)
    }

    fn open_as(path: &CStr, mode: usize) -> Result<Self, Errno> {
        let path = path.as_ptr() as usize;
        // SAFETY: the path is a text that ends with a zero.
        checked(unsafe { call(number::OPENAT, [AT_FDCWD, path, mode | O_CLOEXEC, 0, 0, 0]) })
            .map(Self)
    }

    /// Reads until the end or until `bytes` is full; says how much.
    pub(crate) fn read(&self, bytes: &mut [u8]) -> Result<usize, Errno> {
        let mut filled = 0;
        while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            let (at, room) = (rest.as_mut_ptr() as usize, rest.len());
            // SAFETY: `rest` is ours to write.
            let got = checked(unsafe { call(number::READ, [self.0, at, room, 0, 0, 0]) })?;
            if got == 0 {
                break;
            }
            filled += got;
        }
        Ok(filled)
    }

    /// How long it is.
    pub(crate) fn length(&self) -> Result<usize, Errno> {
        // SAFETY: moves the position of a file that nobody else has.
        let end = checked(unsafe { call(number::LSEEK, [self.0, 0, 2, 0, 0, 0]) })?;
        // SAFETY: as before.
        checked(unsafe { call(number::LSEEK, [self.0, 0, 0, 0, 0, 0]) })?;
        Ok(end)
    }

    /// Maps the first `length` bytes, shared with everyone who maps them.
    pub(crate) fn map(&self, length: usize, protection: usize) -> Result<*mut c_void, Errno> {
        // SAFETY: a new mapping touches no memory that is in use.
        let at = unsafe { call(number::MMAP, [0, length, protection, MAP_SHARED, self.0, 0]) };
        checked(at).map(|at| at as *mut c_void)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours and not used after this.
        unsafe { call(number::CLOSE, [self.0, 0, 0, 0, 0, 0]) };
    }
}

/// Memory of our own, zero.
pub(crate) fn map_zeroes(length: usize) -> Result<*mut c_void, Errno> {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS;
    // SAFETY: a new mapping touches no memory that is in use.
    let at =
        unsafe { call(number::MMAP, [0, length, PROT_READ | PROT_WRITE, flags, usize::MAX, 0]) };
    checked(at).map(|at| at as *mut c_void)
}

/// Gives memory of [`map_zeroes`] back.
///
/// # Safety
/// Nobody uses it any more.
pub(crate) unsafe fn unmap(at: *mut c_void, length: usize) {
    // SAFETY: the caller's.
    unsafe { call(number::MUNMAP, [at as usize, length, 0, 0, 0, 0]) };
}

/// Makes a page of [`map_zeroes`] zero in processes forked from this one.
pub(crate) fn wipe_on_fork(at: *mut c_void, length: usize) -> Result<(), Errno> {
    // SAFETY: changes nothing in this process.
    checked(unsafe { call(number::MADVISE, [at as usize, length, MADV_WIPEONFORK, 0, 0, 0]) })
        .map(drop)
}

/// This process.
pub(crate) fn pid() -> u32 {
    // SAFETY: has no arguments.
    u32::try_from(unsafe { call(number::GETPID, [0; 6]) }).unwrap_or(0)
}

/// This thread.
pub(crate) fn tid() -> u32 {
    // SAFETY: has no arguments.
    u32::try_from(unsafe { call(number::GETTID, [0; 6]) }).unwrap_or(0)
}

/// Whether there is a process of this number in our PID namespace.
pub(crate) fn exists(pid: u32) -> bool {
    // SAFETY: signal 0 is none.
    let answer = checked(unsafe { call(number::KILL, [pid as usize, 0, 0, 0, 0, 0]) });
    answer != Err(Errno(ESRCH))
}

/// What a link points to.
pub(crate) fn read_link<'a>(path: &CStr, into: &'a mut [u8]) -> Option<&'a [u8]> {
    let (at, room) = (into.as_mut_ptr() as usize, into.len());
    // SAFETY: the path ends with a zero and `into` is ours to write.
    let got =
        unsafe { call(number::READLINKAT, [AT_FDCWD, path.as_ptr() as usize, at, room, 0, 0]) };
    into.get(..checked(got).ok()?)
}

/// Writes to the standard error, if that can be done.
pub(crate) fn complain(text: &[u8]) {
    // SAFETY: `text` is ours to read.
    unsafe { call(number::WRITE, [2, text.as_ptr() as usize, text.len(), 0, 0, 0]) };
}

/// How far a futex reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The threads of this process.
    Process,
    /// Whoever maps the file.
    Everyone,
}

/// Sleeps while the word is `value`, until woken, for `nanoseconds` at most. May return for no reason.
pub(crate) fn futex_wait(word: &AtomicU32, value: u32, nanoseconds: u64, reach: Reach) {
    let time = [nanoseconds / 1_000_000_000, nanoseconds % 1_000_000_000];
    let operation = if reach == Reach::Process { 128 } else { 0 };
    let (word, time) = (word.as_ptr() as usize, time.as_ptr() as usize);
    // SAFETY: word and time live during the call.
    unsafe { call(number::FUTEX, [word, operation, value as usize, time, 0, 0]) };
}

/// Wakes up to `count` who sleep on the word.
pub(crate) fn futex_wake(word: &AtomicU32, count: u32, reach: Reach) {
    let operation = if reach == Reach::Process { 129 } else { 1 };
    // SAFETY: the word lives during the call.
    unsafe { call(number::FUTEX, [word.as_ptr() as usize, operation, count as usize, 0, 0, 0]) };
}

/// Sleeps.
pub(crate) fn sleep(nanoseconds: u64) {
    let time = [nanoseconds / 1_000_000_000, nanoseconds % 1_000_000_000];
    // SAFETY: the time lives during the call, and nothing is written back.
    unsafe { call(number::NANOSLEEP, [time.as_ptr() as usize, 0, 0, 0, 0, 0]) };
}

/// Nanoseconds of the monotonic clock. About 25 ns.
pub(crate) fn now() -> u64 {
    unsafe extern "C" {
        fn clock_gettime(clock: i32, time: *mut [i64; 2]) -> i32;
    }
    let mut time = [0_i64; 2];
    // SAFETY: two words are a timespec.
    unsafe { clock_gettime(1, &raw mut time) };
    time[0].unsigned_abs().wrapping_mul(1_000_000_000).wrapping_add(time[1].unsigned_abs())
}

/// The calling thread, as a number.
#[inline]
pub(crate) fn thread() -> u64 {
    let pointer: u64;
    // SAFETY: reads the thread's own pointer, which every thread of a C program has.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, preserves_flags, readonly));
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, preserves_flags));
    }
    pointer
}
