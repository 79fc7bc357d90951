//! Containers with several devices, of another PID namespace, and at work.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use machine::{Clock, PidView};

use crate::rig::{self, Driver, MIB, OUT_OF_MEMORY, Rig, Share};

#[test]
fn two_devices_of_a_container_have_a_limit_each() {
    const TEST: &str = "two_devices_of_a_container_have_a_limit_each";
    if rig::role().is_none() {
        let shares = [Share::memory(0, 1024 * MIB), Share::memory(2, 2048 * MIB)];
        let rig = Rig::with("dgx-a100", "550.163.01", &shares, |_| {});
        rig.run(TEST, "body");
        // Whoever looks later finds nothing held of either.
        assert_eq!((rig.truth(0), rig.truth(2)), (0, 0));
        return;
    }
    let driver = Driver::load();
    ok!(driver, cuInit(0 => u32));
    for (device, limit) in [(0, 1024), (2, 2048)] {
        let (mut context, mut total) = (0_u64, 0_u64);
        ok!(driver, cuDeviceTotalMem_v2(&raw mut total => *mut u64, device => i32));
        assert_eq!(total, limit * MIB, "device {device}");
        ok!(driver, cuCtxCreate_v2(&raw mut context => *mut u64, 0 => u32, device => i32));
        driver.allocate((limit - 400) * MIB).unwrap();
        assert_eq!(driver.allocate(128 * MIB), Err(OUT_OF_MEMORY), "device {device}");
        assert_eq!(driver.memory().0, 100 << 20, "device {device}");
    }
}

#[test]
fn a_container_whose_numbers_the_driver_does_not_know_is_limited() {
    const TEST: &str = "a_container_whose_numbers_the_driver_does_not_know_is_limited";
    if rig::role().is_none() {
        let unshare = ["--pid", "--fork", "--mount-proc"];
        let able = Command::new("unshare").args(unshare).arg("true").status();
        if !able.is_ok_and(|status| status.success()) {
            println!("skipped: a PID namespace needs root");
            return;
        }
        let host = |description: &mut machine::Description| description.pids = PidView::Host;
        let rig = Rig::with("dgx-a100", "550.163.01", &[Share::memory(0, 2048 * MIB)], host);
        let body = rig.role("root", TEST, "body");
        let mut inside = rig.command("root", "unshare");
        inside.args(unshare).arg(body.get_program()).args(body.get_args());
        inside.envs(body.get_envs().filter_map(|(key, value)| Some((key, value?))));
        assert!(inside.status().unwrap().success());
        return;
    }
    let driver = Driver::load();
    driver.context();
    let mut context = 0_u64;
    ok!(driver, cuCtxCreate_v2(&raw mut context => *mut u64, 0 => u32, 0 => i32));
    // Both contexts are charged, by what the whole device had less after each.
    assert_eq!(driver.memory(), (1448 << 20, 2048 << 20));
    driver.allocate(1400 * MIB).unwrap();
    assert_eq!(driver.allocate(64 * MIB), Err(OUT_OF_MEMORY));
}

/// A pod with `hostUsers: false`: root inside, nobody who owns a file of ours outside.
#[test]
fn a_container_in_a_user_namespace_is_limited() {
    const TEST: &str = "a_container_in_a_user_namespace_is_limited";
    const APART: [&str; 6] = [
        "--reuid=100000",
        "--regid=100000",
        "--clear-groups",
        "unshare",
        "--user",
        "--map-root-user",
    ];
    if rig::role().is_none() {
        let rig = Rig::new();
        // As the agent writes them: the one is read by everybody, the other written.
        let open = |below: &str, mode: u32| {
            std::fs::set_permissions(rig.path(below), Permissions::from_mode(mode)).unwrap();
        };
        open("", 0o755);
        open("root/pages/0.limits", 0o444);
        open("root/pages/0.counters", 0o666);
        let body = rig.role("root", TEST, "body");
        let mut able = Command::new("setpriv");
        able.args(APART).args(["test", "-x"]).arg(body.get_program());
        if !able.status().is_ok_and(|status| status.success()) {
            println!("skipped: it needs root, and a build folder that others may read");
            return;
        }
        let mut inside = rig.command("root", "setpriv");
        inside.args(APART).arg(body.get_program()).args(body.get_args());
        inside.envs(body.get_envs().filter_map(|(key, value)| Some((key, value?))));
        assert!(inside.status().unwrap().success());
        return;
    }
    let driver = Driver::load();
    driver.context();
    assert_eq!(driver.memory(), (1748 << 20, 2048 << 20));
    driver.allocate(1700 * MIB).unwrap();
    assert_eq!(driver.allocate(64 * MIB), Err(OUT_OF_MEMORY));
}

#[test]
fn utilisation_is_what_the_container_uses_of_its_share() {
    const TEST: &str = "utilisation_is_what_the_container_uses_of_its_share";
    if rig::role().is_none() {
        let share = Share { device: 0, memory: 2048 * MIB, cores: 40, burst: 40 };
        let real = |description: &mut machine::Description| description.clock = Clock::Real;
        Rig::with("dgx-a100", "550.163.01", &[share], real).run(TEST, "body");
        return;
    }
    let (driver, nvml) = (Driver::load(), Driver::named("libnvidia-ml.so.1"));
    driver.context();
    ok!(nvml, nvmlInit_v2());
    let mut device = 0_u64;
    ok!(nvml, nvmlDeviceGetHandleByIndex_v2(0 => u32, &raw mut device => *mut u64));
    let rate = || {
        let mut rates = [0_u32; 2];
        ok!(nvml, nvmlDeviceGetUtilizationRates(device => u64, &raw mut rates => *mut [u32; 2]));
        rates[0]
    };
    let function = driver.function("busy_1ms");
    let work = |pause: Duration| {
        let end = Instant::now() + Duration::from_secs(1);
        while Instant::now() < end {
            assert_eq!(driver.launch(function, 64, 0), 0);
            ok!(driver, cuCtxSynchronize());
            std::thread::sleep(pause);
        }
        rate()
    };
    // What is unknown of the kernel and the bucket is over after the first.
    work(Duration::ZERO);
    let all = work(Duration::ZERO);
    assert!(all >= 75, "{all} percent of the share, with as much work as it allows");
    // A millisecond of ten is a tenth of the card, and a quarter of the share.
    let part = work(Duration::from_millis(9));
    assert!((10..=40).contains(&part), "{part} percent of the share, with a quarter of it at work");
}
