//! Waiting for async work from code that is not, also from inside a runtime.

use std::future::Future;
use std::thread;

/// Runs `work` to its end on a thread with a runtime of its own: a test may call us from inside
/// another runtime, which must not block.
pub(crate) fn block_on<T: Send>(work: impl Future<Output = T> + Send) -> anyhow::Result<T> {
    let outcome = thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            Ok(runtime.block_on(work))
        });
        worker.join()
    });
    match outcome {
        Ok(outcome) => outcome,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}
