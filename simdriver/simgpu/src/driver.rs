//! The little of the CUDA driver API that a load needs, from whatever libcuda.so.1 there is.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::time::Duration;

use anyhow::{Context, bail};

/// A context with memory and a kernel.
pub(crate) struct Driver {
    library: Library,
    function: *mut c_void,
}

struct Library(*mut c_void);

/// What a context's calls answer with; 0 is success.
type Code = c_int;

impl Driver {
    /// Takes the card `device` and holds memory on it. Kernels will run for `busy`.
    pub(crate) fn start(device: usize, memory: u64, busy: Duration) -> anyhow::Result<Self> {
        let library = Library::open()?;
        let ordinal = c_int::try_from(device).context("no such card")?;
        // SAFETY: the signatures are those of the driver's API, and all pointers are to locals
        // that live through their call.
        unsafe {
            let init: unsafe extern "C" fn(c_uint) -> Code = library.function(c"cuInit")?;
            check(init(0), "start the driver")?;
            let mut context = std::ptr::null_mut::<c_void>();
            let create: unsafe extern "C" fn(*mut *mut c_void, c_uint, c_int) -> Code =
                library.function(c"cuCtxCreate_v2")?;
            check(create(&raw mut context, 0, ordinal), "open a context")?;
            if memory > 0 {
                let allocate: unsafe extern "C" fn(*mut u64, usize) -> Code =
                    library.function(c"cuMemAlloc_v2")?;
                let mut address = 0;
                let size = usize::try_from(memory).context("too much memory")?;
                check(allocate(&raw mut address, size), "hold the memory")?;
            }
            let load: unsafe extern "C" fn(*mut *mut c_void, *const c_void) -> Code =
                library.function(c"cuModuleLoadData")?;
            let mut module = std::ptr::null_mut::<c_void>();
            // The simulated driver takes any image; a kernel's name says how long it is.
            let image = c".version 7.0";
            check(load(&raw mut module, image.as_ptr().cast()), "load a module")?;
            let find: unsafe extern "C" fn(*mut *mut c_void, *mut c_void, *const c_char) -> Code =
                library.function(c"cuModuleGetFunction")?;
            let name = CString::new(format!("busy_{}us", busy.as_micros().max(1)))?;
            let mut function = std::ptr::null_mut::<c_void>();
            check(find(&raw mut function, module, name.as_ptr()), "find a kernel")?;
            Ok(Self { library, function })
        }
    }

    /// Runs the kernel to its end.
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        type Launch = unsafe extern "C" fn(
            *mut c_void,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            *mut c_void,
            *mut *mut c_void,
            *mut *mut c_void,
        ) -> Code;
        let none = std::ptr::null_mut::<c_void>();
        // SAFETY: as above; the kernel takes no arguments.
        unsafe {
            let launch: Launch = self.library.function(c"cuLaunchKernel")?;
            let pointer = none.cast::<*mut c_void>();
            let code = launch(self.function, 65536, 1, 1, 256, 1, 1, 0, none, pointer, pointer);
            check(code, "launch a kernel")?;
            let finish: unsafe extern "C" fn() -> Code =
                self.library.function(c"cuCtxSynchronize")?;
            check(finish(), "wait for a kernel")
        }
    }
}

impl Library {
    fn open() -> anyhow::Result<Self> {
        // SAFETY: loads a library by its name; ours have no constructors.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            bail!(
                "libcuda.so.1 is not found; put the folder of `nanogpu-simgpu install` into \
                 LD_LIBRARY_PATH, or use --rogue to go without it"
            );
        }
        Ok(Self(library))
    }

    /// A function of the library.
    ///
    /// # Safety
    /// `F` must be the type of a pointer to the function of this name.
    unsafe fn function<F: Copy>(&self, name: &CStr) -> anyhow::Result<F> {
        assert_eq!(size_of::<F>(), size_of::<*mut c_void>());
        // SAFETY: the library is open and the name ends with a zero.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        if address.is_null() {
            bail!("libcuda.so.1 has no {}", name.to_string_lossy());
        }
        // SAFETY: by the contract of this function; sizes were compared.
        Ok(unsafe { std::mem::transmute_copy(&address) })
    }
}

fn check(code: Code, act: &str) -> anyhow::Result<()> {
    match code {
        0 => Ok(()),
        2 => bail!("cannot {act}: out of memory (CUDA error 2)"),
        code => bail!("cannot {act}: CUDA error {code}"),
    }
}
