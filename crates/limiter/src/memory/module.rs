//! Code: modules and libraries. About as large as its image, often far less.

use core::ffi::{CStr, c_char, c_void};

use crate::driver::{call, hooks};
use crate::memory::charge::{BLOCK, round_up};
use crate::memory::linear::here;
use crate::memory::overhead::{self, Estimate, What};
use crate::memory::table::{self, Entry, Kind};
use crate::place;
use crate::sys::File;

/// Up to this size an image is taken to cost what it is long. Larger ones hold the same code for many
/// kinds of cards, of which one is loaded.
const CERTAIN: u64 = 64 << 20;

fn estimate(length: u64) -> Estimate {
    let size = round_up(length.max(1), BLOCK);
    if size <= CERTAIN { Estimate::Sure(size) } else { Estimate::AtMost(size) }
}

/// How long an image is: each kind says so in its own way.
unsafe fn length(image: *const c_void, depth: u32) -> u64 {
    if image.is_null() || depth > 1 {
        return 1;
    }
    let bytes = image.cast::<u8>();
    // SAFETY: an image is one of the kinds below, or a text that ends with a zero; nothing is read
    // beyond what the kind says is there.
    unsafe {
        let mut first = [0_u8; 4];
        for (at, byte) in first.iter_mut().enumerate() {
            *byte = *bytes.add(at);
            if *byte == 0 {
                return 1;
            }
        }
        match first {
            // ELF: the table of sections is at its end.
            [0x7f, b'E', b'L', b'F'] => {
                let sections = bytes.add(0x28).cast::<u64>().read_unaligned();
                let size = bytes.add(0x3a).cast::<u16>().read_unaligned();
                let count = bytes.add(0x3c).cast::<u16>().read_unaligned();
                sections.saturating_add(u64::from(size) * u64::from(count))
            }
            // A bundle: a header, and what it says follows.
            [0x50, 0xed, 0x55, 0xba] => {
                let header = bytes.add(6).cast::<u16>().read_unaligned();
                bytes.add(8).cast::<u64>().read_unaligned().saturating_add(header.into())
            }
            // What compilers put around it.
            [0xb1, 0x43, 0x62, 0x46] => {
                length(bytes.add(8).cast::<*const c_void>().read_unaligned(), depth + 1)
            }
            _ => CStr::from_ptr(image.cast()).to_bytes().len() as u64 + 1,
        }
    }
}

unsafe fn of_file(path: *const c_char) -> u64 {
    if path.is_null() {
        return 1;
    }
    // SAFETY: the caller's path.
    let path = unsafe { CStr::from_ptr(path) };
    File::open(path).and_then(|file| file.length()).unwrap_or(1) as u64
}

fn load(module: *mut u64, length: u64, undo: &dyn Fn(u64), real: &dyn Fn() -> u32) -> u32 {
    // Libraries can be loaded without a context, and cost nothing until they are used in one.
    let Ok((context, place)) = here() else { return real() };
    // SAFETY: where the driver wrote the handle.
    let made = || unsafe { module.as_ref() }.copied().unwrap_or(0);
    let (code, cost) =
        overhead::around(place, estimate(length), What::Code, &|| undo(made()), real);
    if code == 0 {
        let place = u8::try_from(place.number()).unwrap_or(u8::MAX);
        // A library may be loaded only when it is first used: then it is weighed again.
        let size = if cost == 0 { length } else { cost };
        let extra = if cost == 0 { 0 } else { context };
        table::put(Kind::Module, made(), Entry { size, place, extra });
    }
    code
}

fn unload(module: u64, real: impl FnOnce() -> u32) -> u32 {
    let known = table::take(Kind::Module, module);
    let code = real();
    match known {
        Some(entry) if code != 0 => {
            table::put(Kind::Module, module, entry);
        }
        Some(entry) => {
            if let Some(place) = place::all().get(usize::from(entry.place)) {
                overhead::lessened(place, if entry.extra == 0 { 0 } else { entry.size });
            }
        }
        None => {}
    }
    code
}

/// The first use of a library in a context may load it.
fn used(library: u64, real: &dyn Fn() -> u32) -> u32 {
    let known = table::get(Kind::Module, library);
    let (Some(entry), Ok((context, place))) = (known, here()) else { return real() };
    if entry.extra == context {
        return real();
    }
    let (code, cost) = overhead::around(place, estimate(entry.size), What::Use, &|| {}, real);
    if code == 0 && cost > 0 {
        table::put(Kind::Module, library, Entry { extra: context, ..entry });
    }
    code
}

fn unload_module(module: u64) {
    call!(cuModuleUnload(module => u64));
}

fn unload_library(library: u64) {
    call!(cuLibraryUnload(library => u64));
}

hooks! {
    cuModuleLoad(module: *mut u64, path: *const c_char) |real| {
        // SAFETY: the caller's path.
        let length = unsafe { of_file(path) };
        load(module, length, &unload_module, &|| real(module, path))
    }

    cuModuleLoadData(module: *mut u64, image: *const c_void) |real| {
        // SAFETY: the caller's image.
        let length = unsafe { length(image, 0) };
        load(module, length, &unload_module, &|| real(module, image))
    }

    cuModuleLoadDataEx(module: *mut u64, image: *const c_void, count: u32, options: *mut u32, values: *mut *mut c_void) |real| {
        // SAFETY: the caller's image.
        let length = unsafe { length(image, 0) };
        load(module, length, &unload_module, &|| real(module, image, count, options, values))
    }

    cuModuleLoadFatBinary(module: *mut u64, image: *const c_void) |real| {
        // SAFETY: the caller's image.
        let length = unsafe { length(image, 0) };
        load(module, length, &unload_module, &|| real(module, image))
    }

    cuModuleUnload(module: u64) |real| {
        unload(module, || real(module))
    }

    cuLibraryLoadData(
        library: *mut u64, image: *const c_void, options: *mut u32, values: *mut *mut c_void, count: u32,
        library_options: *mut u32, library_values: *mut *mut c_void, library_count: u32,
    ) |real| {
        // SAFETY: the caller's image.
        let length = unsafe { length(image, 0) };
        load(library, length, &unload_library, &|| real(
            library, image, options, values, count, library_options, library_values, library_count,
        ))
    }

    cuLibraryLoadFromFile(
        library: *mut u64, path: *const c_char, options: *mut u32, values: *mut *mut c_void, count: u32,
        library_options: *mut u32, library_values: *mut *mut c_void, library_count: u32,
    ) |real| {
        // SAFETY: the caller's path.
        let length = unsafe { of_file(path) };
        load(library, length, &unload_library, &|| real(
            library, path, options, values, count, library_options, library_values, library_count,
        ))
    }

    cuLibraryUnload(library: u64) |real| {
        unload(library, || real(library))
    }

    cuLibraryGetModule(module: *mut u64, library: u64) |real| {
        used(library, &|| real(module, library))
    }

    cuLibraryGetGlobal(address: *mut u64, size: *mut usize, library: u64, name: *const c_char) |real| {
        used(library, &|| real(address, size, library, name))
    }

    cuLibraryGetManaged(address: *mut u64, size: *mut usize, library: u64, name: *const c_char) |real| {
        used(library, &|| real(address, size, library, name))
    }

    cuLibraryGetKernel(kernel: *mut u64, library: u64, name: *const c_char) |real| {
        let code = used(library, &|| real(kernel, library, name));
        if code == 0 && let Some(entry) = table::get(Kind::Module, library) {
            // SAFETY: the driver wrote there.
            table::put(Kind::Kernel, unsafe { *kernel }, Entry { extra: library, ..entry });
        }
        code
    }

    cuKernelGetFunction(function: *mut u64, kernel: u64) |real| {
        match table::get(Kind::Kernel, kernel) {
            Some(entry) => used(entry.extra, &|| real(function, kernel)),
            None => real(function, kernel),
        }
    }

    cuFuncLoad(function: u64) |real| {
        if let Some(entry) = table::get(Kind::Kernel, function) {
            return used(entry.extra, &|| real(function));
        }
        let code = real(function);
        if let (0, Ok((_, place))) = (code, here()) {
            overhead::lessened(place, 0);
        }
        code
    }
}
