//! Memory in all its forms: what it costs, what it holds, and that it comes back.

use std::ffi::c_void;

use crate::driver::{Driver, on};

const MIB: usize = 1 << 20;
const OUT_OF_MEMORY: u32 = 2;
const INVALID_VALUE: u32 = 1;

/// A way to take memory.
type Path<'a> = Box<dyn Fn() -> u32 + 'a>;

/// Takes 64 MiB at a time by some path until the card is full.
fn fill(driver: &Driver, path: impl Fn() -> u32) -> usize {
    let mut taken = 0;
    loop {
        match path() {
            0 => taken += 64,
            code => {
                assert_eq!(code, OUT_OF_MEMORY);
                assert!(driver.memory().0 < 66 * MIB, "{} are still free", driver.memory().0);
                return taken;
            }
        }
    }
}

#[repr(C)]
struct Location {
    kind: u32,
    id: i32,
}

/// `CUmemAllocationProp` for the first card.
#[repr(C)]
struct Physical {
    kind: u32,
    handles: u32,
    location: Location,
    rest: [u64; 2],
}

fn physical(handles: u32) -> Physical {
    Physical { kind: 1, handles, location: Location { kind: 1, id: 0 }, rest: [0; 2] }
}

#[repr(C)]
struct Array3D {
    sizes: [usize; 3],
    format: u32,
    channels: u32,
    flags: u32,
}

#[test]
fn every_path_ends_where_the_card_is_full() {
    // A T4 has 15,360 MiB, of which the driver keeps some and a context takes 300.
    on("t4x4", "550.163.01", "every_path_ends_where_the_card_is_full", |driver| {
        driver.context();
        let room = driver.memory().0 / MIB / 64 * 64;
        let size = 64 * MIB;
        let mut last = 0_u64;
        let address = &raw mut last;
        // Memory of pools outlives contexts.
        let pooled = std::cell::Cell::new(Vec::new());
        let keep = |code: u32| {
            let mut all = pooled.take();
            if code == 0 {
                // SAFETY: it points to a local that lives to the end of the test.
                all.push(unsafe { *address });
            }
            pooled.set(all);
            code
        };
        let reset = || {
            ok!(driver, cuDevicePrimaryCtxReset_v2(0 => i32));
            driver.context();
        };
        let paths: Vec<(&str, Path)> = vec![
            (
                "cuMemAlloc",
                Box::new(|| call!(driver, cuMemAlloc_v2(address => *mut u64, size => usize))),
            ),
            (
                "cuMemAllocManaged",
                Box::new(
                    || call!(driver, cuMemAllocManaged(address => *mut u64, size => usize, 1 => u32)),
                ),
            ),
            (
                "cuMemAllocAsync",
                Box::new(|| {
                    keep(
                        call!(driver, cuMemAllocAsync(address => *mut u64, size => usize, 0 => u64)),
                    )
                }),
            ),
            (
                "cuMemAllocAsync_ptsz",
                Box::new(|| {
                    keep(
                        call!(driver, cuMemAllocAsync_ptsz(address => *mut u64, size => usize, 0 => u64)),
                    )
                }),
            ),
            (
                "cuMemAllocPitch",
                Box::new(|| {
                    let mut pitch = 0;
                    // Rows of one byte, each at an address of its own.
                    call!(driver, cuMemAllocPitch_v2(address => *mut u64, &raw mut pitch => *mut usize, 1 => usize, size / 512 => usize, 4 => u32))
                }),
            ),
            (
                "cuArrayCreate",
                Box::new(|| {
                    let shape: [u64; 3] = [4096, 4096, 0x20 | 1 << 32];
                    call!(driver, cuArrayCreate_v2(address => *mut u64, shape.as_ptr().cast() => *const c_void))
                }),
            ),
            (
                "cuArray3DCreate",
                Box::new(|| {
                    let shape =
                        Array3D { sizes: [256, 256, 256], format: 0x20, channels: 1, flags: 0 };
                    call!(driver, cuArray3DCreate_v2(address => *mut u64, &raw const shape => *const Array3D))
                }),
            ),
        ];
        for (name, path) in paths {
            let before = driver.memory().0;
            assert_eq!(fill(driver, path), room, "{name}");
            for address in pooled.take() {
                ok!(driver, cuMemFreeAsync(address => u64, 0 => u64));
            }
            reset();
            assert_eq!(driver.memory().0, before, "{name} gives all back");
        }
    });
}

#[test]
fn small_memory_shares_blocks() {
    on("t4x4", "550.163.01", "small_memory_shares_blocks", |driver| {
        driver.context();
        let before = driver.memory().0;
        let all: Vec<u64> = (0..4096).map(|_| driver.allocate(500).unwrap()).collect();
        assert_eq!(before - driver.memory().0, 2 * MIB);
        let (mut base, mut size) = (0, 0);
        ok!(driver, cuMemGetAddressRange_v2(&raw mut base => *mut u64, &raw mut size => *mut usize, all[7] + 100 => u64));
        assert_eq!((base, size), (all[7], 500));
        for address in all {
            ok!(driver, cuMemFree_v2(address => u64));
        }
        assert_eq!(driver.memory().0, before);
    });
}

#[test]
fn eighty_gigabytes_cost_nothing_until_they_are_touched() {
    on(
        "hgx-h100",
        "550.163.01",
        "eighty_gigabytes_cost_nothing_until_they_are_touched",
        |driver| {
            driver.context();
            let size = 70 << 30;
            let address = driver.allocate(size).unwrap();
            let last = address + size as u64 - 4;
            ok!(driver, cuMemsetD32_v2(last => u64, 0xdead_beef => u32, 1 => usize));
            let mut word = 0_u32;
            ok!(driver, cuMemcpyDtoH_v2((&raw mut word).cast() => *mut c_void, last => u64, 4 => usize));
            assert_eq!(word, 0xdead_beef);
        },
    );
}

#[test]
fn copies_move_bytes() {
    on("t4x4", "550.163.01", "copies_move_bytes", |driver| {
        driver.context();
        let source: Vec<u8> = (0..=255).collect();
        let (one, two) = (driver.allocate(256).unwrap(), driver.allocate(1 << 21).unwrap());
        ok!(driver, cuMemcpyHtoD_v2(one => u64, source.as_ptr() => *const u8, 256 => usize));
        ok!(driver, cuMemcpyDtoD_v2(two + 4096 => u64, one => u64, 256 => usize));
        ok!(driver, cuMemsetD8_v2(two + 4096 + 10 => u64, 7 => u8, 3 => usize));
        let mut target = vec![0_u8; 256];
        ok!(driver, cuMemcpyDtoH_v2(target.as_mut_ptr() => *mut u8, two + 4096 => u64, 256 => usize));
        let mut expected = source.clone();
        expected[10..13].fill(7);
        assert_eq!(target, expected);

        // Past the end, nowhere, and from nowhere.
        assert_eq!(
            call!(driver, cuMemcpyDtoH_v2(target.as_mut_ptr() => *mut u8, one + 200 => u64, 100 => usize)),
            INVALID_VALUE
        );
        assert_eq!(
            call!(driver, cuMemcpyDtoD_v2(one => u64, 0x1000 => u64, 16 => usize)),
            INVALID_VALUE
        );
        assert_eq!(
            call!(driver, cuMemcpyHtoD_v2(one => u64, std::ptr::null() => *const u8, 16 => usize)),
            INVALID_VALUE
        );
    });
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Default)]
struct Copy2D {
    src: [usize; 2],
    src_type: u64,
    src_host: usize,
    src_device: u64,
    src_array: u64,
    src_pitch: usize,
    dst: [usize; 2],
    dst_type: u64,
    dst_host: usize,
    dst_device: u64,
    dst_array: u64,
    dst_pitch: usize,
    width: usize,
    height: usize,
}

#[test]
fn boxes_go_to_arrays_and_back() {
    on("t4x4", "550.163.01", "boxes_go_to_arrays_and_back", |driver| {
        driver.context();
        let mut array = 0;
        let shape: [u64; 3] = [16, 8, 1 | 1 << 32];
        ok!(driver, cuArrayCreate_v2(&raw mut array => *mut u64, shape.as_ptr().cast() => *const c_void));
        let source: Vec<u8> = (0..64).collect();
        // Eight columns and four rows of a host picture of 16 columns, to column 3 and row 2.
        let to = Copy2D {
            src: [4, 0],
            src_type: 1,
            src_host: source.as_ptr() as usize,
            src_pitch: 16,
            dst: [3, 2],
            dst_type: 3,
            dst_array: array,
            width: 8,
            height: 4,
            ..Copy2D::default()
        };
        ok!(driver, cuMemcpy2D_v2(&raw const to => *const Copy2D));
        let mut target = vec![0xff_u8; 32];
        let from = Copy2D {
            src: [3, 2],
            src_type: 3,
            src_array: array,
            dst_type: 1,
            dst_host: target.as_mut_ptr() as usize,
            dst_pitch: 8,
            width: 8,
            height: 4,
            ..Copy2D::default()
        };
        ok!(driver, cuMemcpy2D_v2(&raw const from => *const Copy2D));
        let expected: Vec<u8> = (0..4).flat_map(|row| (row * 16 + 4)..(row * 16 + 12)).collect();
        assert_eq!(target, expected);
        let outside = Copy2D { src: [12, 2], ..from };
        assert_eq!(
            call!(driver, cuMemcpy2D_v2(&raw const outside => *const Copy2D)),
            INVALID_VALUE
        );
        ok!(driver, cuArrayDestroy(array => u64));
        assert_eq!(call!(driver, cuArrayDestroy(array => u64)), 400);
    });
}

#[test]
fn pageable_sources_are_read_at_the_call() {
    on("t4x4", "550.163.01", "pageable_sources_are_read_at_the_call", |driver| {
        driver.context();
        let stream = driver.stream(1);
        let address = driver.allocate(4096).unwrap();
        let busy = driver.function("sleep_5ms");
        assert_eq!(driver.launch(busy, 1, stream), 0);
        let mut source = vec![1_u8; 4096];
        ok!(driver, cuMemcpyHtoDAsync_v2(address => u64, source.as_ptr() => *const u8, 4096 => usize, stream => u64));
        source.fill(2);
        ok!(driver, cuStreamSynchronize(stream => u64));
        let mut target = vec![0_u8; 4096];
        ok!(driver, cuMemcpyDtoH_v2(target.as_mut_ptr() => *mut u8, address => u64, 4096 => usize));
        assert_eq!(target, vec![1; 4096]);
    });
}

#[test]
fn pools_keep_what_is_freed_until_they_may_not() {
    on("t4x4", "550.163.01", "pools_keep_what_is_freed_until_they_may_not", |driver| {
        driver.context();
        let before = driver.memory().0;
        let stream = driver.stream(1);
        let mut pool = 0;
        ok!(driver, cuDeviceGetDefaultMemPool(&raw mut pool => *mut u64, 0 => i32));
        let get = |attribute: u32| {
            let mut value = 0_u64;
            ok!(driver, cuMemPoolGetAttribute(pool => u64, attribute => u32, (&raw mut value).cast() => *mut c_void));
            usize::try_from(value).unwrap()
        };
        let keep = u64::MAX;
        ok!(driver, cuMemPoolSetAttribute(pool => u64, 4 => u32, (&raw const keep).cast() => *const c_void));
        let mut address = 0;
        ok!(driver, cuMemAllocAsync(&raw mut address => *mut u64, 10 * MIB => usize, stream => u64));
        assert_eq!((get(5), get(7)), (10 * MIB, 10 * MIB));
        ok!(driver, cuMemFreeAsync(address => u64, stream => u64));
        ok!(driver, cuStreamSynchronize(stream => u64));
        assert_eq!((get(5), get(7), get(8)), (10 * MIB, 0, 10 * MIB));
        assert_eq!(before - driver.memory().0, 10 * MIB, "the pool keeps it");
        ok!(driver, cuMemPoolTrimTo(pool => u64, 0 => usize));
        assert_eq!((get(5), driver.memory().0), (0, before));
        let none = 0_u64;
        ok!(driver, cuMemPoolSetAttribute(pool => u64, 4 => u32, (&raw const none).cast() => *const c_void));
        ok!(driver, cuMemAllocAsync(&raw mut address => *mut u64, 10 * MIB => usize, stream => u64));
        ok!(driver, cuMemFreeAsync(address => u64, stream => u64));
        ok!(driver, cuStreamSynchronize(stream => u64));
        assert_eq!(driver.memory().0, before, "a threshold of nothing keeps nothing");
    });
}

#[test]
fn physical_memory_is_seen_at_every_address_it_is_mapped_at() {
    on(
        "t4x4",
        "550.163.01",
        "physical_memory_is_seen_at_every_address_it_is_mapped_at",
        |driver| {
            driver.context();
            let before = driver.memory().0;
            let shape = physical(1);
            let mut size = 0;
            ok!(driver, cuMemGetAllocationGranularity(&raw mut size => *mut usize, &raw const shape => *const Physical, 0 => u32));
            assert_eq!(size, 2 * MIB);
            let mut handle = 0;
            assert_eq!(
                call!(driver, cuMemCreate(&raw mut handle => *mut u64, 1000 => usize, &raw const shape => *const Physical, 0 => u64)),
                INVALID_VALUE
            );
            ok!(driver, cuMemCreate(&raw mut handle => *mut u64, 2 * size => usize, &raw const shape => *const Physical, 0 => u64));
            assert_eq!(before - driver.memory().0, 2 * size);
            let mut base = 0;
            ok!(driver, cuMemAddressReserve(&raw mut base => *mut u64, 8 * size => usize, 0 => usize, 0 => u64, 0 => u64));
            let (one, two) = (base, base + 4 * size as u64);
            for address in [one, two] {
                ok!(driver, cuMemMap(address => u64, 2 * size => usize, 0 => usize, handle => u64, 0 => u64));
            }
            assert_eq!(
                call!(driver, cuMemsetD8_v2(one => u64, 1 => u8, 1 => usize)),
                INVALID_VALUE,
                "nobody may use it yet"
            );
            let access = [1_u32, 0, 3];
            for address in [one, two] {
                ok!(driver, cuMemSetAccess(address => u64, 2 * size => usize, access.as_ptr().cast() => *const c_void, 1 => usize));
            }
            ok!(driver, cuMemsetD32_v2(one + 64 => u64, 42 => u32, 1 => usize));
            let mut word = 0_u32;
            ok!(driver, cuMemcpyDtoH_v2((&raw mut word).cast() => *mut c_void, two + 64 => u64, 4 => usize));
            assert_eq!(word, 42);
            ok!(driver, cuMemRelease(handle => u64));
            assert_eq!(before - driver.memory().0, 2 * size, "mappings hold it");
            for address in [one, two] {
                ok!(driver, cuMemUnmap(address => u64, 2 * size => usize));
            }
            assert_eq!(driver.memory().0, before);
            ok!(driver, cuMemAddressFree(base => u64, 8 * size => usize));
            assert_eq!(call!(driver, cuMemRelease(handle => u64)), INVALID_VALUE);
        },
    );
}

#[test]
fn contexts_and_modules_cost_memory() {
    on("t4x4", "550.163.01", "contexts_and_modules_cost_memory", |driver| {
        let first = driver.context();
        let before = driver.memory().0;
        let mut context = 0;
        ok!(driver, cuCtxCreate_v2(&raw mut context => *mut u64, 0 => u32, 0 => i32));
        assert_eq!(before - driver.memory().0, 300 * MIB);
        driver.function("any");
        assert_eq!(before - driver.memory().0, 302 * MIB);
        driver.allocate(5 * MIB).unwrap();
        ok!(driver, cuCtxDestroy_v2(context => u64));
        let mut current = 0;
        ok!(driver, cuCtxGetCurrent(&raw mut current => *mut u64));
        assert_eq!(current, first);
        assert_eq!(driver.memory().0, before);
    });
}

#[test]
fn pointers_tell_what_they_are() {
    on("t4x4", "550.163.01", "pointers_tell_what_they_are", |driver| {
        let context = driver.context();
        let address = driver.allocate(1000).unwrap();
        let get = |attribute: u32, address: u64| {
            let mut value = 0_u64;
            let code = call!(driver, cuPointerGetAttribute((&raw mut value).cast() => *mut c_void, attribute => u32, address => u64));
            (code, value)
        };
        assert_eq!(get(1, address + 10), (0, context));
        assert_eq!(get(2, address), (0, 2));
        assert_eq!(get(9, address), (0, 0));
        assert_eq!((get(11, address + 999), get(12, address)), ((0, address), (0, 1000)));
        let local = 5_u32;
        assert_eq!(get(2, (&raw const local) as u64).0, INVALID_VALUE);
        let mut host = 0_u64;
        ok!(driver, cuMemHostAlloc(&raw mut host => *mut u64, 100 => usize, 0 => u32));
        assert_eq!(get(2, host), (0, 1));
        let mut managed = 0;
        ok!(driver, cuMemAllocManaged(&raw mut managed => *mut u64, 100 => usize, 1 => u32));
        assert_eq!((get(8, managed), get(8, address)), ((0, 1), (0, 0)));
    });
}

#[test]
fn nulls_and_strange_handles_are_refused() {
    on("t4x4", "550.163.01", "nulls_and_strange_handles_are_refused", |driver| {
        driver.context();
        let null = std::ptr::null_mut::<u64>();
        assert_eq!(call!(driver, cuMemAlloc_v2(null => *mut u64, 16 => usize)), INVALID_VALUE);
        assert_eq!(call!(driver, cuStreamCreate(null => *mut u64, 0 => u32)), INVALID_VALUE);
        assert_eq!(call!(driver, cuCtxGetDevice(std::ptr::null_mut() => *mut i32)), INVALID_VALUE);
        for strange in [5, 0xdead_beef, u64::MAX] {
            assert_eq!(call!(driver, cuStreamSynchronize(strange => u64)), 400);
            assert_eq!(call!(driver, cuEventRecord(strange => u64, 0 => u64)), 400);
            assert_eq!(call!(driver, cuModuleUnload(strange => u64)), 400);
            assert_eq!(call!(driver, cuMemFree_v2(strange => u64)), INVALID_VALUE);
            assert_eq!(call!(driver, cuGraphDestroy(strange => u64)), INVALID_VALUE);
            assert_eq!(call!(driver, cuCtxSetCurrent(strange => u64)), 201);
            assert_eq!(driver.launch(strange, 1, 0), 400);
        }
        assert_eq!(
            call!(driver, cuDeviceGetName(std::ptr::null_mut() => *mut i8, 10 => i32, 0 => i32)),
            INVALID_VALUE
        );
        assert_eq!(
            call!(driver, cuDeviceGetAttribute(std::ptr::null_mut() => *mut i32, 1 => u32, 0 => i32)),
            INVALID_VALUE
        );
        assert_eq!(
            call!(driver, cuMemAlloc_v2(&raw mut *Box::leak(Box::new(0_u64)) => *mut u64, usize::MAX => usize)),
            OUT_OF_MEMORY
        );
    });
}

#[test]
fn the_oldest_functions_have_addresses_of_32_bits() {
    on("t4x4", "550.163.01", "the_oldest_functions_have_addresses_of_32_bits", |driver| {
        driver.context();
        let mut address = 0_u32;
        ok!(driver, cuMemAlloc(&raw mut address => *mut u32, 4096 => u32));
        let source = [9_u8; 100];
        ok!(driver, cuMemcpyHtoD(address => u32, source.as_ptr() => *const u8, 100 => u32));
        ok!(driver, cuMemsetD16(address => u32, 0x0101 => u16, 2 => u32));
        let mut target = [0_u8; 100];
        ok!(driver, cuMemcpyDtoH(target.as_mut_ptr() => *mut u8, address => u32, 100 => u32));
        assert_eq!((&target[..4], target[4], target[99]), (&[1; 4][..], 9, 9));
        ok!(driver, cuMemFree(address => u32));
    });
}

#[test]
fn memory_of_other_apis_is_mapped_by_its_descriptor() {
    on("t4x4", "550.163.01", "memory_of_other_apis_is_mapped_by_its_descriptor", |driver| {
        driver.context();
        let before = driver.memory().0;
        // SAFETY: makes a file without a name, of two pages.
        let descriptor = unsafe {
            let raw = libc::memfd_create(c"other".as_ptr(), 0);
            assert_eq!(libc::ftruncate(raw, 8192), 0);
            raw
        };
        let mut shape = [0_u64; 13];
        (shape[0], shape[1], shape[3]) = (1, u64::try_from(descriptor).unwrap(), 8192);
        let (mut memory, mut address) = (0_u64, 0_u64);
        ok!(driver, cuImportExternalMemory(&raw mut memory => *mut u64, shape.as_ptr() => *const u64));
        let mut range = [0_u64; 11];
        range[1] = 4096;
        ok!(driver, cuExternalMemoryGetMappedBuffer(&raw mut address => *mut u64, memory => u64, range.as_ptr() => *const u64));
        ok!(driver, cuMemsetD8_v2(address + 5 => u64, 9 => u8, 1 => usize));
        let mut byte = 0_u8;
        // SAFETY: reads a byte of the file.
        assert_eq!(unsafe { libc::pread(descriptor, (&raw mut byte).cast(), 1, 5) }, 1);
        assert_eq!(byte, 9);
        assert_eq!(driver.memory().0, before);
        ok!(driver, cuMemFree_v2(address => u64));
        assert_eq!(call!(driver, cuMemFree_v2(address => u64)), INVALID_VALUE);
        ok!(driver, cuDestroyExternalMemory(memory => u64));
    });
}

#[test]
fn a_checkpoint_gives_the_card_back_and_a_restore_takes_it_again() {
    const TEST: &str = "a_checkpoint_gives_the_card_back_and_a_restore_takes_it_again";
    on("t4x4", "580.65.06", TEST, |driver| {
        driver.context();
        driver.allocate(100 * MIB).unwrap();
        let free = driver.memory().0;
        let pid = i32::try_from(std::process::id()).unwrap();
        let none = std::ptr::null::<c_void>();
        assert_eq!(
            call!(driver, cuCheckpointProcessCheckpoint(pid => i32, none => *const c_void)),
            401
        );
        ok!(driver, cuCheckpointProcessLock(pid => i32, none => *const c_void));
        ok!(driver, cuCheckpointProcessCheckpoint(pid => i32, none => *const c_void));
        assert_eq!(driver.memory().0 - free, 400 * MIB);
        ok!(driver, cuCheckpointProcessRestore(pid => i32, none => *const c_void));
        assert_eq!(driver.memory().0, free);
        ok!(driver, cuCheckpointProcessUnlock(pid => i32, none => *const c_void));
    });
}
