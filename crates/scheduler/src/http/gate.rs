//! Limits on every request: how large, how long, how many at once. Whoever meets one is told so.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::metrics::{Reason, Shared};

/// How much is taken in.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The largest body, in bytes.
    pub body: usize,
    /// How long a body may take to arrive.
    pub arrive: Duration,
    /// How many requests are worked on at once.
    pub at_once: usize,
    /// How long a request waits for its turn.
    pub turn: Duration,
}

/// A door with limits.
#[derive(Debug, Clone)]
pub struct Gate {
    limits: Limits,
    room: Arc<Semaphore>,
    metrics: Shared,
}

impl Gate {
    /// A door of these limits.
    pub fn new(limits: Limits, metrics: Shared) -> Self {
        Self { limits, room: Arc::new(Semaphore::new(limits.at_once)), metrics }
    }

    /// A place to work in, once there is one.
    pub async fn enter(&self) -> Result<SemaphorePermit<'_>, Box<Response>> {
        self.enter_within(self.limits.turn).await
    }

    /// The same for a caller that waits for at most so long.
    pub async fn enter_within(&self, turn: Duration) -> Result<SemaphorePermit<'_>, Box<Response>> {
        let turn = turn.min(self.limits.turn);
        match tokio::time::timeout(turn, self.room.acquire()).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) | Err(_) => Err(self.refuse(
                StatusCode::SERVICE_UNAVAILABLE,
                "busy",
                "too many requests at once; try again",
            )),
        }
    }

    /// The whole body, within the limits. No body is an error, as with the systems we replace.
    pub async fn body(&self, body: Body) -> Result<Bytes, Box<Response>> {
        self.body_within(body, self.limits.arrive).await
    }

    /// The same for a body that takes at most so long.
    pub async fn body_within(&self, body: Body, arrive: Duration) -> Result<Bytes, Box<Response>> {
        let read = axum::body::to_bytes(body, self.limits.body);
        let bytes = match tokio::time::timeout(arrive.min(self.limits.arrive), read).await {
            Ok(Ok(bytes)) => bytes,
            Ok(Err(error)) => {
                let text = std::error::Error::source(&error).map(ToString::to_string);
                let over = text.is_some_and(|text| text.contains("length limit"));
                return Err(if over {
                    let why = format!("the body is larger than {} bytes", self.limits.body);
                    self.refuse(StatusCode::PAYLOAD_TOO_LARGE, "body-too-large", &why)
                } else {
                    self.refuse(
                        StatusCode::BAD_REQUEST,
                        "body-broken",
                        "the body did not arrive whole",
                    )
                });
            }
            Err(_) => {
                let why = "the body did not arrive in time";
                return Err(self.refuse(StatusCode::REQUEST_TIMEOUT, "body-slow", why));
            }
        };
        if bytes.is_empty() {
            let why = "Please send a request body";
            return Err(self.refuse(StatusCode::BAD_REQUEST, "no-body", why));
        }
        Ok(bytes)
    }

    /// An answer that says no.
    pub fn refuse(&self, status: StatusCode, reason: &'static str, why: &str) -> Box<Response> {
        self.metrics.turned_away.get_or_create(&Reason { reason }).inc();
        Box::new(error(status, why))
    }
}

/// `{"error": "..."}`.
pub(crate) fn error(status: StatusCode, why: &str) -> Response {
    let body = serde_json::json!({"error": why}).to_string();
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}
