//! The scheduler without a cluster: verbs over pictures, binds against an API server that fails on
//! command, and HTTP through real sockets.

#[cfg(test)]
mod answers;
#[cfg(test)]
mod binding;
#[cfg(test)]
mod build;
#[cfg(test)]
mod dashboard;
#[cfg(test)]
mod deploy;
#[cfg(test)]
mod http;
#[cfg(test)]
mod memo;
#[cfg(test)]
mod offering;
#[cfg(test)]
mod preempting;
#[cfg(test)]
mod profiling;
#[cfg(test)]
mod program;
#[cfg(test)]
mod serving;
#[cfg(test)]
mod taking_over;
#[cfg(test)]
mod tls;
#[cfg(test)]
mod waking;
