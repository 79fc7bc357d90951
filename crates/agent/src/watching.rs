//! The one task that looks at the cards, and tells everyone what it sees.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use dialect::measured as amounts;
use gpu::{Absent, Event, Found, Gpus, Measured as Seen};
use kubeapi::{Clock, Kube, Outside as _, OwnNode, Told};
use kubelet::checkpoint::Checkpoint;
use kubelet::devices::{DeviceList, IdSet};
use ledger::Measured;
use model::codec::{decode_inventory, encode_inventory};
use model::{Cores, DeviceId, Inventory, Mebibytes, names};
use telemetry::Stopping;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::health::{News, Ward};
use crate::lists;
use crate::living::Processes;
use crate::metrics::Metrics;
use crate::plugin::Tickets;
use crate::pods::Pods;
use crate::records::Records;
use crate::settings::Settings;
use crate::starting::chain;
use crate::usage::{Stranger, explain};

/// What the watcher works with.
pub(crate) struct Watcher {
    pub(crate) settings: Arc<Settings>,
    pub(crate) gpus: Arc<dyn Gpus>,
    pub(crate) node: OwnNode,
    pub(crate) kube: Kube,
    pub(crate) inventory: watch::Sender<Arc<Inventory>>,
    pub(crate) plugins: Vec<Arc<Tickets>>,
    pub(crate) pods: Pods,
    pub(crate) records: Records,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) tell: mpsc::Sender<Told>,
    /// Counts how often the kubelet took a plugin in: it forgets amounts when it restarts.
    pub(crate) registrations: watch::Receiver<u64>,
}

#[derive(Default)]
struct State {
    published: Option<String>,
    published_at: Option<Instant>,
    offered: Option<(u64, Vec<(&'static str, u64)>)>,
    absent: Option<String>,
    load: Vec<(DeviceId, Measured)>,
    told: BTreeSet<(DeviceId, Option<String>, bool)>,
}

/// An annotation is written at most this often.
const BETWEEN_WRITES: Duration = Duration::from_secs(1);

impl Watcher {
    /// Watches until it is asked to stop.
    pub(crate) async fn run(self, mut stopping: Stopping) {
        let mut ward =
            Ward::new(u64::try_from(self.settings.probation.as_millis()).unwrap_or(u64::MAX));
        let mut state = State::default();
        let clock = Clock::new();
        let mut events = self.gpus.events();
        let mut looks = interval(self.settings.look);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut beats = interval(self.settings.beat);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut listening = true;
        loop {
            tokio::select! {
                () = stopping.asked() => return,
                event = events.recv(), if listening => match event {
                    Some(event) => {
                        self.hear(&mut ward, &event, &clock).await;
                        self.look(&mut ward, &mut state, &clock).await;
                    }
                    None => listening = false,
                },
                _ = looks.tick() => {
                    self.look(&mut ward, &mut state, &clock).await;
                    self.measure(&mut state).await;
                }
                _ = beats.tick() => self.beat(&mut ward, &state).await,
            }
        }
    }

    /// The inventory as it was published last, by us or an agent before us.
    pub(crate) async fn remembered(node: &OwnNode) -> Option<Inventory> {
        let annotations = node.annotations().await.ok()?;
        decode_inventory(annotations.get(names::INVENTORY)?).ok()
    }

    async fn hear(&self, ward: &mut Ward, event: &Event, clock: &Clock) {
        let all = self.known();
        tracing::warn!(device = ?event.device, xid = event.xid, "Xid");
        self.spread(ward.heard(event, &all, clock.now())).await;
    }

    fn known(&self) -> Vec<DeviceId> {
        self.inventory.borrow().devices.iter().map(|device| device.id.clone()).collect()
    }

    async fn look(&self, ward: &mut Ward, state: &mut State, clock: &Clock) {
        let found = self.gpus.look().await;
        say_if_absent(state, found.as_ref().err());
        let found: Option<Found> = found.ok();
        if let Some(found) = &found {
            self.spread(ward.looked(found, &self.known(), clock.now())).await;
        }
        let known = self.inventory.borrow().clone();
        let now = gpu::inventory(found.as_ref(), &known, &|id| ward.health(id));
        if now != *known {
            tracing::info!(devices = now.devices.len(), "inventory changed");
            self.inventory.send_replace(Arc::new(now));
        }
        self.refresh_lists().await;
        self.publish(state).await;
        self.offer(state).await;
    }

    async fn spread(&self, news: Vec<News>) {
        for one in news {
            match one {
                News::Left { device, why } => {
                    tracing::warn!(%device, why, "device out of service");
                    let note = format!("device {device} takes no new work: {why}");
                    self.node.tell("GpuOutOfService", note, true).await;
                }
                News::Returned { device } => {
                    tracing::info!(%device, "device back in service");
                    let note = format!("device {device} takes new work again");
                    self.node.tell("GpuInService", note, false).await;
                }
            }
        }
    }

    /// Health by number, in the list of every plugin.
    async fn refresh_lists(&self) {
        let folder = self.settings.plugins.clone();
        let read = tokio::task::spawn_blocking(move || Checkpoint::read(&folder)).await;
        let checkpoint = read.ok().and_then(Result::ok).unwrap_or_default();
        let inventory = self.inventory.borrow().clone();
        for plugin in &self.plugins {
            let Ok(ids) = plugin.served.ids(&inventory) else { continue };
            let of = |entry: &&kubelet::checkpoint::Entry| entry.resource == plugin.served.resource;
            let entries = checkpoint.entries().iter().filter(of);
            let held: IdSet = entries.flat_map(|e| e.ids.iter().map(str::to_owned)).collect();
            match DeviceList::new(lists::tickets(&plugin.served, &ids, &inventory, &held)) {
                Ok(list) => drop(plugin.list.send_if_modified(|now| {
                    let changed = *now != list;
                    *now = list;
                    changed
                })),
                Err(error) => {
                    tracing::warn!(%error, resource = plugin.served.resource, "list not sent");
                }
            }
        }
    }

    async fn publish(&self, state: &mut State) {
        let text = encode_inventory(&self.inventory.borrow().clone());
        let recent = state.published_at.is_some_and(|at| at.elapsed() < BETWEEN_WRITES);
        if state.published.as_ref() == Some(&text) || recent {
            return;
        }
        state.published_at = Some(Instant::now());
        match self.node.annotate(names::INVENTORY, &text).await {
            Ok(()) => state.published = Some(text),
            Err(error) => tracing::warn!(error = chain(&error), "inventory not published yet"),
        }
    }

    /// Amounts for people and the original tools, when they change or the kubelet started anew.
    async fn offer(&self, state: &mut State) {
        let amounts = amounts(&self.settings.dialects, &self.inventory.borrow().clone());
        let now = (*self.registrations.borrow(), amounts);
        if now.1.is_empty() || state.offered.as_ref() == Some(&now) {
            return;
        }
        match self.node.offer(&now.1).await {
            Ok(()) => state.offered = Some(now),
            Err(error) => tracing::warn!(error = chain(&error), "amounts not written yet"),
        }
    }

    async fn measure(&self, state: &mut State) {
        let Ok(measured) = self.gpus.measure().await else { return };
        let inventory = self.inventory.borrow().clone();
        let records = self.records.clone();
        let processes = Processes::below(&self.settings.proc);
        let (seen, of) = (measured.clone(), inventory.clone());
        let explained = tokio::task::spawn_blocking(move || {
            let records = records.list().unwrap_or_default();
            explain(&seen, &of, &records, &|pid| processes.place(pid))
        });
        let Ok((uses, strangers)) = explained.await else { return };
        self.metrics.measured(&inventory, &measured, &uses, &strangers);
        state.load = load(&measured, &strangers);
        self.report(state, &strangers).await;
    }

    /// Tells of each stranger once, until it is gone.
    async fn report(&self, state: &mut State, strangers: &[Stranger]) {
        let key = |s: &Stranger| {
            (s.device.clone(), s.pod.as_ref().map(ToString::to_string), s.above_limit)
        };
        let pods = self.pods.all();
        for stranger in strangers.iter().filter(|stranger| !state.told.contains(&key(stranger))) {
            let mebibytes = stranger.memory >> 20;
            let (device, pid) = (&stranger.device, stranger.pid);
            tracing::warn!(%device, pid, pod = ?stranger.pod, mebibytes, above_limit = stranger.above_limit, "stranger on a device");
            let pod = stranger.pod.as_ref().and_then(|uid| pods.get(uid));
            let Some(pod) = pod else {
                let note = format!(
                    "process {pid}, of no pod that was given device {device}, holds {mebibytes} MiB of it"
                );
                self.node.tell("GpuStranger", note, true).await;
                continue;
            };
            let note = if stranger.above_limit {
                format!("the pod holds {mebibytes} MiB of device {device} above its share")
            } else {
                format!("the pod holds {mebibytes} MiB of device {device}, which it was not given")
            };
            let told = Told { pod: pod.id.clone(), reason: "GpuStranger", note, warning: true };
            let _ = self.tell.try_send(told);
            if self.settings.evict {
                let outcome = self.kube.evict(&pod.id).await;
                tracing::warn!(pod = %pod.id, ?outcome, "evicted for what it takes");
            }
        }
        state.told = strangers.iter().map(key).collect();
    }

    async fn beat(&self, ward: &mut Ward, state: &State) {
        let beaten =
            self.node.beat(&self.settings.namespace, self.settings.beat, &state.load).await;
        if let Err(error) = beaten {
            tracing::warn!(error = chain(&error), "lease not renewed");
        }
        if let Ok(annotations) = self.node.annotations().await {
            let text = annotations.get(names::CORDON).map(String::as_str).unwrap_or_default();
            ward.cordon(cordoned(text, &self.inventory.borrow()));
        }
    }
}

/// Says once why there are no cards, and once that there are again.
fn say_if_absent(state: &mut State, absent: Option<&Absent>) {
    let why = absent.map(|absent| chain(absent));
    if state.absent == why {
        return;
    }
    if let Some(why) = &why {
        tracing::warn!(why, "no GPUs");
    } else {
        tracing::info!("GPUs answer");
    }
    state.absent = why;
}

/// The devices a person took out: UUIDs or places in the driver's order, in a list with commas.
fn cordoned(text: &str, inventory: &Inventory) -> BTreeSet<DeviceId> {
    let words: Vec<&str> = text.split(',').map(str::trim).filter(|word| !word.is_empty()).collect();
    let named = |device: &&Arc<model::Device>| {
        words.iter().any(|word| *word == device.id.as_str() || *word == device.index.to_string())
    };
    inventory.devices.iter().filter(named).map(|device| device.id.clone()).collect()
}

/// What the Lease carries, rounded so that a quiet node's changes little.
fn load(measured: &[Seen], strangers: &[Stranger]) -> Vec<(DeviceId, Measured)> {
    let mut strange: BTreeMap<&DeviceId, u64> = BTreeMap::new();
    for stranger in strangers {
        *strange.entry(&stranger.device).or_default() += stranger.memory;
    }
    let one = |seen: &Seen| {
        let busy = Cores(seen.busy.unwrap_or(0).div_ceil(5) * 5);
        let memory = strange.get(&seen.device).copied().unwrap_or(0);
        (seen.device.clone(), Measured { busy, strangers: Mebibytes(memory.div_ceil(1 << 20)) })
    };
    measured.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use model::Profile;

    use super::*;

    #[test]
    fn people_name_cards_by_uuid_or_place() {
        let inventory = Profile::named("t4x4").unwrap().inventory("GPU").unwrap();
        let id = |n: u32| DeviceId::parse(&format!("GPU-{n}")).unwrap();
        assert_eq!(cordoned("GPU-1, 3,", &inventory), [id(1), id(3)].into());
        assert_eq!(cordoned("", &inventory), BTreeSet::new());
        assert_eq!(cordoned("7,GPU-x", &inventory), BTreeSet::new());
    }

    #[test]
    fn load_is_rounded_and_knows_strangers() {
        let id = DeviceId::parse("GPU-1").unwrap();
        let seen =
            Seen { device: id.clone(), used: 0, total: 0, busy: Some(41), processes: vec![] };
        let stranger = Stranger {
            device: id.clone(),
            pid: 1,
            pod: None,
            memory: (3 << 20) + 1,
            above_limit: false,
        };
        let expected = Measured { busy: Cores(45), strangers: Mebibytes(4) };
        assert_eq!(load(&[seen], &[stranger]), [(id, expected)]);
    }
}
