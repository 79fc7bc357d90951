//! Which devices each container gets, and how much of each.

use std::collections::{BTreeMap, BTreeSet};

use crate::device::Device;
use crate::ids::{ContainerName, DeviceId, NodeName};
use crate::peak::Hold;
use crate::request::Role;
use crate::units::{Cores, Mebibytes, UnixNanos};

/// The decision for one pod. Built by [`Placement::new`] only, so that it can always be
/// written down and read back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    node: NodeName,
    until: Option<UnixNanos>,
    containers: Vec<ContainerPlacement>,
}

/// What one container gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerPlacement {
    /// Which container.
    pub name: ContainerName,
    /// When it runs.
    pub role: Role,
    /// Its devices, in the order in which the container will see them.
    pub grants: Vec<Grant>,
}

/// A part of one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// Which device.
    pub device: DeviceId,
    /// How much of it.
    pub portion: Portion,
}

/// How much of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Portion {
    /// All of it, alone. No limit is enforced: there is nobody to protect.
    Whole,
    /// A share of it.
    Share(Share),
}

/// A part of one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Share {
    /// Compute; zero promises none and limits none.
    pub cores: Cores,
    /// Memory.
    pub memory: Mebibytes,
}

impl Portion {
    /// What this takes of `device`.
    pub fn hold(self, device: &Device) -> Hold {
        match self {
            Self::Whole => Hold { cores: device.cores, memory: device.memory, whole: true },
            Self::Share(share) => Hold { cores: share.cores, memory: share.memory, whole: false },
        }
    }
}

/// Why containers make no placement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// Nothing was placed.
    #[error("no container has a device")]
    Empty,
    /// A container with no device.
    #[error("container {0} has no device")]
    NoDevice(ContainerName),
    /// Two containers of one name.
    #[error("container {0} stands there twice")]
    ContainerTwice(ContainerName),
    /// A container that holds one device twice.
    #[error("container {container} has device {device} twice")]
    DeviceTwice {
        /// Which container.
        container: ContainerName,
        /// Which device.
        device: DeviceId,
    },
    /// App containers start last.
    #[error("container {0} starts before the pod's work but stands behind it")]
    OutOfOrder(ContainerName),
}

impl Placement {
    /// Makes a placement of `containers`, given in the order in which they start.
    pub fn new(
        node: NodeName,
        containers: Vec<ContainerPlacement>,
    ) -> Result<Self, PlacementError> {
        if containers.is_empty() {
            return Err(PlacementError::Empty);
        }
        let mut names = BTreeSet::new();
        let mut work_began = false;
        for container in &containers {
            let name = &container.name;
            if container.grants.is_empty() {
                return Err(PlacementError::NoDevice(name.clone()));
            }
            if !names.insert(name.clone()) {
                return Err(PlacementError::ContainerTwice(name.clone()));
            }
            let mut devices = BTreeSet::new();
            if let Some(twice) = container.grants.iter().find(|g| !devices.insert(&g.device)) {
                let device = twice.device.clone();
                return Err(PlacementError::DeviceTwice { container: name.clone(), device });
            }
            work_began |= container.role == Role::App;
            if work_began && container.role != Role::App {
                return Err(PlacementError::OutOfOrder(name.clone()));
            }
        }
        Ok(Self { node, until: None, containers })
    }

    /// The same placement, void after `until` unless the pod is bound by then.
    #[must_use]
    pub fn void_after(mut self, until: UnixNanos) -> Self {
        self.until = Some(until);
        self
    }

    /// The node it is for. An agent accepts no other's.
    pub fn node(&self) -> &NodeName {
        &self.node
    }

    /// When it becomes void, if it does.
    pub fn until(&self) -> Option<UnixNanos> {
        self.until
    }

    /// The containers, in the order in which they start.
    pub fn containers(&self) -> &[ContainerPlacement] {
        &self.containers
    }

    /// What `container` gets, if it gets anything.
    pub fn grants(&self, container: &str) -> &[Grant] {
        let found = self.containers.iter().find(|c| c.name.as_str() == container);
        found.map_or(&[], |container| &container.grants)
    }

    /// Every device of the pod with what the pod holds of it at its peak. Devices that
    /// `lookup` does not know are left out.
    pub fn holds<'a>(
        &self,
        lookup: impl Fn(&DeviceId) -> Option<&'a Device>,
    ) -> BTreeMap<DeviceId, Hold> {
        crate::peak(self.containers.iter().map(|container| {
            let holds = container.grants.iter().filter_map(|grant| {
                let device = lookup(&grant.device)?;
                Some((grant.device.clone(), grant.portion.hold(device)))
            });
            (container.role, holds.collect::<BTreeMap<_, _>>())
        }))
    }
}
