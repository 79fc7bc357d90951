//! The pods of this node, as the API server shows them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kubeapi::{Client, Seen, watch_pods_on};
use model::{NodeName, Pod, PodUid};
use tokio::sync::{mpsc, watch};

type Map = BTreeMap<PodUid, Arc<Pod>>;
/// The names of containers, by the runtime's IDs.
type Names = BTreeMap<String, String>;
/// What containers that wait are waiting for, by their names.
type Messages = BTreeMap<String, String>;

/// The pods of this node. One task writes; everyone else reads.
#[derive(Debug, Clone)]
pub struct Pods {
    map: watch::Receiver<Arc<Map>>,
    names: watch::Receiver<Arc<BTreeMap<PodUid, Names>>>,
    waiting: watch::Receiver<Arc<BTreeMap<PodUid, Messages>>>,
    synced: watch::Receiver<bool>,
}

impl Pods {
    /// Watches the pods of `node` until everyone who reads is gone.
    pub fn watch(client: Client, node: NodeName) -> Self {
        let (out, mut seen) = mpsc::channel(64);
        tokio::spawn(async move { watch_pods_on(client, &node, out).await });
        let (write, map) = watch::channel(Arc::new(Map::new()));
        let (write_names, names) = watch::channel(Arc::default());
        let (write_waiting, waiting) = watch::channel(Arc::default());
        let (sync, synced) = watch::channel(false);
        tokio::spawn(async move {
            let (mut own, mut names) = (Map::new(), BTreeMap::new());
            let mut waiting: BTreeMap<PodUid, Messages> = BTreeMap::new();
            while let Some(seen) = seen.recv().await {
                match seen {
                    Seen::Pod(pod) => {
                        let uid = pod.pod.id.uid.clone();
                        waiting.remove(&uid);
                        if !pod.waiting.is_empty() {
                            waiting.insert(uid.clone(), pod.waiting.iter().cloned().collect());
                        }
                        names.insert(uid, pod.containers.iter().cloned().collect());
                        drop(own.insert(pod.pod.id.uid.clone(), Arc::new(pod.pod.clone())));
                    }
                    Seen::PodGone(uid) => {
                        drop((own.remove(&uid), names.remove(&uid), waiting.remove(&uid)));
                    }
                    Seen::Synced(_) => drop(sync.send_replace(true)),
                    _ => continue,
                }
                write.send_replace(Arc::new(own.clone()));
                write_names.send_replace(Arc::new(names.clone()));
                write_waiting.send_replace(Arc::new(waiting.clone()));
            }
        });
        Self { map, names, waiting, synced }
    }

    /// These pods and no others, for tests.
    pub fn fixed(pods: impl IntoIterator<Item = Pod>) -> Self {
        Self::fixed_with(pods, &[])
    }

    /// The same, each with these containers: the runtime's IDs and their names.
    pub fn fixed_with(pods: impl IntoIterator<Item = Pod>, containers: &[(&str, &str)]) -> Self {
        let map: Map = pods.into_iter().map(|pod| (pod.id.uid.clone(), Arc::new(pod))).collect();
        let all = containers.iter().map(|(id, name)| ((*id).to_owned(), (*name).to_owned()));
        let all: Names = all.collect();
        let names = map.keys().map(|uid| (uid.clone(), all.clone())).collect();
        Self {
            map: watch::channel(Arc::new(map)).1,
            names: watch::channel(Arc::new(names)).1,
            waiting: watch::channel(Arc::default()).1,
            synced: watch::channel(true).1,
        }
    }

    /// All of them.
    pub fn all(&self) -> Arc<Map> {
        self.map.borrow().clone()
    }

    /// The names of their containers, by the runtime's IDs.
    pub fn container_names(&self) -> Arc<BTreeMap<PodUid, BTreeMap<String, String>>> {
        self.names.borrow().clone()
    }

    /// Whether a container waits for a reason that has `text` in it.
    pub fn waits(&self, pod: &PodUid, container: &str, text: &str) -> bool {
        let waiting = self.waiting.borrow();
        let message = waiting.get(pod).and_then(|all| all.get(container));
        message.is_some_and(|message| message.contains(text))
    }

    /// Whether all there are have been shown once.
    pub fn are_synced(&self) -> bool {
        *self.synced.borrow()
    }

    /// Waits until all there are have been shown once.
    pub async fn synced(&self) {
        let _ = self.synced.clone().wait_for(|synced| *synced).await;
    }

    /// The pod with this UID; a pod the kubelet saw a moment before us is waited for.
    pub async fn get(&self, uid: &PodUid, patience: Duration) -> Option<Arc<Pod>> {
        let mut map = self.map.clone();
        let seen =
            async { map.wait_for(|map| map.contains_key(uid)).await.ok()?.get(uid).cloned() };
        tokio::time::timeout(patience, seen).await.ok()?
    }
}
