//! The names, the way from each to what answers, and the driver's own functions.

use core::ffi::CStr;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::{driver, process};

/// A function of ours in front of the driver's.
pub(crate) struct Hook {
    pub(crate) index: usize,
    pub(crate) function: *const (),
}

// SAFETY: addresses of functions, the same for all threads.
unsafe impl Sync for Hook {}

/// The address of an export.
#[cfg(panic = "abort")]
struct Address(*const ());

// SAFETY: the address of a function, the same for all threads.
#[cfg(panic = "abort")]
unsafe impl Sync for Address {}

/// Where each export jumps to: at first to [`enter`], then to a hook or to the driver.
static TARGETS: [AtomicPtr<()>; COUNT] =
    [const { AtomicPtr::new((enter as *const ()).cast_mut()) }; COUNT];
/// The driver's functions.
static GENUINE: [AtomicPtr<()>; COUNT] = [const { AtomicPtr::new(core::ptr::null_mut()) }; COUNT];

/// The driver's function; before the driver is loaded one that refuses.
#[inline]
pub(crate) fn genuine(index: usize) -> *const () {
    let found =
        GENUINE.get(index).map_or(core::ptr::null_mut(), |slot| slot.load(Ordering::Acquire));
    if found.is_null() { driver::absent(index) } else { found }
}

/// Whether the driver has this function.
pub(crate) fn has(index: usize) -> bool {
    GENUINE.get(index).is_some_and(|slot| !slot.load(Ordering::Acquire).is_null())
}

/// The function of the driver was found there.
pub(crate) fn found(index: usize, address: *mut ()) {
    if let Some(slot) = GENUINE.get(index) {
        slot.store(address, Ordering::Release);
    }
}

/// From now on the export jumps there.
pub(crate) fn aim(index: usize, target: *const ()) {
    if let Some(slot) = TARGETS.get(index) {
        slot.store(target.cast_mut(), Ordering::Release);
    }
}

/// The same, unless it jumps somewhere already.
pub(crate) fn aim_at_first(index: usize, target: *const ()) {
    if let Some(slot) = TARGETS.get(index) {
        let (at_first, target) = ((enter as *const ()).cast_mut(), target.cast_mut());
        let _ = slot.compare_exchange(at_first, target, Ordering::AcqRel, Ordering::Acquire);
    }
}

/// The name of a function.
pub(crate) fn name(index: usize) -> &'static CStr {
    let from = OFFSETS.get(index).map_or(0, |at| *at as usize);
    NAMES.get(from..).and_then(|rest| CStr::from_bytes_until_nul(rest).ok()).unwrap_or(c"")
}

/// The place of a name.
pub(crate) fn place(wanted: &CStr) -> Option<usize> {
    // Two sorted lists.
    search(wanted, 0, NVML).or_else(|| search(wanted, NVML, COUNT))
}

fn search(wanted: &CStr, mut low: usize, mut high: usize) -> Option<usize> {
    while low < high {
        let middle = low.midpoint(high);
        match name(middle).to_bytes().cmp(wanted.to_bytes()) {
            core::cmp::Ordering::Equal => return Some(middle),
            core::cmp::Ordering::Less => low = middle + 1,
            core::cmp::Ordering::Greater => high = middle,
        }
    }
    None
}

/// The address under which a program finds an export.
#[cfg(panic = "abort")]
pub(crate) fn exported(index: usize) -> *const () {
    TRAMPOLINES.get(index).map_or(core::ptr::null(), |one| one.0)
}

/// Test binaries export nothing.
#[cfg(not(panic = "abort"))]
pub(crate) fn exported(index: usize) -> *const () {
    HOOKS.iter().find(|hook| hook.index == index).map_or(genuine(index), |hook| hook.function)
}

/// Loads the driver at the first call of an export, then goes on to its target as if called by the
/// program. The place of the export is in a register that no argument uses.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn enter() {
    core::arch::naked_asm!(
        "push rbp",
        "mov rbp, rsp",
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "push rax",
        "sub rsp, 136",
        "movups [rsp], xmm0",
        "movups [rsp + 16], xmm1",
        "movups [rsp + 32], xmm2",
        "movups [rsp + 48], xmm3",
        "movups [rsp + 64], xmm4",
        "movups [rsp + 80], xmm5",
        "movups [rsp + 96], xmm6",
        "movups [rsp + 112], xmm7",
        "mov edi, r11d",
        "call {resolve}",
        "mov r11, rax",
        "movups xmm0, [rsp]",
        "movups xmm1, [rsp + 16]",
        "movups xmm2, [rsp + 32]",
        "movups xmm3, [rsp + 48]",
        "movups xmm4, [rsp + 64]",
        "movups xmm5, [rsp + 80]",
        "movups xmm6, [rsp + 96]",
        "movups xmm7, [rsp + 112]",
        "add rsp, 136",
        "pop rax",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "pop rbp",
        "jmp r11",
        resolve = sym resolve,
    )
}

/// As above.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn enter() {
    core::arch::naked_asm!(
        "stp x29, x30, [sp, -224]!",
        "mov x29, sp",
        "stp x0, x1, [sp, 16]",
        "stp x2, x3, [sp, 32]",
        "stp x4, x5, [sp, 48]",
        "stp x6, x7, [sp, 64]",
        "str x8, [sp, 80]",
        "stp q0, q1, [sp, 96]",
        "stp q2, q3, [sp, 128]",
        "stp q4, q5, [sp, 160]",
        "stp q6, q7, [sp, 192]",
        "mov w0, w17",
        "bl {resolve}",
        "mov x16, x0",
        "ldp x0, x1, [sp, 16]",
        "ldp x2, x3, [sp, 32]",
        "ldp x4, x5, [sp, 48]",
        "ldp x6, x7, [sp, 64]",
        "ldr x8, [sp, 80]",
        "ldp q0, q1, [sp, 96]",
        "ldp q2, q3, [sp, 128]",
        "ldp q4, q5, [sp, 160]",
        "ldp q6, q7, [sp, 192]",
        "ldp x29, x30, [sp], 224",
        "br x16",
        resolve = sym resolve,
    )
}

extern "C" fn resolve(index: u32) -> *const () {
    let index = index as usize;
    process::settle();
    driver::load(driver::Library::of(index));
    let target =
        TARGETS.get(index).map_or(core::ptr::null_mut(), |slot| slot.load(Ordering::Acquire));
    if target.is_null()
        || core::ptr::fn_addr_eq(enter as unsafe extern "C" fn(), as_function(target))
    {
        driver::absent(index)
    } else {
        target
    }
}

fn as_function(target: *mut ()) -> unsafe extern "C" fn() {
    // SAFETY: not null, and only compared.
    unsafe { core::mem::transmute::<*mut (), unsafe extern "C" fn()>(target) }
}

/// An export: one jump through the table, whatever the arguments are.
#[cfg(all(panic = "abort", target_arch = "x86_64"))]
macro_rules! trampoline {
    ($name:ident, $place:expr) => {
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "mov r11d, {place}",
                "jmp [rip + {targets} + {offset}]",
                place = const $place,
                offset = const $place * 8,
                targets = sym TARGETS,
            )
        }
    };
}

/// As above.
#[cfg(all(panic = "abort", target_arch = "aarch64"))]
macro_rules! trampoline {
    ($name:ident, $place:expr) => {
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "mov w17, {place}",
                "adrp x16, {targets}",
                "add x16, x16, :lo12:{targets}",
                "ldr x16, [x16, w17, uxtw 3]",
                "br x16",
                place = const $place,
                targets = sym TARGETS,
            )
        }
    };
}

/// A variable that debuggers look for.
#[cfg(panic = "abort")]
macro_rules! variable {
    ($name:ident, $words:expr) => {
        #[unsafe(no_mangle)]
        static $name: [core::sync::atomic::AtomicU32; $words] =
            [const { core::sync::atomic::AtomicU32::new(0) }; $words];
    };
}

include!(concat!(env!("OUT_DIR"), "/exports.rs"));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_at_its_place() {
        for index in 0..COUNT {
            assert_eq!(place(name(index)), Some(index));
        }
        assert_eq!(name(ix::cuInit), c"cuInit");
        assert_eq!(place(c"cuNothing"), None);
    }

    #[test]
    fn nothing_is_hooked_twice() {
        let mut hooked: Vec<usize> = HOOKS.iter().map(|hook| hook.index).collect();
        hooked.sort_unstable();
        let all = hooked.len();
        hooked.dedup();
        assert_eq!(hooked.len(), all);
    }
}
