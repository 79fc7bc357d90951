//! `libnvidia-ml.so.1` over the simulated machine.
//!
//! Every name that drivers 535, 550 and 555 export is here, and those that newer ones add. What
//! is not simulated answers as the real library does on a card that cannot do it. The table of
//! [`EXPORTS`] says which is which; README.md shows it.
//!
//! ```text
//!   abi.rs      what crosses the border to C: status, handles, pointers
//!   types.rs    the structs, by hand; tests compare them with another's bindings
//!   session.rs  init and shutdown, and which device a handle means
//!   calls/      the functions, by what they are about
//! ```

mod abi;
mod calls;
mod card;
mod exports;
mod session;
mod types;

pub use exports::{EXPORTS, Export, Kind, absent_in, since};
