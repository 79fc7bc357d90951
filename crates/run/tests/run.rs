//! `nanogpu-run` over the simulated driver.

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::{Path, PathBuf};
    use std::process::{Command, Output};

    use machine::{Choices, Clock, Description, Machine, TAG_VARIABLE, VARIABLE};

    struct Rig {
        folder: tempfile::TempDir,
    }

    impl Rig {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path();
            let choices = Choices { clock: Clock::Real, cards: Some(2), ..Choices::default() };
            let mut description = Description::from_profile("dgx-a100", &choices).unwrap();
            description.dev_root = path.join("dev");
            Machine::create(&path.join("machine"), &description).unwrap();
            let lib = path.join("driver/usr/lib64");
            std::fs::create_dir_all(&lib).unwrap();
            std::fs::create_dir_all(path.join("run")).unwrap();
            let deps = std::env::current_exe().unwrap().parent().unwrap().to_owned();
            for (built, name) in
                [("libcuda.so", "libcuda.so.1"), ("libnvml.so", "libnvidia-ml.so.1")]
            {
                std::fs::copy(deps.join(built), lib.join(name)).unwrap();
            }
            symlink(library(), path.join("libnanogpu.so")).unwrap();
            Self { folder }
        }

        fn path(&self, below: &str) -> PathBuf {
            self.folder.path().join(below)
        }

        fn command(&self) -> Command {
            let mut command = Command::new(env!("CARGO_BIN_EXE_nanogpu-run"));
            command
                .env(VARIABLE, self.path("machine"))
                .env("NANOGPU_DRIVER_ROOT", self.path("driver"))
                .env("NANOGPU_LIBRARY", self.path("libnanogpu.so"))
                .env("XDG_RUNTIME_DIR", self.path("run"));
            command
        }

        /// Runs this test again under it, in a role.
        fn play(&self, options: &[&str], role: &str, tag: &str) -> Command {
            let mut command = self.command();
            command.args(options).arg("--").arg(std::env::current_exe().unwrap());
            command.args(["tests::player", "--exact", "--nocapture", "--test-threads=1"]);
            command.env("RUN_TEST_ROLE", role).env(TAG_VARIABLE, tag);
            command
        }

        fn busy(&self, tag: &str) -> u64 {
            let machine = Machine::open(&self.path("machine")).unwrap();
            let usage = machine.usage().unwrap();
            usage.iter().filter(|usage| usage.tag == tag).map(|usage| usage.busy).sum()
        }
    }

    /// The library, built once as it ships.
    fn library() -> PathBuf {
        if let Some(other) = std::env::var_os("LIMITER_LIBRARY") {
            return other.into();
        }
        let built = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(["build", "--quiet", "--package", "limiter", "--profile", "limiter"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status();
        assert!(built.unwrap().success());
        let exe = std::env::current_exe().unwrap();
        exe.ancestors().nth(3).unwrap().join("limiter/liblimiter.so")
    }

    fn said(output: &Output) -> String {
        String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr)
    }

    /// Is run under nanogpu-run by the other tests.
    #[test]
    fn player() {
        match std::env::var("RUN_TEST_ROLE").as_deref() {
            Ok("memory") => {
                let cuda = Cuda::start();
                let sizes = (0..2000).take_while(|_| cuda.allocate(64 << 20)).count();
                println!("\ngot {} MiB of {} MiB", sizes * 64, cuda.total() >> 20);
            }
            Ok("busy") => Cuda::start().keep_busy(),
            Ok("seven") => std::process::exit(7),
            _ => {}
        }
    }

    #[test]
    fn a_program_gets_its_memory_and_no_more() {
        let rig = Rig::new();
        let output = rig.play(&["--memory", "2Gi"], "memory", "m").output().unwrap();
        let said = said(&output);
        assert!(output.status.success(), "{said}");
        // A context and a module are paid for too.
        assert!(said.contains("of 2048 MiB"), "{said}");
        let got = said.split("got ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
        assert!((1000..2048).contains(&got.parse::<u32>().unwrap()), "{said}");
        let left: Vec<_> =
            std::fs::read_dir(rig.path("run/nanogpu-run")).unwrap().flatten().collect();
        assert!(left.iter().all(|entry| !entry.file_name().to_string_lossy().starts_with("room-")));
    }

    #[test]
    fn two_programs_share_a_card_under_one_referee() {
        let rig = Rig::new();
        let mut one =
            rig.play(&["--memory", "2Gi", "--cores", "20"], "busy", "one").spawn().unwrap();
        let mut two =
            rig.play(&["--memory", "2Gi", "--cores", "50"], "busy", "two").spawn().unwrap();
        assert!(one.wait().unwrap().success() && two.wait().unwrap().success());
        let (one, two) = (rig.busy("one"), rig.busy("two"));
        println!(
            "20 and 50 asked, {} ms and {} ms in three seconds",
            one / 1_000_000,
            two / 1_000_000
        );
        // Each ran for three seconds, not quite at the same time.
        assert!(one < 850_000_000 && two < 1_900_000_000, "{one} {two}");
        assert!(one > 250_000_000 && two > 600_000_000, "{one} {two}");
    }

    #[test]
    fn what_a_program_ends_with_is_what_we_end_with() {
        let rig = Rig::new();
        assert_eq!(rig.play(&[], "seven", "x").status().unwrap().code(), Some(7));
    }

    #[test]
    fn what_is_missing_is_named() {
        let rig = Rig::new();
        let fails = |command: &mut Command| {
            let output = command.output().unwrap();
            assert_eq!(output.status.code(), Some(125), "{}", said(&output));
            said(&output)
        };
        let nowhere = Path::new("/nowhere");
        let no_library = fails(rig.command().env("NANOGPU_LIBRARY", nowhere).args(["--", "true"]));
        assert!(no_library.contains("no libnanogpu.so at /nowhere"), "{no_library}");
        let no_driver =
            fails(rig.command().env("NANOGPU_DRIVER_ROOT", nowhere).args(["--", "true"]));
        assert!(no_driver.contains("no libnvidia-ml.so.1 below /nowhere"), "{no_driver}");
        let no_card = fails(rig.command().args(["--device", "7", "--", "true"]));
        assert!(no_card.contains("there is no card 7; there are 2"), "{no_card}");
        let no_program = fails(rig.command().args(["--", "/no/such/program"]));
        assert!(no_program.contains("start /no/such/program"), "{no_program}");
        let too_much = fails(rig.command().args(["--memory", "900Gi", "--", "true"]));
        assert!(too_much.contains("--memory asks for 921600 MiB"), "{too_much}");
    }

    struct Cuda(*mut std::ffi::c_void);

    macro_rules! call {
        ($cuda:expr, $name:ident($($value:expr => $ty:ty),* $(,)?)) => {{
            let name = concat!(stringify!($name), "\0");
            // SAFETY: the library is open, the name ends with a zero, and the export has this
            // signature, which is the API's.
            unsafe {
                let address = libc::dlsym($cuda.0, name.as_ptr().cast());
                assert!(!address.is_null(), "{name}");
                let function: extern "C" fn($($ty),*) -> u32 = std::mem::transmute(address);
                function($($value),*)
            }
        }};
    }

    impl Cuda {
        fn start() -> Self {
            // SAFETY: loading runs no code but the library's own start.
            let cuda = Self(unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) });
            assert!(!cuda.0.is_null());
            let mut context = 0_u64;
            assert_eq!(call!(cuda, cuInit(0 => u32)), 0);
            assert_eq!(
                call!(cuda, cuDevicePrimaryCtxRetain(&raw mut context => *mut u64, 0 => i32)),
                0
            );
            assert_eq!(call!(cuda, cuCtxSetCurrent(context => u64)), 0);
            cuda
        }

        fn allocate(&self, size: usize) -> bool {
            let mut address = 0_u64;
            call!(self, cuMemAlloc_v2(&raw mut address => *mut u64, size => usize)) == 0
        }

        fn total(&self) -> usize {
            let (mut free, mut total) = (0_usize, 0_usize);
            assert_eq!(
                call!(self, cuMemGetInfo_v2(&raw mut free => *mut usize, &raw mut total => *mut usize)),
                0
            );
            total
        }

        fn keep_busy(&self) {
            let (mut module, mut function) = (0_u64, 0_u64);
            let image = c".version 8.0";
            assert_eq!(
                call!(self, cuModuleLoadData(&raw mut module => *mut u64, image.as_ptr() => *const i8)),
                0
            );
            assert_eq!(
                call!(self, cuModuleGetFunction(
                &raw mut function => *mut u64, module => u64, c"sleep_1ms".as_ptr() => *const i8)),
                0
            );
            let end = std::time::Instant::now() + std::time::Duration::from_secs(3);
            let none = std::ptr::null::<u8>();
            while std::time::Instant::now() < end {
                assert_eq!(
                    call!(self, cuLaunchKernel(
                    function => u64, 4096 => u32, 1 => u32, 1 => u32, 128 => u32, 1 => u32, 1 => u32,
                    0 => u32, 0 => u64, none => *const u8, none => *const u8)),
                    0
                );
            }
        }
    }
}
