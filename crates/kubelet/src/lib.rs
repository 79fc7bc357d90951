//! The kubelet of a node: the one adapter to everything it speaks and writes.
//!
//! ```text
//!   plugin --Register--> kubelet.sock          the kubelet finds us
//!   plugin <--ListAndWatch, Allocate, PreStartContainer--
//!   checkpoint <-- kubelet_internal_checkpoint  who holds which IDs, and what we answered
//!   pods --Get--> pod-resources/kubelet.sock    the same, asked for
//!   cdi --> /var/run/cdi/*.json                 what the container runtime adds to a container
//!   registration, dra <-- plugins_registry      claims instead of counted resources
//! ```
//!
//! It carries and keeps; it decides nothing. Which device a container gets, whether a container may
//! start and what stands in a spec is the caller's. Folders are arguments everywhere: the path under
//! which the kubelet sees a file may differ from ours.
#![forbid(unsafe_code)]

pub mod cdi;
pub mod checkpoint;
pub mod devices;
pub mod dra;
mod folder;
mod heads;
pub mod plugin;
pub mod pods;
pub mod registration;
mod serve;
mod socket;
pub mod vcuda;
pub mod wire;

pub use socket::SocketError;
pub use tonic::{Code, Status};
