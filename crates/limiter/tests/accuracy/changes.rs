//! Many processes, a referee that goes away, and limits that change.

use std::time::{Duration, Instant};

use crate::stage::{Asked, Stage, hard};

const MS: u64 = 1_000_000;

fn work() -> String {
    format!("async {MS}")
}

/// Whether somebody got what it asked for, as well as a loaded machine lets us tell.
#[track_caller]
fn assert_had(asked: f64, got: f64) {
    assert!(got <= asked + 2.5 && got >= asked * 0.7, "asked {asked}, got {got:.1}");
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
