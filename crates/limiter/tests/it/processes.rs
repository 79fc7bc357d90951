//! Several processes of one container: forks, execs, and deaths at any moment.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::paths::{account, truth};
use crate::rig::{self, Driver, MIB, OUT_OF_MEMORY, Rig, Share};

/// Sixteen contexts take 4,800 MiB of it.
const LIMIT: u64 = 8192 * MIB;

/// How much of a kind of work, more in a soak.
fn setting(name: &str, ordinary: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(ordinary)
}

/// A sequence of numbers that looks random.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Takes and gives back by several paths until it is killed.
fn work(driver: &Driver, seed: u64) {
    ok!(driver, cuInit(0 => u32));
    let mut context = 0_u64;
    // While the others hold everything there is no room for a context.
    while call!(driver, cuDevicePrimaryCtxRetain(&raw mut context => *mut u64, 0 => i32))
        == OUT_OF_MEMORY
    {
        std::thread::yield_now();
    }
    ok!(driver, cuCtxSetCurrent(context => u64));
    let mut chance = Chance(seed);
    let (mut linear, mut pooled, mut physical) = (Vec::new(), Vec::new(), Vec::new());
    let shape = [1 | 1 << 32, 1, 0, 0_u64];
    loop {
        let size = (1 + chance.below(64)) * MIB;
        let code = match chance.below(8) {
            0 | 1 => driver.allocate(size).map(|address| linear.push(address)).err().unwrap_or(0),
            2 => driver
                .allocate(1 + chance.below(4096))
                .map(|address| linear.push(address))
                .err()
                .unwrap_or(0),
            3 => {
                let mut address = 0_u64;
                let code = call!(driver, cuMemAllocAsync(&raw mut address => *mut u64, size => u64, 0 => u64));
                if code == 0 {
                    pooled.push(address);
                }
                code
            }
            4 => {
                let (mut handle, size) = (0_u64, size.next_multiple_of(2 * MIB));
                let code = call!(driver, cuMemCreate(&raw mut handle => *mut u64, size => u64, &raw const shape => *const [u64; 4], 0 => u64));
                if code == 0 {
                    physical.push(handle);
                }
                code
            }
            5 => {
                if !linear.is_empty() {
                    let address = linear
                        .swap_remove(usize::try_from(chance.below(linear.len() as u64)).unwrap());
                    ok!(driver, cuMemFree_v2(address => u64));
                }
                0
            }
            6 => {
                if let Some(address) = pooled.pop() {
                    ok!(driver, cuMemFreeAsync(address => u64, 0 => u64));
                    ok!(driver, cuCtxSynchronize());
                }
                0
            }
            _ => {
                if let Some(handle) = physical.pop() {
                    ok!(driver, cuMemRelease(handle => u64));
                }
                0
            }
        };
        assert!(matches!(code, 0 | OUT_OF_MEMORY), "{code}");
    }
}

/// Processes that would work for ever, also after a test that failed.
struct Living(Vec<Child>);

impl Drop for Living {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What the driver lists, and what the account has, process by process.
fn who_holds(rig: &Rig) -> String {
    let bytes = std::fs::read(rig.path("root/pages/0.counters")).unwrap();
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let begin = std::mem::offset_of!(page::CountersPage, seats);
    let seats = (begin..bytes.len()).step_by(size_of::<page::Seat>()).map(|seat| {
        let owner = word(seat + std::mem::offset_of!(page::Seat, owner));
        (owner >> 32, word(seat + std::mem::offset_of!(page::Seat, memory)))
    });
    let mut text = String::new();
    for (pid, memory) in seats.filter(|seat| *seat != (0, 0)) {
        let _ = writeln!(text, "seat    {pid:>8x} {:>6} MiB", memory / MIB);
    }
    for process in rig.machine().running().unwrap() {
        let memory: u64 = process.holds.iter().map(|holding| holding.memory).sum();
        let contexts: usize = process.holds.iter().map(|holding| holding.contexts).sum();
        let _ = writeln!(
            text,
            "process {:>8x} {:>6} MiB, {contexts} contexts",
            process.pid,
            memory / MIB
        );
    }
    text
}

#[test]
fn processes_killed_at_random_leave_nothing_and_never_hold_too_much() {
    const TEST: &str = "processes_killed_at_random_leave_nothing_and_never_hold_too_much";
    match rig::role().as_deref() {
        None => {}
        Some("last") => {
            // Whoever comes after all of them has the whole share, less its own context.
            let driver = Driver::load();
            driver.context();
            driver.allocate(LIMIT - 300 * MIB).unwrap();
            assert_eq!((account(), truth()), (LIMIT, LIMIT));
            return;
        }
        Some(role) => return work(&Driver::load(), role.parse().unwrap()),
    }
    let (processes, kills) = (16, setting("NANOGPU_KILLS", 48));
    let rig = Rig::with("dgx-a100", "550.163.01", &[Share::memory(0, LIMIT)], |_| {});
    let quiet = |role: u64| {
        let mut command = rig.role("root", TEST, &role.to_string());
        command.stdout(Stdio::null()).spawn().unwrap()
    };
    let seed = setting("NANOGPU_KILLS_SEED", 7);
    let mut chance = Chance(seed);
    let mut living = Living((0..processes).map(quiet).collect());
    let (mut samples, mut highest) = (0_u64, 0);
    for round in 0..kills {
        let pause = Duration::from_millis(chance.below(60));
        let until = Instant::now() + pause;
        loop {
            let held = rig.truth(0);
            assert!(held <= LIMIT, "{} MiB are held\n{}", held / MIB, who_holds(&rig));
            (samples, highest) = (samples + 1, held.max(highest));
            if Instant::now() >= until {
                break;
            }
        }
        let victim = usize::try_from(chance.below(processes)).unwrap();
        let victim = &mut living.0[victim];
        assert_eq!(victim.try_wait().unwrap(), None, "it would work for ever");
        victim.kill().unwrap();
        victim.wait().unwrap();
        *victim = quiet(1000 + round);
    }
    for child in &mut living.0 {
        assert_eq!(child.try_wait().unwrap(), None, "it would work for ever");
    }
    drop(living);
    assert_eq!(rig.truth(0), 0);
    assert!(highest > LIMIT / 2, "the limit was not tried: {} MiB", highest / MIB);
    rig.run(TEST, "last");
    println!("{samples} samples, {} MiB at most, {kills} killed, seed {seed}", highest / MIB);
}

/// Waits for a line of a child.
fn hear(child: &mut Child, wanted: &str) {
    let out = child.stdout.as_mut().unwrap();
    let found = BufReader::new(out).lines().any(|line| line.unwrap().contains(wanted));
    assert!(found, "{wanted}");
}

#[test]
fn what_a_process_held_before_an_exec_is_free_after_it() {
    const TEST: &str = "what_a_process_held_before_an_exec_is_free_after_it";
    match rig::role().as_deref() {
        None => {
            let rig = Rig::new();
            let mut command = rig.role("root", TEST, "becomes another");
            let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            hear(&mut child, "another now");
            assert_eq!(rig.truth(0), 0);
            rig.run(TEST, "needs it");
            drop(child.stdin.take());
            child.wait().unwrap();
        }
        Some("becomes another") => {
            use std::os::unix::process::CommandExt as _;
            let driver = Driver::load();
            driver.context();
            driver.allocate(1500 * MIB).unwrap();
            let error =
                std::process::Command::new("sh").args(["-c", "echo another now; cat"]).exec();
            panic!("{error}");
        }
        Some(_) => {
            let driver = Driver::load();
            driver.context();
            driver.allocate(1500 * MIB).unwrap();
            assert_eq!(account(), truth());
        }
    }
}

#[test]
fn a_forked_child_is_another_process() {
    rig::inside("a_forked_child_is_another_process", |driver| {
        driver.context();
        let kept = driver.allocate(512 * MIB).unwrap();
        // SAFETY: the child calls only the driver, and leaves.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let done = std::panic::catch_unwind(|| {
                driver.context();
                driver.allocate(256 * MIB).unwrap();
                assert_eq!(account(), (812 + 556) * MIB);
                assert_eq!(truth(), 556 * MIB, "of this process");
                assert_eq!(driver.allocate(1024 * MIB), Err(OUT_OF_MEMORY));
            });
            // SAFETY: ends the child without the parent's clean-up.
            unsafe { libc::_exit(i32::from(done.is_err())) };
        }
        let mut status = 0;
        // SAFETY: waits for our own child.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
        // The child's seat is swept when somebody needs the room.
        driver.allocate(1200 * MIB).unwrap();
        ok!(driver, cuMemFree_v2(kept => u64));
        assert_eq!(account(), truth());
    });
}

#[test]
fn processes_share_one_limit() {
    const TEST: &str = "processes_share_one_limit";
    match rig::role().as_deref() {
        None => {
            let rig = Rig::new();
            let mut command = rig.role("root", TEST, "holder");
            let mut holder = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            hear(&mut holder, "holding");
            rig.run(TEST, "second");
            holder.stdin.take().unwrap().write_all(b"\n").unwrap();
            assert!(holder.wait().unwrap().success());
            rig.run(TEST, "third");
        }
        Some("holder") => {
            let driver = Driver::load();
            driver.context();
            driver.allocate(1000 * MIB).unwrap();
            println!("\nholding");
            std::io::stdin().read_line(&mut String::new()).unwrap();
        }
        Some("second") => {
            let driver = Driver::load();
            driver.context();
            assert_eq!(driver.memory(), (448 << 20, 2048 << 20));
            assert_eq!(driver.allocate(450 * MIB), Err(OUT_OF_MEMORY));
            driver.allocate(440 * MIB).unwrap();
            // A second context of this process does not fit any more.
            let mut context = 0_u64;
            assert_eq!(
                call!(driver, cuCtxCreate_v2(&raw mut context => *mut u64, 0 => u32, 0 => i32)),
                OUT_OF_MEMORY
            );
        }
        Some(_) => {
            let driver = Driver::load();
            driver.context();
            driver.allocate(1740 * MIB).unwrap();
        }
    }
}

#[test]
fn processes_that_ended_leave_their_seats_to_those_that_follow() {
    const TEST: &str = "processes_that_ended_leave_their_seats_to_those_that_follow";
    if rig::role().is_some() {
        let driver = Driver::load();
        driver.context();
        driver.allocate(MIB).unwrap();
        return;
    }
    // Room for all of their contexts: nobody sweeps for want of it.
    let shares = [Share::memory(0, 16_384 * MIB)];
    let rig = Rig::with("dgx-a100", "550.163.01", &shares, |_| {});
    for _ in 0..20 {
        rig.run(TEST, "one after another");
    }
    let bytes = std::fs::read(rig.path("root/pages/0.counters")).unwrap();
    let at = std::mem::offset_of!(page::CountersPage, high);
    let high = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    // Every claim adds all of them up.
    assert_eq!(high, 8, "seats that were ever used");
}
