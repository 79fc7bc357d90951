//! Replicas: one that does not lead hands what changes the cluster to the one that does.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper_util::rt::TokioIo;
use kubeapi::{Leadership, Recorder, Term, Told};
use model::Moment;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::service::Answer;
use crate::sparing::Sparing;
use crate::verbs::bind::{BindError, BoundPod};
use crate::verbs::wire::{BindResult, FilterResult, PreemptResult};

/// Header of a bind that was handed on, so that it is not handed on again.
pub const FORWARDED: &str = "x-nanogpu-forwarded";

/// The name replicas know one another by in their certificates.
pub const PEER_NAME: &str = "nanogpu-scheduler-peer";

/// How to call another replica; it changes when certificates are renewed.
pub type Calling = Arc<ArcSwap<ClientConfig>>;

/// The other replicas.
pub struct Peers {
    leadership: Arc<dyn Leadership>,
    /// How to reach the leader; nothing if there is only one replica.
    tls: Option<Calling>,
    recorder: Option<Recorder>,
    sparing: Sparing,
    patience: Duration,
}

impl std::fmt::Debug for Peers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peers").field("patience", &self.patience).finish_non_exhaustive()
    }
}

/// Why the leader was not reached.
#[derive(Debug, thiserror::Error)]
enum Unreached {
    #[error("the leader's name is no name")]
    Name(#[from] rustls::pki_types::InvalidDnsNameError),
    #[error("connection failed: {0}")]
    Connect(#[from] std::io::Error),
    #[error("request failed: {0}")]
    Http(#[from] hyper::Error),
    #[error("request could not be made: {0}")]
    Request(#[from] http::Error),
}

impl Peers {
    /// Hands binds on by `tls`.
    pub fn new(
        leadership: Arc<dyn Leadership>,
        tls: Option<Calling>,
        recorder: Option<Recorder>,
        patience: Duration,
    ) -> Self {
        Self { leadership, tls, recorder, sparing: Sparing::default(), patience }
    }

    /// The leader's answer to a bind. Nothing: we lead, or know of no leader.
    pub async fn forward(&self, body: &Bytes) -> Option<Answer> {
        let error = BindError::NotLeading.to_string();
        let unreached = serde_json::to_vec(&BindResult { error }).unwrap_or_default();
        let answer = self.ask_leader("/nanogpu/bind", body).await?;
        Some(answer.unwrap_or(Answer { status: 200, body: unreached }))
    }

    /// The leader's answer to a decision in filter. Nothing: we lead, or know of no leader.
    pub async fn forward_predicate(&self, body: &Bytes) -> Option<Answer> {
        let error = FilterResult::error(BindError::NotLeading.to_string());
        let unreached = serde_json::to_vec(&error).unwrap_or_default();
        let answer = self.ask_leader("/nanogpu/predicates", body).await?;
        Some(answer.unwrap_or(Answer { status: 200, body: unreached }))
    }

    /// The leader's answer to whom to evict: only it knows whom it evicts itself. Nothing: we lead,
    /// or know of no leader. A leader that is not reached names nobody.
    pub async fn forward_preempt(&self, body: &Bytes) -> Option<Answer> {
        let unreached = serde_json::to_vec(&PreemptResult::default()).unwrap_or_default();
        let answer = self.ask_leader("/nanogpu/preempt", body).await?;
        Some(answer.unwrap_or(Answer { status: 200, body: unreached }))
    }

    /// Lets the leader know of a pod that was refused here, so that it is woken, and others are
    /// evicted for it. False: nobody else knows of it.
    pub async fn pass_on(&self, body: &Bytes) -> bool {
        let answer = self.ask_leader("/nanogpu/filter", body).await;
        answer.flatten().is_some_and(|answer| answer.status == 200)
    }

    /// Whether another replica leads and can be told of things.
    pub fn has_leader(&self) -> bool {
        let others = matches!(self.leadership.term(), Term::Others { address: Some(_) });
        others && self.tls.is_some()
    }

    /// What the leader answers, or that it did not; nothing if there is none but us.
    async fn ask_leader(&self, path: &str, body: &Bytes) -> Option<Option<Answer>> {
        let Term::Others { address: Some(address) } = self.leadership.term() else { return None };
        let tls = self.tls.as_ref()?.load_full();
        let sent = send(&address, tls, path, body.clone());
        Some(match tokio::time::timeout(self.patience, sent).await {
            Ok(Ok(answer)) => Some(answer),
            Ok(Err(error)) => {
                tracing::warn!(address, %error, "leader not reached");
                None
            }
            Err(_) => {
                tracing::warn!(address, "leader did not answer");
                None
            }
        })
    }

    /// Tells the pod's author what was read differently from what is written, and, unless too many
    /// are bound at once, which cards it got.
    pub fn tell_notes(&self, bound: &BoundPod, now: Moment) {
        let Some(recorder) = self.recorder.clone() else { return };
        let chosen = || Told {
            pod: bound.pod.clone(),
            reason: "CardsChosen",
            note: format!("nanogpu placed the pod: {}", bound.placement),
            warning: false,
        };
        let mut tell: Vec<Told> = self.sparing.may(now).then(chosen).into_iter().collect();
        tell.extend(bound.notes.iter().map(|note| Told {
            pod: bound.pod.clone(),
            reason: "ReadDifferently",
            note: note.clone(),
            warning: true,
        }));
        if tell.is_empty() {
            return;
        }
        tokio::spawn(async move {
            for told in tell {
                recorder.tell(told).await;
            }
        });
    }

    /// Tells something of a pod.
    pub async fn tell(&self, told: Told) {
        if let Some(recorder) = &self.recorder {
            recorder.tell(told).await;
        }
    }
}

async fn send(
    address: &str,
    tls: Arc<ClientConfig>,
    path: &str,
    body: Bytes,
) -> Result<Answer, Unreached> {
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from(PEER_NAME)?;
    let stream = TlsConnector::from(tls).connect(name, stream).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let request = Request::post(path)
        .header("host", PEER_NAME)
        .header("content-type", "application/json")
        .header(FORWARDED, "1")
        .body(Full::new(body))?;
    let response = sender.send_request(request).await?;
    let status = response.status().as_u16();
    let body = response.into_body().collect().await?.to_bytes().to_vec();
    connection.abort();
    Ok(Answer { status, body })
}
