//! A stream that says when to look again. It carries no data of the cluster: what changed is asked
//! for by the routes that check who may see it.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use model::{NodeName, PodUid};
use telemetry::Stopping;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

use super::Shared;
use super::history::History;
use super::scope::Scope;
use crate::http::Reading;
use crate::state::Picture;

/// Between two messages: a busy cluster changes more often than a person can look.
const PAUSE: Duration = Duration::from_secs(1);
/// After so much silence a comment is sent, so that nobody on the way closes the connection.
const SILENCE: Duration = Duration::from_secs(15);
/// How long a right that was checked is believed.
const BELIEVED: Duration = Duration::from_secs(45);
/// How many streams there may be.
const MOST: usize = 64;

/// What the dashboard has beyond single answers.
#[derive(Debug)]
pub struct Live {
    pub(super) history: History,
    streams: Arc<Semaphore>,
    /// A stream must not hold up a stop.
    stopping: Stopping,
}

impl Live {
    /// No streams, no history.
    pub fn new(stopping: Stopping) -> Self {
        let streams = Arc::new(Semaphore::new(MOST));
        Self { history: History::default(), streams, stopping }
    }
}

/// `GET /api/v1/events`.
pub(super) async fn events(
    State(reading): Shared,
    Query(scope): Query<Scope>,
    headers: HeaderMap,
) -> Response {
    if let Err(no) = reading.check(&headers, scope.may()).await {
        return *no;
    }
    let Ok(place) = reading.live.streams.clone().try_acquire_owned() else {
        let why = "too many pages are open; this one may ask again now and then";
        return *reading.gate.refuse(StatusCode::SERVICE_UNAVAILABLE, "streams", why);
    };
    let stream = Stream::new(reading, scope, headers, place);
    let messages = futures::stream::unfold(stream, |mut stream| async move {
        let message = stream.next().await?;
        Some((Ok::<_, Infallible>(Bytes::from(message)), stream))
    });
    let head = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    (head, Body::from_stream(messages)).into_response()
}

struct Stream {
    reading: Arc<Reading>,
    scope: Scope,
    /// Who reads: asked again while the stream lasts.
    headers: HeaderMap,
    changes: watch::Receiver<u64>,
    stopping: Stopping,
    seen: Option<Mark>,
    not_before: Instant,
    silent_until: Instant,
    believed_until: Instant,
    ended: bool,
    _place: OwnedSemaphorePermit,
}

/// What came to pass in a stream.
enum Next {
    Stop,
    Check,
    Silence,
    Change,
}

impl Stream {
    fn new(
        reading: Arc<Reading>,
        scope: Scope,
        headers: HeaderMap,
        place: OwnedSemaphorePermit,
    ) -> Self {
        let now = Instant::now();
        let mut changes = reading.service.handle.changes();
        // The first message is sent at once: whoever reads it has missed nothing.
        changes.mark_changed();
        let stopping = reading.live.stopping.clone();
        Self {
            reading,
            scope,
            headers,
            changes,
            stopping,
            seen: None,
            not_before: now,
            silent_until: now + SILENCE,
            believed_until: now + BELIEVED,
            ended: false,
            _place: place,
        }
    }

    async fn next(&mut self) -> Option<String> {
        if self.ended {
            return None;
        }
        loop {
            match self.wait().await {
                Next::Stop => return None,
                Next::Check => {
                    self.believed_until = Instant::now() + BELIEVED;
                    if let Err(no) = self.reading.check(&self.headers, self.scope.may()).await {
                        self.ended = true;
                        let status = no.status().as_u16();
                        return Some(format!("event: ended\ndata: {{\"status\":{status}}}\n\n"));
                    }
                }
                Next::Silence => {
                    self.silent_until = Instant::now() + SILENCE;
                    return Some(": nothing changed\n\n".to_owned());
                }
                Next::Change => {
                    let number = *self.changes.borrow_and_update();
                    let mark = Mark::of(&self.reading, &self.scope);
                    if self.seen.as_ref().is_some_and(|seen| seen.same(&mark, &self.scope)) {
                        continue;
                    }
                    self.seen = Some(mark);
                    let now = Instant::now();
                    (self.not_before, self.silent_until) = (now + PAUSE, now + SILENCE);
                    return Some(format!("event: changed\ndata: {{\"picture\":{number}}}\n\n"));
                }
            }
        }
    }

    async fn wait(&mut self) -> Next {
        let (changes, not_before) = (&mut self.changes, self.not_before);
        let change = async {
            tokio::time::sleep_until(not_before).await;
            changes.changed().await
        };
        tokio::select! {
            biased;
            () = self.stopping.asked() => Next::Stop,
            () = tokio::time::sleep_until(self.believed_until) => Next::Check,
            told = change => if told.is_ok() { Next::Change } else { Next::Stop },
            () = tokio::time::sleep_until(self.silent_until) => Next::Silence,
        }
    }
}

/// As much of a picture as tells whether a page would look different.
struct Mark {
    picture: Arc<Picture>,
    pods: BTreeSet<(PodUid, Option<NodeName>, bool)>,
}

impl Mark {
    fn of(reading: &Reading, scope: &Scope) -> Self {
        let handle = &reading.service.handle;
        let picture = handle.picture();
        let mut pods = BTreeSet::new();
        // Where all is seen, the nodes themselves are compared.
        if scope.namespace.is_some() {
            for node in picture.snapshot.nodes() {
                let ours = node.holders.iter().filter(|h| scope.includes(&h.pod.namespace));
                pods.extend(ours.map(|holder| {
                    (holder.pod.uid.clone(), Some(node.name.clone()), holder.terminating)
                }));
            }
        }
        for pending in handle.pods.all_pending() {
            let pod = &pending.seen.pod.id;
            if scope.includes(&pod.namespace) {
                pods.insert((pod.uid.clone(), pending.seen.nominated.clone(), false));
            }
        }
        Self { picture, pods }
    }

    fn same(&self, other: &Self, scope: &Scope) -> bool {
        if self.pods != other.pods {
            return false;
        }
        let (a, b) = (&self.picture, &other.picture);
        let (before, after) = (a.snapshot.nodes(), b.snapshot.nodes());
        let same_node = |(a, b): (&Arc<model::Node>, &Arc<model::Node>)| Arc::ptr_eq(a, b);
        scope.namespace.is_some()
            || (before.len() == after.len()
                && before.iter().zip(after).all(same_node)
                && a.reserved == b.reserved
                && a.snapshot.allowances() == b.snapshot.allowances())
    }
}
