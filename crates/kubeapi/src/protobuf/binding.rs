//! A Binding in protobuf. It is what we write most, and the API server reads this form in less time than JSON.

use http::header::{CONTENT_TYPE, HeaderValue};
use http_body_util::BodyExt as _;
use kube::core::params::PostParams;
use kube::core::request::Request;
use kube::{Client, Error};
use prost::Message;

use super::asking::body;
use super::pods::Metadata;
use super::{FORM, close};
use crate::outside::Binding;

/// Sends it.
pub(crate) async fn bind(client: &Client, pods: &Request, binding: Binding) -> kube::Result<()> {
    let pod = binding.pod.name.clone();
    let sent = close("v1", "Binding", &Wire::from(binding));
    let asked = pods.create_subresource("binding", &pod, &PostParams::default(), sent);
    let mut asked = asked.map_err(Error::BuildRequest)?;
    asked.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(FORM));
    let answer = body(client, asked).await?;
    // To its end, so that the connection can be used again. The pod is bound, whatever becomes of the words.
    let _ = answer.collect().await;
    Ok(())
}

#[derive(Clone, PartialEq, Message)]
struct Wire {
    #[prost(message, optional, tag = "1")]
    metadata: Option<Metadata>,
    #[prost(message, optional, tag = "2")]
    target: Option<Target>,
}

#[derive(Clone, PartialEq, Message)]
struct Target {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(string, tag = "3")]
    name: String,
    #[prost(string, tag = "5")]
    api_version: String,
}

impl From<Binding> for Wire {
    fn from(binding: Binding) -> Self {
        let Binding { pod, version, node, annotations, labels } = binding;
        let metadata = Metadata {
            name: pod.name,
            namespace: pod.namespace,
            uid: pod.uid.to_string(),
            resource_version: version,
            deletion_timestamp: None,
            labels,
            annotations,
        };
        let kind = "Node".to_owned();
        let target = Target { kind, name: node.to_string(), api_version: "v1".to_owned() };
        Self { metadata: Some(metadata), target: Some(target) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use model::{NodeName, PodId, PodUid};

    use super::super::{Envelope, MAGIC};
    use super::*;

    /// That the numbers of fields are right the stories tell, on a real API server.
    #[test]
    fn a_binding_carries_its_preconditions_and_what_is_written_with_it() {
        let uid = PodUid::parse("8f1d5c4e-0000-4000-8000-000000000001").unwrap();
        let pod = PodId { namespace: "team".to_owned(), name: "train".to_owned(), uid };
        let annotations = BTreeMap::from([("a".to_owned(), "1".to_owned())]);
        let labels = BTreeMap::from([("b".to_owned(), "2".to_owned())]);
        let node = NodeName::parse("n-1").unwrap();
        let version = "77".to_owned();
        let binding = Binding { pod, version, node, annotations, labels };
        let sent = close("v1", "Binding", &Wire::from(binding.clone()));
        let envelope = Envelope::decode(sent.strip_prefix(MAGIC).unwrap()).unwrap();
        let kind = envelope.kind.unwrap();
        assert_eq!((&*kind.api_version, &*kind.kind), ("v1", "Binding"));
        let wire = Wire::decode(envelope.raw).unwrap();
        let (metadata, target) = (wire.metadata.unwrap(), wire.target.unwrap());
        assert_eq!((metadata.name, metadata.namespace), (binding.pod.name, binding.pod.namespace));
        assert_eq!(
            (metadata.uid, metadata.resource_version),
            (binding.pod.uid.to_string(), binding.version)
        );
        assert_eq!((metadata.annotations, metadata.labels), (binding.annotations, binding.labels));
        assert_eq!((&*target.kind, &*target.name, &*target.api_version), ("Node", "n-1", "v1"));
    }
}
