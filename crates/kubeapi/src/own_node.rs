//! What an agent writes about the node it runs on: inventory, amounts, heartbeat, events.
//!
//! Only patches of single fields: the rest of a node belongs to others.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Node, ObjectReference};
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, ResourceExt as _};
use ledger::Measured;
use model::{DeviceId, NodeName, names};
use serde_json::json;

use crate::heartbeats::{AGENT, LOAD, encode_load};

/// Who owns the fields we apply.
const MANAGER: &str = "nanogpu-agent";

/// The node an agent runs on.
#[derive(Clone)]
pub struct OwnNode {
    client: Client,
    name: NodeName,
    patience: Duration,
    // The last note of each reason, and who told it. Held for a copy only.
    told: Arc<Mutex<BTreeMap<&'static str, (String, Recorder)>>>,
}

impl std::fmt::Debug for OwnNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OwnNode").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Why something about the node could not be read or written. Try again later.
#[derive(Debug, thiserror::Error)]
pub enum OwnNodeError {
    /// The API server said no, or could not be reached.
    #[error("cannot {act} of node {node}")]
    Refused {
        /// What was to be done.
        act: &'static str,
        /// Which node.
        node: NodeName,
        /// What went wrong.
        #[source]
        source: Box<kube::Error>,
    },
    /// No answer came.
    #[error("cannot {act} of node {node}: the API server does not answer")]
    Silent {
        /// What was to be done.
        act: &'static str,
        /// Which node.
        node: NodeName,
    },
}

impl OwnNode {
    /// The node called `name`; no answer is waited for longer than `patience`.
    pub fn new(client: Client, name: NodeName, patience: Duration) -> Self {
        Self { client, name, patience, told: Arc::default() }
    }

    /// Its name.
    pub fn name(&self) -> &NodeName {
        &self.name
    }

    /// Its annotations as they are now.
    pub async fn annotations(&self) -> Result<BTreeMap<String, String>, OwnNodeError> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let node = self.within("read the annotations", nodes.get_metadata(self.name.as_str()));
        Ok(node.await?.annotations().clone())
    }

    /// Writes an annotation.
    pub async fn annotate(&self, key: &str, value: &str) -> Result<(), OwnNodeError> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let patch = Patch::Merge(json!({"metadata": {"annotations": {key: value}}}));
        let params = PatchParams::default();
        let write = nodes.patch_metadata(self.name.as_str(), &params, &patch);
        self.within("write an annotation", write).await.map(drop)
    }

    /// Writes amounts into the node's capacity. The kubelet copies them to what is allocatable.
    pub async fn offer(&self, amounts: &[(&str, u64)]) -> Result<(), OwnNodeError> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let amounts: BTreeMap<&str, String> =
            amounts.iter().map(|(name, amount)| (*name, amount.to_string())).collect();
        let patch = json!({"status": {"capacity": amounts, "allocatable": amounts}});
        let params = PatchParams::default();
        let patch = Patch::Merge(patch);
        let write = nodes.patch_status(self.name.as_str(), &params, &patch);
        self.within("write the capacity", write).await.map(drop)
    }

    /// A value of a `ConfigMap`, if there is one.
    pub async fn configured(
        &self,
        namespace: &str,
        name: &str,
        key: &str,
    ) -> Result<Option<String>, OwnNodeError> {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
        let map = self.within("read a ConfigMap", maps.get_opt(name)).await?;
        Ok(map.and_then(|map| map.data?.remove(key)))
    }

    /// Renews the agent's Lease in `namespace`, with what was measured, what the agent lacks, and the
    /// way in which devices come into containers.
    pub async fn beat(
        &self,
        namespace: &str,
        every: Duration,
        measured: &[(DeviceId, Measured)],
        lacks: &[&str],
        way: &str,
    ) -> Result<(), OwnNodeError> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), namespace);
        let now = Timestamp::now();
        // What is left out of an apply is removed, so a lack that ended leaves nothing behind.
        let mut annotations = json!({LOAD: encode_load(measured), names::DEVICES_BY: way});
        if !lacks.is_empty() {
            annotations[names::LACKS] = json!(lacks.join(","));
        }
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": self.name.as_str(),
                "labels": {AGENT: "true"},
                "annotations": annotations,
            },
            "spec": {
                "holderIdentity": self.name.as_str(),
                "leaseDurationSeconds": every.as_secs().saturating_mul(4),
                "renewTime": format!("{now:.6}"),
            },
        });
        let params = PatchParams::apply(MANAGER).force();
        let lease = Patch::Apply(lease);
        let write = leases.patch(self.name.as_str(), &params, &lease);
        self.within("renew the lease", write).await.map(drop)
    }

    /// Tells something about the node. What cannot be written is dropped.
    pub async fn tell(&self, reason: &'static str, note: String, warning: bool) {
        let regarding = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(self.name.to_string()),
            // The kubelet's events name the node's name as its UID, and so `kubectl describe` asks.
            uid: Some(self.name.to_string()),
            ..ObjectReference::default()
        };
        let event = Event {
            type_: if warning { EventType::Warning } else { EventType::Normal },
            reason: reason.to_owned(),
            note: Some(note),
            action: "Watching".to_owned(),
            secondary: None,
        };
        let recorder = self.recorder_of(reason, event.note.as_deref().unwrap_or_default());
        let publish = recorder.publish(&event, &regarding);
        match tokio::time::timeout(self.patience, publish).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, reason, "event dropped"),
            Err(_) => tracing::debug!(reason, "event dropped"),
        }
    }

    /// Who tells this. A recorder counts events of one reason as one, and keeps the first note: what is
    /// said of a second card would be lost. So each note has a recorder of its own, while it is the
    /// last one of its reason.
    fn recorder_of(&self, reason: &'static str, note: &str) -> Recorder {
        let mut last = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        match last.get(reason) {
            Some((same, recorder)) if same == note => recorder.clone(),
            _ => {
                let recorder = Recorder::new(self.client.clone(), self.reporter());
                last.insert(reason, (note.to_owned(), recorder.clone()));
                recorder
            }
        }
    }

    fn reporter(&self) -> Reporter {
        Reporter { controller: MANAGER.into(), instance: Some(self.name.to_string()) }
    }

    async fn within<T>(
        &self,
        act: &'static str,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, OwnNodeError> {
        let node = self.name.clone();
        match tokio::time::timeout(self.patience, request).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(source)) => Err(OwnNodeError::Refused { act, node, source: Box::new(source) }),
            Err(_) => Err(OwnNodeError::Silent { act, node }),
        }
    }
}
