//! The GPUs of a node: what there is, how it is used, and what goes wrong.
//!
//! ```text
//!   look     -> Found: cards, slices, the ways between them; or why there are none
//!   measure  -> memory, utilisation and processes of each card, now
//!   events   -> Xids as they happen; xid::class says what each means
//! ```
//!
//! A node without a driver, with a broken one, or with one that hangs is a state ([`Absent`]), never a
//! crash: the caller asks again later. With `dialect` this is the only crate that knows NVIDIA.

mod driver;
#[cfg(feature = "fake")]
pub mod fake;
mod found;
pub mod nvml;
pub mod xid;

pub use driver::{Driver, DriverFile, Node};
pub use found::{
    Absent, Event, Found, Gpus, Measured, MemoryErrors, Process, Unreadable, inventory,
};
