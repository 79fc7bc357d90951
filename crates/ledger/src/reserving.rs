//! From a decision to a bound pod, without ever selling a share twice.
//!
//! ```text
//!              expire (time over)
//!                ^
//!   reserve -> Held --fence--> Fenced --commit--> Committed --pod seen bound--> (a holder)
//!                |               |                    |
//!                +---release-----+--release, or pod gone, or touched by us------> (free)
//! ```
//!
//! `fence` comes before the Binding is sent: from then on no clock may free the share, because
//! the Binding may still arrive. It ends when the pod is seen bound or gone, or has been
//! touched by us, after which the old Binding can only fail.

use std::sync::Arc;

use model::{Claim, DeviceId, DeviceRef, Holder, Moment, NodeName, PodId, PodUid};

use crate::Ledger;

#[derive(Debug)]
pub(crate) struct Reservation {
    node: NodeName,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Decided, no Binding attempted.
    Held { until: Moment },
    /// A Binding may be on its way.
    Fenced,
    /// The Binding succeeded; the watch has not shown it yet.
    Committed,
}

impl Reservation {
    pub(crate) fn node(&self) -> &NodeName {
        &self.node
    }

    pub(crate) fn expires_by(&self, now: Moment) -> bool {
        matches!(self.state, State::Held { until } if until <= now)
    }
}

/// Why a decision cannot be reserved. All but [`ReserveError::NotDevices`] mean: decide anew.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReserveError {
    /// The pod is on a node already.
    #[error("pod {pod} is already bound to node {node}")]
    Bound {
        /// Which pod.
        pod: PodId,
        /// Where it is.
        node: NodeName,
    },
    /// A Binding for the pod may be on its way.
    #[error("a binding of pod {0} is under way")]
    UnderWay(PodId),
    /// The node is not there.
    #[error("node {0} is gone")]
    NodeGone(NodeName),
    /// The node takes nothing new.
    #[error("node {0} takes nothing new")]
    NodeClosed(NodeName),
    /// A device is not there, or takes nothing new.
    #[error("device {device} of node {node} is gone or out of service")]
    DeviceGone {
        /// Which device.
        device: String,
        /// Where it was.
        node: NodeName,
    },
    /// Someone else was faster.
    #[error("device {device} of node {node} has been taken")]
    Taken {
        /// Which device.
        device: DeviceId,
        /// Where.
        node: NodeName,
    },
    /// The kubelet's tickets have run out.
    #[error("node {node} has too few {resource} left")]
    TicketsGone {
        /// Which resource.
        resource: String,
        /// Where.
        node: NodeName,
    },
    /// The namespace's quota has run out.
    #[error("namespace {0} has used up its quota")]
    OverQuota(String),
    /// The namespace may not use this node.
    #[error("namespace {namespace} may not use the pool of node {node}")]
    Pool {
        /// Which namespace.
        namespace: String,
        /// Where.
        node: NodeName,
    },
    /// A claim that names no devices by UUID: a mistake of the caller.
    #[error("the claim of pod {0} does not name devices")]
    NotDevices(PodId),
}

/// A step that does not follow from the state of the reservation. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// There is no reservation for this pod, or no longer.
    #[error("pod {0} has no reservation")]
    NotReserved(PodUid),
    /// Committed without a fence: the share could have expired while the Binding was under way.
    #[error("the reservation of pod {0} was not fenced before its binding")]
    NotFenced(PodUid),
    /// Fenced again after its Binding succeeded.
    #[error("pod {0} has been bound")]
    Committed(PodUid),
}

impl Ledger {
    /// Holds what `holder` claims until `until`, if all of it is still free. An earlier
    /// decision for the same pod is dropped, whether this one succeeds or not, unless its
    /// Binding may be on its way.
    pub fn reserve(&mut self, holder: Holder, until: Moment) -> Result<(), ReserveError> {
        let uid = holder.pod.uid.clone();
        if let Some(node) = self.bound.get(&uid) {
            return Err(ReserveError::Bound { pod: holder.pod, node: node.clone() });
        }
        match self.reserved.get(&uid).map(|reservation| reservation.state) {
            Some(State::Fenced | State::Committed) => {
                return Err(ReserveError::UnderWay(holder.pod));
            }
            Some(State::Held { .. }) => self.end_reservation(&uid),
            None => {}
        }
        self.check(&holder)?;
        let node = holder.node.clone();
        self.reserved
            .insert(uid.clone(), Reservation { node: node.clone(), state: State::Held { until } });
        if let Some(entry) = self.nodes.get_mut(&node) {
            entry.holders.insert(uid, Arc::new(holder));
        }
        self.refresh(&node);
        Ok(())
    }

    /// Call before the Binding is sent: from now on no clock frees the share.
    pub fn fence(&mut self, pod: &PodUid) -> Result<(), StepError> {
        let reservation = self.reservation(pod)?;
        if reservation.state == State::Committed {
            return Err(StepError::Committed(pod.clone()));
        }
        reservation.state = State::Fenced;
        Ok(())
    }

    /// Call when the Binding succeeded.
    pub fn commit(&mut self, pod: &PodUid) -> Result<(), StepError> {
        let reservation = self.reservation(pod)?;
        if matches!(reservation.state, State::Held { .. }) {
            return Err(StepError::NotFenced(pod.clone()));
        }
        reservation.state = State::Committed;
        Ok(())
    }

    /// Call when the Binding certainly failed, when the pod was touched by us after a Binding
    /// of unknown outcome, or when the decision was dropped. Undoes [`Ledger::reserve`].
    pub fn release(&mut self, pod: &PodUid) -> Result<(), StepError> {
        self.reservation(pod)?;
        self.end_reservation(pod);
        Ok(())
    }

    /// Pods with a reservation, and where.
    pub fn reservations(&self) -> impl Iterator<Item = (&PodUid, &NodeName)> {
        self.reserved.iter().map(|(uid, reservation)| (uid, &reservation.node))
    }

    pub(crate) fn end_reservation(&mut self, uid: &PodUid) {
        if let Some(reservation) = self.reserved.remove(uid) {
            self.changes += 1;
            self.remove_holder(&reservation.node, uid);
        }
    }

    fn reservation(&mut self, pod: &PodUid) -> Result<&mut Reservation, StepError> {
        self.reserved.get_mut(pod).ok_or_else(|| StepError::NotReserved(pod.clone()))
    }

    fn check(&self, holder: &Holder) -> Result<(), ReserveError> {
        let name = || holder.node.clone();
        let view = self.nodes.get(&holder.node).and_then(|entry| entry.view.as_deref());
        let node = view.ok_or_else(|| ReserveError::NodeGone(name()))?;
        if node.agent != model::Agent::Fresh || node.problem.is_some() {
            return Err(ReserveError::NodeClosed(name()));
        }
        let Claim::Shares(claimed) = &holder.claim else {
            return Err(ReserveError::NotDevices(holder.pod.clone()));
        };
        let mut parts = claimed.iter().flat_map(|container| &container.parts);
        if !parts.all(|(points_at, _)| matches!(points_at, DeviceRef::Id(_))) {
            return Err(ReserveError::NotDevices(holder.pod.clone()));
        }
        let (holds, missing) = node.holds(claimed);
        if let Some(device) = missing.into_iter().next() {
            return Err(ReserveError::DeviceGone { device, node: name() });
        }
        for (&place, hold) in &holds {
            let state = &node.devices[place];
            let device = state.device.id.clone();
            if !state.sells() {
                let device = device.to_string();
                return Err(ReserveError::DeviceGone { device, node: name() });
            }
            if !state.fits(hold) {
                return Err(ReserveError::Taken { device, node: name() });
            }
        }
        for (resource, count) in &holder.tickets {
            if node.tickets.get(resource).is_none_or(|tickets| tickets.free() < *count) {
                return Err(ReserveError::TicketsGone { resource: resource.clone(), node: name() });
            }
        }
        let namespace = &holder.pod.namespace;
        let wanted: Vec<_> =
            holds.iter().map(|(&place, hold)| (&node.devices[place].device.model, *hold)).collect();
        let allowance = self.quota.allowance(namespace, &self.spending);
        if !allowance.admits_pool(node.pool.as_deref()) {
            return Err(ReserveError::Pool { namespace: namespace.clone(), node: name() });
        }
        if !allowance.admits(&wanted) {
            return Err(ReserveError::OverQuota(namespace.clone()));
        }
        Ok(())
    }
}
