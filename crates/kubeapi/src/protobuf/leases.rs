//! Agents' Leases in protobuf.

use std::collections::BTreeMap;

use prost::Message;
use prost::bytes::Bytes;

use super::{Time, some};
use crate::heartbeats::{LOAD, Renewal};

#[derive(Clone, PartialEq, Message)]
struct Lease {
    #[prost(message, optional, tag = "1")]
    metadata: Option<Metadata>,
    #[prost(message, optional, tag = "2")]
    spec: Option<Spec>,
}

#[derive(Clone, PartialEq, Message)]
struct Metadata {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(btree_map = "string, string", tag = "12")]
    annotations: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
struct Spec {
    #[prost(message, optional, tag = "4")]
    renewed: Option<Time>,
}

/// What a Lease says; nothing if it cannot be read.
pub(crate) fn read_lease(raw: Bytes) -> Option<Renewal> {
    let lease = Lease::decode(raw).ok()?;
    let mut metadata = lease.metadata?;
    Some(Renewal {
        name: some(metadata.name)?,
        at: lease.spec.and_then(|spec| spec.renewed).and_then(|time| time.at()),
        load: metadata.annotations.remove(LOAD),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_read() {
        let annotations = [(LOAD.to_owned(), "{}".to_owned()), ("a".to_owned(), "b".to_owned())];
        let metadata = Metadata { name: "n-1".to_owned(), annotations: annotations.into() };
        let renewed = Some(Time { seconds: 1, nanos: 2000 });
        let lease = Lease { metadata: Some(metadata), spec: Some(Spec { renewed }) };
        let read = read_lease(lease.encode_to_vec().into()).unwrap();
        let at = jiff::Timestamp::new(1, 2000).ok();
        assert_eq!(read, Renewal { name: "n-1".to_owned(), at, load: Some("{}".to_owned()) });
        assert_eq!(read_lease(Bytes::from_static(b"\xff")), None);
        assert_eq!(read_lease(Bytes::new()), None);
    }
}
