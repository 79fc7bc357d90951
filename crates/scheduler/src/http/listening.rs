//! Addresses: plain on loopback, mutual TLS elsewhere, plain elsewhere only if somebody insists.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use axum::Router;
use axum_server::accept::{Accept, NoDelayAcceptor};
use axum_server::service::SendService;
use axum_server::tls_rustls::{RustlsAcceptor, RustlsConfig};
use axum_server::{Handle, Server};
use http::Request;
use hyper::body::Incoming;
use telemetry::Stopping;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// How callers are known.
#[derive(Debug, Clone)]
pub enum Mode {
    /// By being on this machine: nobody else reaches a loopback address.
    Loopback,
    /// Not at all: plain HTTP, because somebody insists.
    Plain,
    /// By what they say over TLS.
    Tls(RustlsConfig),
    /// By a certificate of ours.
    Mutual(RustlsConfig),
}

/// An address and what is served there.
#[derive(Debug)]
pub struct Listener {
    /// Where.
    pub address: SocketAddr,
    /// For whom.
    pub mode: Mode,
    /// What.
    pub router: Router,
}

/// Why an address cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Anyone who reaches it could bind pods.
    #[error(
        "{0} is not a loopback address: use --secure-address for mutual TLS, or add --insecure if everyone who reaches it may bind pods"
    )]
    Exposed(SocketAddr),
    /// The address cannot be had.
    #[error("cannot listen on {address} (end who has it, or give another address)")]
    Taken {
        /// Which.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// How long a connection may do nothing between requests, or take to send a request's head: hyper
/// counts both as one. Longer than kube-scheduler keeps a connection it does not use (90 seconds), so
/// that it is never we who close one just when the next request is sent.
const HEAD: Duration = Duration::from_mins(2);
/// How many requests may be under way on one connection of HTTP/2; more wait.
const STREAMS: u32 = 128;
/// How long until an address is tried again.
const AGAIN: Duration = Duration::from_millis(500);
/// How long a TLS handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Waits until these addresses can be listened on, for at most `patience` in all.
///
/// While nobody listens there, the kernel may give the port to a connection that somebody opens, and
/// keeps it a minute longer than that lasts. A container that ends for it would be started again later and later.
pub async fn wait_until_free(
    addresses: impl IntoIterator<Item = SocketAddr>,
    patience: Duration,
) -> Result<(), ListenError> {
    let started = Instant::now();
    for address in addresses {
        let mut told = false;
        while let Err(source) = std::net::TcpListener::bind(address) {
            let in_use = source.kind() == io::ErrorKind::AddrInUse;
            if !in_use || started.elapsed() + AGAIN > patience {
                return Err(ListenError::Taken { address, source });
            }
            if !told {
                tracing::warn!(%address, ?patience, "address in use; tried again for a while");
                told = true;
            }
            tokio::time::sleep(AGAIN).await;
        }
    }
    Ok(())
}

impl Listener {
    /// Takes the address, so that an error shows at the start.
    pub fn bind(self) -> Result<Bound, ListenError> {
        let address = self.address;
        if matches!(self.mode, Mode::Loopback) && !address.ip().is_loopback() {
            return Err(ListenError::Exposed(address));
        }
        let taken = |source| ListenError::Taken { address, source };
        let listener = std::net::TcpListener::bind(address).map_err(taken)?;
        listener.set_nonblocking(true).map_err(taken)?;
        let address = listener.local_addr().map_err(taken)?;
        Ok(Bound { listener, address, mode: self.mode, router: self.router })
    }
}

/// An address that is ours.
#[derive(Debug)]
pub struct Bound {
    listener: std::net::TcpListener,
    /// Where; the port is known even if it was left to the system.
    pub address: SocketAddr,
    mode: Mode,
    router: Router,
}

/// Serves until asked to stop; then finishes what has begun, for at most `drain`.
pub async fn serve(bound: Bound, mut stopping: Stopping, drain: Duration) -> io::Result<()> {
    let handle = Handle::new();
    let stop = handle.clone();
    tokio::spawn(async move {
        stopping.asked().await;
        stop.graceful_shutdown(Some(drain));
    });
    let listener = bound.listener;
    match bound.mode {
        Mode::Loopback | Mode::Plain => {
            let server = axum_server::from_tcp(listener)?.acceptor(NoDelayAcceptor);
            answer(server.http1_only(), handle, bound.router).await
        }
        Mode::Tls(config) => {
            let server = axum_server::from_tcp(listener)?.acceptor(over_tls(config));
            answer(server.http1_only(), handle, bound.router).await
        }
        Mode::Mutual(config) => {
            let mut server = axum_server::from_tcp(listener)?.acceptor(over_tls(config));
            let timer = hyper_util::rt::TokioTimer::new();
            let mut http2 = server.http_builder().http2();
            http2.timer(timer).max_concurrent_streams(STREAMS).keep_alive_interval(HEAD);
            answer(server, handle, bound.router).await
        }
    }
}

fn over_tls(config: RustlsConfig) -> RustlsAcceptor<NoDelayAcceptor> {
    RustlsAcceptor::new(config).handshake_timeout(HANDSHAKE).acceptor(NoDelayAcceptor)
}

/// Answers are written in one piece, so there is nothing to wait for (`NoDelayAcceptor`). HTTP/1, whose limits are
/// those we know; HTTP/2 only with who has a certificate of ours: kube-scheduler keeps two connections of HTTP/1
/// at most, and while pods come fast it would make a new one, with a handshake, for nearly every bind.
async fn answer<A>(
    server: Server<SocketAddr, A>,
    handle: Handle<SocketAddr>,
    router: Router,
) -> io::Result<()>
where
    A: Accept<TcpStream, Router> + Clone + Send + Sync + 'static,
    A::Stream: AsyncRead + AsyncWrite + Unpin + Send,
    A::Service: SendService<Request<Incoming>> + Send,
    A::Future: Send,
{
    let mut server = server.handle(handle);
    let timer = hyper_util::rt::TokioTimer::new();
    server.http_builder().http1().timer(timer).header_read_timeout(HEAD);
    server.serve(router.into_make_service()).await
}
