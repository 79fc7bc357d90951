//! GPUs in memory, that do what a test says.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use futures::future::BoxFuture;
use model::{NameError, Profile};
use tokio::sync::mpsc;

use crate::found::{Absent, Event, Found, Gpus, Measured};

/// GPUs in memory.
#[derive(Debug)]
pub struct Fake {
    // Held for a copy only.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    found: Result<Found, Absent>,
    measured: Vec<Measured>,
    listeners: Vec<mpsc::Sender<Event>>,
}

impl Fake {
    /// These cards, idle.
    pub fn new(found: Result<Found, Absent>) -> Self {
        Self { state: Mutex::new(State { found, measured: Vec::new(), listeners: Vec::new() }) }
    }

    /// The cards of a machine people have, called `name-0` and so on.
    pub fn profile(profile: &Profile, name: &str) -> Result<Self, NameError> {
        let inventory = profile.inventory(name)?;
        Ok(Self::new(Ok(Found {
            driver: "550.163.01".into(),
            devices: inventory.devices.iter().map(|device| (**device).clone()).collect(),
            links: inventory.links,
            unreadable: Vec::new(),
            memory_errors: BTreeMap::new(),
        })))
    }

    /// From now on this is there.
    pub fn show(&self, found: Result<Found, Absent>) {
        self.with(|state| state.found = found);
    }

    /// From now on it is used so.
    pub fn use_so(&self, measured: Vec<Measured>) {
        self.with(|state| state.measured = measured);
    }

    /// A card reports this.
    pub fn report(&self, event: &Event) {
        self.with(|state| state.listeners.retain(|one| one.try_send(event.clone()).is_ok()));
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Gpus for Fake {
    fn look(&self) -> BoxFuture<'_, Result<Found, Absent>> {
        let found = self.with(|state| state.found.clone());
        Box::pin(async move { found })
    }

    fn measure(&self) -> BoxFuture<'_, Result<Vec<Measured>, Absent>> {
        let answer = self.with(|state| match &state.found {
            Ok(_) => Ok(state.measured.clone()),
            Err(absent) => Err(absent.clone()),
        });
        Box::pin(async move { answer })
    }

    fn events(&self) -> mpsc::Receiver<Event> {
        let (tell, told) = mpsc::channel(64);
        self.with(|state| state.listeners.push(tell));
        told
    }
}
