//! The pods of this node, as the API server shows them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kubeapi::{Client, Seen, watch_pods_on};
use model::{NodeName, Pod, PodUid};
use tokio::sync::{mpsc, watch};

type Map = BTreeMap<PodUid, Arc<Pod>>;

/// The pods of this node. One task writes; everyone else reads.
#[derive(Debug, Clone)]
pub struct Pods {
    map: watch::Receiver<Arc<Map>>,
    synced: watch::Receiver<bool>,
}

impl Pods {
    /// Watches the pods of `node` until everyone who reads is gone.
    pub fn watch(client: Client, node: NodeName) -> Self {
        let (out, mut seen) = mpsc::channel(64);
        tokio::spawn(async move { watch_pods_on(client, &node, out).await });
        let (write, map) = watch::channel(Arc::new(Map::new()));
        let (sync, synced) = watch::channel(false);
        tokio::spawn(async move {
            let mut own = Map::new();
            while let Some(seen) = seen.recv().await {
                match seen {
                    Seen::Pod(pod) => {
                        drop(own.insert(pod.pod.id.uid.clone(), Arc::new(pod.pod.clone())));
                    }
                    Seen::PodGone(uid) => drop(own.remove(&uid)),
                    Seen::Synced(_) => drop(sync.send_replace(true)),
                    _ => continue,
                }
                write.send_replace(Arc::new(own.clone()));
            }
        });
        Self { map, synced }
    }

    /// These pods and no others, for tests.
    pub fn fixed(pods: impl IntoIterator<Item = Pod>) -> Self {
        let map: Map = pods.into_iter().map(|pod| (pod.id.uid.clone(), Arc::new(pod))).collect();
        Self { map: watch::channel(Arc::new(map)).1, synced: watch::channel(true).1 }
    }

    /// All of them.
    pub fn all(&self) -> Arc<Map> {
        self.map.borrow().clone()
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
