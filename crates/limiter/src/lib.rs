//! `libnanogpu.so`: stands in for `libcuda.so.1` and `libnvidia-ml.so.1` inside a container, and keeps
//! all processes of it, together, within the share's memory and compute.
//!
//! ```text
//!   program --cuMemAlloc_v2--> trampoline --> hook (memory/, compute/, nvml/) --> the driver's own
//!           --anything else--> trampoline ---------------------------------------> the driver's own
//!           --cuGetProcAddress--> asks the driver, and maps the address it answers to the hook
//! ```
//!
//! It lives in other people's programs. So it never unwinds, allocates no memory but by `mmap`, starts
//! no thread, has no constructor, and a panic in it is a link error: the handler calls a function that
//! nobody has. What it cannot do right it answers with a CUDA error.
//!
//! The profile `limiter` (panic = abort) makes the library, without the standard library. In all other
//! profiles this is an ordinary crate whose modules are tested, and which exports nothing.
#![cfg_attr(panic = "abort", no_std)]
#![cfg_attr(
    not(panic = "abort"),
    allow(dead_code, reason = "hooks are reached by exports, which only the library has")
)]

mod compute;
mod driver;
mod exports;
mod lock;
mod log;
mod lookup;
mod memory;
mod nvml;
mod place;
mod process;
mod setup;
mod sys;

#[cfg(panic = "abort")]
mod never {
    unsafe extern "C" {
        /// Nobody has it: a panic that the optimiser could not prove impossible does not link.
        fn nanogpu_a_panic_is_possible() -> !;
    }

    // Tables of `core` name the function that unwinds; nothing here does.
    #[cfg(target_arch = "x86_64")]
    core::arch::global_asm!(
        ".globl rust_eh_personality",
        ".hidden rust_eh_personality",
        "rust_eh_personality:",
        "ud2"
    );
    #[cfg(target_arch = "aarch64")]
    core::arch::global_asm!(
        ".globl rust_eh_personality",
        ".hidden rust_eh_personality",
        "rust_eh_personality:",
        "udf #0"
    );

    #[panic_handler]
    fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
        // SAFETY: there is no such function, so this is never linked, let alone reached.
        unsafe { nanogpu_a_panic_is_possible() }
    }
}
