//! A pod on a node, as the ledger sees it: what it claims, and how that was learned.

use crate::device::DeviceRef;
use crate::ids::{NodeName, PodId};
use crate::node::Host;
use crate::placement::{Placement, Portion};
use crate::request::{MemoryAsk, Part, Request, Role};

/// A pod that is bound to a node, or about to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Which pod.
    pub pod: PodId,
    /// Where.
    pub node: NodeName,
    /// What it claims of the node's devices.
    pub claim: Claim,
    /// The host CPU and memory it asks.
    pub host: Host,
    /// Kubelet tickets it draws, by resource name. Counted whoever scheduled the pod.
    pub tickets: Vec<(String, u64)>,
    /// Its priority.
    pub priority: i32,
    /// Whether it is on its way out. It holds all the same until it is gone.
    pub terminating: bool,
}

/// What a pod claims of its node's devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// Nothing: it asks for none, or no scheduler gave it any.
    Nothing,
    /// These, in the order in which its containers start.
    Shares(Vec<Claimed>),
    /// Something we cannot read. The node takes nothing new until it is gone.
    Unreadable(String),
}

/// What one container claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimed {
    /// When the container runs.
    pub role: Role,
    /// A part of each of these devices.
    pub parts: Vec<(DeviceRef, Part)>,
}

impl Claim {
    /// The claim a placement of ours makes.
    pub fn of(placement: &Placement) -> Self {
        let claimed = placement.containers().iter().map(|container| Claimed {
            role: container.role,
            parts: container
                .grants
                .iter()
                .map(|grant| (DeviceRef::Id(grant.device.clone()), part(grant.portion)))
                .collect(),
        });
        Self::Shares(claimed.collect())
    }
}

fn part(portion: Portion) -> Part {
    match portion {
        Portion::Whole => Part::Whole,
        Portion::Share(share) => {
            Part::Share { cores: share.cores, memory: MemoryAsk::Exact(share.memory) }
        }
    }
}

impl Holder {
    /// The holder that `request` becomes once placed.
    pub fn placed(request: &Request, placement: &Placement) -> Self {
        Self {
            pod: request.pod.clone(),
            node: placement.node().clone(),
            claim: Claim::of(placement),
            host: request.host,
            tickets: request.tickets.clone(),
            priority: request.priority,
            terminating: false,
        }
    }
}
