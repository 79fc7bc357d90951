//! The routes: those of the systems we replace, and our own.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use telemetry::{Health, Numbers};
use tower_http::catch_panic::CatchPanicLayer;

use super::beside::Beside;
use super::gate::{Gate, error};
use super::reading::Reading;
use crate::admission::Admission;
use crate::metrics::Reason;
use crate::peers::Peers;
use crate::service::{Answer, Service};

/// What the routes reach.
#[derive(Debug)]
pub struct Doors {
    /// The extender.
    pub service: Arc<Service>,
    /// Hands to the leader what is its business.
    pub peers: Arc<Peers>,
    /// Limits of the verbs.
    pub gate: Gate,
    /// Limits of the webhook: whoever reaches it may send, and must not hold up a verb.
    pub webhook: Gate,
    /// Limits of `/metrics`, which is long.
    pub scrapes: Gate,
    /// Whether all is well.
    pub health: Arc<Health>,
    /// What `/metrics` shows.
    pub numbers: Arc<Numbers>,
    /// Where it is written.
    pub beside: Beside,
}

type Shared = State<Arc<Doors>>;

/// How long a bind may wait for its turn, and how long its few bytes may take. With
/// `--bind-seconds` this must stay below kube-scheduler's `httpTimeout`: an answer that nobody waits
/// for any more is one that nobody knows.
const BIND_DOOR: Duration = Duration::from_secs(2);

/// The extender's verbs, under every prefix people have configured.
pub fn verb_routes(doors: &Arc<Doors>) -> Router {
    let mut router = Router::new();
    for prefix in ["/scheduler", "/gpushare-scheduler", "/nanogpu"] {
        router = router
            .route(&format!("{prefix}/filter"), post(filter))
            .route(&format!("{prefix}/filter-dryrun"), post(filter_dry))
            .route(&format!("{prefix}/predicates"), post(predicates))
            .route(&format!("{prefix}/priorities"), post(prioritize))
            .route(&format!("{prefix}/prioritize"), post(prioritize))
            .route(&format!("{prefix}/bind"), post(bind))
            .route(&format!("{prefix}/preempt"), post(preempt));
    }
    finish(router.with_state(doors.clone()))
}

/// What a probe and a scraper read. Probes do no work to speak of and have no limit: they must be
/// answered above all when others are turned away.
pub fn health_routes(doors: &Arc<Doors>) -> Router {
    let router = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/version", get(|| async { env!("CARGO_PKG_VERSION") }))
        .route("/metrics", get(metrics));
    router.with_state(doors.clone())
}

/// What people and their tools read, each by a token of their own.
pub fn read_routes(reading: &Arc<Reading>) -> Router {
    crate::api::routes(reading)
}

/// The API server's webhook.
pub fn admission_routes(doors: &Arc<Doors>, admission: Arc<Admission>) -> Router {
    let doors = doors.clone();
    let review = move |request: Request| {
        let (doors, admission) = (doors.clone(), admission.clone());
        async move {
            let _turn = match doors.webhook.enter().await {
                Ok(turn) => turn,
                Err(busy) => return *busy,
            };
            match doors.webhook.body(request.into_body()).await {
                Ok(body) => send(admission.review(&body)),
                Err(refused) => *refused,
            }
        }
    };
    Router::new().route("/admission", post(review))
}

/// What all servers have beyond their routes: an answer to whatever else is asked, and an answer
/// even if a handler panics.
pub(crate) fn finish(router: Router) -> Router {
    router
        .fallback(|| async { error(StatusCode::NOT_FOUND, "there is no such route") })
        .method_not_allowed_fallback(|| async {
            error(StatusCode::METHOD_NOT_ALLOWED, "this route wants another method")
        })
        .layer(CatchPanicLayer::new())
}

async fn filter(State(doors): Shared, request: Request) -> Response {
    if let Some(not_ready) = not_ready(&doors) {
        return not_ready;
    }
    let _turn = match doors.gate.enter().await {
        Ok(turn) => turn,
        Err(busy) => return *busy,
    };
    let forwarded = request.headers().contains_key(crate::peers::FORWARDED);
    let body = match doors.gate.body(request.into_body()).await {
        Ok(body) => body,
        Err(refused) => return *refused,
    };
    if forwarded {
        return send(doors.service.refused_elsewhere(&body));
    }
    let (answer, refused) = doors.service.filter_noting(&body);
    if let Some(pod) = refused.filter(|_| doors.peers.has_leader()) {
        let doors = doors.clone();
        tokio::spawn(async move {
            if doors.peers.pass_on(&body).await {
                doors.service.waiting.forget(&pod);
            }
        });
    }
    send(answer)
}

async fn filter_dry(State(doors): Shared, request: Request) -> Response {
    plain(&doors, request, |service, body| service.filter(body, true)).await
}

async fn prioritize(State(doors): Shared, request: Request) -> Response {
    plain(&doors, request, Service::prioritize).await
}

async fn preempt(State(doors): Shared, request: Request) -> Response {
    if let Some(not_ready) = not_ready(&doors) {
        return not_ready;
    }
    let _turn = match doors.gate.enter().await {
        Ok(turn) => turn,
        Err(busy) => return *busy,
    };
    let forwarded = request.headers().contains_key(crate::peers::FORWARDED);
    let body = match doors.gate.body(request.into_body()).await {
        Ok(body) => body,
        Err(refused) => return *refused,
    };
    if !forwarded && let Some(answer) = doors.peers.forward_preempt(&body).await {
        return send(answer);
    }
    send(doors.service.preempt(&body))
}

async fn plain(
    doors: &Doors,
    request: Request,
    verb: impl FnOnce(&Service, &[u8]) -> Answer,
) -> Response {
    if let Some(not_ready) = not_ready(doors) {
        return not_ready;
    }
    let _turn = match doors.gate.enter().await {
        Ok(turn) => turn,
        Err(busy) => return *busy,
    };
    match doors.gate.body(request.into_body()).await {
        Ok(body) => send(verb(&doors.service, &body)),
        Err(refused) => *refused,
    }
}

async fn predicates(State(doors): Shared, request: Request) -> Response {
    if let Some(not_ready) = not_ready(&doors) {
        return not_ready;
    }
    let _turn = match doors.gate.enter().await {
        Ok(turn) => turn,
        Err(busy) => return *busy,
    };
    let forwarded = request.headers().contains_key(crate::peers::FORWARDED);
    let body = match doors.gate.body(request.into_body()).await {
        Ok(body) => body,
        Err(refused) => return *refused,
    };
    if !forwarded && let Some(answer) = doors.peers.forward_predicate(&body).await {
        return send(answer);
    }
    send(doors.service.predicate(&body).await)
}

async fn bind(State(doors): Shared, request: Request) -> Response {
    if let Some(not_ready) = not_ready(&doors) {
        return not_ready;
    }
    let _turn = match doors.gate.enter_within(BIND_DOOR).await {
        Ok(turn) => turn,
        Err(busy) => return *busy,
    };
    let forwarded = request.headers().contains_key(crate::peers::FORWARDED);
    let body = match doors.gate.body_within(request.into_body(), BIND_DOOR).await {
        Ok(body) => body,
        Err(refused) => return *refused,
    };
    if !forwarded && let Some(answer) = doors.peers.forward(&body).await {
        return send(answer);
    }
    let (answer, bound) = doors.service.bind(&body).await;
    if let Some(bound) = bound {
        doors.peers.tell_notes(&bound, doors.service.clock.now());
    }
    send(answer)
}

fn not_ready(doors: &Doors) -> Option<Response> {
    let why = doors.health.check().err()?;
    let reason = Reason { reason: "not-ready" };
    doors.service.metrics.turned_away.get_or_create(&reason).inc();
    Some(error(StatusCode::SERVICE_UNAVAILABLE, &why.to_string()))
}

async fn readyz(State(doors): Shared) -> Response {
    match doors.health.check() {
        Ok(()) => "ok\n".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

async fn metrics(State(doors): Shared) -> Response {
    let _turn = match doors.scrapes.enter().await {
        Ok(turn) => turn,
        Err(busy) => return *busy,
    };
    let numbers = doors.numbers.clone();
    let text = async move {
        ([(header::CONTENT_TYPE, Numbers::CONTENT_TYPE)], numbers.text()).into_response()
    };
    doors.beside.answer(text).await
}

pub(crate) fn send(answer: Answer) -> Response {
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, [(header::CONTENT_TYPE, "application/json")], answer.body).into_response()
}
