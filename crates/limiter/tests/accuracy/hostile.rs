//! Neighbours that do not play fair, a referee that goes away, and limits that change.
//!
//! As root and with `LIMITER_REALTIME=1` the neighbour and the referee run before the hostile container's
//! processes: what the neighbour then gets less is the referee's doing, and not the processors'.

use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use crate::stage::{Asked, Stage, go_as_others, hard};

const MS: u64 = 1_000_000;

fn work() -> String {
    format!("async {MS}")
}

/// Whether somebody got what it asked for, as well as a loaded machine lets us tell.
#[track_caller]
fn assert_had(asked: f64, got: f64) {
    assert!(got <= asked + 2.5 && got >= asked * 0.7, "asked {asked}, got {got:.1}");
}

/// The longest that a launch of somebody with half of a card may take, whatever its neighbour does: the
/// bound of a turn that is not given back, a few turns of 25 ms, and what a loaded machine adds.
const LONGEST: Duration = Duration::from_millis(600);

/// Whether no launch of a container had to wait for longer.
#[track_caller]
fn assert_in_time(stage: &Stage, container: usize, since: SystemTime) {
    let longest = stage.longest_wait(container, since);
    println!("| longest wait of the neighbour | {longest:.1?} |");
    assert!(longest <= LONGEST, "a launch took {longest:?}");
}

/// Lets the second of two containers work beside a first that is hostile.
fn beside(hostile: impl FnOnce(&mut Stage) -> Vec<f64>) {
    let mut stage = Stage::with(2, &[hard(30, &work()), hard(50, &work())]);
    let begun = SystemTime::now();
    let got = hostile(&mut stage);
    println!("| hostile | {got:.1?} |");
    assert_in_time(&stage, 1, begun);
    assert_had(50.0, got[1]);
    assert!(got[0] <= 35.0, "{got:?}");
}

#[test]
fn who_writes_anything_into_its_counters_costs_others_nothing() {
    beside(|stage| {
        let counters = std::fs::File::options().write(true).open(stage.counters(0)).unwrap();
        let length = counters.metadata().unwrap().len();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = fastrand::Rng::with_seed(5);
                while !over.load(Ordering::Relaxed) {
                    // The first seats are those in use.
                    let end = if random.bool() { 512 } else { length - 8 };
                    let at = random.u64(128..end);
                    counters.write_all_at(&random.u64(..).to_le_bytes(), at).unwrap();
                    std::thread::sleep(Duration::from_micros(300));
                }
            });
            std::thread::sleep(Duration::from_millis(400));
            let got = stage.measure(Duration::from_secs(2));
            over.store(true, Ordering::Relaxed);
            // What it wrote may have stopped the first for good; that is its own affair.
            got
        })
    });
}

#[test]
fn who_shortens_its_counters_costs_others_nothing() {
    beside(|stage| {
        std::thread::sleep(Duration::from_millis(200));
        std::fs::File::options().write(true).open(stage.counters(0)).unwrap().set_len(0).unwrap();
        std::thread::sleep(Duration::from_millis(400));
        let got = stage.measure(Duration::from_secs(2));
        assert!(stage.referee().noted()[0].unreadable);
        got
    });
}

#[test]
fn who_is_stopped_in_its_turn_costs_others_nothing() {
    let mut stage = Stage::with(2, &[hard(50, &work())]);
    go_as_others();
    let hostile = stage.add(&Asked { cores: 30, burst: 30, works: Vec::new() });
    let pid = rustix::process::Pid::from_raw(stage.start(hostile, &work()).cast_signed()).unwrap();
    std::thread::sleep(Duration::from_millis(400));
    let over = AtomicBool::new(false);
    let got = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = fastrand::Rng::with_seed(7);
            // Stopped for long and woken for a little, so that it is caught with the turn.
            while !over.load(Ordering::Relaxed) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::STOP);
                std::thread::sleep(Duration::from_millis(random.u64(20..120)));
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::CONT);
                std::thread::sleep(Duration::from_millis(random.u64(1..30)));
            }
        });
        let got = stage.measure(Duration::from_secs(3));
        over.store(true, Ordering::Relaxed);
        got
    });
    println!("| stopped | {got:.1?} |");
    assert_had(50.0, got[0]);
}

#[test]
fn who_is_stopped_whenever_it_has_the_turn_costs_others_nothing() {
    let mut stage = Stage::with(2, &[hard(50, &work())]);
    go_as_others();
    let hostile = stage.add(&Asked { cores: 30, burst: 30, works: Vec::new() });
    // It stops itself when a launch was let through, which is in its turn. From outside it might be hit
    // while it has a lock of the simulated driver, and then all wait for it.
    let pid = stage.start(hostile, &format!("halts {MS}")).cast_signed();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    let (over, begun) = (AtomicBool::new(false), SystemTime::now());
    let got = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(350));
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::CONT);
            }
        });
        let got = stage.measure(Duration::from_secs(4));
        over.store(true, Ordering::Relaxed);
        got
    });
    println!("| stopped whenever it has the turn | {got:.1?} |");
    assert!(got[1] > 0.1, "it was not stopped with the turn: {got:?}");
    assert_in_time(&stage, 0, begun);
    assert_had(50.0, got[0]);
}

#[test]
fn a_fork_bomb_of_contexts_costs_others_nothing() {
    let mut stage = Stage::with(2, &[hard(50, &work())]);
    go_as_others();
    stage.add(&hard(30, &format!("bomb {MS}")));
    std::thread::sleep(Duration::from_millis(400));
    let begun = SystemTime::now();
    let got = stage.measure(Duration::from_secs(3));
    println!("| fork bomb of contexts | {got:.1?} |");
    assert_in_time(&stage, 0, begun);
    assert_had(50.0, got[0]);
    assert!(got[1] <= 35.0, "{got:?}");
}

#[test]
fn many_processes_of_one_container_share_what_it_has() {
    let mut stage = Stage::with(2, &[hard(50, &work())]);
    let many = Asked { cores: 30, burst: 30, works: vec![work(); 5] };
    stage.add(&many);
    std::thread::sleep(Duration::from_millis(500));
    let got = stage.measure(Duration::from_secs(2));
    println!("| five processes beside one | {got:.1?} |");
    assert_had(50.0, got[0]);
    assert_had(30.0, got[1]);
}

#[test]
fn without_a_referee_nobody_stalls_and_nobody_is_unlimited() {
    let mut stage = Stage::with(2, &[hard(30, &work()), hard(50, &work())]);
    std::thread::sleep(Duration::from_millis(300));
    stage.kill_referee();
    std::thread::sleep(Duration::from_millis(600));
    let without = stage.measure(Duration::from_secs(2));
    println!("| referee away | {without:.1?} |");
    assert!(without[0] > 8.0 && without[0] <= 32.0, "{without:?}");
    assert!(without[1] > 14.0 && without[1] <= 52.0, "{without:?}");
    stage.start_referee();
    std::thread::sleep(Duration::from_millis(500));
    let again = stage.measure(Duration::from_secs(2));
    println!("| referee back | {again:.1?} |");
    assert_had(30.0, again[0]);
    assert_had(50.0, again[1]);
}

#[test]
fn a_soft_limit_takes_the_idle_rest_and_gives_it_back() {
    let mut stage = Stage::with(2, &[Asked { cores: 30, burst: 90, works: vec![work()] }]);
    std::thread::sleep(Duration::from_millis(300));
    let alone = stage.measure(Duration::from_secs(2));
    assert!(alone[0] > 70.0 && alone[0] <= 92.0, "{alone:?}");
    stage.add(&hard(50, &work()));
    std::thread::sleep(Duration::from_millis(500));
    let shared = stage.measure(Duration::from_secs(2));
    println!("| soft 30 to 90, alone, then beside 50 | {alone:.1?} | {shared:.1?} |");
    assert_had(50.0, shared[1]);
    assert!(shared[0] >= 21.0, "{shared:?}");
    stage.end(1);
    std::thread::sleep(Duration::from_millis(500));
    let after = stage.measure(Duration::from_secs(1));
    assert!(after[0] > 65.0, "what is idle again is taken again: {after:?}");
}

#[test]
fn a_limit_that_changes_holds_at_once() {
    let stage = Stage::with(2, &[hard(20, &work())]);
    std::thread::sleep(Duration::from_millis(300));
    assert_had(20.0, stage.measure(Duration::from_secs(1))[0]);
    stage.set_cores(0, 60, 60);
    std::thread::sleep(Duration::from_millis(300));
    let got = stage.measure(Duration::from_secs(1));
    println!("| 20, then 60 | {got:.1?} |");
    assert_had(60.0, got[0]);
}

#[test]
fn a_dead_holder_is_not_waited_for() {
    let mut stage = Stage::with(2, &[hard(30, &work()), hard(50, &work())]);
    std::thread::sleep(Duration::from_millis(300));
    let begun = Instant::now();
    stage.end(0);
    let got = stage.measure(Duration::from_secs(2));
    println!("| neighbour killed after {:?} | {got:.1?} |", begun.elapsed());
    assert_had(50.0, got[1]);
}

#[test]
fn work_that_waits_for_its_own_launcher_goes_on() {
    // It is ready when all that waited was done.
    let mut stage = Stage::with(2, &[hard(30, &work())]);
    stage.add(&hard(50, &format!("hosted {MS}")));
    stage.end(0);
    stage.add(&hard(30, &format!("hosted {}", 10 * MS)));
}
