//! Who may read: a Kubernetes token, and rights to list the pods that are shown.

use std::sync::Arc;

use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use kubeapi::{Caller, May, ReviewError, Reviews};

use super::beside::Beside;
use super::gate::Gate;
use crate::api::Live;
use crate::service::Service;

/// What the read API reaches.
#[derive(Debug)]
pub struct Reading {
    /// The extender.
    pub service: Arc<Service>,
    /// Asks the API server; nothing means that everyone may read, because somebody insists.
    pub reviews: Option<Reviews>,
    /// Limits.
    pub gate: Gate,
    /// Streams and history.
    pub live: Live,
    /// Where answers are made.
    pub beside: Beside,
}

impl Reading {
    /// Whether the sender of `headers` is anybody: before anything else of theirs is read.
    pub async fn check_known(&self, headers: &HeaderMap) -> Result<(), Box<Response>> {
        let Some(reviews) = &self.reviews else { return Ok(()) };
        self.caller(reviews, headers).await.map(|_| ())
    }

    async fn caller(
        &self,
        reviews: &Reviews,
        headers: &HeaderMap,
    ) -> Result<Caller, Box<Response>> {
        let token = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.strip_prefix("Bearer "));
        let Some(token) = token else { return Err(self.turn_away(&ReviewError::Unknown)) };
        reviews.who(token).await.map_err(|error| self.turn_away(&error))
    }

    /// Whether the sender of `headers` may.
    pub async fn check(&self, headers: &HeaderMap, may: May) -> Result<(), Box<Response>> {
        let Some(reviews) = &self.reviews else { return Ok(()) };
        let caller = self.caller(reviews, headers).await?;
        match reviews.may(&caller, &may).await {
            Ok(true) => Ok(()),
            Ok(false) => {
                let what = match &may {
                    May::SeePods(namespace) => format!("list pods in namespace {namespace}"),
                    May::SeeAllPods => "list pods in all namespaces".to_owned(),
                    May::SeeNodes => "list nodes".to_owned(),
                };
                let why = format!("{} may not {what}", caller.name);
                Err(self.gate.refuse(StatusCode::FORBIDDEN, "forbidden", &why))
            }
            Err(error) => Err(self.turn_away(&error)),
        }
    }

    #[expect(
        clippy::unnecessary_box_returns,
        reason = "as large an error is boxed everywhere here"
    )]
    fn turn_away(&self, error: &ReviewError) -> Box<Response> {
        match error {
            ReviewError::Unknown => {
                self.gate.refuse(StatusCode::UNAUTHORIZED, "no-token", &error.to_string())
            }
            ReviewError::Unasked(_) => {
                self.gate.refuse(StatusCode::SERVICE_UNAVAILABLE, "unasked", &error.to_string())
            }
        }
    }
}
