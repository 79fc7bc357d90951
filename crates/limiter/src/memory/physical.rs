//! Memory without an address: `cuMemCreate` and what maps it.
//!
//! It lives as long as a handle or a mapping does, so both are counted. The driver may hand a handle's
//! number out again while the memory is still mapped; hence a number of our own.

use core::ffi::c_void;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::driver::{cuda, hooks};
use crate::memory::charge::{Changing, claim, give_back, give_back_at};
use crate::memory::table::{self, Entry, Kind};
use crate::place;

static NEXT: AtomicU64 = AtomicU64::new(1);

/// The location in the properties: a kind, and a number.
unsafe fn location(properties: *const c_void) -> [i32; 2] {
    if properties.is_null() {
        return [0, 0];
    }
    // SAFETY: the caller's properties, with the location at byte 8.
    unsafe { properties.byte_add(8).cast::<[i32; 2]>().read_unaligned() }
}

/// One holder less; with the last the memory is gone.
fn let_go(number: u64) {
    if let Some((entry, 0)) = table::count(Kind::Physical, number, false) {
        give_back_at(entry.place, entry.size);
    }
}

/// The mapping that an address lies in.
fn mapping(address: u64) -> Option<Entry> {
    let exact = table::get(Kind::Mapping, address);
    if exact.is_some() {
        return exact;
    }
    let mut found = None;
    table::retain(|kind, start, entry| {
        if kind == Kind::Mapping as u8 && start <= address && address - start < entry.size {
            found = Some(entry);
        }
        false
    });
    found
}

hooks! {
    cuMemCreate(handle: *mut u64, size: usize, properties: *const c_void, flags: u64) |real| {
        // SAFETY: the caller's properties.
        let [kind, device] = unsafe { location(properties) };
        if kind != 1 {
            // The host's memory is not ours to count.
            return real(handle, size, properties, flags);
        }
        let Some(place) = place::of_device(device) else {
            return match real(handle, size, properties, flags) {
                0 => {
                    // SAFETY: the driver wrote there.
                    let made = unsafe { *handle };
                    crate::driver::call!(cuMemRelease(made => u64));
                    cuda::OUT_OF_MEMORY
                }
                code => code,
            };
        };
        let _changing = Changing::begin();
        let size_charged = size as u64;
        if claim(place, size_charged).is_err() {
            return cuda::OUT_OF_MEMORY;
        }
        let code = real(handle, size, properties, flags);
        if code != 0 {
            give_back(place, size_charged);
            return code;
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let at = u8::try_from(place.number()).unwrap_or(u8::MAX);
        table::put(Kind::Physical, number, Entry { size: size_charged, place: at, extra: 1 });
        // SAFETY: the driver wrote there. `size` counts how often this handle was given out.
        table::put(Kind::Handle, unsafe { *handle }, Entry { size: 1, place: at, extra: number });
        code
    }

    cuMemRelease(handle: u64) |real| {
        let _changing = Changing::begin();
        let known = table::take(Kind::Handle, handle);
        let code = real(handle);
        if let Some(entry) = known {
            if code != 0 {
                table::put(Kind::Handle, handle, entry);
            } else {
                if entry.size > 1 {
                    table::put(Kind::Handle, handle, Entry { size: entry.size - 1, ..entry });
                }
                let_go(entry.extra);
            }
        }
        code
    }

    cuMemMap(address: u64, size: usize, offset: usize, handle: u64, flags: u64) |real| {
        let code = real(address, size, offset, handle, flags);
        if code == 0 && let Some(entry) = table::get(Kind::Handle, handle) {
            table::count(Kind::Physical, entry.extra, true);
            let mapped = Entry { size: size as u64, place: entry.place, extra: entry.extra };
            table::put(Kind::Mapping, address, mapped);
        }
        code
    }

    cuMemUnmap(address: u64, size: usize) |real| {
        let _changing = Changing::begin();
        let code = real(address, size);
        let (mut at, end) = (address, address.saturating_add(size as u64));
        while code == 0 && at < end {
            let Some(entry) = table::take(Kind::Mapping, at).filter(|entry| entry.size > 0) else {
                // Memory of another process, or of the host: on to the next of ours.
                at = next_mapping(at, end);
                continue;
            };
            let_go(entry.extra);
            at = at.saturating_add(entry.size);
        }
        code
    }

    cuMemRetainAllocationHandle(handle: *mut u64, address: *mut c_void) |real| {
        let code = real(handle, address);
        if code == 0 && let Some(entry) = mapping(address as u64) {
            table::count(Kind::Physical, entry.extra, true);
            // SAFETY: the driver wrote there.
            let handle = unsafe { *handle };
            let given = table::get(Kind::Handle, handle).map_or(0, |known| known.size);
            table::put(Kind::Handle, handle, Entry { size: given + 1, ..entry });
        }
        code
    }
}

/// The first mapping of ours that starts in a range; its end if there is none.
fn next_mapping(from: u64, end: u64) -> u64 {
    let mut next = end;
    table::retain(|kind, start, _| {
        if kind == Kind::Mapping as u8 && start > from && start < next {
            next = start;
        }
        false
    });
    next
}
