//! A scheduler whose API server does as it is told.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dialect::Settings;
use futures::future::BoxFuture;
use kubeapi::{
    Alone, Annotated, Binding, BindingOutcome, Clock, EvictionOutcome, Leadership, Listed, Outside,
    Seen, SeenPod, TouchOutcome, UnreadPod,
};
use ledger::{Event, NodeFacts};
use model::codec::decode_inventory;
use model::{Bytes, Host, MilliCpu, NodeName, PodId, PodUid};
use placement::Policy;
use scheduler::decisions::Decisions;
use scheduler::metrics::Metrics;
use scheduler::preempting::Preempting;
use scheduler::service::{LastRead, Service};
use scheduler::state::{Handle, Writer, WriterOptions};
use scheduler::taking_over::HeldBack;
use scheduler::verbs::bind::{BindOptions, Binder};
use scheduler::verbs::memo::Memo;
use scheduler::verbs::offer::Offer;
use scheduler::verbs::predicates::Predicates;
use scheduler::waking::Waiting;
use serde_json::{Value, json};
use telemetry::{Health, Numbers};
use tokio::sync::{mpsc, watch};

/// How many nodes this scheduler names.
pub(crate) const OFFER: Offer = Offer { many: 8, few: 1 };

/// What a Binding is to meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Applied, and said so.
    None,
    /// Applied, but nobody hears of it.
    LostAfter,
    /// Not applied, and nobody hears of it.
    LostBefore,
    /// The pod changes just before.
    Changed,
    /// Refused.
    Refused,
    /// Answers only after a while.
    Slow,
}

/// An API server in memory: pods by name, with versions.
#[derive(Debug, Default)]
pub(crate) struct Store {
    pub(crate) pods: Mutex<BTreeMap<String, (u64, Value)>>,
    pub(crate) faults: Mutex<VecDeque<Fault>>,
    pub(crate) bindings: Mutex<u32>,
    pub(crate) touches: Mutex<u32>,
    /// Pods whose annotations may not be changed, by name.
    pub(crate) untouchable: Mutex<Vec<String>>,
    /// Pods that cannot be read.
    pub(crate) unread: Mutex<Vec<UnreadPod>>,
    /// Pods that were evicted, by name.
    pub(crate) evicted: Mutex<Vec<String>>,
    /// What evictions are to meet beside: blocked pods, by name.
    pub(crate) guarded: Mutex<Vec<String>>,
    pub(crate) watch: Mutex<Option<mpsc::Sender<Seen>>>,
}

impl Store {
    pub(crate) fn put(&self, pod: &Value) {
        let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
        self.pods.lock().unwrap().insert(name.clone(), (1, pod.clone()));
        self.show(&name);
    }

    pub(crate) fn seen(&self, name: &str) -> Option<SeenPod> {
        let pods = self.pods.lock().unwrap();
        let (version, pod) = pods.get(name)?;
        let mut pod = pod.clone();
        pod["metadata"]["resourceVersion"] = json!(version.to_string());
        Some(SeenPod::from_json(&pod.to_string()).unwrap())
    }

    pub(crate) fn show(&self, name: &str) {
        let (Some(seen), Some(watch)) = (self.seen(name), self.watch.lock().unwrap().clone())
        else {
            return;
        };
        watch.try_send(Seen::Pod(Arc::new(seen))).unwrap();
    }

    pub(crate) fn remove(&self, name: &str) {
        let seen = self.seen(name);
        self.pods.lock().unwrap().remove(name);
        if let (Some(seen), Some(watch)) = (seen, self.watch.lock().unwrap().clone()) {
            watch.try_send(Seen::PodGone(seen.pod.id.uid.clone())).unwrap();
        }
    }

    fn change(
        &self,
        pod: &PodId,
        version: Option<&str>,
        change: impl FnOnce(&mut Value),
    ) -> TouchOutcome {
        let outcome = {
            let mut pods = self.pods.lock().unwrap();
            let Some((now, value)) = pods.get_mut(&pod.name) else { return TouchOutcome::Gone };
            if value["metadata"]["uid"] != json!(pod.uid.as_str()) {
                return TouchOutcome::Gone;
            }
            if version.is_some_and(|version| version != now.to_string()) {
                return TouchOutcome::Conflict;
            }
            *now += 1;
            change(value);
            TouchOutcome::Changed(now.to_string())
        };
        self.show(&pod.name);
        outcome
    }
}

impl Outside for Store {
    fn bind(&self, binding: Binding) -> BoxFuture<'_, BindingOutcome> {
        Box::pin(async move {
            *self.bindings.lock().unwrap() += 1;
            let fault = self.faults.lock().unwrap().pop_front().unwrap_or(Fault::None);
            match fault {
                Fault::LostBefore => return BindingOutcome::Unknown("lost".into()),
                Fault::Refused => return BindingOutcome::Refused("not today".into()),
                Fault::Changed => {
                    self.change(&binding.pod, None, |_| {});
                }
                Fault::Slow => tokio::time::sleep(Duration::from_millis(300)).await,
                Fault::None | Fault::LostAfter => {}
            }
            let bound = self.seen(&binding.pod.name).is_some_and(|seen| seen.pod.node.is_some());
            if bound {
                return BindingOutcome::Conflict("bound".into());
            }
            let outcome = self.change(&binding.pod, Some(&binding.version), |pod| {
                pod["spec"]["nodeName"] = json!(binding.node);
                for (key, value) in &binding.annotations {
                    pod["metadata"]["annotations"][key] = json!(value);
                }
            });
            match outcome {
                TouchOutcome::Changed(_) if fault == Fault::LostAfter => {
                    BindingOutcome::Unknown("lost".into())
                }
                TouchOutcome::Changed(_) => BindingOutcome::Bound,
                TouchOutcome::Conflict => BindingOutcome::Conflict("changed".into()),
                TouchOutcome::Gone => BindingOutcome::Gone,
                TouchOutcome::Refused(why) | TouchOutcome::Failed(why) => {
                    BindingOutcome::Unknown(why)
                }
            }
        })
    }

    fn pod(&self, pod: &PodId) -> BoxFuture<'_, Result<Option<SeenPod>, String>> {
        let seen = self.seen(&pod.name);
        Box::pin(async move { Ok(seen) })
    }

    fn pods(&self) -> BoxFuture<'_, Result<Listed, String>> {
        let names: Vec<String> = self.pods.lock().unwrap().keys().cloned().collect();
        let pods = names.iter().filter_map(|name| self.seen(name)).collect();
        let unread = self.unread.lock().unwrap().clone();
        Box::pin(async move { Ok(Listed { pods, unread }) })
    }

    fn annotate(&self, annotated: Annotated) -> BoxFuture<'_, TouchOutcome> {
        Box::pin(async move {
            *self.touches.lock().unwrap() += 1;
            if self.untouchable.lock().unwrap().contains(&annotated.pod.name) {
                return TouchOutcome::Refused("a policy forbids it".into());
            }
            self.change(&annotated.pod, annotated.version.as_deref(), |pod| {
                for (key, value) in &annotated.annotations {
                    match value {
                        Some(value) => pod["metadata"]["annotations"][key] = json!(value),
                        None => {
                            pod["metadata"]["annotations"].as_object_mut().map(|a| a.remove(key));
                        }
                    }
                }
            })
        })
    }

    fn evict(&self, pod: &PodId) -> BoxFuture<'_, EvictionOutcome> {
        let pod = pod.clone();
        Box::pin(async move {
            if self.guarded.lock().unwrap().contains(&pod.name) {
                return EvictionOutcome::Blocked("its budget is spent".into());
            }
            self.evicted.lock().unwrap().push(pod.name.clone());
            // On its way out: it holds what it has until it is gone.
            self.change(&pod, None, |pod| {
                pod["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:04:05Z");
            });
            EvictionOutcome::Evicted
        })
    }

    fn nominate(&self, pod: &PodId, node: &NodeName) -> BoxFuture<'_, TouchOutcome> {
        let outcome = self.change(pod, None, |pod| {
            pod["status"]["nominatedNodeName"] = json!(node);
        });
        Box::pin(async move { outcome })
    }
}

/// Everything but HTTP.
pub(crate) struct World {
    pub(crate) service: Arc<Service>,
    pub(crate) store: Arc<Store>,
    pub(crate) handle: Handle,
    pub(crate) health: Arc<Health>,
    pub(crate) numbers: Arc<Numbers>,
    pub(crate) clock: Clock,
    pub(crate) held_back: Arc<HeldBack>,
    cards: usize,
    events: mpsc::Sender<Seen>,
    _prepared: watch::Sender<u64>,
}

impl World {
    /// `nodes` nodes of two cards each, all heard of.
    pub(crate) async fn new(nodes: usize) -> Self {
        Self::led_by(nodes, Arc::new(Alone)).await
    }

    pub(crate) async fn led_by(nodes: usize, leadership: Arc<dyn Leadership>) -> Self {
        Self::of(nodes, 2, leadership).await
    }

    /// `nodes` nodes of `cards` cards each.
    pub(crate) async fn of(nodes: usize, cards: usize, leadership: Arc<dyn Leadership>) -> Self {
        let clock = Clock::new();
        let settings = Arc::new(Settings::default());
        let health = Arc::new(Health::waiting_for(&[]));
        let numbers = Arc::new(Numbers::new());
        let metrics = Arc::new(Metrics::new(&numbers));
        let policy = Policy::default();
        let options = WriterOptions { settings: settings.clone(), policy, promise: 300_000 };
        let (writer, handle) = Writer::new(options, clock, health.clone());
        let (events, seen) = mpsc::channel(10_000);
        tokio::spawn(writer.run(seen));
        let store = Arc::new(Store::default());
        *store.watch.lock().unwrap() = Some(events.clone());
        let (prepared, is_prepared) = watch::channel(1);
        let held_back = Arc::new(HeldBack::default());
        let outside: Arc<dyn Outside> = store.clone();
        let binder = Binder::new(
            handle.clone(),
            outside.clone(),
            leadership,
            BindOptions {
                settings: settings.clone(),
                schedulers: vec!["nanogpu".into()],
                hold: 15_000,
                margin: Duration::from_millis(10),
                answer_within: Duration::from_secs(2),
                conflicts: metrics.conflicts.clone(),
            },
            clock,
            is_prepared,
            held_back.clone(),
        );
        let service = Arc::new(Service {
            handle: handle.clone(),
            settings,
            policy,
            waiting: Arc::new(Waiting::default()),
            preempting: Arc::new(Preempting::new(handle.clone(), outside.clone(), policy)),
            binder,
            predicates: Predicates::new(handle.clone(), outside, clock, 60_000),
            decisions: Arc::new(Decisions::default()),
            metrics,
            memo: Memo::default(),
            last: LastRead::default(),
            clock,
            offer: OFFER,
            strict_bind_status: false,
        });
        let world = Self {
            service,
            store,
            handle,
            health,
            numbers,
            clock,
            held_back,
            cards,
            events,
            _prepared: prepared,
        };
        for index in 0..nodes {
            world.node(&format!("n-{index}")).await;
        }
        world.settle().await;
        world
    }

    pub(crate) async fn node(&self, name: &str) {
        self.node_that_is(name, false).await;
    }

    /// A node, which its administrator would rather spare if it is `shunned`.
    pub(crate) async fn node_that_is(&self, name: &str, shunned: bool) {
        let card = |index: usize| {
            json!({"id": format!("GPU-{name}-{index}"), "index": index, "minor": index,
                   "model": "T4", "mem": 16384})
        };
        let devices: Vec<Value> = (0..self.cards).map(card).collect();
        let inventory = json!({"v": 1, "devices": devices}).to_string();
        let name = NodeName::parse(name).unwrap();
        let facts = NodeFacts {
            name: name.clone(),
            allocatable: Host { cpu: MilliCpu(64_000), memory: Bytes(1 << 38) },
            pool: None,
            shunned,
            inventory: Some(Ok(decode_inventory(&inventory).unwrap())),
            tickets: [("nano-gpu/gpu-percent".to_owned(), 100 * self.cards as u64)].into(),
        };
        self.tell(Seen::Ledger(Event::Node(facts))).await;
        self.beat(&name).await;
    }

    /// The node's agent is heard.
    pub(crate) async fn beat(&self, node: &NodeName) {
        let at = self.clock.now();
        self.tell(Seen::Ledger(Event::Heartbeat { node: node.clone(), at })).await;
    }

    pub(crate) async fn tell(&self, seen: Seen) {
        self.events.send(seen).await.unwrap();
    }

    /// Waits until the writer has seen all that was told so far.
    pub(crate) async fn settle(&self) {
        while self.events.capacity() < self.events.max_capacity() {
            tokio::task::yield_now().await;
        }
        // The writer answers after it has shown all it saw before.
        self.handle.release(&PodUid::parse("nobody").unwrap()).await;
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let picture = self.handle.picture();
        picture.snapshot.nodes().iter().map(|node| node.name.to_string()).collect()
    }

    /// What is free of a node's compute.
    pub(crate) fn free(&self, node: &str) -> u32 {
        let picture = self.handle.picture();
        let node = picture.snapshot.node(&NodeName::parse(node).unwrap()).unwrap().clone();
        node.devices.iter().map(|state| state.free_cores().0).sum()
    }
}

/// A pod of ours that asks for `percent` of a card.
pub(crate) fn pod(name: &str, percent: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "team", "uid": format!("uid-{name}"), "annotations": {}},
        "spec": {"schedulerName": "nanogpu", "containers": [
            {"name": "c", "resources": {"limits": {"nano-gpu/gpu-percent": percent}}}]},
        "status": {"phase": "Pending"},
    })
}

pub(crate) fn bind_body(name: &str, node: &str) -> Vec<u8> {
    json!({"PodName": name, "PodNamespace": "team", "PodUID": format!("uid-{name}"), "Node": node})
        .to_string()
        .into_bytes()
}

pub(crate) fn filter_body(pod: &Value, names: &[String]) -> Vec<u8> {
    json!({"Pod": pod, "NodeNames": names}).to_string().into_bytes()
}

pub(crate) fn read(answer: &scheduler::service::Answer) -> Value {
    serde_json::from_slice(&answer.body).unwrap()
}
