//! Many processes on one device, a third of them killed at random points.
//!
//! `NANOGPU_KILL_PROCESSES` and `NANOGPU_KILL_ROUNDS` make it longer, and `NANOGPU_KILL_SEED`
//! repeats a run as far as a kill can be repeated.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use machine::{
    Choices, Description, DeviceId, Fault, Machine, Memory, Process, Progress, VARIABLE, Work,
};

const SEED: &str = "NANOGPU_KILL_SEED";
const WORKER: &str = "NANOGPU_KILL_WORKER";
const MIB: u64 = 1 << 20;

fn card() -> DeviceId {
    DeviceId::new(0).unwrap()
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

const ROUNDS: &str = "NANOGPU_KILL_ROUNDS";

fn machine() -> (tempfile::TempDir, &'static Machine) {
    let folder = tempfile::tempdir().unwrap();
    let choices = Choices { name: "kill".to_owned(), ..Choices::default() };
    let description = Description::from_profile("vm-x4", &choices).unwrap();
    let machine = Machine::create(folder.path(), &description).unwrap();
    (folder, machine)
}

/// This test's program again, as a worker.
fn start(folder: &std::path::Path, seed: u64, rounds: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kill::worker", "--nocapture"])
        .env(VARIABLE, folder)
        .env(WORKER, seed.to_string())
        .env(ROUNDS, rounds.to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn worker() {
    let Ok(seed) = std::env::var(WORKER) else {
        // Nothing to do when it is not one of the many.
        return;
    };
    let mut random = fastrand::Rng::with_seed(seed.parse().unwrap());
    let process = Machine::find().unwrap().process().unwrap();
    work(&process, &mut random, number(ROUNDS, 0));
}

/// Takes and gives memory and runs kernels, and checks that what it holds is what it took.
fn work(process: &Process, random: &mut fastrand::Rng, rounds: u64) {
    let context = loop {
        // All of them together want more than there is at times.
        if let Ok(context) = process.open_context(card()) {
            break context;
        }
    };
    let mut held = Vec::new();
    let mut last = None;
    for _ in 0..rounds {
        match random.u8(..10) {
            0..4 => {
                let kind = Memory::ALL[random.usize(1..8)];
                let bytes = random.u64(1..64 * MIB);
                if process.reserve(card(), kind, bytes).is_ok() {
                    held.push((kind, bytes));
                }
            }
            4..7 if !held.is_empty() => {
                let (kind, bytes) = held.swap_remove(random.usize(..held.len()));
                process.give_back(card(), kind, bytes);
            }
            9 => {
                if let Some(ticket) = last.take() {
                    assert!(process.wait(ticket).is_over());
                }
            }
            _ => {
                let work = Work::Kernel {
                    multiprocessors: random.u32(1..40),
                    nanoseconds: random.u64(1_000..30_000),
                };
                last = Some(process.submit(context, random.u64(..4), work).unwrap());
            }
        }
        for kind in &Memory::ALL[1..] {
            let mine: u64 = held.iter().filter(|(it, _)| it == kind).map(|(_, bytes)| bytes).sum();
            assert_eq!(process.holds(card(), *kind), mine);
        }
    }
    if let Some(ticket) = last {
        assert!(matches!(process.wait(ticket), Progress::Done(_)));
    }
}

#[test]
fn a_third_killed_at_random_leaves_nothing_behind() {
    let count = number("NANOGPU_KILL_PROCESSES", 12);
    let seed = number(SEED, fastrand::u64(..));
    println!("to repeat: {SEED}={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let (folder, machine) = machine();
    let rounds = number(ROUNDS, 1500);
    // Victims would go on for ever: each is killed in the midst of its work.
    let begin = |place: u64, rounds| start(folder.path(), seed.wrapping_add(place), rounds);
    let mut victims: Vec<Child> = (0..count / 3).map(|place| begin(place, u64::MAX)).collect();
    let mut others: Vec<Child> = (count / 3..count).map(|place| begin(place, rounds)).collect();
    while !victims.is_empty() || !others.is_empty() {
        std::thread::sleep(Duration::from_micros(random.u64(..20_000)));
        let memory = machine.memory(card()).unwrap();
        assert!(memory.used + memory.reserved <= memory.total);
        if random.bool() && !victims.is_empty() {
            let mut victim = victims.swap_remove(random.usize(..victims.len()));
            victim.kill().unwrap();
            victim.wait().unwrap();
        }
        others.retain_mut(|child| match child.try_wait().unwrap() {
            Some(status) => {
                assert!(status.success(), "a worker failed: {status}");
                false
            }
            None => true,
        });
    }

    // Nothing is left: no memory, no process, no work, no lock that is held.
    assert_eq!(machine.running().unwrap(), []);
    let memory = machine.memory(card()).unwrap();
    assert_eq!((memory.used, memory.free), (0, memory.total - memory.reserved));
    let process = machine.process().unwrap();
    process.reserve(card(), Memory::Allocation, memory.free).unwrap();
    process.give_back(card(), Memory::Allocation, memory.free);
    let context = process.open_context(card()).unwrap();
    let ticket =
        process.submit(context, 0, Work::Kernel { multiprocessors: 1, nanoseconds: 1 }).unwrap();
    assert!(matches!(process.wait(ticket), Progress::Done(_)));
    // The sums agree: the device gave what the processes had.
    let usage = machine.usage().unwrap();
    let had: u64 = usage.iter().map(|usage| usage.sm_time).sum();
    if usage.len() < 200 {
        // Beyond that the history forgets the oldest.
        assert_eq!(had, machine.busy(card()).unwrap().1);
    }
}

#[test]
fn a_child_is_another_process() {
    let (_folder, machine) = machine();
    let parent = machine.process().unwrap();
    parent.reserve(card(), Memory::Allocation, MIB).unwrap();
    // SAFETY: the child calls only what does not depend on other threads, and leaves at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let process = machine.process().unwrap();
        let other = process.number() != parent.number();
        let fresh = process.holds(card(), Memory::Allocation) == 0;
        let seen = machine.memory(card()).unwrap().used == MIB;
        // SAFETY: ends this process and nothing else.
        unsafe { libc::_exit(i32::from(!(other && fresh && seen))) };
    }
    let mut status = 0;
    // SAFETY: `status` is a local that lives through the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!(parent.holds(card(), Memory::Allocation), MIB);
}

#[test]
fn work_on_a_card_that_is_lost_is_thrown_away() {
    let (_folder, machine) = machine();
    let process = machine.process().unwrap();
    let context = process.open_context(card()).unwrap();
    let work = Work::Kernel { multiprocessors: 1, nanoseconds: u64::MAX / 1024 };
    let ticket = process.submit(context, 0, work).unwrap();
    let waiting = std::thread::spawn(move || process.wait(ticket));
    machine.inject(Fault::Lose(card())).unwrap();
    assert_eq!(waiting.join().unwrap(), Progress::Cancelled);
    assert!(process.submit(context, 0, work).is_err());
    machine.inject(Fault::Return(card())).unwrap();
    assert!(process.submit(context, 0, work).is_ok());
}
