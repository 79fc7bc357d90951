//! Where a pod goes, and why not elsewhere.
//!
//! ```text
//!   fit     may this node take the pod?          yes, or a refusal
//!   rank    which nodes, best first?             and every refusal, with its numbers
//!   choose  which cards of this node?            a placement
//!   decide  rank and choose together
//!   preempt who has to leave so that it fits?    the node and the pods, or why nobody
//! ```
//!
//! Functions only: the same snapshot and the same request always give the same answer, so the
//! scheduler, the simulator and `kubectl nanogpu why` cannot disagree. No randomness: even the
//! random policy is decided by the pod's UID.
#![forbid(unsafe_code)]

mod board;
mod choose;
mod explain;
mod fit;
mod learn;
mod policy;
mod preempt;
mod rank;
mod refusal;
mod search;
mod topology;

use std::sync::Arc;

use model::{Allowance, Request, Snapshot, Statistics};

pub use board::Board;
pub use choose::choose;
pub use explain::{Alike, Explanation, in_one_line};
pub use fit::fit;
pub use learn::learn;
pub use policy::Policy;
pub use preempt::{Budget, NoPreemption, Preemption, Thoroughness, preempt, preempt_on};
pub use rank::{Ranking, decide, rank};
pub use refusal::{Best, NodeRefusal, Refusal};

/// A question: what a pod asks, what its namespace may still take, and by which policy.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// What the pod asks.
    pub request: &'a Request,
    /// What its namespace may still take.
    pub allowance: &'a Allowance,
    /// How to rank nodes and pick cards.
    pub policy: Policy,
    /// What was learned of the pods that come.
    pub statistics: &'a Arc<Statistics>,
}

impl<'a> Ask<'a> {
    /// The question `request` puts to `snapshot`; the pod's own choice of policy outranks `policy`.
    pub fn new(snapshot: &'a Snapshot, request: &'a Request, policy: Policy) -> Self {
        let allowance = snapshot.allowance(&request.pod.namespace);
        Self {
            request,
            allowance,
            policy: policy.overridden(request.overrides),
            statistics: snapshot.statistics(),
        }
    }
}
