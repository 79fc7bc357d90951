//! What was measured last, for whoever asks.

use std::sync::Arc;

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
    pub counted: Vec<Counted>,
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
