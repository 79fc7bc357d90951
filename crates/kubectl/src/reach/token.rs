//! A token to show to the scheduler: the caller's own, or, for callers whom the API server knows by
//! a certificate, a short-lived one of the account `nanogpu-viewer`.

use anyhow::Context as _;
use bytes::Bytes;
use http_body_util::Full;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Api;
use kube::api::PostParams;
use kube::client::ConfigExt as _;
use tower::{Layer as _, ServiceExt as _};

use crate::cluster::{Cluster, said};

/// The account whose rights are to list pods and nodes.
pub(crate) const VIEWER: &str = "nanogpu-viewer";

/// The shortest time the API server gives a token for.
const SECONDS: i64 = 600;

/// A token, from wherever the kubeconfig has one: written there, a file, or a program.
pub(super) async fn own(cluster: &Cluster, system: &str) -> anyhow::Result<String> {
    match of_kubeconfig(cluster).await? {
        Some(token) => Ok(token),
        None => of_viewer(cluster, system).await,
    }
}

/// kube's own layer knows every place a token can come from, so it is asked to add one to a
/// request that goes nowhere.
async fn of_kubeconfig(cluster: &Cluster) -> anyhow::Result<Option<String>> {
    let Some(layer) = cluster.config.auth_layer().context("the kubeconfig's user")? else {
        return Ok(None);
    };
    let echo = tower::service_fn(async |request: http::Request<Full<Bytes>>| {
        let mut answer = http::Response::new(());
        *answer.headers_mut() = request.headers().clone();
        Ok::<_, tower::BoxError>(answer)
    });
    let request = http::Request::new(Full::default());
    let answer = layer.layer(echo).oneshot(request).await.map_err(anyhow::Error::from_boxed)?;
    let header = answer.headers().get(http::header::AUTHORIZATION);
    let text = header.and_then(|header| header.to_str().ok());
    Ok(text.and_then(|text| text.strip_prefix("Bearer ")).map(str::to_owned))
}

async fn of_viewer(cluster: &Cluster, system: &str) -> anyhow::Result<String> {
    let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client.clone(), system);
    let spec =
        TokenRequestSpec { expiration_seconds: Some(SECONDS), ..TokenRequestSpec::default() };
    let request = TokenRequest { spec, ..TokenRequest::default() };
    let made = accounts.create_token_request(VIEWER, &PostParams::default(), &request).await;
    let made = made.map_err(|error| {
        anyhow::anyhow!(
            "your kubeconfig has a certificate and no token, and a token of {system}/{VIEWER} cannot be had: {}",
            said(&error)
        )
    })?;
    Ok(made.status.context("a token request without an answer")?.token)
}
