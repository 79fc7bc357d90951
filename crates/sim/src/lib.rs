//! nanogpu-sim: replays traces and made-up loads through the placement code that a cluster runs.
//!
//! Chance enters in one place, a generator with a seed; the same command prints the same numbers.
#![forbid(unsafe_code)]

pub mod arrival;
pub mod baseline;
pub mod replay;
pub mod report;
pub mod trace;
