//! A container's world: a simulated machine, the genuine (simulated) driver at the private path, our
//! library under the driver's names, pages, and processes that load it.

use std::ffi::{CStr, CString, c_void};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::OnceLock;

use machine::{Choices, Clock, Description, DeviceId, Machine, VARIABLE};

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

/// Which part of a test this process plays; none in the process that starts the others.
const ROLE: &str = "LIMITER_TEST_ROLE";
pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const OUT_OF_MEMORY: u32 = 2;

/// The library, built once as it ships.
pub(crate) fn library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let built = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(["build", "--quiet", "--package", "limiter", "--profile", "limiter"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .unwrap();
        assert!(built.success(), "cargo build --package limiter --profile limiter");
        let exe = std::env::current_exe().unwrap();
        // target/debug/deps/it-...
        exe.ancestors().nth(3).unwrap().join("limiter/liblimiter.so")
    })
}

/// What a container is given of a device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Share {
    pub(crate) device: usize,
    pub(crate) memory: u64,
    pub(crate) cores: u32,
    pub(crate) burst: u32,
}

impl Share {
    pub(crate) fn memory(device: usize, memory: u64) -> Self {
        Self { device, memory, cores: 0, burst: 0 }
    }
}

/// A machine and a container on it.
pub(crate) struct Rig {
    folder: tempfile::TempDir,
}

impl Rig {
    /// A container with 2 GiB of the first card.
    pub(crate) fn new() -> Self {
        Self::with("dgx-a100", "550.163.01", &[Share::memory(0, 2048 * MIB)], |_| {})
    }

    pub(crate) fn with(
        profile: &str,
        driver: &str,
        shares: &[Share],
        change: impl FnOnce(&mut Description),
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let choices =
            Choices { driver: driver.into(), clock: Clock::Virtual, ..Choices::default() };
        let mut description = Description::from_profile(profile, &choices).unwrap();
        // Whatever device nodes the host has, they are not this machine's.
        description.dev_root = folder.path().join("dev");
        change(&mut description);
        Machine::create(&folder.path().join("machine"), &description).unwrap();
        let rig = Self { folder };
        let genuine = std::env::current_exe().unwrap().parent().unwrap().to_owned();
        for folder in ["root/driver", "lib"] {
            std::fs::create_dir_all(rig.path(folder)).unwrap();
        }
        for (built, name) in [("libcuda.so", "libcuda.so.1"), ("libnvml.so", "libnvidia-ml.so.1")] {
            symlink(genuine.join(built), rig.path("root/driver").join(name)).unwrap();
            symlink(library(), rig.path("lib").join(name)).unwrap();
        }
        symlink(library(), rig.path("root/libnanogpu.so")).unwrap();
        rig.container("root", shares);
        rig
    }

    /// Pages of a container; every container has a root of its own, which the driver is linked into.
    pub(crate) fn container(&self, root: &str, shares: &[Share]) -> PathBuf {
        let pages = self.path(root).join("pages");
        std::fs::create_dir_all(&pages).unwrap();
        if root != "root" {
            symlink(self.path("root/driver"), self.path(root).join("driver")).unwrap();
        }
        let description = Description::read(&self.path("machine")).unwrap();
        for (place, share) in shares.iter().enumerate() {
            let name = |text: &str| page::Name::new(text).unwrap();
            let limits = page::Limits {
                device: name(&description.cards[share.device].uuid),
                pod: name("pod"),
                container: name(root),
                memory: share.memory,
                cores: share.cores,
                burst: share.burst,
                place: u32::try_from(place).unwrap(),
                granted: share.cores * 100,
                tenants: 1,
            };
            let file = |kind| pages.join(format!("{place}.{kind}"));
            std::fs::write(file("limits"), page::write_limits(&limits)).unwrap();
            std::fs::write(file("counters"), page::write_counters()).unwrap();
        }
        self.path(root)
    }

    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.folder.path().join(below)
    }

    pub(crate) fn machine(&self) -> &'static Machine {
        Machine::open(&self.path("machine")).unwrap()
    }

    /// All that processes hold of a device, as the driver knows it.
    pub(crate) fn truth(&self, device: usize) -> u64 {
        let device = DeviceId::new(device).unwrap();
        let running = self.machine().running().unwrap();
        let holds = running.iter().flat_map(|process| &process.holds);
        holds.filter(|holding| holding.device == device).map(|holding| holding.memory).sum()
    }

    /// What the container's account says.
    pub(crate) fn account(&self, root: &str, place: usize) -> page::Counters {
        let bytes = std::fs::read(self.path(root).join(format!("pages/{place}.counters"))).unwrap();
        let bounds = page::Used { most_memory: u64::MAX, longest: u64::MAX / 4096 };
        page::read_counters(&bytes, bounds).unwrap()
    }

    /// A program in the container.
    pub(crate) fn command(&self, root: &str, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env(VARIABLE, self.path("machine"))
            .env("NANOGPU_ROOT", self.path(root))
            .env("LD_LIBRARY_PATH", self.path("lib"))
            .env_remove("CUDA_VISIBLE_DEVICES");
        command
    }

    /// This test again, in a role, in the container.
    pub(crate) fn role(&self, root: &str, test: &str, role: &str) -> Command {
        let mut command = self.command(root, std::env::current_exe().unwrap());
        command.args([test, "--nocapture", "--test-threads=1"]).env(ROLE, role);
        command
    }

    pub(crate) fn start(&self, test: &str, role: &str) -> Child {
        self.role("root", test, role).spawn().unwrap()
    }

    pub(crate) fn run(&self, test: &str, role: &str) {
        let status = self.start(test, role).wait().unwrap();
        assert!(status.success(), "{test} as {role}: {status}");
    }
}

/// The role of this process, if a test started it.
pub(crate) fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Runs `body` in a process of a container with 2 GiB of the first card.
pub(crate) fn inside(test: &str, body: impl FnOnce(&Driver)) {
    if role().is_some() {
        body(&Driver::load());
    } else {
        Rig::new().run(test, "body");
    }
}

/// A library, loaded.
pub(crate) struct Driver {
    handle: *mut c_void,
}

// SAFETY: the handle of a loaded library means the same to all threads.
unsafe impl Sync for Driver {}

impl Driver {
    /// What a program gets that asks for CUDA.
    pub(crate) fn load() -> Self {
        Self::named("libcuda.so.1")
    }

    pub(crate) fn named(name: &str) -> Self {
        let name = CString::new(name).unwrap();
        // SAFETY: loading runs no code of the library.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        // SAFETY: dlopen failed, so dlerror has a text.
        assert!(!handle.is_null(), "{:?}", unsafe { CStr::from_ptr(libc::dlerror()) });
        Self { handle }
    }

    pub(crate) fn handle(&self) -> *mut c_void {
        self.handle
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

    pub(crate) fn stream(&self, flags: u32) -> u64 {
        let mut stream = 0;
        ok!(self, cuStreamCreate(&raw mut stream => *mut u64, flags => u32));
        stream
    }

    pub(crate) fn allocate(&self, size: u64) -> Result<u64, u32> {
        let mut address = 0;
        match call!(self, cuMemAlloc_v2(&raw mut address => *mut u64, size => u64)) {
            0 => Ok(address),
            code => Err(code),
        }
    }
}
