//! GPUs through NVML.
//!
//! NVML blocks, and a sick driver blocks for ever. So one thread owns the library and answers
//! questions one after another; whoever asks waits for a while and then goes on without. A second
//! thread, with a handle of its own, waits for events: NVML tells only the newest Xid of a burst, so
//! nobody may be late.
//!
//! NVML finds the cards when it is opened first, and keeps to them until all in the process have
//! closed it. So when a device node comes or goes, both threads let go of it. They do so too when the
//! file of the library is another: the one in memory goes on with the kernel module it belongs to,
//! and programs that start now would have the new one, which may not.

mod events;
mod read;

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use futures::future::BoxFuture;
use nvml_wrapper::Nvml as Library;
use nvml_wrapper::error::NvmlError;
use tokio::sync::{mpsc, oneshot};

use crate::driver::{Driver, LIBRARY};
use crate::found::{Absent, Event, Found, Gpus, Measured};

/// Questions that may wait behind one that does not return; later ones are answered at once.
const WAITING: usize = 4;

/// The GPUs that the NVML below a driver root sees.
#[derive(Debug)]
pub struct Nvml {
    driver: Driver,
    patience: Duration,
    questions: OnceLock<SyncSender<Question>>,
    nodes: Option<PathBuf>,
    renewing: Arc<Renewing>,
}

/// How the thread that answers gets the one that listens to let go of the library.
#[derive(Debug, Default)]
struct Renewing {
    // Held for a moment only.
    state: Mutex<Letting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Letting {
    /// Whether everyone is to let go. Who listens looks at it every few seconds, and opens the library
    /// again only when this is over.
    go: bool,
    /// How many have it open to listen.
    listening: usize,
}

/// Somebody listens, until this is dropped.
struct Listening<'a>(&'a Renewing);

impl Renewing {
    fn state(&self) -> MutexGuard<'_, Letting> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_while(&self, is_so: impl FnMut(&mut Letting) -> bool) -> MutexGuard<'_, Letting> {
        self.changed.wait_while(self.state(), is_so).unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to listen, when nobody is being asked to let go.
    fn listen(&self) -> Listening<'_> {
        self.wait_while(|state| state.go).listening += 1;
        Listening(self)
    }

    /// Whether everyone is to let go.
    fn is_asked(&self) -> bool {
        self.state().go
    }

    /// Has everyone let go, and does this.
    fn alone<T>(&self, act: impl FnOnce() -> T) -> T {
        self.state().go = true;
        drop(self.wait_while(|state| state.listening > 0));
        let done = act();
        self.state().go = false;
        self.changed.notify_all();
        done
    }
}

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        self.0.state().listening -= 1;
        self.0.changed.notify_all();
    }
}

type Answer<T> = oneshot::Sender<Result<T, Absent>>;

enum Question {
    Look(Answer<Found>),
    Measure(Answer<Vec<Measured>>),
}

impl Nvml {
    /// The GPUs of `driver`. Nothing is loaded before the first question; no question is waited
    /// for longer than `patience`.
    pub fn new(driver: Driver, patience: Duration) -> Self {
        let (questions, renewing) = (OnceLock::new(), Arc::default());
        Self { driver, patience, questions, nodes: None, renewing }
    }

    /// Looks anew for cards when device nodes of cards come or go in `dev`.
    #[must_use]
    pub fn watching(mut self, dev: impl Into<PathBuf>) -> Self {
        self.nodes = Some(dev.into());
        self
    }

    async fn ask<T>(&self, question: impl FnOnce(Answer<T>) -> Question) -> Result<T, Absent> {
        let hanging = Absent::Hanging { after: self.patience };
        let (answer, answered) = oneshot::channel();
        match self.questions().try_send(question(answer)) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => return Err(hanging),
        }
        match tokio::time::timeout(self.patience, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) | Err(_) => Err(hanging),
        }
    }

    fn questions(&self) -> &SyncSender<Question> {
        self.questions.get_or_init(|| {
            let (ask, asked) = sync_channel(WAITING);
            let source = Source {
                driver: self.driver.clone(),
                nodes: self.nodes.clone(),
                renewing: self.renewing.clone(),
            };
            let own = thread::Builder::new().name("nvml".into());
            if let Err(error) = own.spawn(move || answer(&source, &asked)) {
                // Questions then find nobody and say that the driver hangs.
                tracing::error!(%error, "no thread for NVML");
            }
            ask
        })
    }
}

impl Gpus for Nvml {
    fn look(&self) -> BoxFuture<'_, Result<Found, Absent>> {
        Box::pin(self.ask(Question::Look))
    }

    fn measure(&self) -> BoxFuture<'_, Result<Vec<Measured>, Absent>> {
        Box::pin(self.ask(Question::Measure))
    }

    fn events(&self) -> mpsc::Receiver<Event> {
        events::listen(self.driver.clone(), self.renewing.clone())
    }
}

/// What is needed to open the library, and to know when to do that anew.
struct Source {
    driver: Driver,
    nodes: Option<PathBuf>,
    renewing: Arc<Renewing>,
}

/// The library as it was opened.
struct Opened {
    library: Library,
    /// What was there at that time.
    around: Around,
    /// How the cards reach one another, as it was read last.
    wiring: read::Wiring,
}

/// What an open library depends on.
#[derive(Debug, PartialEq, Eq)]
struct Around {
    /// The nodes of cards.
    nodes: BTreeSet<String>,
    /// The library's file: its device, number and time of modification.
    file: Option<(u64, u64, (i64, i64))>,
}

/// Answers until nobody can ask any more.
fn answer(source: &Source, asked: &Receiver<Question>) {
    let mut opened: Option<Opened> = None;
    while let Ok(question) = asked.recv() {
        match question {
            // Whoever asked has gone on without: the answer would be old.
            Question::Look(answer) if answer.is_closed() => {}
            Question::Measure(answer) if answer.is_closed() => {}
            Question::Look(answer) => {
                source.renew(&mut opened);
                // A driver that came back, or was exchanged, is met by a fresh start.
                let looked = source.with(&mut opened, |it| read::look(&it.library, &mut it.wiring));
                let _ = answer.send(looked);
            }
            Question::Measure(answer) => {
                let _ = answer.send(source.with(&mut opened, |it| read::measure(&it.library)));
            }
        }
    }
}

impl Source {
    /// Closes the library everywhere if what was there when it was opened is not what is there now.
    /// Xids of the moment in which nobody listens are lost; that does not happen often.
    fn renew(&self, opened: &mut Option<Opened>) {
        let around = self.around();
        if opened.as_ref().is_none_or(|opened| opened.around == around) {
            return;
        }
        tracing::info!("device nodes or the driver's library changed, cards are looked for anew");
        *opened = None;
        let library = self.renewing.alone(|| open(&self.driver));
        let wiring = read::Wiring::default();
        *opened = library.ok().map(|library| Opened { library, around, wiring });
    }

    fn around(&self) -> Around {
        let file = self.driver.library().and_then(|path| std::fs::metadata(path).ok());
        let file = file.map(|file| (file.dev(), file.ino(), (file.mtime(), file.mtime_nsec())));
        Around { nodes: self.nodes.as_deref().map(cards).unwrap_or_default(), file }
    }

    fn with<T>(
        &self,
        opened: &mut Option<Opened>,
        ask: impl FnOnce(&mut Opened) -> Result<T, Absent>,
    ) -> Result<T, Absent> {
        let mut now = match opened.take() {
            Some(opened) => opened,
            None => Opened {
                around: self.around(),
                library: open(&self.driver)?,
                wiring: read::Wiring::default(),
            },
        };
        let answer = ask(&mut now);
        // After a failure the next question opens the library anew.
        if answer.is_ok() {
            *opened = Some(now);
        }
        answer
    }
}

/// The device nodes of cards: `nvidia` and a number.
fn cards(dev: &Path) -> BTreeSet<String> {
    let names = std::fs::read_dir(dev).into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    let is_card = |name: &String| {
        let number = name.strip_prefix("nvidia").unwrap_or_default();
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    };
    names.filter(is_card).collect()
}

fn open(driver: &Driver) -> Result<Library, Absent> {
    let path = driver
        .library()
        .ok_or_else(|| Absent::NoLibrary { library: LIBRARY, root: driver.root().to_owned() })?;
    // By its own name, which has the version in it: the loader takes a library of a name that it
    // has in memory for the same one.
    let path = path.canonicalize().unwrap_or(path);
    match Library::builder().lib_path(path.as_os_str()).init() {
        Ok(library) => Ok(library),
        Err(error) => Err(absent(error, "init", path)),
    }
}

/// What a failure of the whole library means.
fn absent(error: NvmlError, call: &'static str, path: PathBuf) -> Absent {
    match error {
        NvmlError::DriverNotLoaded => Absent::NoModule,
        NvmlError::LibRmVersionMismatch => Absent::Mismatch,
        NvmlError::LibloadingError(_) | NvmlError::FailedToLoadSymbol(_) => {
            Absent::BadLibrary { path, source: Arc::new(error) }
        }
        error => Absent::Failed { call, source: Arc::new(error) },
    }
}

fn failed(call: &'static str) -> impl FnOnce(NvmlError) -> Absent {
    move |error| absent(error, call, PathBuf::from(LIBRARY))
}
