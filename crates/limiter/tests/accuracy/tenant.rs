//! A program that loads the driver as programs do and keeps it at work.

use std::ffi::{CString, c_void};
use std::fs::File;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// What tells a process that it is a tenant: what it does.
pub(crate) const WORK: &str = "LIMITER_TEST_WORK";
/// What its random lengths begin with.
pub(crate) const SEED: &str = "LIMITER_TEST_SEED";
/// A file for launches that took long: when they ended and how long they took, in microseconds.
pub(crate) const WAITS: &str = "LIMITER_TEST_WAITS";
const LONG: Duration = Duration::from_millis(5);
/// How a launch says its length to the simulated driver.
const LENGTH: usize = 0x4e47;

/// Plays the tenant if this process is one.
#[test]
fn tenant() {
    if let Ok(work) = std::env::var(WORK) {
        Tenant::new().work(&work);
    }
}

// SAFETY: the handle of a loaded library means the same to all threads.
unsafe impl Sync for Tenant {}

struct Tenant {
    library: *mut c_void,
    function: u64,
    /// `cuLaunchKernel`, looked up once: a kernel of 1 us leaves no time for that.
    launch: Launch,
    /// Where long waits are written to.
    waits: Option<File>,
}

type Launch =
    extern "C" fn(u64, u32, u32, u32, u32, u32, u32, u32, u64, *const c_void, *mut usize) -> u32;

extern "C" fn not_yet(
    _: u64,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u64,
    _: *const c_void,
    _: *mut usize,
) -> u32 {
    999
}

macro_rules! ok {
    ($tenant:expr, $name:ident($($value:expr => $ty:ty),* $(,)?)) => {{
        let address = $tenant.find(stringify!($name));
        // SAFETY: the export has this signature, which is the API's.
        let function: extern "C" fn($($ty),*) -> u32 = unsafe { std::mem::transmute(address) };
        let code = function($($value),*);
        assert_eq!(code, 0, stringify!($name));
    }};
}

impl Tenant {
    fn new() -> Self {
        // SAFETY: loading runs no code but the library's own start.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        assert!(!library.is_null(), "libcuda.so.1 is not found");
        let mut tenant = Self { library, function: 0, launch: not_yet, waits: None };
        ok!(tenant, cuInit(0 => u32));
        let mut context = 0;
        ok!(tenant, cuDevicePrimaryCtxRetain(&raw mut context => *mut u64, 0 => i32));
        ok!(tenant, cuCtxSetCurrent(context => u64));
        tenant.load();
        let launch = tenant.find("cuLaunchKernel");
        // SAFETY: the export has this signature, which is the API's.
        tenant.launch = unsafe { std::mem::transmute::<*mut c_void, Launch>(launch) };
        tenant.waits =
            std::env::var_os(WAITS).map(|path| File::options().append(true).open(path).unwrap());
        tenant
    }

    /// Loads the kernel into the current context.
    fn load(&mut self) {
        let (mut module, mut function) = (0, 0);
        let image = c".version 8.0";
        ok!(self, cuModuleLoadData(&raw mut module => *mut u64, image.as_ptr() => *const i8));
        ok!(self, cuModuleGetFunction(
            &raw mut function => *mut u64, module => u64, c"kernel".as_ptr() => *const i8));
        self.function = function;
    }

    fn find(&self, name: &str) -> *mut c_void {
        let name = CString::new(name).unwrap();
        // SAFETY: the handle is open and the name is a C string.
        let address = unsafe { libc::dlsym(self.library, name.as_ptr()) };
        assert!(!address.is_null(), "{name:?}");
        address
    }

    /// Launches, and writes down how long that took if it was long.
    fn launch(&self, nanoseconds: u64, stream: u64) {
        let begun = Instant::now();
        self.launch_only(nanoseconds, stream);
        let took = begun.elapsed();
        if let Some(mut waits) = self.waits.as_ref().filter(|_| took > LONG) {
            let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
            writeln!(waits, "{} {}", since.as_micros(), took.as_micros()).unwrap();
        }
    }

    /// Launches a kernel of that length, all over the card.
    fn launch_only(&self, nanoseconds: u64, stream: u64) {
        let length = [nanoseconds, 0];
        let mut extra = [LENGTH, length.as_ptr() as usize, 0];
        let launch = self.launch;
        let (none, extra) = (std::ptr::null(), extra.as_mut_ptr());
        let code = launch(self.function, 4096, 1, 1, 128, 1, 1, 0, stream, none, extra);
        assert_eq!(code, 0, "cuLaunchKernel");
    }

    fn stream(&self) -> u64 {
        let mut stream = 0;
        ok!(self, cuStreamCreate(&raw mut stream => *mut u64, 1 => u32));
        stream
    }

    fn wait(&self) {
        ok!(self, cuCtxSynchronize());
    }

    /// A graph of so many kernels of that length.
    fn graph(&self, nodes: usize, nanoseconds: u64) -> u64 {
        let (stream, mut graph, mut exec) = (self.stream(), 0, 0);
        ok!(self, cuStreamBeginCapture_v2(stream => u64, 0 => u32));
        for _ in 0..nodes {
            self.launch(nanoseconds, stream);
        }
        ok!(self, cuStreamEndCapture(stream => u64, &raw mut graph => *mut u64));
        ok!(self, cuGraphInstantiateWithFlags(&raw mut exec => *mut u64, graph => u64, 0 => u64));
        exec
    }

    /// Kernels behind a function on the host that waits until all of them were launched.
    fn hosted(&self, nanoseconds: u64) {
        static LAUNCHED: AtomicBool = AtomicBool::new(false);
        extern "C" fn wait(_: *mut c_void) {
            while !LAUNCHED.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let stream = self.stream();
        ok!(self, cuLaunchHostFunc(
            stream => u64, wait => extern "C" fn(*mut c_void), std::ptr::null_mut() => *mut c_void));
        for _ in 0..12 {
            self.launch(nanoseconds, stream);
        }
        LAUNCHED.store(true, Ordering::Release);
        self.wait();
    }

    /// Kernels of that length from so many threads, all on one stream, without end.
    fn threads(&self, threads: u64, nanoseconds: u64) {
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    let mut context = 0;
                    ok!(self, cuDevicePrimaryCtxRetain(&raw mut context => *mut u64, 0 => i32));
                    ok!(self, cuCtxSetCurrent(context => u64));
                    loop {
                        self.launch_only(nanoseconds, 0);
                    }
                });
            }
        });
    }

    /// Device memory of a page.
    fn memory(&self) -> u64 {
        let mut address = 0;
        ok!(self, cuMemAlloc_v2(&raw mut address => *mut u64, 4096 => u64));
        address
    }

    /// Forks a process that makes as many contexts as it is allowed to, launches in each, and ends; and
    /// the next, up to 12 at a time.
    fn bomb(nanoseconds: u64) {
        static LIVING: AtomicU32 = AtomicU32::new(0);
        // SAFETY: the child calls only the driver, and leaves.
        if unsafe { libc::fork() } == 0 {
            // SAFETY: it goes with who forked it.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            // Without room for a first context it has nothing to do.
            // SAFETY: ends the child at once.
            std::panic::set_hook(Box::new(|_| unsafe { libc::_exit(0) }));
            let mut again = Self::new();
            let create = again.find("cuCtxCreate_v2");
            // SAFETY: the export has this signature, which is the API's.
            let create: extern "C" fn(*mut u64, u32, i32) -> u32 =
                unsafe { std::mem::transmute(create) };
            let mut context = 0;
            while create(&raw mut context, 0, 0) == 0 {
                again.load();
                again.launch_only(nanoseconds, 0);
            }
            // SAFETY: ends the child at once, with all that it holds.
            unsafe { libc::_exit(0) };
        }
        LIVING.fetch_add(1, Ordering::Relaxed);
        while LIVING.load(Ordering::Relaxed) >= 12 {
            // SAFETY: waits for a child of ours.
            if unsafe { libc::wait(std::ptr::null_mut()) } > 0 {
                LIVING.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Works until it is ended. `async 1000000`: kernels of 1 ms, one after another; `sync`: each is
    /// waited for; `random 100000 1900000`: of lengths between; `streams 4 1000000`: on four streams
    /// in turn; `graph 10 1000000`: graphs of ten; `bursts 50000000 1000000`: one, then a pause;
    /// `copy 9000000 1000000`: one, its result copied, then a pause; `halts 1000000`: one,
    /// then it stops itself; `threads 8 100000`: from eight threads on one stream; `bomb 1000000`: processes
    /// that take all the contexts they can; `idle`: nothing.
    fn work(&self, work: &str) {
        let words: Vec<&str> = work.split(' ').collect();
        let numbers: Vec<u64> = words[1..].iter().map(|word| word.parse().unwrap()).collect();
        let number = |at: usize| numbers.get(at - 1).copied().unwrap_or(0);
        let seed = std::env::var(SEED).map_or(0, |seed| seed.parse().unwrap());
        let mut random = fastrand::Rng::with_seed(seed);
        let streams = if words[0] == "streams" { number(1) } else { 1 };
        let streams: Vec<u64> = (0..streams).map(|_| self.stream()).collect();
        let (memory, mut host) = (self.memory(), [0_u8; 4096]);
        let graph = if words[0] == "graph" {
            self.graph(number(1).try_into().unwrap(), number(2))
        } else {
            0
        };
        if words[0] == "hosted" {
            self.hosted(number(1));
        }
        println!("\nready");
        let end = Instant::now() + Duration::from_mins(2);
        let mut turn = 0;
        // The clock is asked now and then: a kernel of 1 us leaves little time for that.
        while turn % 16 != 0 || Instant::now() < end {
            turn += 1;
            match words[0] {
                "async" => self.launch(number(1), 0),
                "sync" => {
                    self.launch(number(1), 0);
                    self.wait();
                }
                "random" => self.launch(random.u64(number(1)..=number(2)), 0),
                "streams" => self.launch(number(2), streams[turn % streams.len()]),
                "copy" => {
                    self.launch(number(1), 0);
                    ok!(self, cuMemcpyDtoH_v2(
                        host.as_mut_ptr() => *mut u8, memory => u64, host.len() => usize));
                    std::thread::sleep(Duration::from_nanos(number(2)));
                }
                "graph" => ok!(self, cuGraphLaunch(graph => u64, streams[0] => u64)),
                "bursts" => {
                    self.launch(number(2), 0);
                    self.wait();
                    std::thread::sleep(Duration::from_nanos(number(1)));
                }
                "halts" => {
                    self.launch(number(1), 0);
                    // SAFETY: stops this process until somebody lets it go on.
                    unsafe { libc::raise(libc::SIGSTOP) };
                }
                "threads" => self.threads(number(1), number(2)),
                "bomb" => Self::bomb(number(1)),
                "idle" | "hosted" => std::thread::sleep(Duration::from_millis(10)),
                other => panic!("no such work: {other}"),
            }
        }
    }
}
