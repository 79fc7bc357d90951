//! The way to the scheduler's read API.
//!
//! The API server's service proxy drops the `Authorization` header, and the read API wants the
//! caller's own token. So a tunnel is opened through the API server to a scheduler pod (as
//! `kubectl port-forward` does), and TLS and the token go through it. With `--server` the
//! scheduler is asked directly.

mod token;
mod trust;
mod tunnel;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::cluster::Cluster;
use crate::options::Place;
use crate::wire;

/// The name of the scheduler's Service, Lease, webhook and label.
pub const SCHEDULER: &str = "nanogpu-scheduler";
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Why an answer did not come.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The scheduler could not be reached.
    #[error("{0:#}")]
    Unreachable(anyhow::Error),
    /// It answered that it will not.
    #[error("{error}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// Its sentence.
        error: String,
    },
}

/// A scheduler that can be asked.
#[derive(Debug)]
pub struct Scheduler {
    way: Way,
    /// What is shown to it, or why there is nothing to show: it may let everyone read.
    token: Result<String, String>,
}

#[derive(Debug)]
enum Way {
    Plain { authority: String },
    Tls { authority: String, host: ServerName<'static>, trust: Arc<ClientConfig> },
    Tunnel { tunnel: Box<tunnel::Tunnel>, host: ServerName<'static>, trust: Arc<ClientConfig> },
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Scheduler {
    /// Finds the scheduler of a cluster.
    pub async fn find(cluster: &Cluster, place: &Place) -> Result<Self, AskError> {
        if place.no_scheduler {
            let asked = anyhow::anyhow!("--no-scheduler was given");
            return Err(AskError::Unreachable(asked));
        }
        Self::look(cluster, place).await.map_err(AskError::Unreachable)
    }

    async fn look(cluster: &Cluster, place: &Place) -> anyhow::Result<Self> {
        let system = &place.system_namespace;
        let token = token::own(cluster, system).await.map_err(|error| format!("{error:#}"));
        let Some(url) = &place.server else {
            let tunnel = Box::new(tunnel::Tunnel::find(cluster, system).await?);
            let host = ServerName::try_from(format!("{SCHEDULER}.{system}.svc"))?;
            let trust = trust::through_a_tunnel(cluster, place).await?;
            return Ok(Self { way: Way::Tunnel { tunnel, host, trust }, token });
        };
        let uri: http::Uri = url.parse().with_context(|| format!("--server {url} is no URL"))?;
        let host = uri.host().with_context(|| format!("--server {url} names no host"))?.to_owned();
        match uri.scheme_str() {
            Some("http") => {
                let loopback = host == "localhost"
                    || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
                if !loopback && !place.insecure_server {
                    bail!(
                        "--server {url} would send your token unencrypted; use https, or add --insecure-server"
                    );
                }
                let authority = format!("{host}:{}", uri.port_u16().unwrap_or(80));
                Ok(Self { way: Way::Plain { authority }, token })
            }
            Some("https") => {
                let authority = format!("{host}:{}", uri.port_u16().unwrap_or(443));
                let trust = trust::at_an_address(cluster, place).await?;
                let host = ServerName::try_from(host)?;
                Ok(Self { way: Way::Tls { authority, host, trust }, token })
            }
            _ => bail!("--server {url} must begin with https:// or http://"),
        }
    }

    /// How it is reached, for people.
    pub fn way(&self) -> String {
        match &self.way {
            Way::Plain { authority } => format!("http://{authority}"),
            Way::Tls { authority, .. } => format!("https://{authority}"),
            Way::Tunnel { tunnel, .. } => tunnel.to_string(),
        }
    }

    /// What it says at `path`.
    pub async fn get(&self, path: &str) -> Result<Value, AskError> {
        self.read(self.send(http::Method::GET, path, Bytes::new()).await?)
    }

    /// The text it says at `path`.
    pub async fn text(&self, path: &str) -> Result<String, AskError> {
        let (status, body) = self.send(http::Method::GET, path, Bytes::new()).await?;
        let text = String::from_utf8_lossy(&body).trim().to_owned();
        if status == 200 { Ok(text) } else { Err(AskError::Refused { status, error: text }) }
    }

    /// What it says to this.
    pub async fn post(&self, path: &str, body: String) -> Result<Value, AskError> {
        self.read(self.send(http::Method::POST, path, body.into()).await?)
    }

    fn read(&self, (status, body): (u16, Bytes)) -> Result<Value, AskError> {
        if status == 200 {
            let read = serde_json::from_slice(&body).context("the scheduler's answer is no JSON");
            return read.map_err(AskError::Unreachable);
        }
        let mut error = match serde_json::from_slice::<wire::Refused>(&body) {
            Ok(refused) => refused.error,
            Err(_) => format!("the scheduler answered with status {status}"),
        };
        if let (401, Err(why)) = (status, &self.token) {
            error = format!("{error}; {why}");
        }
        Err(AskError::Refused { status, error })
    }

    async fn send(
        &self,
        method: http::Method,
        path: &str,
        body: Bytes,
    ) -> Result<(u16, Bytes), AskError> {
        let answer = tokio::time::timeout(PATIENCE, self.exchange(method, path, body));
        match answer.await {
            Ok(answer) => answer.map_err(AskError::Unreachable),
            Err(_) => Err(AskError::Unreachable(anyhow::anyhow!(
                "{} does not answer within {} seconds",
                self.way(),
                PATIENCE.as_secs()
            ))),
        }
    }

    async fn exchange(
        &self,
        method: http::Method,
        path: &str,
        body: Bytes,
    ) -> anyhow::Result<(u16, Bytes)> {
        let answer = self.forward(method, path, body).await?;
        let status = answer.status().as_u16();
        Ok((status, answer.into_body().collect().await?.to_bytes()))
    }

    /// Its answer, whose body comes as it is written: some have no end.
    pub async fn forward(
        &self,
        method: http::Method,
        path: &str,
        body: Bytes,
    ) -> anyhow::Result<http::Response<Incoming>> {
        let (stream, host) =
            self.stream().await.with_context(|| format!("reach {}", self.way()))?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .with_context(|| format!("speak HTTP with {}", self.way()))?;
        // It ends when the answer is here and the sender is dropped.
        tokio::spawn(connection);
        let mut request = http::Request::builder()
            .method(method)
            .uri(path)
            .header(http::header::HOST, host)
            .header(http::header::CONNECTION, "close");
        if let Ok(token) = &self.token {
            request = request.header(http::header::AUTHORIZATION, format!("Bearer {token}"));
        }
        Ok(sender.send_request(request.body(Full::new(body))?).await?)
    }

    async fn stream(&self) -> anyhow::Result<(Box<dyn Stream>, String)> {
        Ok(match &self.way {
            Way::Plain { authority } => {
                (Box::new(TcpStream::connect(authority).await?), authority.clone())
            }
            Way::Tls { authority, host, trust } => {
                let stream = TcpStream::connect(authority).await?;
                (Box::new(secured(stream, host, trust).await?), authority.clone())
            }
            Way::Tunnel { tunnel, host, trust } => {
                let stream = tunnel.open().await?;
                (Box::new(secured(stream, host, trust).await?), host.to_str().into_owned())
            }
        })
    }
}

async fn secured<S: Stream>(
    stream: S,
    host: &ServerName<'static>,
    trust: &Arc<ClientConfig>,
) -> anyhow::Result<tokio_rustls::client::TlsStream<S>> {
    let connector = tokio_rustls::TlsConnector::from(trust.clone());
    connector.connect(host.clone(), stream).await.context("speak TLS with the scheduler")
}
