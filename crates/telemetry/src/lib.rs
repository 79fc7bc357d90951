//! What a service tells of itself while it runs: lines, numbers, health, and when it should stop.
//!
//! Nothing here knows what the service does. A service makes its own metrics and registers them.
#![forbid(unsafe_code)]

mod health;
mod logs;
mod numbers;
mod shutdown;

pub use health::{Health, NotReady};
pub use logs::{Form, LogError, start};
pub use numbers::{Numbers, durations};
pub use prometheus_client as metrics;
pub use shutdown::{Shutdown, Stopping};
