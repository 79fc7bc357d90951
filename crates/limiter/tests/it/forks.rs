//! Other threads inside the library: a child of a fork waits for nobody who stayed behind, and contexts
//! are charged in full while others allocate.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::paths::{account, truth};
use crate::rig::{self, Driver, MIB};

/// The driver's functions, looked up before anybody forks: the C library's loader has a lock, too.
struct Calls {
    init: extern "C" fn(u32) -> u32,
    retain: extern "C" fn(*mut u64, i32) -> u32,
    create: extern "C" fn(*mut u64, u32, i32) -> u32,
    destroy: extern "C" fn(u64) -> u32,
    current: extern "C" fn(u64) -> u32,
    allocate: extern "C" fn(*mut u64, u64) -> u32,
    pooled: extern "C" fn(*mut u64, u64, u64) -> u32,
    free: extern "C" fn(u64) -> u32,
    load: extern "C" fn(*mut u64, *const i8) -> u32,
    unload: extern "C" fn(u64) -> u32,
    synchronise: extern "C" fn() -> u32,
}

impl Calls {
    #[expect(clippy::missing_transmute_annotations, reason = "the fields say which type it is")]
    fn of(driver: &Driver) -> Self {
        macro_rules! find {
            ($name:literal) => {{
                let found = driver.find($name).unwrap();
                // SAFETY: the export has the signature of the field, which is the API's.
                unsafe { std::mem::transmute::<*mut c_void, _>(found) }
            }};
        }
        Self {
            init: find!("cuInit"),
            retain: find!("cuDevicePrimaryCtxRetain"),
            create: find!("cuCtxCreate_v2"),
            destroy: find!("cuCtxDestroy_v2"),
            current: find!("cuCtxSetCurrent"),
            allocate: find!("cuMemAlloc_v2"),
            pooled: find!("cuMemAllocAsync"),
            free: find!("cuMemFree_v2"),
            load: find!("cuModuleLoadData"),
            unload: find!("cuModuleUnload"),
            synchronise: find!("cuCtxSynchronize"),
        }
    }

    fn context(&self) -> Option<u64> {
        let mut context = 0;
        let made = (self.init)(0) == 0 && (self.retain)(&raw mut context, 0) == 0;
        (made && (self.current)(context) == 0).then_some(context)
    }

    /// What takes each of the library's locks, in the current context; whether all of it worked.
    fn all(&self) -> bool {
        let (mut one, mut two, mut module) = (0, 0, 0);
        let image = c".version 8.0";
        (self.allocate)(&raw mut one, 3 * MIB) == 0
            && (self.pooled)(&raw mut two, 3 * MIB, 0) == 0
            && (self.load)(&raw mut module, image.as_ptr().cast()) == 0
            && (self.free)(two) == 0
            && (self.synchronise)() == 0
            && (self.unload)(module) == 0
            && (self.free)(one) == 0
    }

    /// A context that comes and goes.
    fn context_of_its_own(&self) -> bool {
        let mut context = 0;
        (self.create)(&raw mut context, 0, 0) == 0 && (self.destroy)(context) == 0
    }
}

/// Forks; the child does `act` and must be done with it, well, within 20 seconds.
fn child_does(act: impl FnOnce() -> bool) {
    // SAFETY: the child calls only the library, whose locks it resets, and leaves.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: who still waits for somebody by then is ended.
        unsafe { libc::alarm(20) };
        let done = act();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!done)) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0, "14: it waited for ever; 256: a call failed");
}

#[test]
fn forks_while_calls_are_in_flight_hold_nobody_up() {
    rig::inside("forks_while_calls_are_in_flight_hold_nobody_up", |driver| {
        let calls = Calls::of(driver);
        let context = calls.context().unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (calls, stop) = (&calls, &stop);
                scope.spawn(move || {
                    assert_eq!((calls.current)(context), 0);
                    while !stop.load(Ordering::Relaxed) {
                        let done =
                            if thread == 0 { calls.context_of_its_own() } else { calls.all() };
                        assert!(done);
                    }
                });
            }
            for _ in 0..60 {
                child_does(|| {
                    calls.context().is_some() && calls.all() && calls.context_of_its_own()
                });
            }
            // Before anything else: what the parent's threads hold is in the way of the very first call.
            for _ in 0..60 {
                child_does(|| {
                    (calls.free)(1 << 40) != 0
                        && (calls.synchronise)() != 0
                        && (calls.unload)(9) != 0
                });
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!((calls.synchronise)(), 0);
        // The children's seats are swept when somebody needs the room.
        driver.allocate(1700 * MIB).unwrap();
        assert_eq!(account(), truth());
    });
}

#[test]
fn contexts_that_come_and_go_while_others_allocate_are_charged_in_full() {
    rig::inside("contexts_that_come_and_go_while_others_allocate_are_charged_in_full", |driver| {
        let calls = Calls::of(driver);
        let context = calls.context().unwrap();
        for _ in 0..20 {
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        assert_eq!((calls.current)(context), 0);
                        while !stop.load(Ordering::Relaxed) {
                            let mut address = 0;
                            assert_eq!((calls.allocate)(&raw mut address, 3 * MIB), 0);
                            assert_eq!((calls.free)(address), 0);
                        }
                    });
                }
                for _ in 0..5 {
                    assert!(calls.context_of_its_own());
                }
                stop.store(true, Ordering::Relaxed);
            });
            assert_eq!(account(), truth());
        }
    });
}
