//! User stories, and the laws that hold over all crates together.
//!
//! [`Cluster`] takes a pod the whole way that needs no Kubernetes: read, decide, reserve, write,
//! and see it again as the API would show it. Nothing here knows a clock: time is a number.

mod cluster;
pub mod samples;
pub mod shipped;
pub mod worlds;

pub use cluster::{Cluster, Outcome, Running};
