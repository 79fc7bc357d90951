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
        let (write_names, names) = watch::channel(Arc::<BTreeMap<PodUid, Names>>::default());
        let (write_waiting, waiting) = watch::channel(Arc::<BTreeMap<PodUid, Messages>>::default());
        let (sync, synced) = watch::channel(false);
        tokio::spawn(async move {
            while let Some(seen) = seen.recv().await {
                // Changed in place while nobody looks, and copied for whoever does.
                match seen {
                    Seen::Pod(pod) => {
                        let pod = Arc::unwrap_or_clone(pod);
                        let uid = pod.pod.id.uid.clone();
                        write_waiting.send_if_modified(|all| {
                            let now: Messages = pod.waiting.into_iter().collect();
                            if now.is_empty() && !all.contains_key(&uid) {
                                return false;
                            }
                            let all = Arc::make_mut(all);
                            if now.is_empty() {
                                all.remove(&uid);
                            } else {
                                all.insert(uid.clone(), now);
                            }
                            true
                        });
                        // A kubelet writes pods again and again in which nothing has changed.
                        write_names.send_if_modified(|all| {
                            let now: Names = pod.containers.into_iter().collect();
                            let changed = all.get(&uid) != Some(&now);
                            if changed {
                                Arc::make_mut(all).insert(uid.clone(), now);
                            }
                            changed
                        });
                        write.send_if_modified(|all| {
                            let changed = all.get(&uid).is_none_or(|known| **known != pod.pod);
                            if changed {
                                Arc::make_mut(all).insert(uid.clone(), Arc::new(pod.pod));
                            }
                            changed
                        });
                    }
                    Seen::PodGone(uid) => {
                        write.send_modify(|all| drop(Arc::make_mut(all).remove(&uid)));
                        write_names.send_modify(|all| drop(Arc::make_mut(all).remove(&uid)));
                        write_waiting.send_modify(|all| drop(Arc::make_mut(all).remove(&uid)));
                    }
                    Seen::Synced(_) => drop(sync.send_replace(true)),
                    _ => {}
                }
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

    /// The same, of which each has a container that waits with this message.
    #[must_use]
    pub fn waiting(mut self, container: &str, message: &str) -> Self {
        let one: Messages = [(container.to_owned(), message.to_owned())].into();
        let all = self.all().keys().map(|uid| (uid.clone(), one.clone())).collect();
        self.waiting = watch::channel(Arc::new(all)).1;
        self
    }

    /// All of them.
    pub fn all(&self) -> Arc<Map> {
        self.map.borrow().clone()
    }

    /// The names of their containers, by the runtime's IDs.
    pub fn container_names(&self) -> Arc<BTreeMap<PodUid, BTreeMap<String, String>>> {
        self.names.borrow().clone()
    }

    /// Waits until the API shows the container with this ID of the runtime's. It does so a moment after
    /// the container was started.
    pub async fn shown(&self, pod: &PodUid, id: &str, patience: Duration) -> bool {
        let mut names = self.names.clone();
        let seen = names.wait_for(|all| all.get(pod).is_some_and(|own| own.contains_key(id)));
        matches!(tokio::time::timeout(patience, seen).await, Ok(Ok(_)))
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
