//! What people and tools may ask: what there is, who has it, why a pod waits, what would happen.

mod inspect;
mod openapi;
mod shapes;
mod simulate;
mod snapshot;
mod status;
mod why;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use kubeapi::May;

use crate::http::Reading;

type Shared = State<Arc<Reading>>;

/// The routes, each by a token.
pub(crate) fn routes(reading: &Arc<Reading>) -> Router {
    Router::new()
        .route("/gpushare-scheduler/inspect", get(inspect_all))
        .route("/gpushare-scheduler/inspect/{node}", get(inspect_node))
        .route("/scheduler/status", get(status))
        .route("/status", post(status))
        .route("/api/v1/nodes", get(nodes))
        .route("/api/v1/devices", get(devices))
        .route("/api/v1/pods", get(pods))
        .route("/api/v1/shares", get(shares))
        .route("/api/v1/quotas", get(quotas))
        .route("/api/v1/decisions", get(decisions))
        .route("/api/v1/snapshot", get(snapshot))
        .route("/api/v1/why/{namespace}/{pod}", get(why))
        .route("/api/v1/simulate", post(simulate))
        .route("/api/v1/openapi.json", get(openapi))
        .with_state(reading.clone())
}

/// Checks the caller and a place to work in, then answers.
macro_rules! guarded {
    ($name:ident, $may:expr, $answer:expr) => {
        async fn $name(State(reading): Shared, headers: HeaderMap) -> Response {
            if let Err(no) = reading.check(&headers, $may).await {
                return *no;
            }
            let _turn = match reading.gate.enter().await {
                Ok(turn) => turn,
                Err(busy) => return *busy,
            };
            axum::Json($answer(&reading.service)).into_response()
        }
    };
}

guarded!(inspect_all, May::SeeAllPods, |s: &crate::service::Service| inspect::all(s));
guarded!(status, May::SeeNodes, status::status);
guarded!(nodes, May::SeeNodes, shapes::nodes);
guarded!(devices, May::SeeNodes, shapes::devices);
guarded!(pods, May::SeeAllPods, shapes::pods);
guarded!(shares, May::SeeAllPods, shapes::shares);
guarded!(quotas, May::SeeAllPods, shapes::quotas);
guarded!(decisions, May::SeeAllPods, |s: &crate::service::Service| s.decisions.all());
guarded!(snapshot, May::SeeAllPods, snapshot::export);

async fn inspect_node(
    State(reading): Shared,
    Path(node): Path<String>,
    headers: HeaderMap,
) -> Response {
    if let Err(no) = reading.check(&headers, May::SeeAllPods).await {
        return *no;
    }
    axum::Json(inspect::one(&reading.service, &node)).into_response()
}

async fn why(
    State(reading): Shared,
    Path((namespace, pod)): Path<(String, String)>,
    headers: HeaderMap,
) -> Response {
    if let Err(no) = reading.check(&headers, May::SeePods(namespace.clone())).await {
        return *no;
    }
    let _turn = match reading.gate.enter().await {
        Ok(turn) => turn,
        Err(busy) => return *busy,
    };
    if let Some(answer) = why::why(&reading.service, &namespace, &pod) {
        return axum::Json(answer).into_response();
    }
    let why = format!("nanogpu knows no pod {namespace}/{pod} that asks for a card");
    crate::http::error(StatusCode::NOT_FOUND, &why)
}

async fn simulate(State(reading): Shared, headers: HeaderMap, request: Request) -> Response {
    let body = match reading.gate.body(request.into_body()).await {
        Ok(body) => body,
        Err(no) => return *no,
    };
    let asked = match simulate::read(&reading.service, &body) {
        Ok(asked) => asked,
        Err(why) => return crate::http::error(StatusCode::UNPROCESSABLE_ENTITY, &why),
    };
    if let Err(no) = reading.check(&headers, May::SeePods(asked.namespace())).await {
        return *no;
    }
    let _turn = match reading.gate.enter().await {
        Ok(turn) => turn,
        Err(busy) => return *busy,
    };
    axum::Json(simulate::simulate(&reading.service, &asked)).into_response()
}

async fn openapi() -> Response {
    axum::Json(openapi::document()).into_response()
}
