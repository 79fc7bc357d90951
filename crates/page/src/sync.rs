//! The atomics of the pages; under loom those it can put in every order.

#[cfg(not(all(test, loom)))]
pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(all(test, loom))]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Between a claim and the adding up. All are `SeqCst`, so there is one order of them already; loom takes
/// such accesses for weaker ones and wants a fence to see it.
pub(crate) fn after_a_claim() {
    #[cfg(all(test, loom))]
    loom::sync::atomic::fence(Ordering::SeqCst);
}
