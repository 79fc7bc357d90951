//! What a container gets beside one that does not play fair, and how long its launches wait.
//!
//! As root and with `LIMITER_REALTIME=1` the neighbour and the referee run before the hostile container's
//! processes: what the neighbour then gets less is the referee's doing, and not the processors'.
//!
//! | variable | says, to `cargo xtask soak hostile` |
//! |---|---|
//! | `LIMITER_SEEDS` | how many runs of each kind, 8 |
//! | `LIMITER_SECONDS` | how long one is, 10 |
//! | `LIMITER_CELLS` | which kinds, by a part of their names |
//! | `LIMITER_HOG` | that a further container keeps all processors busy |
//! | `LIMITER_AGENT` | what the agent requests of a processor, in thousandths |
//! | `LIMITER_REFEREE_FIRST` | that the referee, and nobody else, has a real-time class |

use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use rustix::process::{Pid, Signal, kill_process};

use crate::stage::{Asked, Stage, go_as_others, hard};

const MS: u64 = 1_000_000;
/// What the neighbour asked for.
const ASKED: f64 = 50.0;

/// What it must get of that in a test of three seconds. The bound of a point is the soak's: a machine
/// that is busy with other tests gives and takes a point or two, and over a simulated driver that is not
/// optimised a fork bomb's neighbour got 44.5 to 49.8.
const LEAST: f64 = if cfg!(debug_assertions) { 38.0 } else { 46.0 };
/// The longest that a launch may take there, whatever its neighbour does: the bound of a turn that is not
/// given back, and what a loaded machine adds.
const LONGEST: Duration = Duration::from_millis(350);

/// What the container beside does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// The same as its neighbour.
    Fair,
    /// Writes anything into its counters.
    Scribbles,
    /// Cuts its counters to nothing.
    Shortens,
    /// Is stopped and let go on at random.
    Stumbles,
    /// Stops itself whenever it has the turn.
    Halts,
    /// Forks processes that take all the contexts they can, launch, and end.
    Bombs,
}

const ALL: [(Manner, &str); 6] = [
    (Manner::Fair, "plays fair"),
    (Manner::Scribbles, "writes anything into its counters"),
    (Manner::Shortens, "cuts its counters to nothing"),
    (Manner::Stumbles, "is stopped and continued at random"),
    (Manner::Halts, "stops whenever it has the turn"),
    (Manner::Bombs, "is a fork bomb of contexts"),
];

/// What came of it.
#[derive(Debug, Clone, Copy)]
struct Outcome {
    /// What the neighbour got, in percent.
    neighbour: f64,
    /// What the other did.
    other: f64,
    /// The longest that a launch of the neighbour took.
    longest: Duration,
    /// How long the neighbour, and the referee, waited for a processor, all together.
    waited: (Duration, Duration),
    /// Containers had processor time of their own.
    parted: bool,
}

/// Whether all processors are busy with something else besides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Node {
    Idle,
    Busy,
}

/// Lets a container work beside another.
fn beside(manner: Manner, seed: u64, time: Duration, node: Node) -> Outcome {
    let work = format!("async {MS}");
    let mut stage = Stage::with(seed, &[hard(50, &work)]);
    go_as_others();
    let other = stage.add(&Asked { cores: 30, burst: 30, works: Vec::new() });
    let work = match manner {
        Manner::Bombs => format!("bomb {MS}"),
        Manner::Halts => format!("halts {MS}"),
        _ => work,
    };
    let pid = stage.start(other, &work).cast_signed();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        if node == Node::Busy {
            for _ in 0..std::thread::available_parallelism().unwrap().get() {
                scope.spawn(|| {
                    stage.join_further();
                    while !over.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
        }
        scope.spawn(|| {
            stage.join(other);
            misbehave(manner, &stage, other, Pid::from_raw(pid).unwrap(), seed, &over);
        });
        std::thread::sleep(Duration::from_millis(400));
        let (begun, before) = (SystemTime::now(), stage.waited(0));
        let got = stage.measure(time);
        let after = stage.waited(0);
        over.store(true, Ordering::Relaxed);
        if manner == Manner::Shortens {
            assert!(stage.referee().noted()[other].unreadable);
        }
        let longest = stage.longest_wait(0, begun);
        let waited = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
        let (neighbour, other, parted) = (got[0], got[1], stage.is_parted());
        Outcome { neighbour, other, longest, waited, parted }
    })
}

/// Does to the other container what it does not do by itself.
fn misbehave(manner: Manner, stage: &Stage, other: usize, pid: Pid, seed: u64, over: &AtomicBool) {
    let counters = std::fs::File::options().write(true).open(stage.counters(other)).unwrap();
    let length = counters.metadata().unwrap().len();
    if manner == Manner::Shortens {
        counters.set_len(0).unwrap();
    }
    let mut random = fastrand::Rng::with_seed(seed);
    while !over.load(Ordering::Relaxed) {
        match manner {
            Manner::Fair | Manner::Shortens | Manner::Bombs => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Manner::Scribbles => {
                // The first seats are those in use.
                let end = if random.bool() { 512 } else { length - 8 };
                let at = random.u64(128..end);
                counters.write_all_at(&random.u64(..).to_le_bytes(), at).unwrap();
                std::thread::sleep(Duration::from_micros(300));
            }
            Manner::Stumbles => {
                // Stopped for long and woken for a little, so that it is caught with the turn.
                let _ = kill_process(pid, Signal::STOP);
                std::thread::sleep(Duration::from_millis(random.u64(20..120)));
                let _ = kill_process(pid, Signal::CONT);
                std::thread::sleep(Duration::from_millis(random.u64(1..30)));
            }
            Manner::Halts => {
                // It stops itself when a launch was let through, which is in its turn. From outside it
                // might be hit while it has a lock of the simulated driver, and then all wait for it.
                std::thread::sleep(Duration::from_millis(350));
                let _ = kill_process(pid, Signal::CONT);
            }
        }
    }
}

/// A few seconds of that, and whether the neighbour had what it asked for.
fn briefly(manner: Manner) {
    let outcome = beside(manner, 2, Duration::from_secs(3), Node::Idle);
    println!("| {manner:?} | {outcome:.1?} |");
    let Outcome { neighbour, other, longest, parted, .. } = outcome;
    // Without processor time of its own a container has what a crowd of processes leaves it.
    let (least, most) = if parted { (LEAST, LONGEST) } else { (0.7 * ASKED, 2 * LONGEST) };
    assert!(neighbour >= least && neighbour <= ASKED + 2.5, "asked {ASKED}: {outcome:?}");
    assert!(longest <= most, "a launch took {longest:?}: {outcome:?}");
    assert!(other <= 35.0, "it had more than its 30: {outcome:?}");
    // One that was never caught in its turn shows nothing.
    assert!(manner != Manner::Halts || other > 0.1, "it had no turn: {outcome:?}");
}

#[test]
fn who_writes_anything_into_its_counters_costs_others_nothing() {
    briefly(Manner::Scribbles);
}

#[test]
fn who_shortens_its_counters_costs_others_nothing() {
    briefly(Manner::Shortens);
}

#[test]
fn who_is_stopped_in_its_turn_costs_others_nothing() {
    briefly(Manner::Stumbles);
}

#[test]
fn who_is_stopped_whenever_it_has_the_turn_costs_others_nothing() {
    briefly(Manner::Halts);
}

#[test]
fn a_fork_bomb_of_contexts_costs_others_nothing() {
    briefly(Manner::Bombs);
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

#[test]
#[ignore = "takes ten minutes; cargo xtask soak hostile"]
fn hostile_neighbours() {
    let which = std::env::var("LIMITER_CELLS").unwrap_or_default();
    let time = Duration::from_secs(number("LIMITER_SECONDS").unwrap_or(10));
    let node = if std::env::var_os("LIMITER_HOG").is_some() { Node::Busy } else { Node::Idle };
    let kinds: Vec<_> = ALL.iter().filter(|(_, name)| name.contains(&which)).collect();
    let seeds = 1..=number("LIMITER_SEEDS").unwrap_or(8);
    println!(
        "| the other | seed | the neighbour got of {ASKED} | the other of 30 | longest wait | the neighbour waited for a processor | the referee |"
    );
    let all: Vec<(&str, u64, Outcome)> = seeds
        .flat_map(|seed| kinds.iter().map(move |kind| (kind, seed)))
        .map(|((manner, name), seed)| {
            let outcome = beside(*manner, seed, time, node);
            let Outcome { neighbour, other, longest, waited, .. } = outcome;
            println!(
                "| {name} | {seed} | {neighbour:.1} | {other:.1} | {longest:.0?} | {:.0?} | {:.0?} |",
                waited.0, waited.1
            );
            (*name, seed, outcome)
        })
        .collect();
    println!("| the other | the neighbour got of {ASKED} | longest wait |");
    for (_, name) in kinds {
        let mine = || all.iter().filter(|(of, ..)| of == name).map(|(.., outcome)| outcome);
        let least = mine().map(|outcome| outcome.neighbour).fold(f64::MAX, f64::min);
        let most = mine().map(|outcome| outcome.neighbour).fold(0.0, f64::max);
        let shortest = mine().map(|outcome| outcome.longest).min().unwrap_or_default();
        let longest = mine().map(|outcome| outcome.longest).max().unwrap_or_default();
        println!("| {name} | {least:.1} to {most:.1} | {shortest:.0?} to {longest:.0?} |");
    }
    let off: Vec<_> = all.iter().filter(|(.., it)| (it.neighbour - ASKED).abs() > 1.0).collect();
    assert!(off.is_empty(), "off by more than a point: {off:#?}");
}
