//! The text of our two annotations: versioned, compact, readable, and read with suspicion.
//!
//! A newer version is never guessed at: the reader says which version it met and what to do.

mod inventory;
mod placement;

pub use inventory::{InventoryError, decode_inventory, encode_inventory};
pub use placement::{DecodeError, decode_placement, encode_placement};

/// The most an annotation may measure before it is even looked at: what the API server allows
/// for all annotations of an object together.
pub const LARGEST: usize = 256 * 1024;
