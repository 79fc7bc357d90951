//! The referee of a card: a thread that reads what containers say, lets `page::referee` decide, and
//! publishes whose turn it is.
//!
//! ```text
//!   door      processes wake the referee by it; nobody writes it
//!   counters  of each container, read by pread: what its processes want, spent, and where they are
//!   limits    of each container, mapped: heartbeat, and the turn
//! ```
//!
//! What a tenant can write is never mapped, since shortening the file would kill us, and never
//! trusted: the worst it can say costs its own container.
#![deny(unsafe_op_in_unsafe_fn)]

mod card;
mod files;
mod member;
mod resting;

use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

pub use files::{OpenError, make_door};
pub use page::referee::Rules;

/// Who rings just before the referee lies down is not heard, and rings again after this.
const UNHEARD: Duration = Duration::from_millis(2);

/// The pages of a container for one card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pages {
    /// Limits and turns; ours to write.
    pub limits: PathBuf,
    /// What the container says.
    pub counters: PathBuf,
}

/// What the referee notes about a container, for whoever watches.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Noted {
    /// Who.
    pub name: String,
    /// GPU time it was charged, in nanoseconds.
    pub charged: u64,
    /// Turns it had.
    pub turns: u64,
    /// Turns that had to be taken from it.
    pub late: u64,
    /// Whether its counters cannot be read any more.
    pub unreadable: bool,
}

enum Order {
    Seat(String, Pages, Sender<Result<(), OpenError>>),
    Unseat(String),
    Stop,
    Vanish,
}

/// The referee of one card. It stops when this goes; processes then pace themselves.
#[derive(Debug)]
pub struct Referee {
    orders: Sender<Order>,
    door: Arc<files::Door>,
    noted: Arc<Mutex<Vec<Noted>>>,
    thread: Option<JoinHandle<()>>,
}

impl Referee {
    /// Starts one behind the door, a file of [`make_door`].
    pub fn start(door: &Path, rules: Rules) -> Result<Self, OpenError> {
        let door = Arc::new(files::Door::open(door)?);
        let (orders, received) = channel();
        let noted = Arc::new(Mutex::new(Vec::new()));
        let card = card::Card::new(Arc::clone(&door), rules, Arc::clone(&noted));
        let thread = std::thread::Builder::new()
            .name("referee".into())
            .spawn(move || card.run(&received))
            .map_err(OpenError::Thread)?;
        Ok(Self { orders, door, noted, thread: Some(thread) })
    }

    /// Lets a container take part, under a name of its own.
    pub fn seat(&self, name: &str, pages: Pages) -> Result<(), OpenError> {
        let (answer, answered) = channel();
        // If the thread is gone nothing is received, and the answer says so.
        let _ = self.orders.send(Order::Seat(name.to_owned(), pages, answer));
        loop {
            self.door.ring();
            match answered.recv_timeout(UNHEARD) {
                Ok(answer) => return answer,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(OpenError::Gone),
            }
        }
    }

    /// A container is gone.
    pub fn unseat(&self, name: &str) {
        let _ = self.orders.send(Order::Unseat(name.to_owned()));
        self.door.ring();
    }

    /// Ends it as a crash would: nobody is told, and the pages stay as they are.
    pub fn vanish(self) {
        let _ = self.orders.send(Order::Vanish);
        self.door.ring();
    }

    /// What is known of containers that were late, or whose counters cannot be read.
    pub fn troubles(&self) -> Vec<Noted> {
        let noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        noted.iter().filter(|one| one.late > 0 || one.unreadable).cloned().collect()
    }

    /// What is known of each container.
    pub fn noted(&self) -> Vec<Noted> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Referee {
    fn drop(&mut self) {
        let _ = self.orders.send(Order::Stop);
        if let Some(thread) = self.thread.take() {
            while !thread.is_finished() {
                self.door.ring();
                std::thread::sleep(UNHEARD);
            }
            // A panic there was reported there.
            let _ = thread.join();
        }
    }
}
