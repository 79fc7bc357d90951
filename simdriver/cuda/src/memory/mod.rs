//! Memory in all its forms.

pub(crate) mod array;
pub(crate) mod external;
pub(crate) mod heap;
pub(crate) mod ipc;
pub(crate) mod linear;
pub(crate) mod pages;
pub(crate) mod physical;
pub(crate) mod pool;
pub(crate) mod pool_calls;
pub(crate) mod query;
pub(crate) mod space;
