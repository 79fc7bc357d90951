//! The agent over real files, without a cluster.

#[cfg(test)]
mod starting;
