//! The whole table: every cell for ten seconds and five seeds, by `cargo xtask soak limiter`.
//!
//! | variable | says |
//! |---|---|
//! | `LIMITER_SEEDS` | how many seeds of the hardware's turns and of random lengths, 5 |
//! | `LIMITER_SECONDS` | how long a cell is, 10 |
//! | `LIMITER_CELLS` | which, by a part of their names |
//! | `LIMITER_JOBS` | how many at a time, each on a machine of its own; those that keep a processor busy run alone |
//! | `LIMITER_REALTIME` | that nothing else on this computer runs before them; needs root |

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::cells::{cell, random};
use crate::stage::{Asked, Company, hard};

const MS: u64 = 1_000_000;
/// A kernel that takes hardly longer than its launch.
const SHORTEST: &str = "async 1000";

struct Cell {
    name: String,
    asked: Vec<Asked>,
}

/// What a container of a cell got.
struct Got {
    cell: usize,
    seed: u64,
    asked: f64,
    off: f64,
    /// How far it may be off.
    bound: f64,
}

impl Got {
    fn within(&self, bound: f64) -> bool {
        self.off.abs() <= bound
    }
}

fn table() -> Vec<Cell> {
    let works = [
        ("1 us", SHORTEST.to_owned()),
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
    let mut table = Vec::new();
    let mut add = |name: String, asked: Vec<Asked>| table.push(Cell { name, asked });
    for share in [10, 30, 50, 80] {
        for (name, work) in &works {
            add(format!("alone, {name}"), vec![hard(share, work)]);
        }
    }
    for (one, two) in [(30, 50), (10, 80), (50, 30), (30, 60)] {
        for (at, (name, first)) in works.iter().enumerate().skip(1) {
            for other in [2, at + 1] {
                let name = format!("pair, {name} and {}", works[other % works.len()].0);
                add(name, vec![hard(one, first), hard(two, work(other))]);
            }
        }
    }
    for shares in [[10, 10, 10, 10, 10], [10, 10, 20, 20, 30]] {
        let asked = shares.iter().enumerate().map(|(at, share)| hard(*share, work(at + 1)));
        add("five".to_owned(), asked.collect());
    }
    let two = vec![work(2).to_owned(), random()];
    let two = Asked { cores: 30, burst: 30, works: two };
    add("two processes".to_owned(), vec![two.clone()]);
    add("two processes and another".to_owned(), vec![two, hard(50, work(2))]);
    table
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

/// Who launches kernels of 1 us keeps a processor busy, and cannot share it.
fn keeps_a_processor_busy(asked: &Asked) -> bool {
    asked.works.iter().any(|work| work == SHORTEST)
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

#[test]
#[ignore = "takes most of an hour; cargo xtask soak limiter"]
fn the_whole_table() {
    let which = std::env::var("LIMITER_CELLS").unwrap_or_default();
    let time = Duration::from_secs(number("LIMITER_SECONDS").unwrap_or(10));
    let jobs = number("LIMITER_JOBS").unwrap_or(1);
    let table: Vec<Cell> = table().into_iter().filter(|cell| cell.name.contains(&which)).collect();
    let seeds = 1..=number("LIMITER_SEEDS").unwrap_or(5);
    let all = seeds.flat_map(|seed| (0..table.len()).map(move |cell| (cell, seed)));
    let heavy = |cell: &usize| table[*cell].asked.iter().any(keeps_a_processor_busy);
    let (alone, beside): (Vec<_>, Vec<_>) = all.partition(|(cell, _)| jobs == 1 || heavy(cell));
    let got = Mutex::new(Vec::new());
    let run = |(at, seed): (usize, u64), company: Company| {
        let Cell { name, asked } = &table[at];
        let shares = cell(name, asked, time, seed, company);
        let bound = bound(asked, time);
        let mut got = got.lock().unwrap();
        got.extend(asked.iter().zip(shares).map(|(one, share)| {
            let asked = f64::from(one.cores);
            Got { cell: at, seed, asked, off: share - asked, bound }
        }));
    };
    let begun = Instant::now();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some(one) = beside.get(next.fetch_add(1, Ordering::Relaxed)) {
                    run(*one, Company::Others);
                }
            });
        }
    });
    for one in &alone {
        run(*one, Company::None);
    }
    let got = got.into_inner().unwrap();
    let off: Vec<&Got> = got.iter().filter(|one| !one.within(1.0)).collect();
    println!(
        "{} cells in {:.0?}: {} of {} shares within a point",
        alone.len() + beside.len(),
        begun.elapsed(),
        got.len() - off.len(),
        got.len(),
    );
    let name = |one: &&Got| {
        let Got { cell, seed, asked, off, .. } = one;
        format!("{}, seed {seed}: asked {asked}, got {:.1}", table[*cell].name, asked + off)
    };
    println!("off by more than a point: {:#?}", off.iter().map(name).collect::<Vec<_>>());
    let wrong: Vec<String> = off.iter().filter(|one| !one.within(one.bound)).map(name).collect();
    assert!(wrong.is_empty(), "beyond their bounds: {wrong:#?}");
}
