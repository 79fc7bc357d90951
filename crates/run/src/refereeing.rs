//! One referee for all programs that a user started: whoever has the lock.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use turns::{Referee, Rules};

use crate::folder::Base;

/// How often programs are looked for, and the lock is tried.
const LOOK: Duration = Duration::from_millis(200);

/// Refereeing, or waiting to; it ends with this.
#[derive(Debug)]
pub(crate) struct Refereeing {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Refereeing {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic there was reported there.
            let _ = thread.join();
        }
    }
}

/// Starts it. If it cannot, programs pace themselves.
pub(crate) fn start(base: Base) -> Refereeing {
    let over = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&over);
    let thread = std::thread::Builder::new().name("cards".into()).spawn(move || work(&base, &ends));
    Refereeing { over, thread: thread.ok() }
}

fn work(base: &Base, over: &AtomicBool) {
    let lock = File::options().create(true).truncate(false).write(true).open(base.lock());
    let Ok(lock) = lock else { return };
    let mut mine = false;
    let mut cards: BTreeMap<String, (Referee, Vec<String>)> = BTreeMap::new();
    while !over.load(Ordering::Relaxed) {
        let operation = rustix::fs::FlockOperation::NonBlockingLockExclusive;
        mine = mine || rustix::fs::flock(&lock, operation).is_ok();
        if mine {
            look(base, &mut cards);
        }
        std::thread::park_timeout(LOOK);
    }
}

fn look(base: &Base, cards: &mut BTreeMap<String, (Referee, Vec<String>)>) {
    let pages = base.pages();
    for (device, (referee, seated)) in &mut *cards {
        seated.retain(|name| {
            let there = pages.iter().any(|(of, found, ..)| of == device && found == name);
            if !there {
                referee.unseat(name);
            }
            there
        });
    }
    for (device, name, pages, door) in pages {
        if !cards.contains_key(&device) {
            let Ok(referee) = Referee::start(&door, Rules::USUAL) else { continue };
            cards.insert(device.clone(), (referee, Vec::new()));
        }
        let Some((referee, seated)) = cards.get_mut(&device) else { continue };
        // A room that is half made is there whole the next time.
        if !seated.contains(&name) && referee.seat(&name, pages).is_ok() {
            seated.push(name);
        }
    }
}
