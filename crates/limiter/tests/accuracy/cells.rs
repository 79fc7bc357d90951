//! Cells of the table: what was asked, what was got.
//!
//! The device's time is real here, and a loaded machine delays everybody. So the slice that runs
//! with all tests has a wide bound, which limiters that do not hold (30 asked, 33 to 100 got) fail;
//! the narrow one, a point over ten seconds, is for the soak.

use std::time::Duration;

use crate::stage::{Asked, Stage, hard};

const MS: u64 = 1_000_000;

/// Runs a cell and prints its row.
fn cell(name: &str, asked: &[Asked], time: Duration, seed: u64) -> Vec<f64> {
    let stage = Stage::with(seed, asked);
    std::thread::sleep(Duration::from_millis(400));
    let got = stage.measure(time);
    let wanted: Vec<u32> = asked.iter().map(|one| one.cores).collect();
    println!("| {name} | {seed} | {wanted:?} | {got:.1?} |");
    got
}

/// A cell of two seconds.
fn short(name: &str, asked: &[Asked]) {
    let got = cell(name, asked, Duration::from_secs(2), 1);
    for (asked, got) in asked.iter().zip(got) {
        let cores = f64::from(asked.cores);
        assert!(got <= cores + 2.5, "{name}: asked {cores}, got {got:.1}");
        assert!(got >= cores * 0.7, "{name}: asked {cores}, got {got:.1}");
    }
}

fn random() -> String {
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
fn alone_with_more_streams_than_are_told_apart() {
    short("alone, 700 streams", &[hard(30, &format!("streams 700 {}", MS / 10))]);
}

/// How far from what it asked a container of a cell may be: a point, and what the longest work that
/// cannot be parted is of the time. Whether that began just before the end is chance.
fn bound(asked: &[Asked], time: Duration) -> f64 {
    let longest = |work: &String| {
        let numbers: Vec<f64> = work.split(' ').filter_map(|word| word.parse().ok()).collect();
        match (work.split(' ').next(), &numbers[..]) {
            (Some("graph"), [nodes, each]) => nodes * each,
            (Some("copy"), [kernel, _]) => *kernel,
            (_, numbers) => numbers.last().copied().unwrap_or(0.0),
        }
    };
    let works = asked.iter().flat_map(|one| &one.works);
    1.0 + 100.0 * works.map(longest).fold(0.0, f64::max) / 1e9 / time.as_secs_f64()
}

/// A kernel of 1 us is shorter than a launch over the simulated driver, so the card waits for each, and
/// the gaps are charged: such a container gets less than it asked for. It must not get more.
fn is_shorter_than_a_launch(asked: &Asked) -> bool {
    asked.works.iter().any(|work| work == "async 1000")
}

/// All of the table, for ten seconds a cell; `cargo xtask soak limiter` runs it.
///
/// `LIMITER_SEEDS` says how many seeds of the hardware's turns, `LIMITER_CELLS` which cells by a part
/// of their names.
#[test]
#[ignore = "takes most of an hour; cargo xtask soak limiter"]
fn the_whole_table() {
    let works = [
        ("1 us", "async 1000".to_owned()),
        ("100 us", format!("async {}", MS / 10)),
        ("1 ms", format!("async {MS}")),
        ("10 ms, waited for", format!("sync {}", 10 * MS)),
        ("100 ms", format!("async {}", 100 * MS)),
        ("0.1 to 1.9 ms", random()),
        ("four streams", format!("streams 4 {MS}")),
        ("graph of 10", format!("graph 10 {MS}")),
        ("9 ms, copied, 0.2 ms idle", format!("copy {} {}", 9 * MS, MS / 5)),
    ];
    let work = |at: usize| works[at % works.len()].1.as_str();
    let mut table: Vec<(String, Vec<Asked>)> = Vec::new();
    for share in [10, 30, 50, 80] {
        for (name, work) in &works {
            table.push((format!("alone, {name}"), vec![hard(share, work)]));
        }
    }
    for (one, two) in [(30, 50), (10, 80), (50, 30), (30, 60)] {
        for (at, (name, first)) in works.iter().enumerate().skip(1) {
            for other in [2, at + 1] {
                let name = format!("pair, {name} and {}", works[other % works.len()].0);
                table.push((name, vec![hard(one, first), hard(two, work(other))]));
            }
        }
    }
    for shares in [[10, 10, 10, 10, 10], [10, 10, 20, 20, 30]] {
        let asked = shares.iter().enumerate().map(|(at, share)| hard(*share, work(at + 1)));
        table.push(("five".to_owned(), asked.collect()));
    }
    let two = vec![work(2).to_owned(), random()];
    let two = Asked { cores: 30, burst: 30, works: two };
    table.push(("two processes".to_owned(), vec![two.clone()]));
    table.push(("two processes and another".to_owned(), vec![two, hard(50, work(2))]));
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let which = std::env::var("LIMITER_CELLS").unwrap_or_default();
    let seconds = number("LIMITER_SECONDS").unwrap_or(10);
    let mut wrong = Vec::new();
    for seed in 1..=number("LIMITER_SEEDS").unwrap_or(5) {
        for (name, asked) in table.iter().filter(|(name, _)| name.contains(&which)) {
            let time = Duration::from_secs(seconds);
            let (got, bound) = (cell(name, asked, time, seed), bound(asked, time));
            for (asked, got) in asked.iter().zip(got) {
                let off = got - f64::from(asked.cores);
                if off > bound || (off < -bound && !is_shorter_than_a_launch(asked)) {
                    wrong.push(format!("{name}, seed {seed}: asked {}, got {got:.1}", asked.cores));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
