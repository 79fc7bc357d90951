//! The dashboard for a person at this machine: the scheduler's own page, reached by the way every
//! command takes, with the caller's token added here so that no browser ever has it.

mod door;

use std::convert::Infallible;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use anyhow::Context as _;
use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::RwLock;

use self::door::Door;
use crate::cluster::Cluster;
use crate::options::Place;
use crate::reach::Scheduler;

type Body = BoxBody<Bytes, hyper::Error>;

/// Serves until somebody ends the program.
pub async fn serve(
    cluster: &Cluster,
    place: &Place,
    port: u16,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let scheduler = Scheduler::find(cluster, place).await?;
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
        .await
        .with_context(|| format!("listen on 127.0.0.1:{port}"))?;
    let door = Door::new(listener.local_addr()?.port())?;
    writeln!(out, "{}", door.address(&cluster.namespace))?;
    writeln!(
        out,
        "Open this address in a browser on this machine. Whoever has it sees what you may see. Ctrl-C ends it."
    )?;
    out.flush()?;
    let way = Rc::new(Way {
        cluster: cluster.clone(),
        place: place.clone(),
        door,
        scheduler: RwLock::new(Arc::new(scheduler)),
    });
    // On this thread alone: finding a scheduler is not a thing that may move between threads.
    tokio::task::LocalSet::new().run_until(accept(listener, way)).await
}

async fn accept(listener: TcpListener, way: Rc<Way>) -> anyhow::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        let way = way.clone();
        let answer = move |request| {
            let way = way.clone();
            async move { Ok::<_, Infallible>(way.answer(&request).await) }
        };
        let service = hyper::service::service_fn(answer);
        let connection = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service);
        tokio::task::spawn_local(connection);
    }
}

struct Way {
    cluster: Cluster,
    place: Place,
    door: Door,
    /// Found anew when it does not answer, or when the token is no longer known.
    scheduler: RwLock<Arc<Scheduler>>,
}

impl Way {
    async fn answer(&self, request: &Request<Incoming>) -> Response<Body> {
        let asked = request.uri().path_and_query().map_or("/", |it| it.as_str());
        let path = match self.door.enter(request.method(), asked, request.headers()) {
            Ok(path) => path,
            Err((status, why)) => return said(status, why),
        };
        match self.ask(path).await {
            Ok(answer) => passed_on(answer),
            Err(error) => {
                let why = serde_json::json!({"error": format!("{error:#}")}).to_string();
                said(StatusCode::BAD_GATEWAY, &why)
            }
        }
    }

    async fn ask(&self, path: &str) -> anyhow::Result<Response<Incoming>> {
        let known = self.scheduler.read().await.clone();
        let first = known.forward(http::Method::GET, path, Bytes::new()).await;
        if let Ok(answer) = &first
            && answer.status() != StatusCode::UNAUTHORIZED
        {
            return first;
        }
        let mut place = self.scheduler.write().await;
        // Somebody else may have found it meanwhile.
        if Arc::ptr_eq(&place, &known) {
            *place = Arc::new(Scheduler::find(&self.cluster, &self.place).await?);
        }
        let found = place.clone();
        drop(place);
        found.forward(http::Method::GET, path, Bytes::new()).await
    }
}

/// The scheduler's answer, with the heads that matter to a browser.
fn passed_on(answer: Response<Incoming>) -> Response<Body> {
    let (mut head, body) = answer.into_parts();
    // These are about the connection to the scheduler, not about ours.
    for name in [header::CONNECTION, header::TRANSFER_ENCODING, header::CONTENT_LENGTH] {
        head.headers.remove(name);
    }
    Response::from_parts(head, body.boxed())
}

fn said(status: StatusCode, text: &str) -> Response<Body> {
    let body = Full::new(Bytes::from(text.to_owned())).map_err(|never| match never {});
    let mut answer = Response::new(body.boxed());
    *answer.status_mut() = status;
    let plain = http::HeaderValue::from_static("text/plain; charset=utf-8");
    answer.headers_mut().insert(header::CONTENT_TYPE, plain);
    let nosniff = http::HeaderValue::from_static("nosniff");
    answer.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
    answer
}
