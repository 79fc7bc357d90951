//! The start of a container: who it is for, what it was given, whether that is free, and the files
//! that make it so.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use dialect::{Asked, Served};
use gpu::{Driver, Node};
use kubelet::cdi::{self, Kind, Spec, Specs, SpecsError};
use kubelet::checkpoint::Checkpoint;
use kubelet::devices::IdSet;
use kubelet::plugin::Allocation;
use kubelet::pods::{PodResources, PodsError};
use model::codec::decode_placement;
use model::{
    ContainerName, DeviceId, Health, Hold, Inventory, Placement, Pod, PodUid, Portion, names,
};
use page::{Limits, Name};
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;

use crate::edits::{self, Around};
use crate::faults::{Point, reached};
use crate::identity::{self, HeldBy};
use crate::laying;
use crate::living::Processes;
use crate::pods::Pods;
use crate::probing::{Prober, Way};
use crate::records::{Record, Records};
use crate::refusal::Refusal;
use crate::room::{Living, room};
use crate::rungs::Rung;
use crate::settings::Settings;
use crate::vcuda::{self, Vcuda};

/// The kind of our CDI devices.
pub const KIND: &str = "nano-gpu/alloc";
/// How the files of our specs begin.
pub const STEM: &str = "nano-gpu-";

/// What the kubelet writes into its copy of a static pod: the UID of that.
const COPY_OF: &str = "kubernetes.io/config.mirror";

/// How long a pod that the kubelet knows may be unknown to us.
const UNSEEN: Duration = Duration::from_secs(5);
/// How long the kubelet may take to write its account anew.
const STALE: Duration = Duration::from_secs(5);
/// How often that is looked for.
const ANEW: Duration = Duration::from_millis(50);
/// An answer that nobody asked for within this time is nobody's.
const FORGOTTEN: Duration = Duration::from_mins(5);
/// How often it is seen whether a leaving holder has left.
const AGAIN: Duration = Duration::from_millis(250);

/// What a start works with.
#[derive(Debug)]
pub struct Starter {
    settings: Arc<Settings>,
    kind: Kind,
    specs: Specs,
    records: Records,
    pods: Pods,
    holdings: Option<PodResources>,
    processes: Processes,
    inventory: watch::Receiver<Arc<Inventory>>,
    driver: Driver,
    vcuda: Option<Arc<Vcuda>>,
    prober: Arc<Prober>,
    // The last answers for containers that have not been made ready yet.
    given: StdMutex<Given>,
    // Held while room is checked and taken, so that two starts cannot both have the last of it.
    taking: Mutex<()>,
}

/// Our last answer for each set of IDs of a resource: two resources may have IDs that are spelled
/// alike. A container whose pod went away between Allocate and `PreStart` never asks for its own.
#[derive(Debug, Default)]
struct Given {
    answers: BTreeMap<(String, String), (String, Instant)>,
}

impl Given {
    fn add(&mut self, resource: &str, digest: String, name: &str, now: Instant) {
        self.answers.retain(|_, (_, at)| now - *at < FORGOTTEN);
        self.answers.insert((resource.to_owned(), digest), (name.to_owned(), now));
    }

    /// Whether none of `held` has the last answer. If one has, it is not asked for again.
    fn is_newer(&mut self, resource: &str, digest: String, held: &[HeldBy], now: Instant) -> bool {
        let key = (resource.to_owned(), digest);
        let newer = self.answers.get(&key).is_some_and(|(name, at)| {
            now - *at < FORGOTTEN && held.iter().all(|holder| holder.name != *name)
        });
        if !newer {
            self.answers.remove(&key);
        }
        newer
    }
}

/// A pod that a refusal is about.
#[derive(Debug)]
pub struct Refused {
    /// Why.
    pub refusal: Refusal,
    /// Whom to tell, if it is known.
    pub pod: Option<Arc<Pod>>,
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, pod: None }
    }
}

impl Starter {
    /// A starter for this node.
    #[expect(clippy::too_many_arguments, reason = "it joins what a start works with")]
    pub fn new(
        settings: Arc<Settings>,
        kind: Kind,
        specs: Specs,
        records: Records,
        pods: Pods,
        holdings: Option<PodResources>,
        inventory: watch::Receiver<Arc<Inventory>>,
        vcuda: Option<Arc<Vcuda>>,
        prober: Arc<Prober>,
    ) -> Self {
        let processes = Processes::below(&settings.proc);
        let driver = Driver::below(&settings.driver.here);
        let taking = Mutex::new(());
        Self {
            settings,
            kind,
            specs,
            records,
            pods,
            holdings,
            processes,
            inventory,
            driver,
            vcuda,
            prober,
            given: StdMutex::default(),
            taking,
        }
    }

    /// How devices come into containers that are admitted now.
    pub fn way(&self) -> Way {
        self.prober.way()
    }

    /// The answer for `count` tickets where devices come by a folder.
    pub fn folder(&self, served: &Served, name: &str, count: usize) -> Allocation {
        laying::answer(&self.settings, served, &self.driver.files(), name, count)
    }

    /// Remembers that `name` was the answer for `ids` of `resource`.
    pub fn gave(&self, resource: &str, ids: &IdSet, name: &str) {
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        given.add(resource, ids.digest(), name, Instant::now());
    }

    /// Makes everything ready for the containers that hold `ids` of `resource`, or says why not.
    /// `nudge` makes the kubelet write its account anew.
    pub async fn start(
        &self,
        resource: &str,
        ids: &IdSet,
        nudge: &(dyn Fn() + Sync),
    ) -> Result<Vec<HeldBy>, Refused> {
        reached(Point::PreStart);
        let held = self.identify(resource, ids, nudge).await?;
        reached(Point::Identified);
        let uid = held[0].pod.clone();
        let pod = self.pods.get(&uid, UNSEEN).await;
        let pod = match pod {
            Some(pod) => pod,
            None if self.pods.are_synced() => {
                // A static pod is shown by a copy of it, which has another UID.
                let copy = self.pods.all().values().find(|pod| is_copy_of(pod, &uid)).cloned();
                return Err(Refused { refusal: Refusal::UnknownPod { pod: uid }, pod: copy });
            }
            None => return Err(Refusal::NoApi.into()),
        };
        let about = |refusal| Refused { refusal, pod: Some(pod.clone()) };
        self.cross_check(&pod, resource, ids, &held).await.map_err(about)?;
        let inventory = self.inventory.borrow().clone();
        let placement = placement_of(&pod, &self.settings, &inventory, &held).map_err(about)?;
        if held.iter().any(|holder| holder.promise.is_none())
            && let Some(refusal) = self.prober.refusal()
        {
            return Err(about(refusal));
        }
        let asked = asked_by(&pod, &self.settings).map_err(about)?;
        reached(Point::Checked);
        self.take(&pod, &asked, &placement, &held, ids).await.map_err(about)?;
        if let Some(vcuda) = &self.vcuda
            && vcuda::speaks(asked.dialect)
        {
            let failed = |error| Refusal::Unwritable { what: "vcuda folder", why: chain(&error) };
            vcuda.ready(&pod.id.uid).await.map_err(|error| about(failed(error)))?;
        }
        Ok(held)
    }

    /// Who holds `ids`, by the kubelet's account.
    ///
    /// The kubelet copies its account under a lock and writes the copy without it, so that of two
    /// writes at a time the older can be the last: then a pod that was just admitted is not in the
    /// file, or the one before it still is, until the next write. Any list of ours that comes in makes
    /// the kubelet write, so where the account lacks an answer that we gave, it is sent again.
    async fn identify(
        &self,
        resource: &str,
        ids: &IdSet,
        nudge: &(dyn Fn() + Sync),
    ) -> Result<Vec<HeldBy>, Refusal> {
        let end = Instant::now() + STALE.min(self.settings.patience);
        let mut nudged = false;
        loop {
            let plugins = self.settings.plugins.clone();
            let checkpoint = blocking(move || Checkpoint::read(&plugins)).await;
            let checkpoint = checkpoint.map_err(|error| Refusal::NoCheckpoint(Arc::new(error)))?;
            let found = identity::holders(&checkpoint, resource, ids, &self.kind);
            let found = match found {
                Ok(held) if self.knows_newer(resource, ids, &held) => {
                    Err(Refusal::Nobody { resource: resource.to_owned(), count: ids.len() })
                }
                other => other,
            };
            let stale = matches!(found, Err(Refusal::Nobody { .. }));
            if !stale || Instant::now() >= end {
                return found;
            }
            if !nudged {
                tracing::warn!(
                    resource,
                    "the kubelet's account lacks an answer; it is asked again"
                );
                nudge();
                nudged = true;
            }
            tokio::time::sleep(ANEW).await;
        }
    }

    /// Whether the account is older than our last answer for `ids`; if not, the answer has arrived.
    fn knows_newer(&self, resource: &str, ids: &IdSet, held: &[HeldBy]) -> bool {
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        given.is_newer(resource, ids.digest(), held, Instant::now())
    }

    async fn cross_check(
        &self,
        pod: &Pod,
        resource: &str,
        ids: &IdSet,
        held: &[HeldBy],
    ) -> Result<(), Refusal> {
        let Some(holdings) = &self.holdings else { return Ok(()) };
        match holdings.get(&pod.id.namespace, &pod.id.name).await {
            Ok(Some(told)) => identity::agrees(&told, resource, ids, held),
            // A pod whose only GPU is an init container's may not be listed; the checkpoint has it.
            Ok(None) | Err(PodsError::GetDisabled) => Ok(()),
            Err(error) => Err(Refusal::NoHoldings(error)),
        }
    }

    /// Waits for room, takes it, and writes the files.
    async fn take(
        &self,
        pod: &Pod,
        asked: &Asked,
        placement: &Placement,
        held: &[HeldBy],
        ids: &IdSet,
    ) -> Result<(), Refusal> {
        let end = Instant::now() + self.settings.patience;
        loop {
            let tried = {
                let _turn = self.taking.lock().await;
                match self.check(pod, placement).await {
                    Ok(()) => Ok(self.record(pod, asked, placement, held, ids)?),
                    Err(refusal) => Err(refusal),
                }
            };
            // What was taken is taken by its record. Others need not wait until the specs are on the
            // disk.
            let tried = match tried {
                Ok(specs) => return self.put_specs(specs).await,
                Err(refusal) => refusal,
            };
            if !tried.may_pass() || Instant::now() + AGAIN >= end {
                return Err(tried);
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// The second check: against what really lives here, not what the API says.
    async fn check(&self, pod: &Pod, placement: &Placement) -> Result<(), Refusal> {
        let inventory = self.inventory.borrow().clone();
        let records = self.records.clone();
        let records = blocking(move || records.list()).await;
        let records =
            records.map_err(|error| Refusal::Unwritable { what: "pages", why: chain(&error) })?;
        let (known, names) = (self.pods.all(), self.pods.container_names());
        let recorded: BTreeSet<&PodUid> = records.iter().map(|record| &record.pod).collect();
        // Who runs on a card without a record of ours was started by others, or before a disk was
        // lost. A pod of which only the sandbox runs, or a container without a card, holds nothing.
        let mut unrecorded: BTreeMap<&PodUid, (&Pod, Placement, Vec<&String>)> = BTreeMap::new();
        for (uid, other) in known.iter().filter(|(uid, _)| !recorded.contains(uid)) {
            let Some(ids) = names.get(uid).filter(|ids| !ids.is_empty()) else { continue };
            let Some(placed) = placed_here(other, &self.settings) else { continue };
            let on_a_card = ids.iter().filter(|(_, name)| !placed.grants(name).is_empty());
            let on_a_card: Vec<&String> = on_a_card.map(|(id, _)| id).collect();
            if !on_a_card.is_empty() {
                unrecorded.insert(uid, (other, placed, on_a_card));
            }
        }
        // To look at every process takes long on a full node; it is done only if somebody's life
        // depends on it. All that have a record and are shown by the API live.
        let gone = recorded.iter().any(|uid| !known.contains_key(*uid));
        let alive = if gone || !unrecorded.is_empty() {
            let processes = self.processes.clone();
            blocking(move || processes.containers()).await
        } else {
            BTreeMap::new()
        };
        let lives =
            |record: &Record| known.contains_key(&record.pod) || alive.contains_key(&record.pod);
        let mut living: BTreeMap<_, Living> = BTreeMap::new();
        for record in records.iter().filter(|record| lives(record)) {
            living.entry(record.pod.clone()).or_insert_with(|| Living {
                pod: record.pod.clone(),
                name: record.pod_name.clone(),
                holds: holds(&record.placement, &inventory),
            });
        }
        for (uid, (other, placed, on_a_card)) in unrecorded {
            let Some(running) = alive.get(uid) else { continue };
            if on_a_card.into_iter().any(|id| running.contains(id)) {
                living.entry(uid.clone()).or_insert_with(|| Living {
                    pod: uid.clone(),
                    name: other.id.to_string(),
                    holds: holds(&placed, &inventory),
                });
            }
        }
        let living: Vec<Living> = living.into_values().collect();
        let started = living.iter().any(|one| one.pod == pod.id.uid);
        let wanted = holds(placement, &inventory);
        for id in wanted.keys() {
            let sick = inventory.devices.iter().any(|d| d.id == *id && d.health == Health::Sick);
            if sick && !started {
                return Err(Refusal::OutOfService { device: id.clone() });
            }
        }
        room(&inventory, &pod.id.uid, &wanted, &living)
    }

    /// Writes the records of containers that have none that fits, and says which specs they need.
    fn record(
        &self,
        pod: &Pod,
        asked: &Asked,
        placement: &Placement,
        held: &[HeldBy],
        ids: &IdSet,
    ) -> Result<Vec<(HeldBy, Spec)>, Refusal> {
        let mut specs = Vec::new();
        let inventory = self.inventory.borrow().clone();
        let files = self.driver.files();
        let common = Node::common(&self.settings.dev.here);
        let around = Around { inventory: &inventory, driver: &files, common: &common };
        let digest = ids.digest();
        for holder in held {
            let stem = format!("{STEM}{}", holder.name);
            let unwritable = |what| move |why: String| Refusal::Unwritable { what, why };
            // Pages are for our library; where it is not, nobody reads them.
            let grants = placement.grants(holder.container.as_str());
            let limits = match self.settings.rung.for_grants(grants) {
                Rung::Limiter => limits(pod, asked, placement, &holder.container),
                Rung::None => Vec::new(),
            };
            let known = self.records.read(&holder.name);
            let known = known.map_err(|error| unwritable("pages")(chain(&error)))?.is_some();
            let fits = known && self.records.has_pages(&holder.name, &limits);
            if fits
                && holder.promise.is_none()
                && matches!(self.specs.read(&stem), Ok(Some(spec)) if is_ours(&spec, &self.kind, holder))
            {
                continue;
            }
            let container = container(pod, &holder.container)?;
            let pages = self.settings.pages.on_host(&self.records.folder_of(&holder.name));
            let pages = pages.display().to_string();
            let start =
                edits::Start { pod, asked, container, placement, digest: &digest, pages: &pages };
            let edits = edits::edits(&self.settings, &around, &start)?;
            let promise = holder.promise.as_ref();
            let laid = promise.map(|it| it.keep(&edits, &self.settings.dev.here, &pages));
            let laid = laid.transpose()?;
            let folder = self.records.folder_of(&holder.name);
            let fits = fits && laid.as_ref().is_none_or(|laid| laid.is_in(&folder));
            if fits && laid.is_some() {
                continue;
            }
            let record = Record {
                name: holder.name.clone(),
                pod: pod.id.uid.clone(),
                pod_name: pod.id.to_string(),
                container: holder.container.clone(),
                placement: placement.clone(),
            };
            if known && !fits {
                tracing::info!(
                    name = holder.name,
                    "pages are written anew, since others are needed"
                );
                let removed = self.records.remove(&holder.name);
                removed.map_err(|error| unwritable("pages")(chain(&error)))?;
            }
            let written = self.records.write_with(&record, &limits, laid.as_ref());
            written.map_err(|error| unwritable("pages")(chain(&error)))?;
            reached(Point::Recorded);
            if laid.is_some() {
                reached(Point::Written);
                continue;
            }
            let spec = cdi::Device::new(&holder.name, edits)
                .and_then(|device| Spec::new(self.kind.clone(), [device]))
                .map_err(|e| unwritable("CDI spec")(chain(&e)))?;
            specs.push((holder.clone(), spec));
        }
        Ok(specs)
    }

    async fn put_specs(&self, specs: Vec<(HeldBy, Spec)>) -> Result<(), Refusal> {
        for (holder, spec) in specs {
            self.prober.wrote(&holder);
            let (all, kind) = (self.specs.clone(), self.kind.clone());
            let put = blocking(move || put_spec(&all, &kind, &spec, &holder)).await;
            put.map_err(|error| Refusal::Unwritable { what: "CDI spec", why: chain(&error) })?;
            reached(Point::Written);
        }
        Ok(())
    }
}

/// Writes a spec, unless it is there. What is there and is not ours makes way.
fn put_spec(specs: &Specs, kind: &Kind, spec: &Spec, holder: &HeldBy) -> Result<(), SpecsError> {
    let stem = format!("{STEM}{}", holder.name);
    match specs.write(&stem, spec) {
        Ok(_) => return Ok(()),
        Err(SpecsError::Exists { .. }) => {}
        Err(error) => return Err(error),
    }
    let why = match specs.read(&stem) {
        Ok(Some(found)) if is_ours(&found, kind, holder) => return Ok(()),
        Ok(_) => "it is another's".to_owned(),
        Err(error) if error.is_in_the_file() => chain(&error),
        Err(error) => return Err(error),
    };
    let aside = specs.set_aside(&stem)?;
    tracing::warn!(stem, why, aside = %aside.display(), "spec set aside and written anew");
    specs.write(&stem, spec).map(drop)
}

fn is_ours(spec: &Spec, kind: &Kind, holder: &HeldBy) -> bool {
    *spec.kind() == *kind && spec.devices().iter().any(|one| one.name() == holder.name)
}

/// The pod's placement, checked against this node for the containers that start.
pub fn placement_of(
    pod: &Pod,
    settings: &Settings,
    inventory: &Inventory,
    held: &[HeldBy],
) -> Result<Placement, Refusal> {
    let text = pod.annotations.get(names::PLACEMENT).ok_or(Refusal::NoPlacement)?;
    let placement = decode_placement(text).map_err(Refusal::Unreadable)?;
    if *placement.node() != settings.node {
        let (other, own) = (placement.node().clone(), settings.node.clone());
        return Err(Refusal::OtherNode { other, own });
    }
    for holder in held {
        let grants = placement.grants(holder.container.as_str());
        if grants.is_empty() {
            return Err(Refusal::NothingForContainer { container: holder.container.clone() });
        }
    }
    let grants = placement.containers().iter().flat_map(|container| &container.grants);
    for grant in grants {
        if !inventory.devices.iter().any(|device| device.id == grant.device) {
            return Err(Refusal::NoSuchDevice { device: grant.device.clone() });
        }
    }
    Ok(placement)
}

/// Whether the pod is the API server's copy of the kubelet's static pod `uid`.
fn is_copy_of(pod: &Pod, uid: &PodUid) -> bool {
    pod.annotations.get(COPY_OF).is_some_and(|hash| hash == uid.as_str())
}

/// The pod's placement, if it has one on this node.
fn placed_here(pod: &Pod, settings: &Settings) -> Option<Placement> {
    let placement = decode_placement(pod.annotations.get(names::PLACEMENT)?).ok()?;
    (*placement.node() == settings.node).then_some(placement)
}

/// What the pod asks, and in which dialect.
fn asked_by(pod: &Pod, settings: &Settings) -> Result<Asked, Refusal> {
    let refused = |why: String| Refusal::Dialect { pod: pod.id.clone(), why };
    match dialect::read(pod, &settings.dialects) {
        Ok(Some(asked)) => Ok(asked),
        Ok(None) => Err(refused("it asks for none".into())),
        Err(refusal) => Err(refused(refusal.to_string())),
    }
}

fn container<'a>(pod: &'a Pod, name: &ContainerName) -> Result<&'a model::Container, Refusal> {
    let found = pod.containers.iter().find(|container| container.name == *name);
    found.ok_or_else(|| Refusal::NothingForContainer { container: name.clone() })
}

fn holds(placement: &Placement, inventory: &Inventory) -> BTreeMap<DeviceId, Hold> {
    placement.holds(|id| inventory.devices.iter().find(|d| d.id == *id).map(|device| &**device))
}

/// The limits of a container's shares, in the order of its devices. Whole cards have none.
fn limits(
    pod: &Pod,
    asked: &Asked,
    placement: &Placement,
    container: &ContainerName,
) -> Vec<Limits> {
    let burst = asked.request.containers.iter().find(|c| c.name == *container);
    let burst = burst.and_then(|container| container.burst);
    let mut all = Vec::new();
    for (place, grant) in (0u32..).zip(placement.grants(container.as_str())) {
        let Portion::Share(share) = grant.portion else { continue };
        let names = (
            Name::new(grant.device.as_str()),
            Name::new(pod.id.uid.as_str()),
            Name::new(container.as_str()),
        );
        let (Ok(device), Ok(pod), Ok(container)) = names else { continue };
        all.push(Limits {
            device,
            pod,
            container,
            memory: share.memory.0.saturating_mul(1 << 20),
            cores: share.cores.0,
            burst: burst.map_or(share.cores.0, |burst| burst.0),
            place,
            granted: share.cores.0.saturating_mul(100),
            tenants: 1,
        });
    }
    all
}

/// An error with its causes, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

async fn blocking<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(act).await {
        Ok(value) => value,
        // It is not cancelled by anyone, so it panicked, and a panic goes on.
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(name: &str) -> Vec<HeldBy> {
        let (pod, container) = (PodUid::parse("u"), ContainerName::parse("main"));
        let (pod, container) = (pod.unwrap(), container.unwrap());
        vec![HeldBy { pod, container, name: name.into(), promise: None }]
    }

    #[test]
    fn answers_of_two_resources_with_ids_spelled_alike_are_two() {
        let now = Instant::now();
        let mut given = Given::default();
        given.add("a/core", "d".into(), "one", now);
        given.add("b/core", "d".into(), "two", now);
        assert!(!given.is_newer("a/core", "d".into(), &held("one"), now));
        assert!(given.is_newer("b/core", "d".into(), &held("one"), now), "it is not there yet");
        assert!(!given.is_newer("b/core", "d".into(), &held("two"), now));
    }

    #[test]
    fn an_answer_that_nobody_asked_for_is_forgotten() {
        let now = Instant::now();
        let mut given = Given::default();
        given.add("a/core", "d".into(), "one", now);
        assert!(given.is_newer("a/core", "d".into(), &held("before"), now));
        assert!(!given.is_newer("a/core", "d".into(), &held("before"), now + FORGOTTEN));
        given.add("a/core", "d".into(), "one", now);
        given.add("a/core", "e".into(), "two", now + FORGOTTEN);
        assert_eq!(given.answers.len(), 1);
    }
}
