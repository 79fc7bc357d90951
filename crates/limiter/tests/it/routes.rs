//! Who answers for `cuMemAlloc_v2`, whichever way a program goes.

use std::ffi::{CStr, c_void};
use std::path::PathBuf;

use crate::rig::{self, Driver, MIB, OUT_OF_MEMORY, Rig};

/// The file that an address is in, with links followed.
fn file_of(address: *mut c_void) -> PathBuf {
    // SAFETY: a zeroed struct of pointers.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: only looks the address up.
    assert_ne!(unsafe { libc::dladdr(address, &raw mut found) }, 0);
    // SAFETY: the loader's text.
    let path = unsafe { CStr::from_ptr(found.dli_fname) }.to_str().unwrap();
    std::fs::canonicalize(path).unwrap()
}

fn is_ours(address: *mut c_void, route: &str) {
    assert!(!address.is_null(), "{route}: nobody");
    let file = file_of(address);
    assert!(file.ends_with("limiter/liblimiter.so"), "{route}: {}", file.display());
}

fn open(name: &CStr, flags: i32) -> *mut c_void {
    // SAFETY: the name ends with a zero.
    let handle = unsafe { libc::dlopen(name.as_ptr(), flags) };
    assert!(!handle.is_null(), "{name:?}");
    handle
}

fn look(handle: *mut c_void) -> *mut c_void {
    // SAFETY: the handle is open, or one of the special ones.
    unsafe { libc::dlsym(handle, c"cuMemAlloc_v2".as_ptr()) }
}

/// The first library in the loader's list whose name has `libcuda` in it, as tools that walk it search.
fn walked() -> Option<PathBuf> {
    unsafe extern "C" fn each(
        info: *mut libc::dl_phdr_info,
        _: libc::size_t,
        found: *mut c_void,
    ) -> i32 {
        // SAFETY: the loader's structure, and our variable.
        unsafe {
            let name = CStr::from_ptr((*info).dlpi_name).to_str().unwrap();
            if name.contains("libcuda") {
                *found.cast::<Option<PathBuf>>() = Some(std::fs::canonicalize(name).unwrap());
                return 1;
            }
        }
        0
    }
    let mut found = None;
    // SAFETY: the function gets our variable.
    unsafe { libc::dl_iterate_phdr(Some(each), (&raw mut found).cast()) };
    found
}

#[test]
fn in_place_of_the_driver_every_route_leads_to_us() {
    rig::inside("in_place_of_the_driver_every_route_leads_to_us", |driver| {
        // The driver beneath is loaded at the first call, under the same name.
        driver.context();
        is_ours(look(driver.handle()), "dlsym of a handle");
        is_ours(look(open(c"libcuda.so.1", libc::RTLD_NOW)), "opened again");
        is_ours(look(open(c"libcuda.so.1", libc::RTLD_NOW | libc::RTLD_DEEPBIND)), "DEEPBIND");
        let path = std::env::var("LD_LIBRARY_PATH").unwrap() + "/libcuda.so.1\0";
        is_ours(
            look(open(CStr::from_bytes_until_nul(path.as_bytes()).unwrap(), libc::RTLD_NOW)),
            "by path",
        );
        // SAFETY: a namespace of its own.
        let other =
            unsafe { libc::dlmopen(libc::LM_ID_NEWLM, c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        is_ours(look(other), "dlmopen");
        open(c"libcuda.so.1", libc::RTLD_NOW | libc::RTLD_GLOBAL);
        is_ours(look(libc::RTLD_DEFAULT), "RTLD_DEFAULT");
        let walked = walked().unwrap();
        assert!(walked.ends_with("limiter/liblimiter.so"), "ELF walk: {}", walked.display());
        // Both spellings of the function are limited, through whichever of them.
        for name in ["cuMemAlloc_v2", "cuMemAllocAsync_ptsz"] {
            is_ours(driver.find(name).unwrap(), name);
        }
    });
}

#[test]
fn opened_by_path_first_we_keep_our_name() {
    const TEST: &str = "opened_by_path_first_we_keep_our_name";
    if rig::role().is_none() {
        return Rig::new().run(TEST, "body");
    }
    let driver = Driver::named(&(std::env::var("LD_LIBRARY_PATH").unwrap() + "/libcuda.so.1"));
    driver.context();
    is_ours(look(open(c"libcuda.so.1", libc::RTLD_NOW)), "by name, after by path");
}

#[test]
fn a_child_without_our_environment_is_limited_all_the_same() {
    const TEST: &str = "a_child_without_our_environment_is_limited_all_the_same";
    match rig::role().as_deref() {
        None => {
            let rig = Rig::new();
            let status = rig
                .role("root", TEST, "preloaded")
                .env("LD_PRELOAD", rig.path("root/libnanogpu.so"))
                .status()
                .unwrap();
            assert!(status.success());
        }
        Some("preloaded") => {
            let exe = std::env::current_exe().unwrap();
            let status = std::process::Command::new(exe)
                .args([TEST, "--nocapture", "--test-threads=1"])
                .env("LIMITER_TEST_ROLE", "bare")
                .env_remove("LD_PRELOAD")
                .status()
                .unwrap();
            assert!(status.success());
        }
        Some(_) => {
            let driver = Driver::load();
            driver.context();
            assert_eq!(driver.allocate(4096 * MIB), Err(OUT_OF_MEMORY));
        }
    }
}

/// An image that brings a libcuda of its own, and us preloaded.
#[test]
fn preloaded_we_stand_before_a_driver_of_the_images_own() {
    const TEST: &str = "preloaded_we_stand_before_a_driver_of_the_images_own";
    if rig::role().is_none() {
        let rig = Rig::new();
        let image = rig.path("image");
        std::fs::create_dir_all(&image).unwrap();
        for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
            std::fs::copy(rig.path("root/driver").join(name), image.join(name)).unwrap();
        }
        let status = rig
            .role("root", TEST, "body")
            .env("LD_LIBRARY_PATH", &image)
            .env("LD_PRELOAD", rig.path("root/libnanogpu.so"))
            .status()
            .unwrap();
        assert!(status.success(), "{status}");
        return;
    }
    let handle = open(c"libcuda.so.1", libc::RTLD_NOW);
    is_ours(look(handle), "dlsym of the image's own");
    is_ours(look(libc::RTLD_DEFAULT), "RTLD_DEFAULT");
    is_ours(look(libc::RTLD_NEXT), "RTLD_NEXT");
    // What is not the driver's is the C library's to find, for the true caller.
    // SAFETY: the names end with zeros.
    unsafe {
        assert_eq!(libc::dlsym(libc::RTLD_NEXT, c"getpid".as_ptr()), libc::getpid as *mut c_void);
        assert!(libc::dlsym(handle, c"cuNoSuchThing".as_ptr()).is_null());
    }
    let driver = Driver::load();
    driver.context();
    assert_eq!(driver.allocate(4096 * MIB), Err(OUT_OF_MEMORY));
    assert_eq!(driver.memory().1 as u64, 2048 * MIB);
    let nvml = Driver::named("libnvidia-ml.so.1");
    ok!(nvml, nvmlInit_v2());
    let mut count = 0_u32;
    ok!(nvml, nvmlDeviceGetCount_v2(&raw mut count => *mut u32));
    assert_eq!(count, 1);
}
