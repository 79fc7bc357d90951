//! Memory under a limit of 2 GiB, by every path: isolation holds or it does not.
//!
//! A context costs 300 MiB, so of steps of 64 MiB 27 fit: 1,728 MiB. Whatever the path, the account
//! is what the driver holds, and what is freed can be had again.

use std::ffi::c_void;

use machine::Machine;

use crate::rig::{self, Driver, MIB, OUT_OF_MEMORY};

/// A way to a context.
type Way = fn(&Driver, *mut u64) -> u32;

const STEP: u64 = 64 * MIB;
const LIMIT: u64 = 2048 * MIB;

/// What the driver knows this process to hold of the first card.
pub(crate) fn truth() -> u64 {
    let machine = Machine::find().unwrap();
    let device = machine::DeviceId::new(0).unwrap();
    let running = machine.running().unwrap();
    let mine = running.iter().filter(|process| process.pid == std::process::id());
    let holds = mine.flat_map(|process| &process.holds);
    holds.filter(|holding| holding.device == device).map(|holding| holding.memory).sum()
}

/// What the account says.
pub(crate) fn account() -> u64 {
    let root = std::env::var_os("NANOGPU_ROOT").unwrap();
    let bytes = std::fs::read(std::path::Path::new(&root).join("pages/0.counters")).unwrap();
    let bounds = page::Used { most_memory: u64::MAX, longest: u64::MAX / 4096 };
    page::read_counters(&bytes, bounds).unwrap().memory
}

/// Takes until it is refused; at every step the driver holds no more than is allowed, and no more than
/// the account says. Then gives all back, and takes as much again.
fn exhausts<T: Copy>(
    driver: &Driver,
    path: &str,
    expected: u64,
    take: impl Fn(&Driver) -> Result<T, u32>,
    give: impl Fn(&Driver, T),
) {
    let before = account();
    assert_eq!(before, truth(), "{path}: account and truth before");
    for round in 0..2 {
        let mut got = Vec::new();
        let refused = loop {
            match take(driver) {
                Ok(one) => got.push(one),
                Err(code) => break code,
            }
            assert!(truth() <= LIMIT, "{path}: {} MiB", truth() / MIB);
            assert_eq!(account() / MIB, truth() / MIB, "{path}: account and truth");
            assert!(got.len() < 1000, "{path}: no end");
        };
        assert_eq!(refused, OUT_OF_MEMORY, "{path}");
        assert_eq!(got.len() as u64, expected, "{path}, round {round}");
        for one in got {
            give(driver, one);
        }
        ok!(driver, cuCtxSynchronize());
        assert_eq!(account(), truth(), "{path}: account and truth after");
        assert_eq!(truth(), before, "{path}: all was given back");
    }
}

/// How many steps of `size` fit beside the context.
fn fit(size: u64) -> u64 {
    (LIMIT - 300 * MIB) / size
}

fn linear(driver: &Driver) {
    let free = |driver: &Driver, address: u64| ok!(driver, cuMemFree_v2(address => u64));
    exhausts(driver, "cuMemAlloc_v2", 27, |driver| driver.allocate(STEP), free);
    exhausts(driver, "cuMemAllocPitch_v2, wide", 27, |driver| pitch(driver, 1 << 20, 64), free);
    // Rows of a byte take 512 each.
    exhausts(
        driver,
        "cuMemAllocPitch_v2, a byte wide",
        27,
        |driver| pitch(driver, 1, STEP / 512),
        free,
    );
    exhausts(
        driver,
        "cuMemAllocManaged",
        27,
        |driver| {
            let mut address = 0;
            answer(
                call!(driver, cuMemAllocManaged(&raw mut address => *mut u64, STEP => u64, 1 => u32)),
                address,
            )
        },
        free,
    );
    // The host has room for 1 GiB of addresses of 32 bits, so the rest is taken first.
    let rest = driver.allocate(1024 * MIB).unwrap();
    let narrow = |driver: &Driver, address: u32| ok!(driver, cuMemFree(address => u32));
    exhausts(
        driver,
        "cuMemAlloc",
        11,
        |driver| {
            let mut address = 0_u32;
            answer(
                call!(driver, cuMemAlloc(&raw mut address => *mut u32, 64 << 20 => u32)),
                address,
            )
        },
        narrow,
    );
    exhausts(
        driver,
        "cuMemAllocPitch",
        11,
        |driver| {
            let (mut address, mut pitch) = (0_u32, 0_u32);
            answer(
                call!(driver, cuMemAllocPitch(&raw mut address => *mut u32, &raw mut pitch => *mut u32,
                    1 => u32, 1 << 17 => u32, 4 => u32)),
                address,
            )
        },
        narrow,
    );
    ok!(driver, cuMemFree_v2(rest => u64));
}

fn answer<T>(code: u32, value: T) -> Result<T, u32> {
    if code == 0 { Ok(value) } else { Err(code) }
}

fn pitch(driver: &Driver, width: u64, height: u64) -> Result<u64, u32> {
    let (mut address, mut pitch) = (0, 0_u64);
    answer(
        call!(driver, cuMemAllocPitch_v2(&raw mut address => *mut u64, &raw mut pitch => *mut u64,
            width => u64, height => u64, 4 => u32)),
        address,
    )
}

#[test]
fn plain_memory_ends_at_the_limit() {
    rig::inside("plain_memory_ends_at_the_limit", |driver| {
        driver.context();
        linear(driver);
    });
}

#[test]
fn many_small_pieces_cost_their_blocks() {
    rig::inside("many_small_pieces_cost_their_blocks", |driver| {
        driver.context();
        let mut got = Vec::new();
        // A byte takes 512: 4,096 share a block of 2 MiB.
        let refused = loop {
            match driver.allocate(1) {
                Ok(address) => got.push(address),
                Err(code) => break code,
            }
            if got.len() % 10_000 == 0 {
                assert!(truth() <= LIMIT);
                assert_eq!(account(), truth());
            }
            // So many are proof enough, and quick.
            if got.len() == 40_000 {
                break OUT_OF_MEMORY;
            }
        };
        assert_eq!(refused, OUT_OF_MEMORY);
        assert!(account() >= 300 * MIB + 40_000 * 512);
        for address in got {
            ok!(driver, cuMemFree_v2(address => u64));
        }
        assert_eq!((account(), truth()), (300 * MIB, 300 * MIB));
    });
}

#[test]
fn memory_of_pools_ends_at_the_limit() {
    rig::inside("memory_of_pools_ends_at_the_limit", |driver| {
        driver.context();
        let free =
            |driver: &Driver, address: u64| ok!(driver, cuMemFreeAsync(address => u64, 0 => u64));
        exhausts(
            driver,
            "cuMemAllocAsync",
            27,
            |driver| {
                let mut address = 0;
                answer(
                    call!(driver, cuMemAllocAsync(&raw mut address => *mut u64, STEP => u64, 0 => u64)),
                    address,
                )
            },
            free,
        );
        exhausts(
            driver,
            "cuMemAllocAsync_ptsz",
            27,
            |driver| {
                let mut address = 0;
                answer(
                    call!(driver, cuMemAllocAsync_ptsz(&raw mut address => *mut u64, STEP => u64, 0 => u64)),
                    address,
                )
            },
            |driver, address| ok!(driver, cuMemFreeAsync_ptsz(address => u64, 0 => u64)),
        );
        let mut pool = 0;
        let mut shape = [0_u64; 16];
        // Pinned memory, on device 0.
        shape[0] = 1;
        shape[1] = 1;
        ok!(driver, cuMemPoolCreate(&raw mut pool => *mut u64, &raw const shape => *const [u64; 16]));
        exhausts(
            driver,
            "cuMemAllocFromPoolAsync",
            27,
            |driver| {
                let mut address = 0;
                answer(
                    call!(driver, cuMemAllocFromPoolAsync(&raw mut address => *mut u64, STEP => u64, pool => u64, 0 => u64)),
                    address,
                )
            },
            free,
        );
        exhausts(
            driver,
            "cuMemAllocFromPoolAsync_ptsz",
            27,
            |driver| {
                let mut address = 0;
                answer(
                    call!(driver, cuMemAllocFromPoolAsync_ptsz(&raw mut address => *mut u64, STEP => u64, pool => u64, 0 => u64)),
                    address,
                )
            },
            free,
        );
        ok!(driver, cuMemPoolDestroy(pool => u64));
        assert_eq!(account(), truth());
    });
}

#[test]
fn what_a_pool_keeps_is_charged_and_there_when_needed() {
    rig::inside("what_a_pool_keeps_is_charged_and_there_when_needed", |driver| {
        driver.context();
        let mut pool = 0_u64;
        ok!(driver, cuDeviceGetDefaultMemPool(&raw mut pool => *mut u64, 0 => i32));
        let all = u64::MAX;
        ok!(driver, cuMemPoolSetAttribute(pool => u64, 4 => u32, &raw const all => *const u64));
        let mut address = 0_u64;
        ok!(driver, cuMemAllocAsync(&raw mut address => *mut u64, 1024 * MIB => u64, 0 => u64));
        ok!(driver, cuMemFreeAsync(address => u64, 0 => u64));
        ok!(driver, cuCtxSynchronize());
        // It keeps all of it, so it is charged with all of it.
        assert_eq!((truth(), account()), (1324 * MIB, 1324 * MIB));
        // Somebody needs it more.
        let other = driver.allocate(1500 * MIB).unwrap();
        assert_eq!((truth(), account()), (1800 * MIB, 1800 * MIB));
        ok!(driver, cuMemFree_v2(other => u64));
        ok!(driver, cuMemAllocAsync(&raw mut address => *mut u64, 1024 * MIB => u64, 0 => u64));
        ok!(driver, cuMemFreeAsync(address => u64, 0 => u64));
        ok!(driver, cuCtxSynchronize());
        ok!(driver, cuMemPoolTrimTo(pool => u64, 0 => u64));
        assert_eq!((truth(), account()), (300 * MIB, 300 * MIB));
    });
}

/// Properties of physical memory on device 0, exportable as a descriptor.
fn properties() -> [u64; 4] {
    [1 | 1 << 32, 1, 0, 0]
}

#[test]
fn physical_memory_ends_at_the_limit_and_lives_while_mapped() {
    rig::inside("physical_memory_ends_at_the_limit_and_lives_while_mapped", |driver| {
        driver.context();
        let shape = properties();
        let create = |driver: &Driver| {
            let mut handle = 0_u64;
            answer(
                call!(driver, cuMemCreate(&raw mut handle => *mut u64, STEP => u64, &raw const shape => *const [u64; 4], 0 => u64)),
                handle,
            )
        };
        exhausts(
            driver,
            "cuMemCreate",
            27,
            create,
            |driver, handle| ok!(driver, cuMemRelease(handle => u64)),
        );
        // Mapped twice, released once, kept by a handle from an address: it lives until the last goes.
        let mut address = 0_u64;
        ok!(driver, cuMemAddressReserve(&raw mut address => *mut u64, 4 * STEP => u64, 0 => u64, 0 => u64, 0 => u64));
        let handle = create(driver).unwrap();
        ok!(driver, cuMemMap(address => u64, STEP => u64, 0 => u64, handle => u64, 0 => u64));
        ok!(driver, cuMemMap(address + STEP => u64, STEP => u64, 0 => u64, handle => u64, 0 => u64));
        ok!(driver, cuMemRelease(handle => u64));
        assert_eq!((truth(), account()), (364 * MIB, 364 * MIB));
        let mut again = 0_u64;
        ok!(driver, cuMemRetainAllocationHandle(&raw mut again => *mut u64, address + 4096 => u64));
        ok!(driver, cuMemUnmap(address => u64, 2 * STEP => u64));
        assert_eq!((truth(), account()), (364 * MIB, 364 * MIB));
        ok!(driver, cuMemRelease(again => u64));
        assert_eq!((truth(), account()), (300 * MIB, 300 * MIB));
        // The host's memory is not the device's.
        let host = [1, 2, 0, 0_u64];
        ok!(driver, cuMemCreate(&raw mut again => *mut u64, 4096 * MIB => u64, &raw const host => *const [u64; 4], 0 => u64));
        assert_eq!(account(), 300 * MIB);
    });
}

/// `CUDA_ARRAY3D_DESCRIPTOR`.
#[repr(C)]
struct Deep {
    width: u64,
    height: u64,
    depth: u64,
    format: u32,
    channels: u32,
    flags: u32,
}

#[test]
fn arrays_end_at_the_limit() {
    rig::inside("arrays_end_at_the_limit", |driver| {
        driver.context();
        let destroy = |driver: &Driver, array: u64| ok!(driver, cuArrayDestroy(array => u64));
        // 4,096 by 4,096 floats.
        let flat = [4096, 4096, 0x20 | 1 << 32_u64];
        exhausts(
            driver,
            "cuArrayCreate_v2",
            27,
            |driver| {
                let mut array = 0_u64;
                answer(
                    call!(driver, cuArrayCreate_v2(&raw mut array => *mut u64, &raw const flat => *const [u64; 3])),
                    array,
                )
            },
            destroy,
        );
        let old = [4096_u32, 4096, 0x20, 1];
        exhausts(
            driver,
            "cuArrayCreate",
            27,
            |driver| {
                let mut array = 0_u64;
                answer(
                    call!(driver, cuArrayCreate(&raw mut array => *mut u64, &raw const old => *const [u32; 4])),
                    array,
                )
            },
            destroy,
        );
        let deep = |depth: u64| Deep {
            width: 4096,
            height: 4096 / depth.max(1),
            depth,
            format: 0x20,
            channels: 1,
            flags: 0,
        };
        for depth in [0, 16] {
            let shape = deep(depth);
            exhausts(
                driver,
                "cuArray3DCreate_v2",
                27,
                |driver| {
                    let mut array = 0_u64;
                    answer(
                        call!(driver, cuArray3DCreate_v2(&raw mut array => *mut u64, &raw const shape => *const Deep)),
                        array,
                    )
                },
                destroy,
            );
        }
        let old = [4096_u32, 256, 16, 0x20, 1, 0];
        exhausts(
            driver,
            "cuArray3DCreate",
            27,
            |driver| {
                let mut array = 0_u64;
                answer(
                    call!(driver, cuArray3DCreate(&raw mut array => *mut u64, &raw const old => *const [u32; 6])),
                    array,
                )
            },
            destroy,
        );
        // A mipmap is a third larger.
        let shape = deep(0);
        exhausts(
            driver,
            "cuMipmappedArrayCreate",
            20,
            |driver| {
                let mut array = 0_u64;
                answer(
                    call!(driver, cuMipmappedArrayCreate(&raw mut array => *mut u64, &raw const shape => *const Deep, 13 => u32)),
                    array,
                )
            },
            |driver, array| ok!(driver, cuMipmappedArrayDestroy(array => u64)),
        );
    });
}

#[test]
fn twenty_four_contexts_do_not_fit() {
    rig::inside("twenty_four_contexts_do_not_fit", |driver| {
        ok!(driver, cuInit(0 => u32));
        let mut got = Vec::new();
        for _ in 0..24 {
            let mut context = 0_u64;
            match call!(driver, cuCtxCreate_v2(&raw mut context => *mut u64, 0 => u32, 0 => i32)) {
                0 => got.push(context),
                code => assert_eq!(code, OUT_OF_MEMORY),
            }
            assert!(truth() <= LIMIT);
            assert_eq!(account(), truth());
        }
        assert_eq!(got.len(), 6);
        let held = driver.allocate(100 * MIB).unwrap();
        assert_ne!(held, 0);
        // A context that goes takes along what was allocated in it.
        for context in got.into_iter().rev() {
            ok!(driver, cuCtxDestroy_v2(context => u64));
            assert_eq!(account(), truth());
        }
        assert_eq!(truth(), 0);
    });
}

#[test]
fn every_way_to_a_context_is_charged() {
    rig::inside("every_way_to_a_context_is_charged", |driver| {
        ok!(driver, cuInit(0 => u32));
        let ways: [(&str, Way); 7] = [
            (
                "cuCtxCreate",
                |driver, at| call!(driver, cuCtxCreate(at => *mut u64, 0 => u32, 0 => i32)),
            ),
            (
                "cuCtxCreate_v2",
                |driver, at| call!(driver, cuCtxCreate_v2(at => *mut u64, 0 => u32, 0 => i32)),
            ),
            (
                "cuCtxCreate_v3",
                |driver, at| call!(driver, cuCtxCreate_v3(at => *mut u64, std::ptr::null_mut() => *mut c_void, 0 => i32, 0 => u32, 0 => i32)),
            ),
            (
                "cuGLCtxCreate",
                |driver, at| call!(driver, cuGLCtxCreate(at => *mut u64, 0 => u32, 0 => i32)),
            ),
            (
                "cuGLCtxCreate_v2",
                |driver, at| call!(driver, cuGLCtxCreate_v2(at => *mut u64, 0 => u32, 0 => i32)),
            ),
            (
                "cuVDPAUCtxCreate",
                |driver, at| call!(driver, cuVDPAUCtxCreate(at => *mut u64, 0 => u32, 0 => i32, 0 => u32, std::ptr::null_mut() => *mut c_void)),
            ),
            (
                "cuVDPAUCtxCreate_v2",
                |driver, at| call!(driver, cuVDPAUCtxCreate_v2(at => *mut u64, 0 => u32, 0 => i32, 0 => u32, std::ptr::null_mut() => *mut c_void)),
            ),
        ];
        for (name, way) in ways {
            let mut made = Vec::new();
            let code = loop {
                let mut context = 0_u64;
                match way(driver, &raw mut context) {
                    0 => made.push(context),
                    code => break code,
                }
                assert_eq!(
                    (account(), truth()),
                    (300 * MIB * made.len() as u64, truth()),
                    "{name}"
                );
            };
            assert_eq!((code, made.len()), (OUT_OF_MEMORY, 6), "{name}");
            for context in made {
                ok!(driver, cuCtxDestroy_v2(context => u64));
            }
        }
        // The primary one is made once, however often it is retained.
        let mut context = 0_u64;
        for _ in 0..9 {
            ok!(driver, cuDevicePrimaryCtxRetain(&raw mut context => *mut u64, 0 => i32));
        }
        assert_eq!((account(), truth()), (300 * MIB, 300 * MIB));
        for _ in 0..9 {
            ok!(driver, cuDevicePrimaryCtxRelease_v2(0 => i32));
        }
        assert_eq!((account(), truth()), (0, 0));
        driver.context();
        driver.allocate(512 * MIB).unwrap();
        driver.allocate(100).unwrap();
        assert_eq!((account(), truth()), (814 * MIB, 814 * MIB));
        ok!(driver, cuDevicePrimaryCtxReset_v2(0 => i32));
        assert_eq!((account(), truth()), (0, 0));
    });
}

#[test]
fn heaps_and_code_are_charged() {
    rig::inside("heaps_and_code_are_charged", |driver| {
        driver.context();
        let free = driver.memory().0 as u64;
        // 8 MiB are there from the start.
        ok!(driver, cuCtxSetLimit(2 => u32, 508 * MIB => u64));
        assert_eq!((account(), truth()), (800 * MIB, 800 * MIB));
        assert_eq!(driver.memory().0 as u64, free - 500 * MIB);
        assert_eq!(call!(driver, cuCtxSetLimit(2 => u32, 4096 * MIB => u64)), OUT_OF_MEMORY);
        ok!(driver, cuCtxSetLimit(2 => u32, 8 * MIB => u64));
        assert_eq!((account(), truth()), (300 * MIB, 300 * MIB));
        // A text of 30 MiB is an image.
        let image: Vec<u8> = std::iter::repeat_n(b'x', 30 << 20).chain([0]).collect();
        let load = |driver: &Driver| {
            let mut module = 0_u64;
            answer(
                call!(driver, cuModuleLoadData(&raw mut module => *mut u64, image.as_ptr() => *const u8)),
                module,
            )
        };
        let unload = |driver: &Driver, module: u64| ok!(driver, cuModuleUnload(module => u64));
        exhausts(driver, "cuModuleLoadData", fit(32 * MIB), load, unload);
        exhausts(
            driver,
            "cuModuleLoadDataEx",
            fit(32 * MIB),
            |driver| {
                let mut module = 0_u64;
                let none = std::ptr::null_mut::<c_void>();
                answer(
                    call!(driver, cuModuleLoadDataEx(&raw mut module => *mut u64, image.as_ptr() => *const u8, 0 => u32,
                        none => *mut c_void, none => *mut c_void)),
                    module,
                )
            },
            unload,
        );
        // A bundle: eight bytes of header, then the length of what follows.
        let mut bundle = [0_u8; 16];
        bundle[..4].copy_from_slice(&[0x50, 0xed, 0x55, 0xba]);
        bundle[6] = 16;
        bundle[8..16].copy_from_slice(&(30 * MIB).to_le_bytes());
        exhausts(
            driver,
            "cuModuleLoadFatBinary",
            fit(32 * MIB),
            |driver| {
                let mut module = 0_u64;
                answer(
                    call!(driver, cuModuleLoadFatBinary(&raw mut module => *mut u64, bundle.as_ptr() => *const u8)),
                    module,
                )
            },
            unload,
        );
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &image).unwrap();
        let path = std::ffi::CString::new(file.path().to_str().unwrap()).unwrap();
        exhausts(
            driver,
            "cuModuleLoad",
            fit(32 * MIB),
            |driver| {
                let mut module = 0_u64;
                answer(
                    call!(driver, cuModuleLoad(&raw mut module => *mut u64, path.as_ptr() => *const i8)),
                    module,
                )
            },
            unload,
        );
        // Libraries cost nothing until they are used.
        for from_file in [false, true] {
            exhausts(
                driver,
                "cuLibraryLoadData, cuLibraryLoadFromFile, cuLibraryGetModule",
                fit(32 * MIB),
                |driver| {
                    let (mut library, mut module, none) =
                        (0_u64, 0_u64, std::ptr::null_mut::<c_void>());
                    let at = &raw mut library;
                    let code = if from_file {
                        call!(driver, cuLibraryLoadFromFile(at => *mut u64, path.as_ptr() => *const i8, none => *mut c_void,
                            none => *mut c_void, 0 => u32, none => *mut c_void, none => *mut c_void, 0 => u32))
                    } else {
                        call!(driver, cuLibraryLoadData(at => *mut u64, image.as_ptr() => *const u8, none => *mut c_void,
                            none => *mut c_void, 0 => u32, none => *mut c_void, none => *mut c_void, 0 => u32))
                    };
                    let code = if code == 0 {
                        call!(driver, cuLibraryGetModule(&raw mut module => *mut u64, library => u64))
                    } else {
                        code
                    };
                    answer(code, library)
                },
                |driver, library| ok!(driver, cuLibraryUnload(library => u64)),
            );
        }
    });
}
