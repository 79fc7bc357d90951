//! Cells of the table: what was asked, what was got.
//!
//! The device's time is real here, and a loaded machine delays everybody. So the slice that runs
//! with all tests has a wide bound, which limiters that do not hold (30 asked, 33 to 100 got) fail;
//! the narrow one, a point over ten seconds, is for the soak.

use std::time::Duration;

use crate::stage::{Asked, Company, Stage, hard};

const MS: u64 = 1_000_000;

/// Runs a cell and prints its row.
pub(crate) fn cell(
    name: &str,
    asked: &[Asked],
    time: Duration,
    seed: u64,
    company: Company,
) -> Vec<f64> {
    let mut stage = Stage::new(seed, company);
    for one in asked {
        stage.add(one);
    }
    std::thread::sleep(Duration::from_millis(400));
    let got = stage.measure(time);
    let wanted: Vec<u32> = asked.iter().map(|one| one.cores).collect();
    println!("| {name} | {seed} | {wanted:?} | {got:.1?} |");
    got
}

/// A cell of two seconds.
fn short(name: &str, asked: &[Asked]) {
    let got = cell(name, asked, Duration::from_secs(2), 1, Company::None);
    for (asked, got) in asked.iter().zip(got) {
        let cores = f64::from(asked.cores);
        assert!(got <= cores + 2.5, "{name}: asked {cores}, got {got:.1}");
        assert!(got >= cores * 0.7, "{name}: asked {cores}, got {got:.1}");
    }
}

pub(crate) fn random() -> String {
    format!("random {} {}", MS / 10, 19 * MS / 10)
}

#[test]
fn alone_with_constant_kernels() {
    short("alone, 1 ms", &[hard(30, &format!("async {MS}"))]);
}

#[test]
fn alone_with_random_kernels() {
    short("alone, 0.1 to 1.9 ms", &[hard(30, &random())]);
}

#[test]
fn alone_with_graphs() {
    short("alone, graph of 10 x 1 ms", &[hard(30, &format!("graph 10 {MS}"))]);
}

#[test]
fn a_pair() {
    let work = format!("async {MS}");
    short("pair, 1 ms", &[hard(30, &work), hard(50, &work)]);
}

#[test]
fn a_pair_with_long_kernels() {
    short("pair, 1 ms and 10 ms", &[hard(30, &random()), hard(50, &format!("sync {}", 10 * MS))]);
}

#[test]
fn two_processes_in_a_container() {
    let work = format!("async {MS}");
    let two = Asked { cores: 30, burst: 30, works: vec![work.clone(), work] };
    short("two processes", &[two]);
}

#[test]
fn alone_with_copies_and_idle_gaps() {
    // A quarter of the time is work, and only that counts. Kernels so short are measured several at a
    // time, with what lies between them unless something ends the group.
    let work = format!("copy {} {}", MS / 10, 3 * MS / 20);
    short("alone, 0.1 ms, copied, 0.15 ms idle", &[hard(20, &work)]);
}

#[test]
fn alone_with_threads_that_share_a_stream() {
    short("alone, eight threads, 0.1 ms", &[hard(30, &format!("threads 8 {}", MS / 10))]);
}

#[test]
fn threads_that_share_a_stream_beside_another() {
    let other = format!("async {MS}");
    short(
        "pair, eight threads and 1 ms",
        &[hard(30, &format!("threads 8 {}", MS / 50)), hard(50, &other)],
    );
}

#[test]
fn alone_with_more_streams_than_are_told_apart() {
    short("alone, 700 streams", &[hard(30, &format!("streams 700 {}", MS / 10))]);
}
