//! The genuine libraries: found in our folder, loaded once, asked by name.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::exports::{self, COUNT, HOOKS, NVML};
use crate::{log, setup, sys};

/// CUDA's answers that we give ourselves.
pub(crate) mod cuda {
    pub(crate) const SUCCESS: u32 = 0;
    pub(crate) const INVALID_VALUE: u32 = 1;
    pub(crate) const OUT_OF_MEMORY: u32 = 2;
    pub(crate) const LAUNCH_OUT_OF_RESOURCES: u32 = 701;
    pub(crate) const NOT_SUPPORTED: u32 = 801;
    pub(crate) const SYSTEM_NOT_READY: u32 = 802;
}

/// NVML's.
pub(crate) mod nvml {
    pub(crate) const SUCCESS: u32 = 0;
    pub(crate) const INVALID_ARGUMENT: u32 = 2;
    pub(crate) const NOT_FOUND: u32 = 6;
    pub(crate) const INSUFFICIENT_SIZE: u32 = 7;
    pub(crate) const DRIVER_NOT_LOADED: u32 = 9;
    pub(crate) const FUNCTION_NOT_FOUND: u32 = 13;
}

const RTLD_LAZY: c_int = 1;
const RTLD_NOW: c_int = 2;
const RTLD_NOLOAD: c_int = 4;

#[cfg(target_arch = "x86_64")]
const OLDEST: &CStr = c"GLIBC_2.2.5";
#[cfg(not(target_arch = "x86_64"))]
const OLDEST: &CStr = c"GLIBC_2.17";

unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void;
    fn dladdr(address: *const c_void, found: *mut DlInfo) -> c_int;
}

#[repr(C)]
struct DlInfo {
    path: *const c_char,
    base: *mut c_void,
    name: *const c_char,
    address: *mut c_void,
}

pub(crate) type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// One of the two libraries we stand in for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Library {
    Cuda,
    Nvml,
}

impl Library {
    pub(crate) fn of(index: usize) -> Self {
        if index < NVML { Self::Cuda } else { Self::Nvml }
    }

    fn name(self) -> &'static CStr {
        match self {
            Self::Cuda => c"libcuda.so.1",
            Self::Nvml => c"libnvidia-ml.so.1",
        }
    }

    fn range(self) -> core::ops::Range<usize> {
        match self {
            Self::Cuda => 0..NVML,
            Self::Nvml => NVML..COUNT,
        }
    }
}

const NEW: u32 = 0;
const LOADING: u32 = 1;
const READY: u32 = 2;
const FAILED: u32 = 3;

static STATES: [AtomicU32; 2] = [AtomicU32::new(NEW), AtomicU32::new(NEW)];
/// Threads that load, so that a library which calls us while it is loaded does not wait for itself.
static LOADERS: [AtomicU32; 2] = [AtomicU32::new(0), AtomicU32::new(0)];

/// Loads a library, once; whether it is there.
pub(crate) fn load(library: Library) -> bool {
    let (state, loader) = match library {
        Library::Cuda => (&STATES[0], &LOADERS[0]),
        Library::Nvml => (&STATES[1], &LOADERS[1]),
    };
    loop {
        match state.load(Ordering::Acquire) {
            READY => return true,
            FAILED => return false,
            NEW => {
                if state
                    .compare_exchange(NEW, LOADING, Ordering::Acquire, Ordering::Acquire)
                    .is_err()
                {
                    continue;
                }
                loader.store(sys::tid(), Ordering::Release);
                let good = setup::pages() && open(library);
                if !good {
                    for index in library.range() {
                        exports::aim(index, absent(index));
                    }
                }
                loader.store(0, Ordering::Release);
                state.store(if good { READY } else { FAILED }, Ordering::Release);
                sys::futex_wake(state, u32::MAX >> 1, sys::Reach::Process);
            }
            _ => {
                if loader.load(Ordering::Acquire) == sys::tid() {
                    return false;
                }
                sys::futex_wait(state, LOADING, 100_000_000, sys::Reach::Process);
            }
        }
    }
}

/// In a forked child: whoever was loading stayed behind, and the child loads anew.
pub(crate) fn forget() {
    for (state, loader) in STATES.iter().zip(&LOADERS) {
        let _ = state.compare_exchange(LOADING, NEW, Ordering::AcqRel, Ordering::Acquire);
        loader.store(0, Ordering::Release);
    }
}

fn open(library: Library) -> bool {
    let mut path = setup::Path::new(setup::root());
    path.push(b"/driver/");
    path.push(library.name().to_bytes());
    keep_our_name(library);
    // SAFETY: the path ends with a zero. Loading runs the driver's own start, as it would without us.
    let handle = unsafe { dlopen(path.as_ptr(), RTLD_NOW) };
    let Some(dlsym) = real_dlsym().filter(|_| !handle.is_null()) else {
        log::once!(Error, "the driver's library cannot be loaded: ", path.as_c_str());
        return false;
    };
    for index in library.range() {
        // SAFETY: the handle is open and the name ends with a zero.
        let address = unsafe { dlsym(handle, exports::name(index).as_ptr()) };
        exports::found(index, address.cast());
    }
    // Hooks first: no thread may get past them while the table is filled.
    for hook in HOOKS.iter().filter(|hook| library.range().contains(&hook.index)) {
        // What the driver lacks is absent with us too.
        if exports::has(hook.index) {
            exports::aim(hook.index, hook.function);
        }
    }
    for index in library.range() {
        exports::aim_at_first(index, exports::genuine(index));
    }
    log::once!(Info, "loaded ", path.as_c_str());
    true
}

/// Makes the loader know us by the name we stand in for. The genuine library carries the same name
/// inside, and whoever asks the loader for the name later must get us.
fn keep_our_name(library: Library) {
    let Some(path) = library_of((&raw const STATES).cast()) else { return };
    let path = path.to_bytes();
    if path.ends_with(b"/libcuda.so.1") || path.ends_with(b"/libnvidia-ml.so.1") {
        // SAFETY: finds this very file under its name; what else it finds the program would load too.
        unsafe { dlopen(library.name().as_ptr(), RTLD_LAZY) };
    }
}

/// The C library's `dlsym`; ours may be in front of it.
pub(crate) fn real_dlsym() -> Option<Dlsym> {
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    let mut address = FOUND.load(Ordering::Acquire);
    if address.is_null() {
        // In libc since 2.34, before in libdl.
        for library in [c"libc.so.6", c"libdl.so.2"] {
            // SAFETY: only asks for what is loaded already.
            let handle = unsafe { dlopen(library.as_ptr(), RTLD_LAZY | RTLD_NOLOAD) };
            for version in [c"GLIBC_2.34", OLDEST] {
                if address.is_null() && !handle.is_null() {
                    // SAFETY: the handle is open and the texts end with zeros.
                    address = unsafe { dlvsym(handle, c"dlsym".as_ptr(), version.as_ptr()) };
                }
            }
        }
        FOUND.store(address, Ordering::Release);
    }
    if address.is_null() {
        return None;
    }
    // SAFETY: it is dlsym.
    Some(unsafe { core::mem::transmute::<*mut c_void, Dlsym>(address) })
}

/// Whether the name in that library is a function of a library of the driver's name.
pub(crate) fn answers_for_driver(handle: *mut c_void, name: &CStr) -> bool {
    let Some(dlsym) = real_dlsym() else { return false };
    // SAFETY: the program's handle, as it would give it to the C library itself.
    let address = unsafe { dlsym(handle, name.as_ptr()) };
    let Some(path) = library_of(address) else { return false };
    let file = path.to_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    file.starts_with(b"libcuda.so") || file.starts_with(b"libnvidia-ml.so")
}

/// The file that an address is in.
fn library_of(address: *const c_void) -> Option<&'static CStr> {
    let mut found = DlInfo {
        path: core::ptr::null(),
        base: core::ptr::null_mut(),
        name: core::ptr::null(),
        address: core::ptr::null_mut(),
    };
    if address.is_null() {
        return None;
    }
    // SAFETY: only looks the address up.
    let known = unsafe { dladdr(address, &raw mut found) } != 0;
    // SAFETY: the loader's text ends with a zero and lives as long as the library.
    (known && !found.path.is_null()).then(|| unsafe { CStr::from_ptr(found.path) })
}

/// What answers for a function that is not there.
pub(crate) fn absent(index: usize) -> *const () {
    extern "C" fn not_supported() -> u32 {
        cuda::NOT_SUPPORTED
    }
    extern "C" fn not_ready() -> u32 {
        cuda::SYSTEM_NOT_READY
    }
    extern "C" fn not_found() -> u32 {
        nvml::FUNCTION_NOT_FOUND
    }
    extern "C" fn not_loaded() -> u32 {
        nvml::DRIVER_NOT_LOADED
    }
    extern "C" fn nvml_text() -> *const c_char {
        c"nanogpu: the driver cannot be reached; the standard error says why".as_ptr()
    }
    unsafe extern "C" fn cuda_text(_code: u32, text: *mut *const c_char) -> u32 {
        if text.is_null() {
            return cuda::INVALID_VALUE;
        }
        let says = c"nanogpu: the system is not ready; the standard error says why";
        // SAFETY: the caller's pointer, not null.
        unsafe { *text = says.as_ptr() };
        cuda::SUCCESS
    }
    let loaded =
        |at: usize| STATES.get(at).is_some_and(|state| state.load(Ordering::Acquire) == READY);
    match (index, Library::of(index)) {
        (exports::ix::nvmlErrorString, _) => nvml_text as *const (),
        (exports::ix::cuGetErrorString | exports::ix::cuGetErrorName, _) => cuda_text as *const (),
        (_, Library::Cuda) if loaded(0) => not_supported as *const (),
        (_, Library::Cuda) => not_ready as *const (),
        (_, Library::Nvml) if loaded(1) => not_found as *const (),
        (_, Library::Nvml) => not_loaded as *const (),
    }
}

/// Calls a function of the driver; each argument is followed by its type.
macro_rules! call {
    ($name:ident($($value:expr => $ty:ty),* $(,)?)) => {{
        type Function = unsafe extern "C" fn($($ty),*) -> u32;
        let address = $crate::exports::genuine($crate::exports::ix::$name);
        // SAFETY: the function has this signature, which is the API's.
        let function = unsafe { core::mem::transmute::<*const (), Function>(address) };
        // SAFETY: the arguments are what the API asks for.
        unsafe { function($($value),*) }
    }};
}
pub(crate) use call;

/// Functions in front of the driver's. `|real|` is the driver's own, with the same arguments.
macro_rules! hooks {
    ($($(#[$meta:meta])* $name:ident($($arg:ident: $ty:ty),* $(,)?) |$real:ident| $body:block)*) => {$(
        $(#[$meta])*
        #[expect(non_snake_case, reason = "the names are the API's")]
        #[allow(clippy::too_many_arguments, reason = "as many as the API's function has")]
        pub(crate) unsafe extern "C" fn $name($($arg: $ty),*) -> u32 {
            // Before any lock is taken: in a forked child it may be held by a thread that stayed behind.
            $crate::process::settle();
            let $real = |$($arg: $ty),*| $crate::driver::call!($name($($arg => $ty),*));
            $body
        }
    )*};
}
pub(crate) use hooks;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_forked_during_the_load_does_not_wait_for_the_loader() {
        // As the child finds it: the thread with this number stayed behind.
        STATES[1].store(LOADING, Ordering::Release);
        LOADERS[1].store(1, Ordering::Release);
        forget();
        assert_eq!(STATES[1].load(Ordering::Acquire), NEW);
        assert_eq!(LOADERS[1].load(Ordering::Acquire), 0);
        STATES[1].store(READY, Ordering::Release);
        forget();
        assert_eq!(STATES[1].load(Ordering::Acquire), READY, "what is loaded stays");
        STATES[1].store(NEW, Ordering::Release);
    }
}
