//! Threads for what may take long, beside the one on which kube-scheduler is answered.
//!
//! What kube-scheduler waits for is many short steps that wake one another: a request, the writer, a
//! Binding, what the watch shows of it. On one thread nobody has to be woken for them. What people ask
//! for is as long as the cluster is large, and to look whom to evict takes longer still: on that thread
//! it would hold pods up.

use std::future::Future;

use axum::http::StatusCode;
use axum::response::Response;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::gate::error;

/// Those threads.
#[derive(Debug, Clone)]
pub struct Beside(Handle);

impl Beside {
    /// The threads of another runtime.
    pub fn new(threads: Handle) -> Self {
        Self(threads)
    }

    /// Has it done there.
    pub fn start<F>(&self, work: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.0.spawn(work)
    }

    /// An answer that is made there.
    pub async fn answer(&self, work: impl Future<Output = Response> + Send + 'static) -> Response {
        self.start(work).await.unwrap_or_else(|_| {
            error(StatusCode::INTERNAL_SERVER_ERROR, "the answer could not be made")
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use axum::response::IntoResponse as _;
    use tokio::runtime::{Builder, Runtime};

    use super::*;

    fn threads() -> Runtime {
        Builder::new_multi_thread().worker_threads(1).build().unwrap()
    }

    #[tokio::test]
    async fn what_takes_long_there_holds_nobody_up_here() {
        let threads = threads();
        let beside = Beside::new(threads.handle().clone());
        let (go_on, told) = mpsc::channel::<()>();
        let long = beside.start(async move { told.recv().is_ok() });
        // Here others go on, which is what ends it.
        tokio::spawn(async move { go_on.send(()) }).await.unwrap().unwrap();
        assert!(long.await.unwrap());
        threads.shutdown_background();
    }

    #[tokio::test]
    async fn an_answer_that_panics_is_an_answer() {
        let threads = threads();
        let beside = Beside::new(threads.handle().clone());
        let answer = beside.answer(async { panic!("a fault of ours") }).await;
        assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
        let next = beside.answer(async { "well".into_response() }).await;
        assert_eq!(next.status(), StatusCode::OK);
        threads.shutdown_background();
    }
}
