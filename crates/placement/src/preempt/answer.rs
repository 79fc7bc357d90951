//! What preemption is asked with and what it answers: who has to leave, or why nobody should.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use model::{Holder, NodeName, PodUid};

/// A disruption budget: how many of its pods may be evicted now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budget {
    /// The pods it protects.
    pub pods: BTreeSet<PodUid>,
    /// How many of them may go.
    pub allowed: u32,
}

/// Who has to leave so that the pod fits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preemption {
    /// Where the pod fits then.
    pub node: NodeName,
    /// Who has to leave, the highest priority first; at least one.
    pub victims: Vec<Arc<Holder>>,
    /// Whether a better answer may exist.
    pub search: Thoroughness,
}

/// How far a search for victims went. Either way the pod fits once the victims are gone, and
/// would not if one of them stayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thoroughness {
    /// No other answer is better.
    Complete,
    /// There were too many ways to try them all: fewer or less important victims might do.
    CutShort,
}

impl fmt::Display for Preemption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.victims.len();
        let pods = if count == 1 { "pod" } else { "pods" };
        write!(f, "evicting {count} {pods} on {} makes room: ", self.node)?;
        for (i, victim) in self.victims.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{} (priority {})", victim.pod, victim.priority)?;
        }
        match self.search {
            Thoroughness::Complete => Ok(()),
            Thoroughness::CutShort => f.write_str("; not every way was tried"),
        }
    }
}

/// Why no pod should be evicted. The later in the list, the closer it came: of several nodes'
/// reasons the last is given.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum NoPreemption {
    /// Every node lacks something that no pod holds.
    #[error("no node could take this pod, whoever leaves")]
    NoNode,
    /// What the pod needs is held by pods that may not be evicted for it, or by no pod at all.
    #[error("no pod of lower priority holds what this pod needs")]
    Nobody,
    /// There would be room, but not for this namespace.
    #[error("namespace {namespace} has no quota left for this pod, whoever leaves")]
    Quota {
        /// Which namespace.
        namespace: String,
    },
    /// There would be room if the budgets allowed more.
    #[error("a disruption budget forbids every way")]
    Budget,
    /// None was found, and not every way was tried.
    #[error("too many ways to make room to try them all")]
    GaveUp,
    /// There will be room without that.
    #[error("waiting: pods that are leaving make room on {node}")]
    Waiting {
        /// Where.
        node: NodeName,
    },
    /// There is room without that.
    #[error("no pod has to leave: {node} has room now")]
    Fits {
        /// Where.
        node: NodeName,
    },
}
