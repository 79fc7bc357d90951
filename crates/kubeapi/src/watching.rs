//! Watches, turned into what happened.
//!
//! Each watch lists first and then follows. When it has to list again, what was known and is no
//! longer there is told as gone, so that nothing is held by pods that vanished unseen. Pods and Leases,
//! which change all the time, are watched in [`crate::protobuf`]; all else in JSON.

use std::collections::HashSet;
use std::sync::Arc;

use futures::StreamExt as _;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Config, watcher};
use kube::{Api, Client, Resource, ResourceExt as _};
use ledger::{Event, Measured};
use model::{DeviceId, NodeName, PodUid};
use prost::bytes::Bytes;
use tokio::sync::mpsc;

use crate::budgets::PodBudget;
use crate::clock::Clock;
use crate::heartbeats::{AGENT, Heartbeats};
use crate::nodes::facts;
use crate::pods::{SeenPod, UnreadPod};
use crate::protobuf::{Following, read_lease, read_pod, uid_of};

/// Something the API server showed.
#[derive(Debug, Clone)]
pub enum Seen {
    /// A pod, as it is now.
    Pod(Arc<SeenPod>),
    /// A pod on a node that cannot be read.
    Unread(Arc<UnreadPod>),
    /// A pod is deleted or has ended.
    PodGone(PodUid),
    /// What the ledger takes as it is: nodes and heartbeats.
    Ledger(Event),
    /// What an agent measured.
    Load(NodeName, Vec<(DeviceId, Measured)>),
    /// A budget, as it is now.
    Budget(PodBudget),
    /// A budget is deleted.
    BudgetGone(String),
    /// The text of a quota, or that it is not there.
    Quota(QuotaSource, Option<String>),
    /// All there is of this kind has been shown once.
    Synced(Source),
}

/// A kind of thing that is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Source {
    /// Pods.
    Pods,
    /// Nodes.
    Nodes,
    /// Agents' Leases.
    Agents,
    /// Disruption budgets.
    Budgets,
    /// A quota.
    Quota(QuotaSource),
}

impl Source {
    /// A word for people.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pods => "pods",
            Self::Nodes => "nodes",
            Self::Agents => "agents",
            Self::Budgets => "budgets",
            Self::Quota(QuotaSource::GpuAdmission) => "gpu-admission's quota",
            Self::Quota(QuotaSource::Ours) => "quota",
        }
    }
}

/// The two forms of quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum QuotaSource {
    /// gpu-admission's ConfigMap.
    GpuAdmission,
    /// Ours.
    Ours,
}

/// What to watch, and how to read it.
#[derive(Debug, Clone)]
pub struct Watching {
    /// Where agents keep their Leases.
    pub namespace: String,
    /// Resource names that draw kubelet tickets.
    pub identities: Vec<&'static str>,
    /// The label that names a node's pool.
    pub pool_label: Option<String>,
    /// Where quotas are: form, namespace, ConfigMap, key.
    pub quotas: Vec<(QuotaSource, String, String, String)>,
}

/// Watches until the receiver is gone.
pub async fn watch(client: Client, watching: Watching, clock: Clock, out: mpsc::Sender<Seen>) {
    // What has ended holds nothing. When a pod ends, the watch shows it as deleted.
    let pods = Following::new::<Pod>(None).fields("status.phase!=Succeeded,status.phase!=Failed");
    let pods = pods.run(client.clone(), Teller::new(Source::Pods, out.clone(), sort_pods()));
    let nodes = {
        let api: Api<Node> = Api::all(client.clone());
        let Watching { identities, pool_label, .. } = watching.clone();
        let seen = move |node: &Node| match facts(node, &identities, pool_label.as_deref()) {
            Ok(facts) => vec![Seen::Ledger(Event::Node(facts))],
            Err(error) => {
                tracing::warn!(%error, "node left out");
                Vec::new()
            }
        };
        let mut ends = Ends::new(|node: &Node| Some(node.name_any()));
        follow(api, Config::default(), Source::Nodes, out.clone(), move |event| {
            ends.sort(event, &seen, |name| {
                NodeName::parse(name).ok().map(|name| Seen::Ledger(Event::NodeGone(name)))
            })
        })
    };
    let agents = {
        let mut heartbeats = Heartbeats::default();
        let sort = move |event| {
            // A Lease that is deleted beats no more; its node goes stale by itself.
            let (watcher::Event::Apply(lease) | watcher::Event::InitApply(lease)) = event else {
                return Vec::new();
            };
            let heard = read_lease(lease);
            let heard = heard.and_then(|it| heartbeats.hear(&it, jiff::Timestamp::now()));
            let Some(heard) = heard else { return Vec::new() };
            let beat = Event::Heartbeat { node: heard.node.clone(), at: clock.now() };
            let beat = heard.beats.then_some(Seen::Ledger(beat));
            beat.into_iter().chain([Seen::Load(heard.node, heard.load)]).collect()
        };
        let leases = Following::new::<Lease>(Some(&watching.namespace)).labels(AGENT);
        leases.run(client.clone(), Teller::new(Source::Agents, out.clone(), sort))
    };
    let budgets = {
        let api: Api<PodDisruptionBudget> = Api::all(client.clone());
        let mut ends = Ends::new(|budget: &PodDisruptionBudget| budget.uid());
        let seen = |budget: &PodDisruptionBudget| {
            PodBudget::new(budget.clone()).map(Seen::Budget).into_iter().collect()
        };
        follow(api, Config::default(), Source::Budgets, out.clone(), move |event| {
            ends.sort(event, seen, |uid| Some(Seen::BudgetGone(uid.to_owned())))
        })
    };
    let quotas = watching.quotas.into_iter().map(|(source, namespace, name, key)| {
        let api: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
        let fields = format!("metadata.name={name}");
        let mut there = false;
        let config = Config::default().fields(&fields);
        follow(api, config, Source::Quota(source), out.clone(), move |event| {
            let text = |map: ConfigMap| map.data.and_then(|mut data| data.remove(&key));
            match event {
                watcher::Event::Apply(map) | watcher::Event::InitApply(map) => {
                    there = true;
                    vec![Seen::Quota(source, text(map))]
                }
                watcher::Event::Delete(_) => vec![Seen::Quota(source, None)],
                watcher::Event::Init => {
                    there = false;
                    Vec::new()
                }
                watcher::Event::InitDone if !there => vec![Seen::Quota(source, None)],
                watcher::Event::InitDone => Vec::new(),
            }
        })
    });
    let quotas = futures::future::join_all(quotas);
    tokio::join!(pods, nodes, agents, budgets, quotas);
}

/// An agent reads so many pods at a time: all of a full node are megabytes, and what it once needed to
/// read them it would keep.
const PAGE: u32 = 32;

/// Watches the pods of one node until the receiver is gone.
pub async fn watch_pods_on(client: Client, node: &NodeName, out: mpsc::Sender<Seen>) {
    let fields = format!("spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed");
    let pods = Following::new::<Pod>(None).fields(&fields).page_size(PAGE);
    pods.run(client, Teller::new(Source::Pods, out, sort_pods())).await;
}

fn sort_pods() -> impl FnMut(watcher::Event<Bytes>) -> Vec<Seen> {
    let mut ends = Ends::new(uid_of);
    move |event| ends.sort(event, seen_pod, |uid| PodUid::parse(uid).ok().map(Seen::PodGone))
}

fn seen_pod(raw: &Bytes) -> Vec<Seen> {
    match read_pod(raw) {
        Some(Ok(pod)) => vec![Seen::Pod(Arc::new(pod))],
        Some(Err(unread)) if unread.node.is_some() => vec![Seen::Unread(Arc::new(unread))],
        // One that is on no node holds nothing.
        Some(Err(_)) | None => Vec::new(),
    }
}

/// Follows one watch in JSON and sends what `sort` makes of it.
async fn follow<K>(
    api: Api<K>,
    config: Config,
    source: Source,
    out: mpsc::Sender<Seen>,
    sort: impl FnMut(watcher::Event<K>) -> Vec<Seen>,
) where
    K: Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
    K::DynamicType: Default,
{
    let mut teller = Teller::new(source, out, sort);
    let mut events = std::pin::pin!(watcher(api, config).default_backoff());
    while let Some(event) = events.next().await {
        match event {
            Err(error) => teller.interrupted(&error),
            Ok(event) => {
                if teller.tell(event).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Sends what `sort` makes of the events of a watch.
pub(crate) struct Teller<S> {
    source: Source,
    out: mpsc::Sender<Seen>,
    sort: S,
}

/// The receiver is gone.
#[derive(Debug)]
pub(crate) struct Unheard;

impl<S> Teller<S> {
    fn new(source: Source, out: mpsc::Sender<Seen>, sort: S) -> Self {
        Self { source, out, sort }
    }

    pub(crate) async fn tell<K>(&mut self, event: watcher::Event<K>) -> Result<(), Unheard>
    where
        S: FnMut(watcher::Event<K>) -> Vec<Seen>,
    {
        let synced = matches!(event, watcher::Event::InitDone).then_some(Seen::Synced(self.source));
        for seen in (self.sort)(event).into_iter().chain(synced) {
            self.out.send(seen).await.map_err(|_| Unheard)?;
        }
        Ok(())
    }

    pub(crate) fn interrupted(&self, error: &dyn std::fmt::Display) {
        tracing::warn!(%error, source = self.source.as_str(), "watch interrupted");
    }
}

/// Tells what is gone after a watch had to list again.
struct Ends<K, I: Fn(&K) -> Option<String>> {
    id: I,
    known: HashSet<String>,
    listing: HashSet<String>,
    of: std::marker::PhantomData<fn(&K)>,
}

impl<K, I: Fn(&K) -> Option<String>> Ends<K, I> {
    fn new(id: I) -> Self {
        Self { id, known: HashSet::new(), listing: HashSet::new(), of: std::marker::PhantomData }
    }

    fn sort(
        &mut self,
        event: watcher::Event<K>,
        mut seen: impl FnMut(&K) -> Vec<Seen>,
        gone: impl Fn(&str) -> Option<Seen>,
    ) -> Vec<Seen> {
        match event {
            watcher::Event::Init => {
                self.listing.clear();
                Vec::new()
            }
            watcher::Event::InitApply(object) => {
                self.listing.extend((self.id)(&object));
                seen(&object)
            }
            watcher::Event::InitDone => {
                let listed = std::mem::take(&mut self.listing);
                let before = std::mem::replace(&mut self.known, listed);
                before
                    .iter()
                    .filter(|id| !self.known.contains(*id))
                    .filter_map(|id| gone(id))
                    .collect()
            }
            watcher::Event::Apply(object) => {
                self.known.extend((self.id)(&object));
                seen(&object)
            }
            watcher::Event::Delete(object) => {
                let id = (self.id)(&object);
                if let Some(id) = &id {
                    self.known.remove(id);
                }
                id.and_then(|id| gone(&id)).into_iter().collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use watcher::Event::{Apply, Delete, Init, InitApply, InitDone};

    /// A pod of this name and UID, by the numbers of the API's fields.
    fn pod(uid: &str) -> Bytes {
        let [n, named] = [0x0a, 0x2a].map(|tag| [&[tag, 1], uid.as_bytes()].concat());
        [&[0x0a, 6][..], &n, &named].concat().into()
    }

    #[test]
    fn what_a_second_list_lacks_is_gone() {
        let mut sorted = sort_pods();
        let mut sort = |event| -> Vec<String> {
            let told = sorted(event).into_iter();
            told.map(|seen| match seen {
                Seen::Pod(pod) => format!("+{}", pod.pod.id.uid),
                Seen::PodGone(uid) => format!("-{uid}"),
                other => panic!("{other:?}"),
            })
            .collect()
        };
        assert!(sort(Init).is_empty());
        assert_eq!(sort(InitApply(pod("a"))), ["+a"]);
        assert_eq!(sort(InitApply(pod("b"))), ["+b"]);
        assert!(sort(InitDone).is_empty());
        assert_eq!(sort(Apply(pod("c"))), ["+c"]);
        assert_eq!(sort(Delete(pod("b"))), ["-b"]);
        sort(Init);
        assert_eq!(sort(InitApply(pod("c"))), ["+c"]);
        assert_eq!(sort(InitDone), ["-a"]);
    }
}
