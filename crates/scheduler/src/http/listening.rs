//! Addresses: plain on loopback, mutual TLS elsewhere, plain elsewhere only if somebody insists.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum_server::Handle;
use axum_server::tls_rustls::RustlsConfig;
use telemetry::Stopping;

/// How callers are known.
#[derive(Debug, Clone)]
pub enum Mode {
    /// By being on this machine: nobody else reaches a loopback address.
    Loopback,
    /// Not at all: plain HTTP, because somebody insists.
    Plain,
    /// By TLS; whether their certificate is asked for is in the configuration.
    Tls(RustlsConfig),
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
    #[error("cannot listen on {address}")]
    Taken {
        /// Which.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// How long a client may take to send a request's head.
const HEAD: Duration = Duration::from_secs(10);
/// How long a TLS handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);

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
    let service = bound.router.into_make_service();
    match bound.mode {
        Mode::Loopback | Mode::Plain => {
            let mut server = axum_server::from_tcp(bound.listener)?.handle(handle);
            server
                .http_builder()
                .http1()
                .timer(hyper_util::rt::TokioTimer::new())
                .header_read_timeout(HEAD);
            server.serve(service).await
        }
        Mode::Tls(config) => {
            let acceptor =
                axum_server::tls_rustls::RustlsAcceptor::new(config).handshake_timeout(HANDSHAKE);
            let mut server =
                axum_server::from_tcp(bound.listener)?.acceptor(acceptor).handle(handle);
            server
                .http_builder()
                .http1()
                .timer(hyper_util::rt::TokioTimer::new())
                .header_read_timeout(HEAD);
            server.serve(service).await
        }
    }
}
