//! nanogpu-scheduler: the extender of the stock kube-scheduler, admission, quota, preemption, and
//! a scheduler one can ask why.
//!
//! ```text
//!   watches --> Writer (owns the ledger) --> Picture --> verbs, api, waking, preempting
//!                  ^                                        |
//!                  +---- reserve, fence, commit, release ---+
//! ```
#![forbid(unsafe_code)]

pub mod admission;
mod api;
pub mod certificates;
mod dashboard;
pub mod decisions;
pub mod http;
pub mod metrics;
pub mod options;
pub mod peers;
pub mod preempting;
pub mod running;
pub mod service;
mod sparing;
pub mod state;
pub mod taking_over;
mod tls;
pub mod verbs;
pub mod waking;
