//! How long kernels take that a description names.

use serde::{Deserialize, Serialize};

/// A kernel as it is scripted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kernel {
    /// How long it takes with all its multiprocessors.
    pub nanoseconds: u64,
    /// How many it uses; without it, as many as it has blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multiprocessors: Option<u32>,
}
