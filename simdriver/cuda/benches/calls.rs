//! What calls cost: the floor under every measurement of what stands in front of the driver.

use std::ffi::{CString, c_void};

use divan::Bencher;
use machine::{Choices, Clock, Description, Machine, VARIABLE};

fn main() {
    divan::main();
}

/// The library on a machine of its own, with a context and a kernel.
struct Driver {
    handle: *mut c_void,
    function: u64,
}

// SAFETY: the handle of a loaded library means the same to all threads.
unsafe impl Sync for Driver {}

macro_rules! call {
    ($driver:expr, $name:literal, $ty:ty $(, $value:expr)*) => {{
        // SAFETY: the export has this signature, which is the API's.
        let function: $ty = unsafe { std::mem::transmute($driver.find($name)) };
        assert_eq!(function($($value),*), 0, $name);
    }};
}

impl Driver {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder for the machine").keep();
        let choices = Choices { clock: Clock::Virtual, ..Choices::default() };
        let description = Description::from_profile("dgx-a100", &choices).expect("a known profile");
        Machine::create(&folder.join("machine"), &description).expect("a new machine");
        // SAFETY: no other thread runs yet.
        unsafe { std::env::set_var(VARIABLE, folder.join("machine")) };
        let exe = std::env::current_exe().expect("this program");
        let path = exe.with_file_name("libcuda.so").into_os_string().into_string();
        let path = CString::new(path.expect("a path in UTF-8")).expect("a path without zeroes");
        // SAFETY: loading runs no code of ours but Rust's own start-up.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null(), "cargo built no library beside this");
        let mut driver = Self { handle, function: 0 };
        let (mut context, mut module, mut function) = (0_u64, 0_u64, 0_u64);
        call!(driver, "cuInit", extern "C" fn(u32) -> u32, 0);
        call!(driver, "cuCtxCreate_v2", Create, &raw mut context, 0, 0);
        call!(driver, "cuModuleLoadData", Load, &raw mut module, c".version".as_ptr());
        let name = c"busy_1ns".as_ptr();
        call!(driver, "cuModuleGetFunction", Get, &raw mut function, module, name);
        driver.function = function;
        driver
    }

    fn find(&self, name: &str) -> *mut c_void {
        let name = CString::new(name).expect("a name without zeroes");
        // SAFETY: the library is open and the name is a C string.
        let address = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        assert!(!address.is_null());
        address
    }
}

type Launch =
    extern "C" fn(u64, u32, u32, u32, u32, u32, u32, u32, u64, *const c_void, *const c_void) -> u32;
type Create = extern "C" fn(*mut u64, u32, i32) -> u32;
type Load = extern "C" fn(*mut u64, *const i8) -> u32;
type Get = extern "C" fn(*mut u64, u64, *const i8) -> u32;
type Allocate = extern "C" fn(*mut u64, usize) -> u32;
type Free = extern "C" fn(u64) -> u32;
type Info = extern "C" fn(*mut usize, *mut usize) -> u32;

#[divan::bench]
fn launch(bencher: Bencher) {
    let driver = Driver::new();
    // SAFETY: as in `call`.
    let launch: Launch = unsafe { std::mem::transmute(driver.find("cuLaunchKernel")) };
    let none = std::ptr::null::<c_void>() as usize;
    bencher.bench(|| {
        let none = none as *const c_void;
        launch(driver.function, 1, 1, 1, 32, 1, 1, 0, 0, none, none)
    });
}

fn allocate_and_free(bencher: Bencher, size: usize) {
    let driver = Driver::new();
    // SAFETY: as in `call`.
    let allocate: Allocate = unsafe { std::mem::transmute(driver.find("cuMemAlloc_v2")) };
    // SAFETY: as in `call`.
    let free: Free = unsafe { std::mem::transmute(driver.find("cuMemFree_v2")) };
    // One more in the block, so that it stays.
    let mut other = 0;
    assert_eq!(allocate(&raw mut other, 512), 0);
    bencher.bench(|| {
        let mut address = 0;
        allocate(&raw mut address, size);
        free(address)
    });
}

#[divan::bench]
fn allocate_and_free_small(bencher: Bencher) {
    allocate_and_free(bencher, 4096);
}

#[divan::bench]
fn allocate_and_free_large(bencher: Bencher) {
    allocate_and_free(bencher, 64 << 20);
}

#[divan::bench]
fn memory_info(bencher: Bencher) {
    let driver = Driver::new();
    // SAFETY: as in `call`.
    let info: Info = unsafe { std::mem::transmute(driver.find("cuMemGetInfo_v2")) };
    bencher.bench(|| {
        let (mut free, mut total) = (0, 0);
        info(&raw mut free, &raw mut total);
        free
    });
}
