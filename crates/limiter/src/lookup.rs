//! The ways in which programs look functions up at run time.
//!
//! Which function a name and a version mean is the driver's to say: it is asked, and the address it
//! answers is replaced where a hook stands in front of that very function.

use core::ffi::{CStr, c_char, c_void};

use crate::driver::{self, hooks};
use crate::exports::{self, HOOKS};

/// The hook in front of a function of the driver.
fn hooked(address: *mut c_void) -> Option<usize> {
    let same = |index: usize| exports::has(index) && exports::genuine(index) == address.cast();
    HOOKS.iter().map(|hook| hook.index).find(|index| same(*index))
}

/// Puts our address in the place of the driver's.
///
/// # Safety
/// `address` can be read and written, or is null.
unsafe fn replace(address: *mut *mut c_void) {
    if address.is_null() {
        return;
    }
    // SAFETY: the caller's.
    let found = unsafe { *address };
    if let Some(index) = hooked(found).filter(|_| !found.is_null()) {
        // SAFETY: the caller's.
        unsafe { *address = exports::exported(index).cast_mut().cast() };
    }
}

hooks! {
    cuGetProcAddress(name: *const c_char, address: *mut *mut c_void, version: i32, flags: u64) |real| {
        let code = real(name, address, version, flags);
        if code == 0 {
            // SAFETY: the driver wrote there.
            unsafe { replace(address) };
        }
        code
    }

    cuGetProcAddress_v2(
        name: *const c_char,
        address: *mut *mut c_void,
        version: i32,
        flags: u64,
        status: *mut u32,
    ) |real| {
        let code = real(name, address, version, flags, status);
        if code == 0 {
            // SAFETY: the driver wrote there.
            unsafe { replace(address) };
        }
        code
    }
}

/// What `dlsym` answers where a program holds another library of the driver's name, as images with a
/// libcuda of their own do; null if the C library shall answer.
unsafe extern "C" fn pick(handle: *mut c_void, name: *const c_char) -> *const c_void {
    const NEXT: isize = -1;
    if name.is_null() || handle.is_null() {
        return core::ptr::null();
    }
    // SAFETY: the caller's name ends with a zero.
    let name = unsafe { CStr::from_ptr(name) };
    if !name.to_bytes().starts_with(b"cu") && !name.to_bytes().starts_with(b"nvml") {
        return core::ptr::null();
    }
    let Some(index) = exports::place(name) else { return core::ptr::null() };
    if handle as isize == NEXT || driver::answers_for_driver(handle, name) {
        return exports::exported(index).cast();
    }
    core::ptr::null()
}

/// The C library's `dlsym`, or one that finds nothing.
extern "C" fn real() -> *const c_void {
    extern "C" fn nothing(_: *mut c_void, _: *const c_char) -> *mut c_void {
        core::ptr::null_mut()
    }
    match driver::real_dlsym() {
        Some(found) => found as *const c_void,
        None => nothing as *const c_void,
    }
}

/// For the preload mode. Everything that is not the driver's goes on to the C library by a jump, so
/// that it sees the true caller: what `RTLD_NEXT` means depends on that.
#[cfg(all(panic = "abort", target_arch = "x86_64"))]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dlsym() {
    core::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {pick}",
        "test rax, rax",
        "jne 2f",
        "call {real}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        "2:",
        "add rsp, 24",
        "ret",
        pick = sym pick,
        real = sym real,
    )
}

/// As above.
#[cfg(all(panic = "abort", target_arch = "aarch64"))]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dlsym() {
    core::arch::naked_asm!(
        "stp x29, x30, [sp, -32]!",
        "stp x0, x1, [sp, 16]",
        "bl {pick}",
        "cbnz x0, 2f",
        "bl {real}",
        "mov x16, x0",
        "ldp x0, x1, [sp, 16]",
        "ldp x29, x30, [sp], 32",
        "br x16",
        "2:",
        "ldp x29, x30, [sp], 32",
        "ret",
        pick = sym pick,
        real = sym real,
    )
}
