//! `libcuda.so.1` over the simulated machine.
//!
//! Every function that a driver exports is here under its own name (`symbols.tsv`). What a name
//! answers is one of three: it works, it answers as an unsupported call does, or, for the machine's
//! driver version, `cuGetProcAddress` does not know it.
//!
//! ```text
//!   caller -> abi (pointers, results) -> process (initialised? context?) -> the call
//!                                           |- memory/   maps host memory, reserves it in the machine
//!                                           |- stream/   orders -> machine queue, effects on the host
//!                                           |- graph/    nodes -> steps -> orders
//!                                           `- card      the machine
//! ```

mod abi;
mod card;
mod context;
mod copy;
mod device;
mod event;
mod graph;
mod launch;
mod lookup;
mod memory;
mod module;
mod objects;
mod occupancy;
mod process;
mod results;
mod shapes;
mod stream;

pub use lookup::absent_in;
pub(crate) use process::refuse;
