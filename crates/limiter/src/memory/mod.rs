//! Memory: every byte is claimed in the account before the driver is asked for it, and the claim becomes
//! what the driver really took. One file a family of calls.

pub(crate) mod array;
pub(crate) mod charge;
pub(crate) mod context;
pub(crate) mod graph;
pub(crate) mod linear;
pub(crate) mod listing;
pub(crate) mod module;
pub(crate) mod overhead;
pub(crate) mod physical;
pub(crate) mod pool;
pub(crate) mod query;
pub(crate) mod scale;
pub(crate) mod table;

/// A forked child has none of its parent's memory.
pub(crate) fn forget() {
    table::forget();
    pool::forget();
    overhead::forget();
    graph::forget();
    context::forget();
}
