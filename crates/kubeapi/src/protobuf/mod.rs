//! What the API server says in protobuf, for the kinds that change all the time, and the Binding, which is what
//! we write most.
//!
//! Kubernetes' own parts watch in this form, so that the API server writes a change once for them and us, and
//! what we do not use of an object is skipped unread. Messages here have the few fields that matter, by their
//! numbers in the published API.

mod asking;
mod binding;
mod following;
mod leases;
mod pods;

use prost::Message;
use prost::bytes::Bytes;

pub(crate) use asking::{get, list};
pub(crate) use binding::bind;
pub(crate) use following::Following;
pub(crate) use leases::read_lease;
pub(crate) use pods::{read_pod, uid_of};

/// What is asked for. Errors come in the same form.
const FORM: &str = "application/vnd.kubernetes.protobuf";
/// What stands before an object that is sent by itself.
const MAGIC: &[u8] = b"k8s\0";

/// An object with its kind around it.
#[derive(Clone, PartialEq, Message)]
struct Envelope {
    #[prost(message, optional, tag = "1")]
    kind: Option<Kind>,
    #[prost(bytes = "bytes", tag = "2")]
    raw: Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct Kind {
    #[prost(string, tag = "1")]
    api_version: String,
    #[prost(string, tag = "2")]
    kind: String,
}

/// A list of anything.
#[derive(Clone, PartialEq, Message)]
struct List {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ListMeta>,
    /// Not read yet: one that cannot be read must not hide the others.
    #[prost(bytes = "bytes", repeated, tag = "2")]
    items: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
struct ListMeta {
    #[prost(string, tag = "2")]
    resource_version: String,
    #[prost(string, tag = "3")]
    next: String,
}

/// A change, as a watch sends it.
#[derive(Clone, PartialEq, Message)]
struct Change {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(message, optional, tag = "2")]
    object: Option<Embedded>,
}

#[derive(Clone, PartialEq, Message)]
struct Embedded {
    #[prost(bytes = "bytes", tag = "1")]
    raw: Bytes,
}

/// An error.
#[derive(Clone, PartialEq, Message)]
struct Failure {
    #[prost(string, tag = "3")]
    message: String,
    #[prost(string, tag = "4")]
    reason: String,
    #[prost(int32, tag = "6")]
    code: i32,
}

/// Of any object, its version.
#[derive(Clone, PartialEq, Message)]
struct Versioned {
    #[prost(message, optional, tag = "1")]
    metadata: Option<Version>,
}

#[derive(Clone, PartialEq, Message)]
struct Version {
    #[prost(string, tag = "6")]
    resource_version: String,
}

#[derive(Clone, PartialEq, Message)]
struct Time {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

impl Time {
    fn at(&self) -> Option<jiff::Timestamp> {
        jiff::Timestamp::new(self.seconds, self.nanos).ok()
    }

    /// As the API writes it in JSON.
    fn written(&self) -> Option<String> {
        self.at().map(|at| at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
    }
}

/// Takes an object out of its envelope.
fn open(sent: &Bytes) -> Result<Bytes, prost::DecodeError> {
    match sent.strip_prefix(MAGIC) {
        Some(rest) => Ok(Envelope::decode(sent.slice_ref(rest))?.raw),
        None => Ok(sent.clone()),
    }
}

/// Puts an object into its envelope.
fn close(api_version: &str, kind: &str, object: &impl Message) -> Vec<u8> {
    let kind = Kind { api_version: api_version.to_owned(), kind: kind.to_owned() };
    let envelope = Envelope { kind: Some(kind), raw: object.encode_to_vec().into() };
    [MAGIC, &envelope.encode_to_vec()].concat()
}

/// Nothing instead of the empty text, which is how protobuf spells absence.
fn some(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_taken_out_of_its_envelope() {
        let inside = Bytes::from_static(b"inside");
        let sent = [MAGIC, &Envelope { kind: None, raw: inside.clone() }.encode_to_vec()].concat();
        assert_eq!(open(&sent.into()).unwrap(), inside);
        let version = Version { resource_version: "7".to_owned() };
        let closed = Bytes::from(close("v1", "Pod", &version));
        assert_eq!(Version::decode(open(&closed).unwrap()).unwrap(), version);
        assert_eq!(open(&inside).unwrap(), inside);
        assert!(open(&Bytes::from_static(b"k8s\0\xff")).is_err());
    }

    #[test]
    fn times_are_written_as_in_json() {
        let time = Time { seconds: 1_767_323_045, nanos: 7 };
        assert_eq!(time.written().unwrap(), "2026-01-02T03:04:05Z");
        assert_eq!(Time { seconds: i64::MAX, nanos: 0 }.written(), None);
    }
}
