//! The start of a container: who it is for, what it was given, whether that is free, and the files
//! that make it so.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dialect::Asked;
use gpu::{Driver, Node};
use kubelet::cdi::{self, Kind, Spec, Specs, SpecsError};
use kubelet::checkpoint::Checkpoint;
use kubelet::devices::IdSet;
use kubelet::pods::{PodResources, PodsError};
use model::codec::decode_placement;
use model::{ContainerName, DeviceId, Health, Hold, Inventory, Placement, Pod, Portion, names};
use page::{Limits, Name};
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;

use crate::edits::{self, Around};
use crate::faults::{Point, reached};
use crate::identity::{self, HeldBy};
use crate::living::Processes;
use crate::pods::Pods;
use crate::records::{Record, Records};
use crate::refusal::Refusal;
use crate::room::{Living, room};
use crate::settings::Settings;

/// The kind of our CDI devices.
pub const KIND: &str = "nano-gpu/alloc";
/// How the files of our specs begin.
pub const STEM: &str = "nano-gpu-";

/// How long a pod that the kubelet knows may be unknown to us.
const UNSEEN: Duration = Duration::from_secs(5);
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
    // Held while room is checked and taken, so that two starts cannot both have the last of it.
    taking: Mutex<()>,
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
    pub fn new(
        settings: Arc<Settings>,
        kind: Kind,
        specs: Specs,
        records: Records,
        pods: Pods,
        holdings: Option<PodResources>,
        inventory: watch::Receiver<Arc<Inventory>>,
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
            taking,
        }
    }

    /// Makes everything ready for the containers that hold `ids` of `resource`, or says why not.
    pub async fn start(&self, resource: &str, ids: &IdSet) -> Result<Vec<HeldBy>, Refused> {
        reached(Point::PreStart);
        let plugins = self.settings.plugins.clone();
        let checkpoint = blocking(move || Checkpoint::read(&plugins)).await;
        let checkpoint = checkpoint.map_err(|error| Refusal::NoCheckpoint(Arc::new(error)))?;
        let held = identity::holders(&checkpoint, resource, ids, &self.kind)?;
        reached(Point::Identified);
        let uid = held[0].pod.clone();
        let pod = self.pods.get(&uid, UNSEEN).await;
        let pod = match pod {
            Some(pod) => pod,
            None if self.pods.are_synced() => return Err(Refusal::UnknownPod { pod: uid }.into()),
            None => return Err(Refusal::NoApi.into()),
        };
        let about = |refusal| Refused { refusal, pod: Some(pod.clone()) };
        self.cross_check(&pod, resource, ids, &held).await.map_err(about)?;
        let inventory = self.inventory.borrow().clone();
        let placement = placement_of(&pod, &self.settings, &inventory, &held).map_err(about)?;
        let asked = asked_by(&pod, &self.settings).map_err(about)?;
        reached(Point::Checked);
        self.take(&pod, &asked, &placement, &held, ids).await.map_err(about)?;
        Ok(held)
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
                    Ok(()) => return self.write(pod, asked, placement, held, ids),
                    Err(refusal) => refusal,
                }
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
        let (records, processes) = (self.records.clone(), self.processes.clone());
        let (records, alive) = blocking(move || (records.list(), processes.pods())).await;
        let records =
            records.map_err(|error| Refusal::Unwritable { what: "pages", why: chain(&error) })?;
        let known = self.pods.all();
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

    fn write(
        &self,
        pod: &Pod,
        asked: &Asked,
        placement: &Placement,
        held: &[HeldBy],
        ids: &IdSet,
    ) -> Result<(), Refusal> {
        let inventory = self.inventory.borrow().clone();
        let files = self.driver.files();
        let common = Node::common(&self.settings.dev.here);
        let around = Around { inventory: &inventory, driver: &files, common: &common };
        let digest = ids.digest();
        for holder in held {
            let stem = format!("{STEM}{}", holder.name);
            if matches!(self.specs.read(&stem), Ok(Some(_)))
                && self.records.read(&holder.name).is_some()
            {
                continue;
            }
            let container = container(pod, &holder.container)?;
            let pages = self.settings.pages.on_host(&self.records.folder_of(&holder.name));
            let pages = pages.display().to_string();
            let start =
                edits::Start { pod, asked, container, placement, digest: &digest, pages: &pages };
            let edits = edits::edits(&self.settings, &around, &start)?;
            let record = Record {
                name: holder.name.clone(),
                pod: pod.id.uid.clone(),
                pod_name: pod.id.to_string(),
                container: holder.container.clone(),
                placement: placement.clone(),
            };
            let limits = limits(pod, asked, placement, &holder.container);
            let unwritable = |what| move |why: String| Refusal::Unwritable { what, why };
            self.records.write(&record, &limits).map_err(|e| unwritable("pages")(chain(&e)))?;
            reached(Point::Recorded);
            let spec = cdi::Device::new(&holder.name, edits)
                .and_then(|device| Spec::new(self.kind.clone(), [device]))
                .map_err(|e| unwritable("CDI spec")(chain(&e)))?;
            match self.specs.write(&stem, &spec) {
                Ok(_) | Err(SpecsError::Exists { .. }) => {}
                Err(error) => return Err(unwritable("CDI spec")(chain(&error))),
            }
            reached(Point::Written);
        }
        Ok(())
    }
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
