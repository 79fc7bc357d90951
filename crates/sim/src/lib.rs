//! nanogpu-sim: replays traces and made-up loads through the placement code that a cluster runs.
//!
//! ```text
//!   trace, generate --> Scene --compare--> replay::run, one a policy and seed --> Report
//!                                             |  World: arrive, leave               |
//!                                             +-- Board::best, choose (placement)   +--> table, plot,
//!                                                                                        JSON, CSV
//!   snapshot JSON ----> exported --> what_if --decide, choose (placement)--> answer
//! ```
//!
//! Chance enters in one place, a generator with a seed: the same command prints the same
//! numbers, but for those a clock measured, on however many threads.
#![forbid(unsafe_code)]

pub mod arrival;
pub mod baseline;
pub mod blocks;
pub mod churn;
pub mod commands;
pub mod compare;
pub mod exported;
pub mod fragmentation;
pub mod generate;
pub mod machines;
pub mod nearness;
pub mod plot;
pub mod replay;
pub mod report;
pub mod table;
pub mod threads;
pub mod trace;
pub mod what_if;
pub mod world;
