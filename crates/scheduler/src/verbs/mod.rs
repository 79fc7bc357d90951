//! The verbs of a scheduler extender as functions, free of HTTP.
//!
//! `filter` and `prioritize` are pure: a picture, a pod and who was sent where in, names out. `preempt`
//! too. `bind` and `predicates` write, and say what became of it.

pub mod bind;
pub mod filter;
pub mod memo;
pub mod names;
pub mod offer;
pub mod places;
pub mod predicates;
pub mod preempt;
pub mod prioritize;
pub mod slack;
pub mod wire;
