//! What pods, nodes and Leases say of themselves, for when the scheduler cannot be asked: the same
//! ledger, made once from what the API server lists.

use dialect::{Settings, observe, read};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1 as core;
use ledger::{Event, Ledger, STALE_AFTER_MILLIS};
use model::{Moment, NodeName, Pod, Snapshot};
use serde::Deserialize;
use serde_json::value::Value;

use crate::cluster::Cluster;
use crate::view::Waiting;

/// The label of agents' Leases.
pub const AGENT_LABEL: &str = "nano-gpu/agent";

/// A list of anything.
#[derive(Debug, Clone, Deserialize)]
pub struct List<T> {
    /// What is in it.
    pub items: Vec<T>,
}

/// The cluster's objects, as far as they matter.
#[derive(Debug, Clone)]
pub struct Objects {
    /// Nodes.
    pub nodes: Vec<core::Node>,
    /// Pods of all namespaces, as the API server prints them.
    pub pods: Vec<Value>,
    /// Leases of agents.
    pub leases: Vec<Lease>,
}

impl Objects {
    /// Lists them.
    pub async fn list(cluster: &Cluster, system: &str) -> Result<Self, kube::Error> {
        let leases = format!(
            "/apis/coordination.k8s.io/v1/namespaces/{system}/leases?labelSelector={AGENT_LABEL}"
        );
        let (nodes, pods, leases) = futures::join!(
            cluster.get::<List<core::Node>>("/api/v1/nodes"),
            cluster.get::<List<Value>>("/api/v1/pods"),
            cluster.get::<List<Lease>>(&leases),
        );
        // Without Leases the agents count as silent; the cards are shown all the same.
        let leases = leases.map(|list| list.items).unwrap_or_default();
        Ok(Self { nodes: nodes?.items, pods: pods?.items, leases })
    }

    /// The pods, but for those that cannot be read at all.
    pub fn pods(&self) -> impl Iterator<Item = Pod> {
        self.pods.iter().filter_map(|pod| Pod::from_json(&pod.to_string()).ok())
    }

    /// Who holds what, at this time on the wall.
    pub fn snapshot(&self, settings: &Settings, now: jiff::Timestamp) -> Snapshot {
        let identities: Vec<&str> = settings
            .enabled
            .iter()
            .flat_map(|dialect| dialect.identity_resources().iter().copied())
            .collect();
        let nodes = self
            .nodes
            .iter()
            .filter_map(|node| kubeapi::facts(node, &identities, None).ok().map(Event::Node));
        let beats = self.leases.iter().filter_map(|lease| {
            let node = NodeName::parse(lease.metadata.name.as_deref()?).ok()?;
            Some(Event::Heartbeat { node, at: at(silence(lease, now)?) })
        });
        let pods = self.pods().filter_map(|pod| observe(&pod, settings)).map(Event::Pod);
        let mut ledger = Ledger::rebuild(nodes.chain(beats).chain(pods));
        ledger.expire(NOW);
        ledger.snapshot()
    }

    /// Pods that want cards and are on no node.
    pub fn waiting(&self, settings: &Settings) -> Vec<Waiting> {
        let pending = self.pods().filter(|pod| pod.node.is_none() && !pod.has_ended());
        let waiting = pending.filter_map(|pod| {
            let refused = match read(&pod, settings) {
                Ok(Some(_)) => None,
                Ok(None) => return None,
                Err(refusal) => Some(refusal.to_string()),
            };
            let (namespace, pod) = (pod.id.namespace, pod.id.name);
            Some(Waiting { namespace, pod, refused, nominated: None })
        });
        waiting.collect()
    }
}

/// The present, on a clock of which only differences matter.
const NOW: Moment = Moment(1_000_000_000);

fn at(silence: u64) -> Moment {
    Moment(NOW.0.saturating_sub(silence))
}

/// For how many milliseconds an agent has been silent, by the clocks on the wall.
pub fn silence(lease: &Lease, now: jiff::Timestamp) -> Option<u64> {
    let renewed = lease.spec.as_ref()?.renew_time.as_ref()?.0;
    // A clock that is ahead is no silence.
    Some(u64::try_from(now.as_millisecond() - renewed.as_millisecond()).unwrap_or(0))
}

/// Whether an agent is heard.
pub fn is_heard(lease: &Lease, now: jiff::Timestamp) -> bool {
    silence(lease, now).is_some_and(|silence| silence <= STALE_AFTER_MILLIS)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::view::View;
    use crate::wire::Agent;

    fn objects() -> Objects {
        let inventory = json!({"v": 1, "devices": [
            {"id": "GPU-1", "index": 0, "minor": 0, "model": "T4", "mem": 16384}]});
        let node = |name: &str| {
            json!({"metadata": {"name": name, "annotations": {
                "nano-gpu/inventory": inventory.to_string().replace("GPU-1", &format!("GPU-{name}"))}}})
        };
        let pod = |name: &str, node: Option<&str>| {
            let placement = node
                .map_or_else(String::new, |node| format!("v1;{node};main=GPU-{node}:30%+4096Mi"));
            json!({
                "metadata": {"name": name, "namespace": "team", "uid": name,
                             "annotations": {"nano-gpu/placement": placement}},
                "spec": {"nodeName": node, "containers": [{"name": "main", "resources":
                    {"limits": {"nano-gpu/gpu-percent": "30"}}}]},
            })
        };
        let lease = |name: &str, renewed: &str| json!({"metadata": {"name": name}, "spec": {"renewTime": renewed}});
        Objects {
            nodes: [node("a"), node("b")].map(|v| serde_json::from_value(v).unwrap()).into(),
            pods: vec![pod("on", Some("a")), pod("off", None)],
            leases: [
                lease("a", "2026-01-01T00:00:30.000000Z"),
                lease("b", "2026-01-01T00:00:00.000000Z"),
            ]
            .map(|v| serde_json::from_value(v).unwrap())
            .into(),
        }
    }

    #[test]
    fn annotations_tell_who_holds_what_and_leases_who_is_heard() {
        let now = "2026-01-01T00:00:41Z".parse().unwrap();
        let settings = Settings::default();
        let objects = objects();
        let waiting = objects.waiting(&settings);
        let view = View::of_snapshot(&objects.snapshot(&settings, now), waiting, "why".into());
        let agents: Vec<Agent> = view.nodes.iter().map(|node| node.agent).collect();
        assert_eq!(agents, [Agent::Fresh, Agent::Stale]);
        let card = &view.nodes[0].cards[0];
        assert_eq!((card.cores_held, card.memory_held), (30, 4096));
        assert_eq!(card.held_by[0].pod, "on");
        assert_eq!(view.waiting[0].pod, "off");
    }
}
