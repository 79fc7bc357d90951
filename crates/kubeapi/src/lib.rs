//! Kubernetes, as the services of nanogpu see it.
//!
//! ```text
//!   watches:  pods, nodes, leases of agents, quota, budgets -> Seen
//!   writes:   Binding, touch, Eviction, nomination, Events  -> an outcome, also when it is unknown
//!   leading:  one Lease, held by one replica
//!   asking:   who is this token, and may they?
//! ```
//!
//! The only crate that chooses the version of the API's types. Nothing is ever replaced with one
//! of them, because they drop fields newer than themselves: only patches and subresources.
#![forbid(unsafe_code)]

mod budgets;
mod certificates;
mod clock;
mod connecting;
mod events;
mod heartbeats;
mod leading;
mod nodes;
mod outside;
mod own_node;
mod pods;
mod protobuf;
mod reviews;
mod watching;

pub use budgets::{PodBudget, selects};
pub use certificates::{SecretError, read_secret, trust_in_webhooks, write_secret};
pub use clock::Clock;
pub use connecting::{ConnectError, connect};
pub use events::{Recorder, Told};
pub use heartbeats::{LOAD, LoadError, decode_load, encode_load};
pub use kube::Client;
pub use leading::{Alone, Elected, Election, Leadership, Term};
pub use nodes::facts;
pub use outside::{
    Annotated, Binding, BindingOutcome, EvictionOutcome, Kube, Listed, Outside, TouchOutcome,
};
pub use own_node::{OwnNode, OwnNodeError};
pub use pods::{Minds, SeenPod, UnreadPod};
pub use reviews::{Caller, May, ReviewError, Reviews};
pub use watching::{QuotaSource, Seen, Source, Watching, watch, watch_pods_on};
