//! The one task that looks at the cards, and tells everyone what it sees. It acts first and tells
//! last: nothing here waits for the API server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gpu::{Absent, Event, Gpus, Measured as Seen};
use kubeapi::Told;
use kubelet::checkpoint::{Checkpoint, CheckpointError, Stamp};
use kubelet::devices::{DeviceList, IdSet};
use ledger::Measured;
use model::{Cores, Device, DeviceId, Inventory, Mebibytes, Moment, Pod, PodId};
use telemetry::Stopping;
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval};

use crate::beating::{Load, Said};
use crate::counting::counted;
use crate::health::{News, Ward};
use crate::lists;
use crate::living::{Known, Place, Processes};
use crate::metrics::Metrics;
use crate::picture::{Counts, Picture};
use crate::plugin::Tickets;
use crate::pods::Pods;
use crate::records::Records;
use crate::refereeing::Spoiled;
use crate::remembering::Memory;
use crate::settings::Settings;
use crate::sight::{Hint, Sight, hint, without_seeing};
use crate::starting::chain;
use crate::usage::{Stranger, Suspects, explain};

/// What the watcher works with.
pub(crate) struct Watcher {
    pub(crate) settings: Arc<Settings>,
    pub(crate) gpus: Arc<dyn Gpus>,
    pub(crate) inventory: watch::Sender<Arc<Inventory>>,
    /// Whether the cards, or that there are none, were seen.
    pub(crate) looked: watch::Sender<bool>,
    /// What people say of the cards.
    pub(crate) said: watch::Receiver<Said>,
    /// What the Lease carries.
    pub(crate) load: watch::Sender<Load>,
    pub(crate) plugins: Vec<Arc<Tickets>>,
    pub(crate) pods: Pods,
    pub(crate) records: Records,
    /// Whose files of counters cannot be believed.
    pub(crate) spoiled: Spoiled,
    pub(crate) metrics: Arc<Metrics>,
    /// Events of pods.
    pub(crate) tell: mpsc::Sender<Told>,
    /// Events of the node.
    pub(crate) tell_node: mpsc::Sender<NodeWord>,
    /// Pods that take too much; the queue's reader evicts them.
    pub(crate) evict: mpsc::Sender<PodId>,
}

/// An event about the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeWord {
    /// One word: why this is told.
    pub(crate) reason: &'static str,
    /// The sentence.
    pub(crate) note: String,
    /// Whether somebody should do something.
    pub(crate) warning: bool,
}

#[derive(Default)]
struct State {
    absent: Option<String>,
    /// What containers hold of each resource, as the kubelet's account had it when it could be read.
    held: Option<BTreeMap<&'static str, IdSet>>,
    unread: bool,
    /// What the lists were last made of: a checkpoint, or that there was none, and an inventory.
    listed: Option<(Option<Stamp>, Arc<Inventory>)>,
    suspects: Suspects,
    sight: Sight,
    told: BTreeSet<(DeviceId, Option<String>, bool)>,
    /// What cards counted while an agent before us looked, as soon as it could be read.
    memory: Option<Memory>,
}

impl Watcher {
    /// Watches until it is asked to stop.
    pub(crate) async fn run(mut self, mut stopping: Stopping) {
        let clock = kubeapi::Clock::new();
        let mut ward =
            Ward::new(u64::try_from(self.settings.probation.as_millis()).unwrap_or(u64::MAX));
        ward.remember(&self.inventory.borrow(), clock.now());
        let mut state = State::default();
        let mut events = self.gpus.events();
        let mut looks = interval(self.settings.look);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut listening = true;
        loop {
            tokio::select! {
                () = stopping.asked() => return,
                event = events.recv(), if listening => match event {
                    Some(event) => {
                        self.hear(&mut ward, &mut state, &event, clock.now()).await;
                        self.look(&mut ward, &mut state, clock.now()).await;
                    }
                    None => listening = false,
                },
                Ok(()) = self.said.changed() => self.look(&mut ward, &mut state, clock.now()).await,
                _ = looks.tick() => {
                    self.look(&mut ward, &mut state, clock.now()).await;
                    self.measure(&mut state).await;
                }
            }
        }
    }

    /// A card that reports trouble is out at once: the driver may not answer for a while.
    async fn hear(&self, ward: &mut Ward, state: &mut State, event: &Event, now: Moment) {
        tracing::warn!(device = ?event.device, xid = event.xid, "Xid");
        let news = ward.heard(event, &self.known(), now);
        let known = self.inventory.borrow().clone();
        let devices = known.devices.iter().map(|device| match ward.health_of(device) {
            Some(health) if health != device.health => {
                Arc::new(Device { health, ..Device::clone(device) })
            }
            _ => device.clone(),
        });
        self.show(Inventory { devices: devices.collect(), links: known.links.clone() });
        self.refresh_lists(state).await;
        self.spread(news);
    }

    fn known(&self) -> Vec<DeviceId> {
        self.inventory.borrow().devices.iter().map(|device| device.id.clone()).collect()
    }

    async fn look(&mut self, ward: &mut Ward, state: &mut State, now: Moment) {
        if state.memory.is_none() {
            state.memory = self.recall(ward).await;
        }
        let known = self.inventory.borrow().clone();
        let found = self.gpus.look().await;
        say_if_absent(state, found.as_ref().err());
        // A slice that was destroyed, and a card that was exchanged, are no longer listed: they are
        // not missed.
        let all = gpu::inventory(found.as_ref().ok(), &known, &|_| None);
        let ids: Vec<DeviceId> = all.devices.iter().map(|device| device.id.clone()).collect();
        let news = match &found {
            Ok(found) => ward.looked(found, &ids, now),
            // Where there never was a card, a driver is not missed.
            Err(_) if known.devices.is_empty() => Vec::new(),
            Err(absent) => ward.silent(&chain(absent), now),
        };
        self.metrics.cards_that_answer(found.as_ref().map_or(0, |found| found.devices.len()));
        let found = found.ok();
        ward.cordon(self.said.borrow_and_update().out(&all));
        self.show(gpu::inventory(found.as_ref(), &known, &|device| ward.health_of(device)));
        self.looked.send_if_modified(|looked| !std::mem::replace(looked, true));
        self.refresh_lists(state).await;
        self.spread(news);
        if let Some(mut memory) = state.memory.take_if(|memory| memory.counts() != ward.counted()) {
            let counted = ward.counted().clone();
            let kept = tokio::task::spawn_blocking(move || {
                memory.keep(&counted);
                memory
            });
            state.memory = kept.await.ok();
        }
    }

    /// What cards had counted when an agent last saw them well, if it can be read.
    async fn recall(&self, ward: &mut Ward) -> Option<Memory> {
        let folder = self.settings.pages.here.clone();
        match tokio::task::spawn_blocking(move || Memory::open(&folder)).await {
            Ok(Ok(memory)) => {
                ward.recall(memory.counts());
                Some(memory)
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "what cards had counted is not known yet");
                None
            }
            Err(_) => None,
        }
    }

    /// From now on this is what there is.
    fn show(&self, now: Inventory) {
        if now != **self.inventory.borrow() {
            tracing::info!(devices = now.devices.len(), "inventory changed");
            self.inventory.send_replace(Arc::new(now));
        }
    }

    fn spread(&self, news: Vec<News>) {
        for one in news {
            match one {
                News::Left { device, why } => {
                    tracing::warn!(%device, why, "device out of service");
                    let note = format!("device {device} takes no new work: {why}");
                    self.tell_of_node("GpuOutOfService", note, true);
                }
                News::Returned { device } => {
                    tracing::info!(%device, "device back in service");
                    let note = format!("device {device} takes new work again");
                    self.tell_of_node("GpuInService", note, false);
                }
                News::ResetAdvised { device } => {
                    tracing::warn!(%device, "device should be reset");
                    let note = format!(
                        "device {device} works, and a bad row of its memory is exchanged when it is \
                         reset: do that when no pod is on it"
                    );
                    self.tell_of_node("GpuResetAdvised", note, true);
                }
                News::DriverLeft { why } => {
                    let note = format!("no device of this node takes new work: {why}");
                    self.tell_of_node("GpuDriverFailed", note, true);
                }
                News::DriverReturned => {
                    let note = "the driver answers again".to_owned();
                    self.tell_of_node("GpuDriverAnswers", note, false);
                }
            }
        }
    }

    fn tell_of_node(&self, reason: &'static str, note: String, warning: bool) {
        // A queue that is full of events loses this one; the inventory and the metrics have it too.
        let _ = self.tell_node.try_send(NodeWord { reason, note, warning });
    }

    /// Health by number, in the list of every plugin.
    async fn refresh_lists(&self, state: &mut State) {
        let inventory = self.inventory.borrow().clone();
        let stamp = Checkpoint::stamp(&self.settings.plugins).ok();
        if let (Some(stamp), Some((made_of, shown))) = (&stamp, &state.listed)
            && stamp == made_of
            && Arc::ptr_eq(shown, &inventory)
        {
            return;
        }
        state.listed = None;
        let folder = self.settings.plugins.clone();
        let read = tokio::task::spawn_blocking(move || Checkpoint::read(&folder)).await;
        let checkpoint = match read {
            Ok(Ok(checkpoint)) => Some(checkpoint),
            Ok(Err(CheckpointError::Missing { .. })) => Some(Checkpoint::default()),
            // What was held is held: tickets are not taken away for a file that cannot be read.
            Ok(Err(error)) => {
                if !std::mem::replace(&mut state.unread, true) {
                    tracing::warn!(error = chain(&error), "what containers hold is as it was");
                }
                None
            }
            Err(_) => None,
        };
        state.unread &= checkpoint.is_none();
        if let Some(checkpoint) = checkpoint {
            let of = |plugin: &Arc<Tickets>| {
                let resource = plugin.served.resource;
                let entries = checkpoint.entries().iter().filter(|one| one.resource == resource);
                let ids = entries.flat_map(|entry| entry.ids.iter().map(str::to_owned)).collect();
                (resource, ids)
            };
            state.held = Some(self.plugins.iter().map(of).collect());
            state.listed = stamp.map(|stamp| (stamp, inventory.clone()));
        }
        for plugin in &self.plugins {
            let Ok(ids) = plugin.served.ids(&inventory) else { continue };
            let held = state.held.as_ref().and_then(|held| held.get(plugin.served.resource));
            match DeviceList::new(lists::tickets(&plugin.served, &ids, &inventory, held)) {
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

    async fn measure(&self, state: &mut State) {
        let Ok(measured) = self.gpus.measure().await else { return };
        let inventory = self.inventory.borrow().clone();
        let (records, spoiled) = (self.records.clone(), self.spoiled.clone());
        let processes = Processes::below(&self.settings.proc);
        let names = self.pods.container_names();
        let (seen, of, mut sight) = (measured.clone(), inventory.clone(), state.sight);
        let explained = tokio::task::spawn_blocking(move || {
            let all = records.list()?;
            let name = |place: &Place| names.get(&place.pod)?.get(&place.container).cloned();
            let known = |pid| processes.known(pid);
            let explained = explain(&seen, &of, &all, &known, &name);
            let counted = {
                let (records, all, of) = (records.clone(), all.clone(), of.clone());
                Counts::late(move || counted(&records, &all, &of, &spoiled))
            };
            let living = || processes.pods().into_keys().collect();
            // Who is blind stays so until a pod is seen: nothing else need be looked for.
            let hint = match (sight.is_blind(), explained.named.within) {
                (true, 0) => Hint::Nothing,
                _ => hint(&seen, &explained, &counted, living),
            };
            sight.look(hint);
            let (uses, strangers) = if sight.is_blind() {
                let outside = |pid| known(pid) == Known::Outside;
                without_seeing(&seen, &explained, counted.get(), &outside)
            } else {
                (explained.uses, explained.strangers)
            };
            Ok::<_, crate::records::RecordsError>((uses, strangers, counted, sight))
        });
        let (uses, strangers, counted, sight) = match explained.await {
            Ok(Ok(explained)) => explained,
            // Without the records everyone would be a stranger.
            Ok(Err(error)) => {
                tracing::warn!(error = chain(&error), "who uses what stays as it was");
                return;
            }
            Err(_) => return,
        };
        self.see(state, sight);
        let strangers = state.suspects.confirm(strangers);
        let devices = load(&measured, &strangers);
        self.load.send_replace(Load { devices, blind: sight.is_blind() });
        let told = strangers.clone();
        self.metrics.measured(Picture { inventory, measured, uses, strangers, counted });
        self.report(state, &told);
    }

    /// Tells whether the processes on the cards can be seen, when that changes.
    fn see(&self, state: &mut State, sight: Sight) {
        let before = std::mem::replace(&mut state.sight, sight);
        self.metrics.sees_processes(!sight.is_blind());
        if before.is_blind() == sight.is_blind() {
            return;
        }
        if sight.is_blind() {
            let proc = self.settings.proc.display();
            let note = format!(
                "whose processes use the devices cannot be seen: the agent needs hostPID, and the \
                 host's /proc at {proc}; until then containers are believed in what they use"
            );
            tracing::warn!(%proc, "processes on devices cannot be seen");
            self.tell_of_node("GpuProcessesUnseen", note, true);
        } else {
            tracing::info!("processes on devices are seen again");
            let note = "whose processes use the devices is seen again".to_owned();
            self.tell_of_node("GpuProcessesSeen", note, false);
        }
    }

    /// Tells of each stranger once, until it is gone.
    fn report(&self, state: &mut State, strangers: &[Stranger]) {
        let key = |s: &Stranger| {
            (s.device.clone(), s.pod.as_ref().map(ToString::to_string), s.above_limit)
        };
        let pods = self.pods.all();
        for stranger in strangers {
            let pod = stranger.pod.as_ref().and_then(|uid| pods.get(uid));
            if !state.told.contains(&key(stranger)) {
                self.tell_of(stranger, pod.map(|pod| &**pod));
            }
            // A budget may be in the way, so it is asked until the pod leaves.
            if let Some(pod) = pod.filter(|pod| self.settings.evict && !pod.terminating) {
                let _ = self.evict.try_send(pod.id.clone());
            }
        }
        state.told = strangers.iter().map(key).collect();
    }

    fn tell_of(&self, stranger: &Stranger, pod: Option<&Pod>) {
        let mebibytes = stranger.memory >> 20;
        let (device, pid) = (&stranger.device, stranger.pid);
        tracing::warn!(%device, ?pid, pod = ?stranger.pod, mebibytes, above_limit = stranger.above_limit, "stranger on a device");
        let Some(pod) = pod else {
            let note = match pid {
                Some(pid) => format!(
                    "process {pid}, of no pod that was given device {device}, holds {mebibytes} MiB of it"
                ),
                None => format!(
                    "{mebibytes} MiB of device {device} are in use beyond all that pods were given"
                ),
            };
            self.tell_of_node("GpuStranger", note, true);
            return;
        };
        let note = if stranger.above_limit {
            format!("the pod holds {mebibytes} MiB of device {device} above its share")
        } else {
            format!("the pod holds {mebibytes} MiB of device {device}, which it was not given")
        };
        let told = Told { pod: pod.id.clone(), reason: "GpuStranger", note, warning: true };
        // A queue that is full of events loses this one; the metric has it too.
        let _ = self.tell.try_send(told);
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
    use super::*;

    #[test]
    fn load_is_rounded_and_knows_strangers() {
        let id = DeviceId::parse("GPU-1").unwrap();
        let seen =
            Seen { device: id.clone(), used: 0, total: 0, busy: Some(41), processes: vec![] };
        let stranger = Stranger {
            device: id.clone(),
            pid: Some(1),
            pod: None,
            memory: (3 << 20) + 1,
            above_limit: false,
        };
        let expected = Measured { busy: Cores(45), strangers: Mebibytes(4) };
        assert_eq!(load(&[seen], &[stranger]), [(id, expected)]);
    }
}
