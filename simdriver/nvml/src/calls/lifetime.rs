//! Init, shutdown, and what can be called without them.

use std::ffi::c_char;

use crate::abi::Status;
use crate::session::{guarded, init, shutdown};

/// Those that are live.
pub(crate) const NAMES: &[&str] =
    &["nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags", "nvmlShutdown", "nvmlErrorString"];

#[unsafe(no_mangle)]
extern "C" fn nvmlInit() -> Status {
    guarded(init)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> Status {
    guarded(init)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInitWithFlags(_flags: u32) -> Status {
    guarded(init)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> Status {
    guarded(shutdown)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(status: Status) -> *const c_char {
    status.text().as_ptr()
}
