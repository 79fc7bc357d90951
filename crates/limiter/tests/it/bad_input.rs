//! What should not be: an error of CUDA and one line, never a crash of the user's program.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::process::{Output, Stdio};

use page::CountersPage;

use crate::rig::{self, Driver, MIB, OUT_OF_MEMORY, Rig};

const NOT_READY: u32 = 802;

/// Runs this test as `role` and returns what it said.
fn said(rig: &Rig, test: &str, role: &str) -> Output {
    rig.role("root", test, role)
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
        .wait_with_output()
        .unwrap()
}

/// Makes something bad.
type Spoil = fn(&Rig);

fn lines(output: &Output) -> Vec<String> {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    text.lines().filter(|line| line.starts_with("nanogpu[")).map(str::to_owned).collect()
}

#[test]
fn without_sound_pages_and_a_driver_nothing_runs() {
    const TEST: &str = "without_sound_pages_and_a_driver_nothing_runs";
    if rig::role().is_some() {
        let (cuda, nvml) = (Driver::load(), Driver::named("libnvidia-ml.so.1"));
        // Both libraries refuse, more than once, and their texts can be read.
        for _ in 0..3 {
            assert_eq!(call!(cuda, cuInit(0 => u32)), NOT_READY);
            assert_eq!(cuda.allocate(1), Err(NOT_READY));
        }
        let mut text = std::ptr::null::<i8>();
        ok!(cuda, cuGetErrorString(NOT_READY => u32, &raw mut text => *mut *const i8));
        assert!(!text.is_null());
        if std::env::var("NVML").is_ok() {
            assert_ne!(call!(nvml, nvmlInit_v2()), 0);
            let address = nvml.find("nvmlErrorString").unwrap();
            // SAFETY: the export has this signature, which is the API's.
            let string: extern "C" fn(u32) -> *const i8 = unsafe { std::mem::transmute(address) };
            assert!(!string(9).is_null());
        }
        return;
    }
    let cases: [(&str, &str, Spoil); 9] = [
        ("no pages", "no limits", |rig| fs::remove_dir_all(rig.path("root/pages")).unwrap()),
        ("no counters", "no counters", |rig| {
            fs::remove_file(rig.path("root/pages/0.counters")).unwrap();
        }),
        ("short limits", "cut off", |rig| shorten(rig, "0.limits")),
        ("short counters", "cut off", |rig| shorten(rig, "0.counters")),
        ("newer limits", "another version", |rig| poke(rig, "0.limits", 8, &[9])),
        ("newer counters", "another version", |rig| poke(rig, "0.counters", 8, &[9])),
        ("foreign limits", "no page", |rig| poke(rig, "0.limits", 0, b"XXXX")),
        ("limits of nothing", "allow no memory", |rig| poke(rig, "0.limits", 400, &[0; 8])),
        ("no driver", "cannot be loaded", |rig| {
            fs::remove_file(rig.path("root/driver/libcuda.so.1")).unwrap();
        }),
    ];
    for (case, reason, spoil) in cases {
        let rig = Rig::new();
        spoil(&rig);
        let mut command = rig.role("root", TEST, "body");
        if case != "no driver" {
            command.env("NVML", "1");
        }
        let output = command
            .stderr(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
            .wait_with_output()
            .unwrap();
        let lines = lines(&output);
        assert!(output.status.success(), "{case}: {output:?}");
        assert_eq!(lines.len(), 1, "{case}: {lines:?}");
        assert!(lines[0].contains(reason), "{case}: {lines:?}");
    }
}

fn shorten(rig: &Rig, page: &str) {
    let path = rig.path("root/pages").join(page);
    fs::OpenOptions::new().write(true).open(path).unwrap().set_len(100).unwrap();
}

fn poke(rig: &Rig, page: &str, at: u64, bytes: &[u8]) {
    let path = rig.path("root/pages").join(page);
    fs::OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
}

#[test]
fn without_a_folder_nothing_runs() {
    const TEST: &str = "without_a_folder_nothing_runs";
    if rig::role().is_some() {
        assert_eq!(call!(Driver::load(), cuInit(0 => u32)), NOT_READY);
        return;
    }
    let rig = Rig::new();
    let mut command = rig.role("root", TEST, "body");
    command.env_remove("NANOGPU_ROOT").stderr(Stdio::piped()).stdout(Stdio::piped());
    let output = command.spawn().unwrap().wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(lines(&output).len(), 1);
}

#[test]
fn a_process_too_many_gets_no_memory() {
    const TEST: &str = "a_process_too_many_gets_no_memory";
    if rig::role().is_some() {
        let driver = Driver::load();
        ok!(driver, cuInit(0 => u32));
        let mut context = 0_u64;
        for _ in 0..3 {
            let code =
                call!(driver, cuCtxCreate_v2(&raw mut context => *mut u64, 0 => u32, 0 => i32));
            assert_eq!(code, OUT_OF_MEMORY);
        }
        return;
    }
    let rig = Rig::new();
    // All seats are taken, by processes of another PID namespace, of which nothing is known from here.
    poke(&rig, "0.counters", 48, &1024_u32.to_le_bytes());
    for seat in 0..1024_u64 {
        let at = 128 + seat * 128;
        poke(&rig, "0.counters", at, &(7_u64 << 32).to_le_bytes());
        poke(&rig, "0.counters", at + 8, &1_u64.to_le_bytes());
    }
    let output = said(&rig, TEST, "body");
    assert!(output.status.success(), "{output:?}");
    let lines = lines(&output);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("1024 seats"), "{lines:?}");
    // The same seats of processes of our own namespace that have ended are swept.
    let mut link = fs::read_link("/proc/self/ns/pid").unwrap().to_str().unwrap().to_owned();
    link.retain(|letter| letter.is_ascii_digit());
    let namespace: u64 = link.parse().unwrap();
    for seat in 0..1024_u64 {
        let at = 128 + seat * 128;
        poke(&rig, "0.counters", at, &((4_000_000 + seat) << 32).to_le_bytes());
        poke(&rig, "0.counters", at + 8, &namespace.to_le_bytes());
        poke(&rig, "0.counters", at + 24, &(2 * MIB).to_le_bytes());
    }
    rig.run("limits_that_are_lowered_hold_from_then_on", "swept");
}

#[test]
fn without_nvml_contexts_are_charged_as_guessed() {
    const TEST: &str = "without_nvml_contexts_are_charged_as_guessed";
    if rig::role().is_none() {
        let rig = Rig::new();
        fs::remove_file(rig.path("root/driver/libnvidia-ml.so.1")).unwrap();
        let output = said(&rig, TEST, "body");
        assert!(output.status.success(), "{output:?}");
        let lines = lines(&output);
        assert!(lines.iter().any(|line| line.contains("cannot be loaded")), "{lines:?}");
        return;
    }
    let driver = Driver::load();
    driver.context();
    // Nobody says that it costs 300: never less is charged than it takes.
    assert_eq!(driver.memory(), ((2048 - 512) << 20, 2048 << 20));
    let mut context = 0_u64;
    for _ in 0..3 {
        ok!(driver, cuCtxCreate_v2(&raw mut context => *mut u64, 0 => u32, 0 => i32));
    }
    let code = call!(driver, cuCtxCreate_v2(&raw mut context => *mut u64, 0 => u32, 0 => i32));
    assert_eq!(code, OUT_OF_MEMORY);
}

#[test]
fn limits_that_are_lowered_hold_from_then_on() {
    const TEST: &str = "limits_that_are_lowered_hold_from_then_on";
    match rig::role().as_deref() {
        None => {
            let rig = Rig::new();
            let mut command = rig.role("root", TEST, "body");
            let output = command.env("NANOGPU_LOG", "warn").output().unwrap();
            assert!(output.status.success(), "{output:?}");
            // However often it is refused.
            let lines = lines(&output);
            assert_eq!(lines.len(), 1, "{lines:?}");
            assert!(lines[0].contains("out of memory"), "{lines:?}");
        }
        Some("swept") => {
            let driver = Driver::load();
            driver.context();
            driver.allocate(1024 * MIB).unwrap();
        }
        Some(_) => {
            let driver = Driver::load();
            driver.context();
            let held = driver.allocate(1024 * MIB).unwrap();
            let root = std::path::PathBuf::from(std::env::var_os("NANOGPU_ROOT").unwrap());
            let limits =
                fs::OpenOptions::new().write(true).open(root.join("pages/0.limits")).unwrap();
            limits.write_all_at(&(512 * MIB).to_le_bytes(), 400).unwrap();
            assert_eq!(driver.allocate(1), Err(OUT_OF_MEMORY));
            assert_eq!(driver.memory(), (0, 512 << 20));
            // What is there stays, and can be used and freed.
            ok!(driver, cuMemsetD8_v2(held => u64, 7 => u32, 4096 => u64));
            ok!(driver, cuMemFree_v2(held => u64));
            driver.allocate(100 * MIB).unwrap();
            assert_eq!(driver.allocate(200 * MIB), Err(OUT_OF_MEMORY));
            // And raised.
            limits.write_all_at(&(4096 * MIB).to_le_bytes(), 400).unwrap();
            driver.allocate(3000 * MIB).unwrap();
        }
    }
}

#[test]
fn whatever_a_tenant_writes_into_its_counters_nobody_crashes() {
    const TEST: &str = "whatever_a_tenant_writes_into_its_counters_nobody_crashes";
    if rig::role().is_none() {
        return Rig::new().run(TEST, "body");
    }
    let driver = Driver::load();
    driver.context();
    let root = std::path::PathBuf::from(std::env::var_os("NANOGPU_ROOT").unwrap());
    let counters = fs::OpenOptions::new().write(true).open(root.join("pages/0.counters")).unwrap();
    let mut number = 1_u64;
    for _ in 0..200 {
        let mut bytes = vec![0_u8; 4096];
        for byte in &mut bytes {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (number >> 56) as u8;
        }
        let at = 16 + number % (CountersPage::SIZE as u64 - 4200);
        counters.write_all_at(&bytes, at).unwrap();
        for size in [1, 3 * MIB] {
            if let Ok(address) = driver.allocate(size) {
                ok!(driver, cuMemFree_v2(address => u64));
            }
        }
        driver.memory();
    }
}

#[test]
fn an_address_nobody_knows_reaches_the_driver() {
    rig::inside("an_address_nobody_knows_reaches_the_driver", |driver| {
        driver.context();
        assert_eq!(call!(driver, cuMemFree_v2(0x1234_5000 => u64)), 1);
        assert_eq!(call!(driver, cuMemFreeAsync(0x1234_5000 => u64, 0 => u64)), 1);
        assert_eq!(call!(driver, cuMemFree_v2(0 => u64)), 0);
        assert_ne!(call!(driver, cuArrayDestroy(77 => u64)), 0);
        assert_ne!(call!(driver, cuMemRelease(77 => u64)), 0);
        let address = driver.allocate(MIB).unwrap();
        ok!(driver, cuMemFree_v2(address => u64));
        assert_eq!(call!(driver, cuMemFree_v2(address => u64)), 1, "twice");
        // Pointers that are none are the driver's to refuse.
        let null = std::ptr::null_mut::<u64>();
        assert_eq!(call!(driver, cuMemAlloc_v2(null => *mut u64, 4096 => u64)), 1);
        assert_eq!(call!(driver, cuMemAllocAsync(null => *mut u64, 4096 => u64, 0 => u64)), 1);
        assert_eq!(call!(driver, cuArrayCreate_v2(null => *mut u64, null => *mut u64)), 1);
        assert_eq!(call!(driver, cuMemAlloc_v2(null => *mut u64, 0 => u64)), 1);
    });
}
