//! The adapter over real sockets and files, with the kubelet's end played by the tests.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may as well stop")]

mod cdi;
mod checkpoint;
mod dra;
mod fake_kubelet;
mod fuzz;
mod http2;
mod plugin;
mod pods;
mod registration;
mod vcuda;

use std::time::Duration;

/// Bounds a hang; nothing here is meant to take long.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let bounded = tokio::time::timeout(Duration::from_mins(1), future).await;
    bounded.unwrap_or_else(|_| panic!("never happened: {what}"))
}
