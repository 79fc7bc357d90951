//! Questions to the API server that are answered in protobuf.

use std::time::Duration;

use http::StatusCode;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use http_body_util::BodyExt as _;
use kube::client::Body;
use kube::core::Status;
use kube::core::params::{GetParams, ListParams, WatchParams};
use kube::core::request::Request;
use kube::{Client, Error};
use prost::Message as _;
use prost::bytes::{Buf as _, Bytes, BytesMut};

use super::{Change, FORM, Failure, List, open};

/// The longest a single change may be. The store takes objects of a few MiB at most.
const LONGEST: usize = 64 << 20;

/// A part of a list.
pub(super) struct Page {
    pub(super) items: Vec<Bytes>,
    pub(super) version: String,
    /// Where the next part starts, if there is one.
    pub(super) next: Option<String>,
}

/// One object; nothing if there is none.
pub(crate) async fn get(client: &Client, of: &Request, name: &str) -> kube::Result<Option<Bytes>> {
    let asked = of.get(name, &GetParams::default()).map_err(Error::BuildRequest)?;
    match answer(client, asked).await {
        Ok(sent) => Ok(Some(open(&sent).map_err(unread)?)),
        Err(Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

/// All objects, in one answer.
pub(crate) async fn list(
    client: &Client,
    of: &Request,
    params: &ListParams,
) -> kube::Result<Vec<Bytes>> {
    Ok(page(client, of, params).await?.items)
}

pub(super) async fn page(client: &Client, of: &Request, params: &ListParams) -> kube::Result<Page> {
    let asked = of.list(params).map_err(Error::BuildRequest)?;
    let sent = answer(client, asked).await?;
    let list = List::decode(open(&sent).map_err(unread)?).map_err(unread)?;
    let meta = list.metadata.unwrap_or_default();
    Ok(Page {
        items: list.items,
        version: meta.resource_version,
        next: Some(meta.next).filter(|next| !next.is_empty()),
    })
}

/// The changes since `version`.
pub(super) async fn changes(
    client: &Client,
    of: &Request,
    params: &WatchParams,
    version: &str,
) -> kube::Result<Changes> {
    let asked = of.watch(params, version).map_err(Error::BuildRequest)?;
    Ok(Changes { body: body(client, asked).await?, read: BytesMut::new() })
}

/// Changes that come one after another: the length of each in four bytes, then itself.
pub(super) struct Changes {
    body: Body,
    read: BytesMut,
}

impl Changes {
    /// The next one; nothing if the watch has ended. Waits for `patience` at most.
    pub(super) async fn next(&mut self, patience: Duration) -> kube::Result<Option<Change>> {
        loop {
            if let Some(frame) = cut(&mut self.read)? {
                return Change::decode(frame).map(Some).map_err(unread);
            }
            let Ok(next) = tokio::time::timeout(patience, self.body.frame()).await else {
                return Err(other("the API server is silent"));
            };
            match next.transpose()? {
                Some(frame) => {
                    if let Ok(data) = frame.into_data() {
                        self.read.extend_from_slice(&data);
                    }
                }
                None if self.read.is_empty() => return Ok(None),
                None => return Err(other("the API server stopped in the middle of a change")),
            }
        }
    }
}

/// Takes the first frame out of what was read; nothing while it is not whole.
fn cut(read: &mut BytesMut) -> kube::Result<Option<Bytes>> {
    let Some(length) = read.first_chunk::<4>() else { return Ok(None) };
    let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
    if length > LONGEST {
        return Err(other("the API server announced a change that is too long"));
    }
    if read.len() < 4 + length {
        return Ok(None);
    }
    read.advance(4);
    Ok(Some(read.split_to(length).freeze()))
}

async fn answer(client: &Client, asked: http::Request<Vec<u8>>) -> kube::Result<Bytes> {
    Ok(body(client, asked).await?.collect().await?.to_bytes())
}

/// Asks, and gives the answer's body, if it is no error and in our form.
pub(super) async fn body(client: &Client, mut asked: http::Request<Vec<u8>>) -> kube::Result<Body> {
    asked.headers_mut().insert(ACCEPT, HeaderValue::from_static(FORM));
    let (head, body) = client.send(asked.map(Body::from)).await?.into_parts();
    let form = head.headers.get(CONTENT_TYPE).and_then(|form| form.to_str().ok());
    let form = form.unwrap_or_default();
    let ours = form.starts_with(FORM);
    if head.status.is_success() {
        return if ours { Ok(body) } else { Err(Error::Service(Unformed(form.to_owned()).into())) };
    }
    let text = body.collect().await?.to_bytes();
    let failure = ours.then(|| open(&text).and_then(Failure::decode).ok()).flatten();
    // Not every server on the way speaks this form when it fails.
    let failure = failure.unwrap_or_else(|| Failure {
        message: String::from_utf8_lossy(&text).into_owned(),
        ..Failure::default()
    });
    Err(Error::Api(failure.into_status(head.status).boxed()))
}

impl Failure {
    /// As our client library tells errors.
    pub(super) fn into_status(self, http: StatusCode) -> Status {
        let code = u16::try_from(self.code).ok().filter(|code| *code > 0);
        Status::failure(&self.message, &self.reason).with_code(code.unwrap_or(http.as_u16()))
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the API server answers as `{0}`, not in protobuf")]
struct Unformed(String);

pub(super) fn unread(error: prost::DecodeError) -> Error {
    Error::Service(error.into())
}

pub(super) fn other(why: &'static str) -> Error {
    Error::Service(why.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_cut_wherever_the_network_cut_them() {
        let sent = [0, 0, 0, 2, b'a', b'b', 0, 0, 0, 0, 0, 0, 0, 1, b'c'];
        for at in 0..sent.len() {
            let mut read = BytesMut::new();
            let mut got = Vec::new();
            for part in [&sent[..at], &sent[at..]] {
                read.extend_from_slice(part);
                while let Some(frame) = cut(&mut read).unwrap() {
                    got.push(frame);
                }
            }
            assert_eq!(got, [&b"ab"[..], b"", b"c"], "cut at {at}");
            assert!(read.is_empty());
        }
    }

    #[test]
    fn a_frame_without_end_is_refused() {
        let mut read = BytesMut::from(&[0xff, 0xff, 0xff, 0xff, 0][..]);
        assert!(cut(&mut read).is_err());
    }
}
