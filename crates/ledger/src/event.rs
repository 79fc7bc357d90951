//! What can happen outside.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::{Device, DeviceId, Holder, Host, Inventory, Moment, NodeName, PodUid};

use crate::load::Measured;
use crate::quota::Quota;

/// Something that happened outside.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A node appeared or changed.
    Node(NodeFacts),
    /// A node is gone.
    NodeGone(NodeName),
    /// A node's agent was heard, at this moment of our own clock.
    Heartbeat {
        /// Which node.
        node: NodeName,
        /// When.
        at: Moment,
    },
    /// A node's agent measured this on its devices.
    Load {
        /// Which node.
        node: NodeName,
        /// What, device by device.
        devices: Vec<(DeviceId, Measured)>,
    },
    /// A pod is on a node; what it holds may have changed.
    Pod(Holder),
    /// A pod was deleted, or all its containers ended for good.
    PodGone(PodUid),
    /// The quotas changed.
    Quota(Quota),
}

/// What a node says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFacts {
    /// Its name.
    pub name: NodeName,
    /// CPU and memory that pods may ask in all.
    pub allocatable: Host,
    /// The pool it belongs to, if any.
    pub pool: Option<String>,
    /// Whether its administrator would rather have pods elsewhere.
    pub shunned: bool,
    /// Its devices: nothing if no agent ever wrote them, else what was read or why it could not be.
    pub inventory: Option<Result<Inventory, String>>,
    /// Kubelet tickets it offers, by resource name.
    pub tickets: BTreeMap<String, u64>,
}

impl NodeFacts {
    /// Its devices, as far as they can be read.
    pub(crate) fn devices(&self) -> &[Arc<Device>] {
        match &self.inventory {
            Some(Ok(inventory)) => &inventory.devices,
            Some(Err(_)) | None => &[],
        }
    }
}
