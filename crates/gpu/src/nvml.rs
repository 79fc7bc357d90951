//! GPUs through NVML.
//!
//! NVML blocks, and a sick driver blocks for ever. So one thread owns the library and answers
//! questions one after another; whoever asks waits for a while and then goes on without. A second
//! thread, with a handle of its own, waits for events: NVML tells only the newest Xid of a burst, so
//! nobody may be late.

mod events;
mod read;

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
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
        Self { driver, patience, questions: OnceLock::new() }
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
            let driver = self.driver.clone();
            let own = thread::Builder::new().name("nvml".into());
            if let Err(error) = own.spawn(move || answer(&driver, &asked)) {
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
        events::listen(self.driver.clone())
    }
}

/// Answers until nobody can ask any more.
fn answer(driver: &Driver, asked: &Receiver<Question>) {
    let mut opened: Option<Library> = None;
    while let Ok(question) = asked.recv() {
        match question {
            // Whoever asked has gone on without: the answer would be old.
            Question::Look(answer) if answer.is_closed() => {}
            Question::Measure(answer) if answer.is_closed() => {}
            Question::Look(answer) => {
                // A driver that came back, or was exchanged, is met by a fresh start.
                let looked = with(driver, &mut opened, read::look);
                let _ = answer.send(looked);
            }
            Question::Measure(answer) => {
                let _ = answer.send(with(driver, &mut opened, read::measure));
            }
        }
    }
}

fn with<T>(
    driver: &Driver,
    opened: &mut Option<Library>,
    ask: impl FnOnce(&Library) -> Result<T, Absent>,
) -> Result<T, Absent> {
    let library = match opened.take() {
        Some(library) => library,
        None => open(driver)?,
    };
    let answer = ask(&library);
    // After a failure the next question opens the library anew.
    if answer.is_ok() {
        *opened = Some(library);
    }
    answer
}

fn open(driver: &Driver) -> Result<Library, Absent> {
    let path = driver
        .library()
        .ok_or_else(|| Absent::NoLibrary { library: LIBRARY, root: driver.root().to_owned() })?;
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
