//! A gRPC server on a unix socket, with a clean end.

use std::path::Path;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::server::Router;

use crate::heads;
use crate::socket::{Bound, SocketError};

/// How long calls that are under way may take when a server ends.
const LAST_CALLS: Duration = Duration::from_secs(5);

/// Something served on a socket. Dropping it ends it, without waiting for calls under way.
#[derive(Debug)]
pub(crate) struct Serving {
    end: watch::Sender<bool>,
    socket: Bound,
    task: JoinHandle<Result<(), tonic::transport::Error>>,
}

impl Serving {
    /// Serves `router` at `path` until `end` is true. Long streams of the router must end then too,
    /// or they are waited for.
    pub(crate) async fn start(
        path: &Path,
        router: Router,
        end: watch::Sender<bool>,
    ) -> Result<Self, SocketError> {
        let (socket, listener) = Bound::make(path).await?;
        let mut ended = end.subscribe();
        let served =
            router.serve_with_incoming_shutdown(UnixListenerStream::new(listener), async move {
                let _ = ended.wait_for(|end| *end).await;
            });
        Ok(Self { end, socket, task: tokio::spawn(served) })
    }

    /// The same for clients that may call the server by any name: all they call is `method`.
    pub(crate) async fn start_by_any_name(
        path: &Path,
        router: Router,
        method: &'static str,
        end: watch::Sender<bool>,
    ) -> Result<Self, SocketError> {
        let (socket, listener) = Bound::make(path).await?;
        let mut ended = end.subscribe();
        let clients = UnixListenerStream::new(listener)
            .map(move |client| client.map(|client| heads::replaced(client, method)));
        let served = router.serve_with_incoming_shutdown(clients, async move {
            let _ = ended.wait_for(|end| *end).await;
        });
        Ok(Self { end, socket, task: tokio::spawn(served) })
    }

    /// Whether it is served, at the path it was made for.
    pub(crate) fn in_place(&self) -> bool {
        self.socket.in_place() && !self.task.is_finished()
    }

    /// Ends all streams, waits a little for other calls, and returns when nothing is served.
    pub(crate) async fn end(mut self) {
        self.end.send_replace(true);
        if tokio::time::timeout(LAST_CALLS, &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.end.send_replace(true);
    }
}
