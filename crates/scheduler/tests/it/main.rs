//! The scheduler without a cluster: verbs over pictures, binds against an API server that fails on
//! command, and HTTP through real sockets.

mod binding;
mod build;
mod deploy;
mod http;
mod waking;
