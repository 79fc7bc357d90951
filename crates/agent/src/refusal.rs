//! Why a container may not start. Each sentence is shown to people, on the pod: it says what to do.

use std::path::PathBuf;
use std::sync::Arc;

use kubelet::checkpoint::CheckpointError;
use kubelet::pods::PodsError;
use model::codec::DecodeError;
use model::{ContainerName, DeviceId, NodeName, PodId, PodUid};

/// Why a container may not start now. The kubelet tries again by itself.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Refusal {
    /// The kubelet's record of devices cannot be read.
    #[error("the kubelet's account of devices cannot be read")]
    NoCheckpoint(#[source] Arc<CheckpointError>),
    /// Nobody holds the IDs.
    #[error("the kubelet's checkpoint names nobody for these {count} IDs of {resource}")]
    Nobody {
        /// The resource.
        resource: String,
        /// How many IDs.
        count: usize,
    },
    /// Pods hold the same IDs.
    #[error("the kubelet's checkpoint gives these IDs of {resource} to {pods} pods")]
    SeveralPods {
        /// The resource.
        resource: String,
        /// How many.
        pods: usize,
    },
    /// What the kubelet kept is not an answer of ours.
    #[error(
        "the kubelet kept no answer of this agent for container {container}; delete the pod so that it is made anew"
    )]
    NotOurs {
        /// The container.
        container: ContainerName,
    },
    /// The API server does not show the pod on this node.
    #[error(
        "pod {pod} is not known on this node: static pods cannot have a GPU; let a scheduler place it"
    )]
    UnknownPod {
        /// The pod.
        pod: PodUid,
    },
    /// The API server has not shown this node's pods yet.
    #[error("this node's pods are not known yet; is the API server reachable?")]
    NoApi,
    /// `PodResources` and the checkpoint contradict each other.
    #[error("the kubelet's two accounts of container {container} differ; it is asked again")]
    Contradiction {
        /// The container.
        container: ContainerName,
    },
    /// `PodResources` does not answer.
    #[error("the kubelet does not say what the pod holds")]
    NoHoldings(#[source] PodsError),
    /// No placement.
    #[error(
        "the pod has no annotation nano-gpu/placement, so no GPU was chosen for it: leave spec.nodeName empty \
         and use a scheduler that asks nanogpu"
    )]
    NoPlacement,
    /// A placement that cannot be read.
    #[error(
        "the pod's annotation nano-gpu/placement cannot be read; delete the pod so that it is placed anew"
    )]
    Unreadable(#[source] DecodeError),
    /// A placement for somewhere else.
    #[error(
        "the pod's GPUs were chosen on node {other}, but it runs on {own}; delete the pod so that it is placed anew"
    )]
    OtherNode {
        /// Where the placement is for.
        other: NodeName,
        /// Where we are.
        own: NodeName,
    },
    /// The placement has nothing for this container.
    #[error(
        "the pod's placement gives container {container} no GPU although it asks for one; delete the pod so that it is placed anew"
    )]
    NothingForContainer {
        /// The container.
        container: ContainerName,
    },
    /// A device this node does not have.
    #[error(
        "the pod's placement names device {device}, which this node does not have; delete the pod so that it is placed anew"
    )]
    NoSuchDevice {
        /// The device.
        device: DeviceId,
    },
    /// A card that was cut, or a slice of one.
    #[error(
        "device {device} is in MIG mode, and cards that are cut are not handed out; delete the pod so that it is placed anew"
    )]
    Cut {
        /// The device.
        device: DeviceId,
    },
    /// More than the device has.
    #[error(
        "the pod's placement takes more of device {device} than it has; delete the pod so that it is placed anew"
    )]
    TooLarge {
        /// The device.
        device: DeviceId,
    },
    /// A device that takes nothing new.
    #[error(
        "device {device} is out of service; the container starts when it is back, or delete the pod so that it is placed anew"
    )]
    OutOfService {
        /// The device.
        device: DeviceId,
    },
    /// Others live on the device.
    #[error(
        "device {device} is still held by pod {holder}, which has not ended; this container starts when it has"
    )]
    Held {
        /// The device.
        device: DeviceId,
        /// Who holds it, as far as is known by name.
        holder: String,
    },
    /// The pod does not speak a dialect that is enabled here.
    #[error("pod {pod} asks for GPUs in a way this node does not serve: {why}")]
    Dialect {
        /// The pod.
        pod: PodId,
        /// Why not.
        why: String,
    },
    /// The limiter is not there.
    #[error(
        "the limiter {} is missing on this node, and a share without a limit is not handed out; install it, or set --isolation none",
        path.display()
    )]
    NoLimiter {
        /// Where it should be.
        path: PathBuf,
    },
    /// Nothing can be limited here.
    #[error(
        "NVIDIA's toolkit brings the driver into containers on this node, so a share cannot be limited, and a share \
         without a limit is not handed out; ask for whole cards, or start the agent with --isolation none"
    )]
    NoLimitHere,
    /// The driver's files are not there.
    #[error("the driver has no {what} on this node")]
    NoDriverFile {
        /// What is missing.
        what: &'static str,
    },
    /// What the container needs now is not what its answer named.
    #[error(
        "the container needs {path}, which was not so when the pod was admitted; delete the pod so that it is made anew"
    )]
    Outdated {
        /// What it needs, as it would see it.
        path: String,
    },
    /// The runtime would start the container without its card.
    #[error(
        "this node's container runtime ignores CDI devices, so the container would run without its GPU; {}",
        if *by_folders {
            "delete the pod so that it is made anew, and its devices come by a folder"
        } else {
            "set enable_cdi = true in containerd's configuration and restart it"
        }
    )]
    NoCdi {
        /// Whether new pods get their devices in another way.
        by_folders: bool,
    },
    /// Files could not be written.
    #[error("cannot write the container's {what}: {why}")]
    Unwritable {
        /// What.
        what: &'static str,
        /// Why not.
        why: String,
    },
}

/// Two refusals are the same if they say the same.
impl PartialEq for Refusal {
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}

impl Refusal {
    /// Whether waiting a moment may help before the kubelet is told.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Held { .. })
    }
}
