//! Whose pods are asked about: all, or those of one namespace, which wants fewer rights.

use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use kubeapi::May;
use serde::Deserialize;
use serde_json::Value;

use crate::http::Reading;
use crate::service::Service;

/// `?namespace=team`, or nothing for all.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Scope {
    pub(super) namespace: Option<String>,
}

impl Scope {
    pub(super) fn may(&self) -> May {
        match &self.namespace {
            Some(namespace) => May::SeePods(namespace.clone()),
            None => May::SeeAllPods,
        }
    }

    pub(super) fn includes(&self, namespace: &str) -> bool {
        self.namespace.as_deref().is_none_or(|only| only == namespace)
    }

    /// Checks the caller, then answers with the part of `list` that is in scope.
    pub(super) async fn answer(
        &self,
        reading: &Reading,
        headers: &HeaderMap,
        list: fn(&Service) -> Vec<Value>,
    ) -> Response {
        if let Err(no) = reading.check(headers, self.may()).await {
            return *no;
        }
        let mut all = list(&reading.service);
        all.retain(|each| self.includes(each["namespace"].as_str().unwrap_or_default()));
        axum::Json(all).into_response()
    }
}
