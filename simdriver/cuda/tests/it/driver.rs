//! The built library, loaded as a client loads it, in a process of its own.

use std::ffi::{CStr, CString, c_void};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};

use machine::{Choices, Clock, Description, Machine, VARIABLE};

/// Calls an export by name; each argument is followed by its type.
macro_rules! call {
    ($driver:expr, $name:ident($($value:expr => $ty:ty),* $(,)?)) => {{
        let address = $driver.find(stringify!($name)).expect(concat!(stringify!($name), " is exported"));
        // SAFETY: the export has this signature, which is the API's.
        let function: extern "C" fn($($ty),*) -> u32 = unsafe { std::mem::transmute(address) };
        function($($value),*)
    }};
}

/// Calls an export that must succeed.
macro_rules! ok {
    ($driver:expr, $name:ident($($value:expr => $ty:ty),* $(,)?)) => {
        assert_eq!(call!($driver, $name($($value => $ty),*)), 0, stringify!($name))
    };
}

const ROLE: &str = "CUDA_TEST_ROLE";

/// A machine in a folder that goes with it.
pub(crate) struct Rig {
    folder: tempfile::TempDir,
}

impl Rig {
    /// One of the profiles, on its virtual clock.
    pub(crate) fn new(profile: &str, driver: &str) -> Self {
        Self::with(
            profile,
            &Choices { driver: driver.into(), clock: Clock::Virtual, ..Choices::default() },
            |_| {},
        )
    }

    /// As wanted.
    pub(crate) fn with(
        profile: &str,
        choices: &Choices,
        change: impl FnOnce(&mut Description),
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut description = Description::from_profile(profile, choices).unwrap();
        // Whatever device nodes the host has, they are not this machine's.
        description.dev_root = folder.path().join("dev");
        change(&mut description);
        Machine::create(&folder.path().join("machine"), &description).unwrap();
        Self { folder }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("machine")
    }

    pub(crate) fn machine(&self) -> &'static Machine {
        Machine::open(&self.path()).unwrap()
    }

    /// Starts this test again in a process of its own, in a role.
    pub(crate) fn start(&self, test: &str, role: &str) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args([test, "--nocapture", "--test-threads=1"])
            .env(VARIABLE, self.path())
            .env(ROLE, role)
            .env_remove("CUDA_VISIBLE_DEVICES")
            .spawn()
            .unwrap()
    }

    /// Runs this test again in a process of its own, and expects it to pass.
    pub(crate) fn run(&self, test: &str, role: &str) {
        let status = self.start(test, role).wait().unwrap();
        assert!(status.success(), "{test} as {role}: {status}");
    }
}

/// Runs `body` in a process of its own on a machine of that driver version.
pub(crate) fn on(profile: &str, driver: &str, test: &str, body: impl FnOnce(&Driver)) {
    if role().is_some() {
        body(&Driver::load());
    } else {
        Rig::new(profile, driver).run(test, "body");
    }
}

/// The role of this process, if it was started by a test.
pub(crate) fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Whether a process was killed.
pub(crate) fn killed(status: ExitStatus) -> bool {
    status.signal() == Some(9)
}

/// The library that cargo built beside this test.
pub(crate) fn library() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    exe.parent().map(|folder| folder.join("libcuda.so")).unwrap()
}

/// The library, loaded.
pub(crate) struct Driver {
    handle: *mut c_void,
}

// SAFETY: the handle of a loaded library means the same to all threads.
unsafe impl Sync for Driver {}

impl Driver {
    pub(crate) fn load() -> Self {
        Self::at(&library())
    }

    fn at(path: &Path) -> Self {
        let name = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: loading runs no code of ours but Rust's own start-up.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        // SAFETY: dlopen failed, so dlerror has a text.
        assert!(!handle.is_null(), "{:?}", unsafe { CStr::from_ptr(libc::dlerror()) });
        Self { handle }
    }

    /// The address of an export.
    pub(crate) fn find(&self, name: &str) -> Option<*mut c_void> {
        let name = CString::new(name).unwrap();
        // SAFETY: the handle is open and the name is a C string.
        let address = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        (!address.is_null()).then_some(address)
    }

    /// What `cuGetProcAddress_v2` says: result, status, address.
    pub(crate) fn look_up(&self, name: &str, version: i32, flags: u64) -> (u32, u32, *mut c_void) {
        let name = CString::new(name).unwrap();
        let (mut address, mut status) = (std::ptr::null_mut(), 99);
        let result = call!(self, cuGetProcAddress_v2(
            name.as_ptr() => *const i8, &raw mut address => *mut *mut c_void, version => i32, flags => u64,
            &raw mut status => *mut u32));
        (result, status, address)
    }

    /// Initialises, and makes a context on the first card current.
    pub(crate) fn context(&self) -> u64 {
        ok!(self, cuInit(0 => u32));
        let mut context = 0;
        ok!(self, cuDevicePrimaryCtxRetain(&raw mut context => *mut u64, 0 => i32));
        ok!(self, cuCtxSetCurrent(context => u64));
        context
    }

    /// Free and all memory.
    pub(crate) fn memory(&self) -> (usize, usize) {
        let (mut free, mut total) = (0, 0);
        ok!(self, cuMemGetInfo_v2(&raw mut free => *mut usize, &raw mut total => *mut usize));
        (free, total)
    }

    /// A function of any name.
    pub(crate) fn function(&self, name: &str) -> u64 {
        let (mut module, mut function) = (0, 0);
        let image = c".version 8.0";
        ok!(self, cuModuleLoadData(&raw mut module => *mut u64, image.as_ptr() => *const i8));
        let name = CString::new(name).unwrap();
        ok!(self, cuModuleGetFunction(&raw mut function => *mut u64, module => u64, name.as_ptr() => *const i8));
        function
    }

    /// Launches a function with so many blocks of 128 threads.
    pub(crate) fn launch(&self, function: u64, blocks: u32, stream: u64) -> u32 {
        call!(self, cuLaunchKernel(
            function => u64, blocks => u32, 1 => u32, 1 => u32, 128 => u32, 1 => u32, 1 => u32, 0 => u32, stream => u64,
            std::ptr::null() => *const c_void, std::ptr::null() => *const c_void))
    }

    pub(crate) fn event(&self, flags: u32) -> u64 {
        let mut event = 0;
        ok!(self, cuEventCreate(&raw mut event => *mut u64, flags => u32));
        event
    }

    pub(crate) fn stream(&self, flags: u32) -> u64 {
        let mut stream = 0;
        ok!(self, cuStreamCreate(&raw mut stream => *mut u64, flags => u32));
        stream
    }

    pub(crate) fn record(&self, event: u64, stream: u64) {
        ok!(self, cuEventRecord(event => u64, stream => u64));
    }

    /// Milliseconds between two events.
    pub(crate) fn elapsed(&self, start: u64, end: u64) -> f32 {
        let mut milliseconds = 0.0;
        ok!(self, cuEventElapsedTime(&raw mut milliseconds => *mut f32, start => u64, end => u64));
        milliseconds
    }

    pub(crate) fn allocate(&self, size: usize) -> Result<u64, u32> {
        let mut address = 0;
        match call!(self, cuMemAlloc_v2(&raw mut address => *mut u64, size => usize)) {
            0 => Ok(address),
            code => Err(code),
        }
    }
}
