//! What people and tools may ask: what there is, who has it, why a pod waits, what would happen.

mod events;
mod history;
mod inspect;
mod openapi;
mod scope;
mod shapes;
mod simulate;
mod snapshot;
mod status;
mod why;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use kubeapi::May;

pub use events::Live;
pub(crate) use history::keep;

use self::scope::Scope;
use crate::http::Reading;

type Shared = State<Arc<Reading>>;

/// The routes, each by a token, and each within the limits. A stream has limits of its own.
pub(crate) fn routes(reading: &Arc<Reading>) -> Router {
    let stream = Router::new().route("/api/v1/events", get(events::events));
    let single = Router::new()
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
        .route("/api/v1/history", get(history))
        .route("/api/v1/snapshot", get(snapshot))
        .route("/api/v1/why/{namespace}/{pod}", get(why))
        .route("/api/v1/simulate", post(simulate))
        .route("/api/v1/openapi.json", get(openapi))
        .merge(crate::dashboard::routes())
        .layer(from_fn_with_state(reading.clone(), gated));
    single.merge(stream).with_state(reading.clone())
}

/// A place to work in for every request, before anything is done for it.
async fn gated(State(reading): Shared, request: Request, next: Next) -> Response {
    let _turn = match reading.gate.enter().await {
        Ok(turn) => turn,
        Err(busy) => return *busy,
    };
    reading.beside.answer(next.run(request)).await
}

/// Checks the caller, then answers.
macro_rules! guarded {
    ($name:ident, $may:expr, $answer:expr) => {
        async fn $name(State(reading): Shared, headers: HeaderMap) -> Response {
            if let Err(no) = reading.check(&headers, $may).await {
                return *no;
            }
            axum::Json($answer(&reading.service)).into_response()
        }
    };
}

guarded!(inspect_all, May::SeeAllPods, |s: &crate::service::Service| inspect::all(s));
guarded!(status, May::SeeNodes, status::status);
guarded!(nodes, May::SeeNodes, shapes::nodes);
guarded!(devices, May::SeeNodes, shapes::devices);
guarded!(decisions, May::SeeAllPods, |s: &crate::service::Service| s.decisions.all());
guarded!(snapshot, May::SeeAllPods, snapshot::export);

async fn pods(State(reading): Shared, Query(scope): Query<Scope>, headers: HeaderMap) -> Response {
    scope.answer(&reading, &headers, shapes::pods).await
}

async fn shares(
    State(reading): Shared,
    Query(scope): Query<Scope>,
    headers: HeaderMap,
) -> Response {
    scope.answer(&reading, &headers, shapes::shares).await
}

async fn quotas(
    State(reading): Shared,
    Query(scope): Query<Scope>,
    headers: HeaderMap,
) -> Response {
    scope.answer(&reading, &headers, shapes::quotas).await
}

async fn history(State(reading): Shared, headers: HeaderMap) -> Response {
    match reading.check(&headers, May::SeeNodes).await {
        Ok(()) => axum::Json(reading.live.history.shown()).into_response(),
        Err(no) => *no,
    }
}

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
    if let Some(answer) = why::why(&reading.service, &namespace, &pod) {
        return axum::Json(answer).into_response();
    }
    let why = format!("nanogpu knows no pod {namespace}/{pod} that asks for a card");
    crate::http::error(StatusCode::NOT_FOUND, &why)
}

async fn simulate(State(reading): Shared, headers: HeaderMap, request: Request) -> Response {
    if let Err(no) = reading.check_known(&headers).await {
        return *no;
    }
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
    axum::Json(simulate::simulate(&reading.service, &asked)).into_response()
}

async fn openapi() -> Response {
    axum::Json(openapi::document()).into_response()
}
