//! Contexts cost memory, and take all that was made in them along when they go.

use core::ffi::c_void;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::compute;
use crate::driver::{call, cuda, hooks};
use crate::memory::charge::give_back_at;
use crate::memory::linear::{here, unshare};
use crate::memory::overhead::{self, Estimate, What};
use crate::memory::table::{self, Entry, Kind};
use crate::place::{self, MOST};

/// The primary context of each of CUDA's devices.
static PRIMARY: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];

/// The heap for `malloc` in kernels, in `cuCtxSetLimit`.
const HEAP: u32 = 2;

fn primary(device: i32) -> Option<&'static AtomicU64> {
    usize::try_from(device).ok().and_then(|device| PRIMARY.get(device))
}

fn is_active(device: i32) -> bool {
    let (mut flags, mut active) = (0_u32, 0_i32);
    call!(cuDevicePrimaryCtxGetState(device => i32, &raw mut flags => *mut u32, &raw mut active => *mut i32));
    active != 0
}

/// Makes a context; its handle is written to `context`.
fn create(context: *mut u64, device: i32, undo: &dyn Fn(u64), real: &dyn Fn() -> u32) -> u32 {
    create_in(context, device, &|context| context, undo, real)
}

/// The same for what is not a context but has one, as `within` says.
fn create_in(
    context: *mut u64,
    device: i32,
    within: &dyn Fn(u64) -> u64,
    undo: &dyn Fn(u64),
    real: &dyn Fn() -> u32,
) -> u32 {
    let Some(place) = place::of_device(device) else {
        return refuse(context, real, undo);
    };
    // SAFETY: where the driver wrote the handle.
    let made = || unsafe { context.as_ref() }.copied().unwrap_or(0);
    let (take_back, within) = (|| undo(made()), || within(made()));
    let what = What::Context(&within);
    let (code, cost) = overhead::around(place, overhead::of_context(place), what, &take_back, real);
    if code == 0 {
        let number = u8::try_from(place.number()).unwrap_or(u8::MAX);
        table::put(Kind::Context, made(), Entry { size: cost, place: number, extra: 1 });
    }
    code
}

/// A device that is not ours, or none at all: the driver tells them apart.
fn refuse(context: *mut u64, real: &dyn Fn() -> u32, undo: &dyn Fn(u64)) -> u32 {
    let code = real();
    if code != 0 {
        return code;
    }
    // SAFETY: the driver wrote there.
    undo(unsafe { context.as_ref() }.copied().unwrap_or(0));
    cuda::OUT_OF_MEMORY
}

fn destroy(context: u64) {
    call!(cuCtxDestroy_v2(context => u64));
}

/// A context has ended: what was made in it is gone.
fn ended(context: u64) {
    table::retain(|kind, _, entry| {
        let within = [Kind::Linear as u8, Kind::Array as u8, Kind::Mipmap as u8].contains(&kind)
            && entry.extra == context;
        if within {
            give_back_at(entry.place, entry.size);
        }
        within
    });
    // Small memory shares blocks, which are in the same table: in batches.
    loop {
        let (mut batch, mut count) = ([0_u64; 256], 0);
        table::retain(|kind, address, entry| {
            let within = kind == Kind::Small as u8 && entry.extra == context;
            match batch.get_mut(count).filter(|_| within) {
                Some(slot) => {
                    *slot = address;
                    count += 1;
                    true
                }
                None => false,
            }
        });
        for address in batch.into_iter().take(count) {
            unshare(address);
        }
        if count == 0 {
            break;
        }
    }
    if let Some(entry) = table::take(Kind::Context, context)
        && let Some(place) = place::all().get(usize::from(entry.place))
    {
        overhead::lessened(place, entry.size);
    }
}

fn end(context: u64, real: impl FnOnce() -> u32) -> u32 {
    let code = compute::context_goes(context, real);
    if code == 0 {
        ended(context);
    }
    code
}

/// The primary context of a device is released or reset.
fn end_primary(device: i32, real: impl FnOnce() -> u32) -> u32 {
    let context = primary(device).map_or(0, |context| context.load(Ordering::Acquire));
    let code = if context == 0 { real() } else { compute::context_goes(context, real) };
    if code == 0 && context != 0 && !is_active(device) {
        if let Some(known) = primary(device) {
            known.store(0, Ordering::Release);
        }
        ended(context);
    }
    code
}

/// Something that may bring a device's primary context to life.
fn retain(
    context: *mut u64,
    device: i32,
    within: &dyn Fn(u64) -> u64,
    undo: &dyn Fn(u64),
    real: &dyn Fn() -> u32,
) -> u32 {
    if is_active(device) {
        return real();
    }
    create_in(context, device, within, undo, real)
}

pub(crate) fn forget() {
    for context in &PRIMARY {
        context.store(0, Ordering::Release);
    }
}

hooks! {
    cuCtxCreate(context: *mut u64, flags: u32, device: i32) |real| {
        create(context, device, &destroy, &|| real(context, flags, device))
    }

    cuCtxCreate_v2(context: *mut u64, flags: u32, device: i32) |real| {
        create(context, device, &destroy, &|| real(context, flags, device))
    }

    cuCtxCreate_v3(context: *mut u64, parameters: *mut c_void, count: i32, flags: u32, device: i32) |real| {
        create(context, device, &destroy, &|| real(context, parameters, count, flags, device))
    }

    cuCtxCreate_v4(context: *mut u64, parameters: *mut c_void, flags: u32, device: i32) |real| {
        create(context, device, &destroy, &|| real(context, parameters, flags, device))
    }

    cuGLCtxCreate(context: *mut u64, flags: u32, device: i32) |real| {
        create(context, device, &destroy, &|| real(context, flags, device))
    }

    cuGLCtxCreate_v2(context: *mut u64, flags: u32, device: i32) |real| {
        create(context, device, &destroy, &|| real(context, flags, device))
    }

    cuVDPAUCtxCreate(context: *mut u64, flags: u32, device: i32, display: u32, get: *mut c_void) |real| {
        create(context, device, &destroy, &|| real(context, flags, device, display, get))
    }

    cuVDPAUCtxCreate_v2(context: *mut u64, flags: u32, device: i32, display: u32, get: *mut c_void) |real| {
        create(context, device, &destroy, &|| real(context, flags, device, display, get))
    }

    cuDevicePrimaryCtxRetain(context: *mut u64, device: i32) |real| {
        let release = |_: u64| { call!(cuDevicePrimaryCtxRelease_v2(device => i32)); };
        let code = retain(context, device, &|context| context, &release, &|| real(context, device));
        if code == 0 && let Some(known) = primary(device) {
            // SAFETY: the driver wrote there.
            known.store(unsafe { context.as_ref() }.copied().unwrap_or(0), Ordering::Release);
        }
        code
    }

    cuGreenCtxCreate(green: *mut u64, resources: u64, device: i32, flags: u32) |real| {
        // It lives in the primary context, which it brings to life.
        let release = |green: u64| { call!(cuGreenCtxDestroy(green => u64)); };
        let within = |green: u64| {
            let mut context = 0_u64;
            call!(cuCtxFromGreenCtx(&raw mut context => *mut u64, green => u64));
            context
        };
        retain(green, device, &within, &release, &|| real(green, resources, device, flags))
    }

    cuCtxSetLimit(limit: u32, value: usize) |real| {
        let Ok((_, place)) = here() else { return real(limit, value) };
        let mut before = 0_usize;
        call!(cuCtxGetLimit(&raw mut before => *mut usize, limit => u32));
        let more = if limit == HEAP { value.saturating_sub(before) as u64 } else { 0 };
        let restore = || { call!(cuCtxSetLimit(limit => u32, before => usize)); };
        overhead::around(place, Estimate::Sure(more), What::Code, &restore, &|| real(limit, value)).0
    }

    cuCtxDestroy(context: u64) |real| {
        end(context, || real(context))
    }

    cuCtxDestroy_v2(context: u64) |real| {
        end(context, || real(context))
    }

    cuCtxAttach(context: *mut u64, flags: u32) |real| {
        let code = real(context, flags);
        if code == 0 {
            // SAFETY: the driver wrote there.
            table::count(Kind::Context, unsafe { *context }, true);
        }
        code
    }

    cuCtxDetach(context: u64) |real| {
        let last = table::get(Kind::Context, context).is_none_or(|entry| entry.extra <= 1);
        if last {
            return end(context, || real(context));
        }
        let code = real(context);
        if code == 0 {
            table::count(Kind::Context, context, false);
        }
        code
    }

    cuDevicePrimaryCtxRelease(device: i32) |real| {
        end_primary(device, || real(device))
    }

    cuDevicePrimaryCtxRelease_v2(device: i32) |real| {
        end_primary(device, || real(device))
    }

    cuDevicePrimaryCtxReset(device: i32) |real| {
        end_primary(device, || real(device))
    }

    cuDevicePrimaryCtxReset_v2(device: i32) |real| {
        end_primary(device, || real(device))
    }

    cuGreenCtxDestroy(green: u64) |real| {
        let code = real(green);
        if code == 0 && let Some(entry) = table::take(Kind::Context, green)
            && let Some(place) = place::all().get(usize::from(entry.place))
        {
            // With the last of them the primary context may have gone.
            for (device, known) in (0_i32..).zip(&PRIMARY) {
                let context = known.load(Ordering::Acquire);
                if context != 0 && !is_active(device) {
                    known.store(0, Ordering::Release);
                    ended(context);
                }
            }
            overhead::lessened(place, 0);
        }
        code
    }
}
