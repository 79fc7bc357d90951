//! A world behind real sockets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use kubeapi::Alone;
use scheduler::admission::{Admission, AdmissionOptions};
use scheduler::http::{
    Beside, Doors, Gate, Limits, Listener, Live, Mode, Reading, admission_routes, health_routes,
    read_routes, serve, verb_routes,
};
use scheduler::peers::Peers;
use telemetry::{Shutdown, Stopping};

use crate::build::World;

/// Serves `world` on a free port of loopback: where, and the way to stop it.
pub(crate) fn serve_world(world: &World, limits: Limits) -> (SocketAddr, Shutdown) {
    serve_with(world, limits, |_| Router::new())
}

/// The same with more routes.
pub(crate) fn serve_with(
    world: &World,
    limits: Limits,
    more: impl FnOnce(&Stopping) -> Router,
) -> (SocketAddr, Shutdown) {
    let metrics = world.service.metrics.clone();
    let beside = Beside::new(tokio::runtime::Handle::current());
    let doors = Arc::new(Doors {
        service: world.service.clone(),
        peers: Arc::new(Peers::new(Arc::new(Alone), None, None, Duration::from_secs(1))),
        gate: Gate::new(limits, metrics.clone()),
        webhook: Gate::new(limits, metrics.clone()),
        scrapes: Gate::new(limits, metrics.clone()),
        health: world.health.clone(),
        numbers: world.numbers.clone(),
        beside: beside.clone(),
    });
    let (shutdown, stopping) = Shutdown::new();
    let gate = Gate::new(limits, metrics);
    let live = Live::new(stopping.clone());
    let service = world.service.clone();
    let reading = Arc::new(Reading { service, reviews: None, gate, live, beside });
    let admission = Arc::new(Admission {
        settings: world.service.settings.clone(),
        options: AdmissionOptions { scheduler_name: None, allow_privileged: false },
        metrics: world.service.metrics.clone(),
    });
    let router = verb_routes(&doors)
        .merge(health_routes(&doors))
        .merge(read_routes(&reading))
        .merge(admission_routes(&doors, admission))
        .merge(more(&stopping));
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let bound = Listener { address, mode: Mode::Loopback, router }.bind().unwrap();
    let address = bound.address;
    tokio::spawn(serve(bound, stopping, Duration::from_secs(10)));
    (address, shutdown)
}
