//! Lists, then watches, for ever.
//!
//! Tells what happens in the words of our client library's own watcher, which reads JSON only.

use std::time::Duration;

use http::StatusCode;
use kube::core::Resource;
use kube::core::params::{ListParams, WatchParams};
use kube::core::request::Request;
use kube::runtime::utils::Backoff as _;
use kube::runtime::watcher::{DefaultBackoff, Event};
use kube::{Client, Error};
use prost::Message as _;
use prost::bytes::Bytes;
use tokio::time::Instant;

use super::asking::{changes, other, page, unread};
use super::{Failure, Versioned, open};
use crate::watching::{Teller, Unheard};

/// How long the server keeps a watch open, in seconds; it then is asked for a new one.
const WATCH: u32 = 290;
/// How long silence is believed. The server sends a bookmark every minute or so, and ends the watch in time.
const PATIENCE: Duration = Duration::from_secs(WATCH as u64 + 5);
/// A watch that ends sooner than this has failed, whatever was said.
const SHORT: Duration = Duration::from_secs(1);

/// What to follow.
#[derive(Debug, Clone)]
pub(crate) struct Following {
    of: Request,
    list: ListParams,
    watch: WatchParams,
}

impl Following {
    /// All of a kind, in `namespace` or everywhere.
    pub(crate) fn new<K: Resource<DynamicType = ()>>(namespace: Option<&str>) -> Self {
        let watch = WatchParams::default().timeout(WATCH);
        Self { of: Request::new(K::url_path(&(), namespace)), list: ListParams::default(), watch }
    }

    /// Only those with these fields.
    pub(crate) fn fields(mut self, fields: &str) -> Self {
        self.list = self.list.fields(fields);
        self.watch = self.watch.fields(fields);
        self
    }

    /// Only those with these labels.
    pub(crate) fn labels(mut self, labels: &str) -> Self {
        self.list = self.list.labels(labels);
        self.watch = self.watch.labels(labels);
        self
    }

    /// Lists so many at a time.
    pub(crate) fn page_size(mut self, size: u32) -> Self {
        self.list = self.list.limit(size);
        self
    }

    /// Follows until nobody listens.
    pub(crate) async fn run<S>(self, client: Client, mut teller: Teller<S>)
    where
        S: FnMut(Event<Bytes>) -> Vec<crate::Seen>,
    {
        let mut pause = DefaultBackoff::default();
        // Where to go on; nothing means from the beginning.
        let mut version = None;
        loop {
            let started = Instant::now();
            let error = match self.once(&client, &mut version, &mut teller).await {
                Ok(()) if started.elapsed() > SHORT => {
                    pause.reset();
                    continue;
                }
                Ok(()) => other("the API server ends watches at once"),
                Err(Ended::Unheard) => return,
                Err(Ended::Failed(error)) => error,
            };
            if matches!(&error, Error::Api(status) if status.code == 410) {
                version = None;
            }
            teller.interrupted(&error);
            tokio::time::sleep(pause.next().unwrap_or(PATIENCE)).await;
        }
    }

    /// Lists if needed, and watches until the watch ends.
    async fn once<S>(
        &self,
        client: &Client,
        version: &mut Option<String>,
        teller: &mut Teller<S>,
    ) -> Result<(), Ended>
    where
        S: FnMut(Event<Bytes>) -> Vec<crate::Seen>,
    {
        let mut at = match version.take() {
            Some(at) => at,
            None => self.listed(client, teller).await?,
        };
        *version = Some(at.clone());
        let mut changes = changes(client, &self.of, &self.watch, &at).await?;
        while let Some(change) = changes.next(PATIENCE).await? {
            let object = open(&change.object.unwrap_or_default().raw).map_err(unread)?;
            let event = match &*change.kind {
                "ADDED" | "MODIFIED" => Some(Event::Apply(object.clone())),
                "DELETED" => Some(Event::Delete(object.clone())),
                "ERROR" => {
                    let failure = Failure::decode(object).map_err(unread)?;
                    let status = failure.into_status(StatusCode::INTERNAL_SERVER_ERROR);
                    return Err(Error::Api(status.boxed()).into());
                }
                // A bookmark: where we are, and nothing else. What is newer than us is none of ours.
                _ => None,
            };
            at = Versioned::decode(object)
                .map_err(unread)?
                .metadata
                .unwrap_or_default()
                .resource_version;
            if let Some(event) = event {
                teller.tell(event).await?;
            }
            if !at.is_empty() {
                *version = Some(at);
            }
        }
        Ok(())
    }

    /// Tells all there is, and where the watch has to start.
    async fn listed<S>(&self, client: &Client, teller: &mut Teller<S>) -> Result<String, Ended>
    where
        S: FnMut(Event<Bytes>) -> Vec<crate::Seen>,
    {
        let mut params = self.list.clone();
        teller.tell(Event::Init).await?;
        loop {
            let page = page(client, &self.of, &params).await?;
            for item in page.items {
                teller.tell(Event::InitApply(item)).await?;
            }
            params.continue_token = page.next;
            if params.continue_token.is_none() {
                teller.tell(Event::InitDone).await?;
                return Ok(page.version);
            }
        }
    }
}

/// Why following stopped for now.
enum Ended {
    /// Nobody listens.
    Unheard,
    /// The API server cannot be asked, or says no.
    Failed(Error),
}

impl From<Unheard> for Ended {
    fn from(_: Unheard) -> Self {
        Self::Unheard
    }
}

impl From<Error> for Ended {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}
