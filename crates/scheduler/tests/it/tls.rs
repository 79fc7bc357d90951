//! Mutual TLS with certificates of our own making, and one replica handing binds to another.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use axum_server::tls_rustls::RustlsConfig;
use kubeapi::{Leadership, Term};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use scheduler::certificates::Certificates;
use scheduler::http::{Beside, Doors, Gate, Limits, Listener, Mode, serve, verb_routes};
use scheduler::peers::{Calling, PEER_NAME, Peers};
use serde_json::{Value, json};
use telemetry::Shutdown;
use time::OffsetDateTime;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::TlsConnector;

use crate::build::{World, bind_body, filter_body, pod};

struct Led(SocketAddr);

impl Leadership for Led {
    fn term(&self) -> Term {
        Term::Others { address: Some(self.0.to_string()) }
    }
}

struct Leads;

impl Leadership for Leads {
    fn term(&self) -> Term {
        Term::Ours { until: Instant::now() + Duration::from_mins(1), number: 1 }
    }
}

fn served(world: &World, peers: Peers, mode: Mode) -> (SocketAddr, Shutdown) {
    let second = Duration::from_secs(1);
    let limits = Limits { body: 1 << 20, arrive: second, at_once: 4, turn: second };
    let doors = Arc::new(Doors {
        service: world.service.clone(),
        peers: Arc::new(peers),
        gate: Gate::new(limits, world.service.metrics.clone()),
        webhook: Gate::new(limits, world.service.metrics.clone()),
        scrapes: Gate::new(limits, world.service.metrics.clone()),
        health: world.health.clone(),
        numbers: world.numbers.clone(),
        beside: Beside::new(tokio::runtime::Handle::current()),
    });
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let bound = Listener { address, mode, router: verb_routes(&doors) }.bind().unwrap();
    let address = bound.address;
    let (shutdown, stopping) = Shutdown::new();
    tokio::spawn(serve(bound, stopping, second));
    (address, shutdown)
}

fn made(days_ago: i64) -> Certificates {
    let now = OffsetDateTime::now_utc() - time::Duration::days(days_ago);
    Certificates::make(&["localhost".to_owned()], now).unwrap()
}

fn calling(certificates: &Certificates) -> Calling {
    Arc::new(ArcSwap::new(certificates.calling().unwrap()))
}

fn alone() -> Peers {
    Peers::new(Arc::new(Leads), None, None, Duration::from_secs(5))
}

async fn call(
    address: SocketAddr,
    tls: Arc<ClientConfig>,
    path: &str,
    body: &[u8],
) -> std::io::Result<Value> {
    let stream = tokio::net::TcpStream::connect(address).await?;
    let name = ServerName::try_from(PEER_NAME).unwrap();
    let mut stream = TlsConnector::from(tls).connect(name, stream).await?;
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all(&[head.as_bytes(), body].concat()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let text = String::from_utf8_lossy(&answer).into_owned();
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Ok(serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {text}")))
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_a_certificate_of_ours_may_call_and_nobody_else() {
    let world = World::new(1).await;
    let ours = made(0);
    let mode = Mode::Mutual(RustlsConfig::from_config(ours.mutual().unwrap()));
    let (address, _stop) = served(&world, alone(), mode);
    let body = filter_body(&pod("a", "20"), &world.names());
    let answer = call(address, ours.calling().unwrap(), "/scheduler/filter", &body).await.unwrap();
    assert_eq!(answer["NodeNames"], json!(["n-0"]));
    // Of another authority: neither side trusts the other.
    let other = made(0).calling().unwrap();
    assert!(call(address, other, "/scheduler/filter", &body).await.is_err());
    // Plain HTTP to a TLS port.
    let mut plain = tokio::net::TcpStream::connect(address).await.unwrap();
    plain.write_all(b"POST /scheduler/filter HTTP/1.1\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!String::from_utf8_lossy(&answer).contains("200"));
    // And it still serves.
    let ours = ours.calling().unwrap();
    assert!(call(address, ours, "/scheduler/filter", &body).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_certificate_is_refused_on_either_side() {
    let world = World::new(1).await;
    let old = made(200);
    let mode = Mode::Mutual(RustlsConfig::from_config(old.mutual().unwrap()));
    let (address, _stop) = served(&world, alone(), mode);
    let error =
        call(address, old.calling().unwrap(), "/scheduler/filter", b"{}").await.unwrap_err();
    assert!(error.to_string().to_lowercase().contains("expired"), "{error}");
    // A replica that cannot reach its leader says so to kube-scheduler.
    world.store.put(&pod("a", "20"));
    world.settle().await;
    let tls = Some(calling(&old));
    let peers = Peers::new(Arc::new(Led(address)), tls, None, Duration::from_secs(5));
    let answer = peers.forward(&bind_body("a", "n-0").into()).await.unwrap();
    let text = String::from_utf8(answer.body).unwrap();
    assert!(text.contains("the leader cannot be reached"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_certificate_is_used_for_the_next_call() {
    let leader = World::new(1).await;
    leader.store.put(&pod("a", "20"));
    leader.settle().await;
    let certificates = made(0);
    let mode = Mode::Mutual(RustlsConfig::from_config(certificates.mutual().unwrap()));
    let (address, _stop) = served(&leader, alone(), mode);
    let tls = calling(&made(0));
    let peers = Peers::new(Arc::new(Led(address)), Some(tls.clone()), None, Duration::from_secs(5));
    let refused = peers.forward(&bind_body("a", "n-0").into()).await.unwrap();
    assert!(String::from_utf8(refused.body).unwrap().contains("the leader cannot be reached"));
    tls.store(certificates.calling().unwrap());
    let answer = peers.forward(&bind_body("a", "n-0").into()).await.unwrap();
    assert_eq!(answer.body, br#"{"Error":""}"#);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_hands_binds_to_the_leader_and_gives_its_answer() {
    let leader = World::new(1).await;
    leader.store.put(&pod("a", "20"));
    leader.settle().await;
    let certificates = made(0);
    let mode = Mode::Mutual(RustlsConfig::from_config(certificates.mutual().unwrap()));
    let (address, _stop) = served(&leader, alone(), mode);
    let tls = Some(calling(&certificates));
    let peers = Peers::new(Arc::new(Led(address)), tls, None, Duration::from_secs(5));
    let answer = peers.forward(&bind_body("a", "n-0").into()).await.unwrap();
    assert_eq!((answer.status, answer.body.as_slice()), (200, br#"{"Error":""}"#.as_slice()));
    assert!(leader.store.seen("a").unwrap().pod.node.is_some());
    let again = peers.forward(&bind_body("gone", "n-0").into()).await.unwrap();
    assert!(String::from_utf8(again.body).unwrap().contains("is gone"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_asks_the_leader_whom_to_evict() {
    let leader = World::new(1).await;
    for card in [0, 1] {
        let mut low = pod(&format!("low-{card}"), "100");
        low["spec"]["nodeName"] = json!("n-0");
        low["spec"]["priority"] = json!(-5);
        let placement = format!("v1;n-0;c=GPU-n-0-{card}:whole");
        low["metadata"]["annotations"] = json!({"nano-gpu/placement": placement});
        leader.store.put(&low);
    }
    leader.settle().await;
    let certificates = made(0);
    let mode = Mode::Mutual(RustlsConfig::from_config(certificates.mutual().unwrap()));
    let (address, _stop) = served(&leader, alone(), mode);
    let tls = Some(calling(&certificates));
    let peers = Peers::new(Arc::new(Led(address)), tls, None, Duration::from_secs(5));
    let victims = json!({"n-0": {"Pods": [{"UID": "uid-low-0"}]}});
    let body = json!({"Pod": pod("high", "100"), "NodeNameToMetaVictims": victims}).to_string();
    let answer = peers.forward_preempt(&body.clone().into()).await.unwrap();
    let answer: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(answer["NodeNameToMetaVictims"].as_object().unwrap().len(), 1, "{answer}");
    // The leader knows of it, and waits for what comes of it.
    let uid = model::PodUid::parse("uid-high").unwrap();
    assert!(leader.service.preempting.is_carried_out(&uid, leader.clock.now()));
    // A leader that is not reached evicts by itself: kube-scheduler is told of nobody.
    let tls = Some(calling(&made(0)));
    let peers = Peers::new(Arc::new(Led(address)), tls, None, Duration::from_secs(5));
    let answer = peers.forward_preempt(&body.into()).await.unwrap();
    assert_eq!(answer.body, br#"{"NodeNameToMetaVictims":{}}"#);
}
