//! `kubectl nanogpu`: what a person asks about shared cards, from a terminal.
//!
//! ```text
//!   scheduler's read API --wire--+
//!                                +--> View --> top, inspect
//!   pods, nodes, Leases --ledger-+
//!   scheduler's read API --wire------> why, simulate
//!   objects of the cluster ----------> doctor
//!   node annotation <----------------- cordon, uncordon
//! ```
//!
//! What is printed is made by functions of values, so that every page has a transcript as its
//! test. The program decides nothing about placement: it shows what the scheduler says, and where
//! that cannot be asked, what pods and nodes say, and says so.
#![forbid(unsafe_code)]

pub mod cluster;
pub mod completing;
pub mod cordon;
pub mod dashboard;
pub mod doctor;
pub mod gpushare;
pub mod inspect;
mod numbers;
pub mod observed;
pub mod options;
pub mod output;
pub mod reach;
pub mod running;
pub mod simulate;
mod tabs;
pub mod top;
pub mod view;
pub mod why;
pub mod wire;
