//! A tunnel through the API server to a scheduler pod.

use std::fmt;

use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::api::ListParams;
use tokio::io::DuplexStream;

use super::SCHEDULER;
use crate::cluster::{Cluster, said};

/// The port of the Service behind which the read API is.
const PORT: &str = "api";

/// The way to one pod.
pub(super) struct Tunnel {
    pods: Api<Pod>,
    pod: String,
    namespace: String,
    port: u16,
}

impl fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tunnel({self})")
    }
}

impl fmt::Display for Tunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "port {} of pod {}/{}", self.port, self.namespace, self.pod)
    }
}

impl Tunnel {
    /// Finds a ready pod behind the scheduler's Service.
    pub(super) async fn find(cluster: &Cluster, namespace: &str) -> anyhow::Result<Self> {
        let slices: Api<EndpointSlice> = Api::namespaced(cluster.client.clone(), namespace);
        let labels = format!("kubernetes.io/service-name={SCHEDULER}");
        let slices = slices
            .list(&ListParams::default().labels(&labels))
            .await
            .map_err(|error| anyhow::anyhow!("{}", said(&error)))
            .with_context(|| format!("look for pods of service {namespace}/{SCHEDULER}"))?;
        if slices.items.is_empty() {
            bail!("there is no service {namespace}/{SCHEDULER}");
        }
        let Some((pod, port)) = slices.items.iter().find_map(ready) else {
            bail!("service {namespace}/{SCHEDULER} has no ready pod with a port named {PORT}");
        };
        let pods = Api::namespaced(cluster.client.clone(), namespace);
        Ok(Self { pods, pod, namespace: namespace.to_owned(), port })
    }

    /// Opens it once more: each request has a connection of its own.
    pub(super) async fn open(&self) -> anyhow::Result<DuplexStream> {
        let opened = self.pods.portforward(&self.pod, &[self.port]).await;
        let mut tunnel = opened.map_err(|error| anyhow::anyhow!("{}", said(&error)))?;
        tunnel.take_stream(self.port).context("a tunnel without its port")
    }
}

/// A pod that is ready, and its port.
fn ready(slice: &EndpointSlice) -> Option<(String, u16)> {
    let ports = slice.ports.iter().flatten();
    let port =
        ports.filter(|port| port.name.as_deref() == Some(PORT)).find_map(|port| port.port)?;
    let is_ready = |endpoint: &&k8s_openapi::api::discovery::v1::Endpoint| {
        let conditions = endpoint.conditions.as_ref();
        conditions.and_then(|conditions| conditions.ready).unwrap_or(true)
    };
    let pod = slice.endpoints.iter().filter(is_ready).find_map(|endpoint| {
        let target = endpoint.target_ref.as_ref()?;
        (target.kind.as_deref() == Some("Pod")).then(|| target.name.clone())?
    })?;
    Some((pod, u16::try_from(port).ok()?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_that_is_not_ready_is_passed_over() {
        let slice = json!({
            "addressType": "IPv4",
            "ports": [{"name": "secure", "port": 1}, {"name": "api", "port": 8443}],
            "endpoints": [
                {"addresses": ["10.0.0.1"], "conditions": {"ready": false},
                 "targetRef": {"kind": "Pod", "name": "a"}},
                {"addresses": ["10.0.0.2"], "conditions": {"ready": true},
                 "targetRef": {"kind": "Pod", "name": "b"}},
            ],
        });
        let slice: EndpointSlice = serde_json::from_value(slice).unwrap();
        assert_eq!(ready(&slice), Some(("b".to_owned(), 8443)));
        let nameless = EndpointSlice { ports: None, ..slice };
        assert_eq!(ready(&nameless), None);
    }
}
