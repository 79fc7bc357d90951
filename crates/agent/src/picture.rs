//! What was measured last, for whoever asks.

use std::sync::{Arc, LazyLock};

use gpu::Measured;
use model::Inventory;

use crate::usage::{Stranger, Use};

/// The node at a moment.
#[derive(Debug, Clone, Default)]
pub struct Picture {
    /// Its devices.
    pub inventory: Arc<Inventory>,
    /// How they are used.
    pub measured: Vec<Measured>,
    /// By whom.
    pub uses: Vec<Use>,
    /// And by whom they should not be.
    pub strangers: Vec<Stranger>,
    /// What containers say of themselves.
    pub counted: Counts,
}

/// What containers say of themselves, read when somebody asks for the first time: that is a file for
/// each, and on most looks at the cards nobody asks.
#[derive(Debug, Clone)]
pub struct Counts {
    read: Arc<LazyLock<Vec<Counted>, Reading>>,
}

type Reading = Box<dyn FnOnce() -> Vec<Counted> + Send>;

impl Counts {
    /// Those that `read` will find.
    pub fn late(read: impl FnOnce() -> Vec<Counted> + Send + 'static) -> Self {
        Self { read: Arc::new(LazyLock::new(Box::new(read))) }
    }

    /// All of them. Blocks where they were not read yet.
    pub fn get(&self) -> &[Counted] {
        &self.read
    }
}

impl From<Vec<Counted>> for Counts {
    fn from(known: Vec<Counted>) -> Self {
        Self::late(move || known)
    }
}

impl Default for Counts {
    fn default() -> Self {
        Self::from(Vec::new())
    }
}

/// What a container's own file says of a device, as far as it can be believed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counted {
    /// Namespace and name of the pod.
    pub pod_name: String,
    /// The container.
    pub container: String,
    /// The device.
    pub device: model::DeviceId,
    /// Its numbers; nothing if the file cannot be read, or says what cannot be.
    pub counters: Option<page::Counters>,
}

impl Picture {
    /// The place of a device in the driver's order.
    pub fn index(&self, device: &model::DeviceId) -> Option<u32> {
        self.inventory.devices.iter().find(|one| one.id == *device).map(|one| one.index)
    }
}
