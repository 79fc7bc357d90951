//! The systems nanogpu stands in for: how their pods ask, and what their tools read back.
//!
//! ```text
//!   read:     foreign pod             -> Request, or a refusal in one sentence
//!   write:    Request + Placement     -> that dialect's annotations, labels, container env
//!   observe:  pod already on a node   -> what it holds, whoever placed it
//!   served:   a node's devices        -> the tickets and amounts a node offers
//! ```
//!
//! One file a dialect, with all its names in it. A dialect never decides where a pod goes, and
//! nothing right of this crate knows a foreign name.
#![forbid(unsafe_code)]

mod asking;
mod by_name;
mod choices;
mod core_memory;
mod gpushare;
mod hami;
mod nano;
mod nvidia;
mod observing;
mod refusal;
mod selecting;
mod serving;
mod settings;
mod vcuda;
mod vgpu_manager;
mod writing;

use model::{Pod, Request};

pub use asking::Alone;
pub use gpushare::unhealthy;
pub use nvidia::{NodeMode, visible_devices};
pub use observing::observe;
pub use refusal::Refusal;
pub use serving::{MOST_TICKETS, Served, ServedError, measured, served, tickets_alone};
pub use settings::{Dialect, MemoryUnit, Settings};
pub use writing::{Omission, WriteError, Written, env, write};

/// What a pod asks, and in which dialect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// The dialect it speaks.
    pub dialect: Dialect,
    /// What it asks.
    pub request: Request,
    /// Sentences for the pod's author about what was read differently from what is written.
    pub notes: Vec<String>,
}

/// A resource that a container's author took for granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missing {
    /// The container's place in [`Pod::containers`].
    pub container: usize,
    /// Which resource.
    pub resource: &'static str,
    /// How much of it.
    pub value: &'static str,
}

/// What the original systems add to a pod when it is created, because its other resources need it.
pub fn missing(pod: &Pod, settings: &Settings) -> Vec<Missing> {
    if settings.enabled.contains(&Dialect::Hami) { hami::missing(pod) } else { Vec::new() }
}

/// Reads what `pod` asks. `None`: it asks for no card of ours, and is none of our business.
///
/// Annotations of the pod can only narrow its own request or choose among the policies that
/// `settings` allow.
pub fn read(pod: &Pod, settings: &Settings) -> Result<Option<Asked>, Refusal> {
    let Some(dialect) = asking::spoken(pod, settings)? else { return Ok(None) };
    let speaks = dialect.speaks();
    let mut notes = Vec::new();
    let mut containers = Vec::new();
    for container in &pod.containers {
        if let Some(ask) = speaks.ask(container, settings, &mut notes)? {
            containers.push(ask.into_request(container));
        }
    }
    if containers.is_empty() {
        return Ok(None);
    }
    let mut request = Request {
        pod: pod.id.clone(),
        containers,
        one_card: speaks.one_card(),
        selector: selecting::selector(pod)?,
        affinity: choices::affinity(pod)?,
        overrides: choices::overrides(pod, settings, &mut notes)?,
        host: pod.host(),
        tickets: observing::tickets(pod, dialect),
        priority: pod.priority,
    };
    speaks.pod_rules(pod, &mut request, &mut notes)?;
    Ok(Some(Asked { dialect, request, notes }))
}
