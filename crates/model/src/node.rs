//! A node at one moment: what it has, what is taken, what is left.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::device::{Device, DeviceRef, Health, Mig};
use crate::holder::{Claim, Claimed, Holder};
use crate::ids::{DeviceId, NodeName, PodUid};
use crate::peak::{Hold, Peaks, peak};
use crate::request::Part;
use crate::topology::Topology;
use crate::units::{Bytes, Cores, Mebibytes, MilliCpu};

/// A node in a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: NodeName,
    /// CPU and memory that pods may ask in all.
    pub allocatable: Host,
    /// What no pod asks yet, GPU pod or not.
    pub free: Host,
    /// The pool it belongs to, if any.
    pub pool: Option<String>,
    /// Whether its administrator would rather have pods elsewhere.
    pub shunned: bool,
    /// Whether its agent reports.
    pub agent: Agent,
    /// Why it takes nothing new, if it does not.
    pub problem: Option<Problem>,
    /// Its devices, in the driver's order.
    pub devices: Vec<DeviceState>,
    /// How they reach one another, in the same order.
    pub topology: Arc<Topology>,
    /// Kubelet tickets by resource name.
    pub tickets: BTreeMap<String, Tickets>,
    /// The pods on it, by UID.
    pub holders: Vec<Arc<Holder>>,
    /// Devices that pods on it hold but its inventory no longer has.
    pub missing: Vec<String>,
}

/// Host CPU and memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Host {
    /// CPU.
    pub cpu: MilliCpu,
    /// Memory.
    pub memory: Bytes,
}

impl Host {
    /// Whether `wanted` fits in.
    pub fn covers(&self, wanted: &Self) -> bool {
        self.cpu >= wanted.cpu && self.memory >= wanted.memory
    }

    /// What is left without `taken`, never below zero.
    #[must_use]
    pub fn without(&self, taken: &Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(taken.cpu),
            memory: self.memory.saturating_sub(taken.memory),
        }
    }
}

impl Peaks for Host {
    fn plus(&self, other: &Self) -> Self {
        Self { cpu: self.cpu + other.cpu, memory: self.memory + other.memory }
    }

    fn max(&self, other: &Self) -> Self {
        Self { cpu: self.cpu.max(other.cpu), memory: self.memory.max(other.memory) }
    }
}

/// Whether a node's agent reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Agent {
    /// It was never heard of.
    #[default]
    Never,
    /// It was, but not lately.
    Stale,
    /// It was, lately.
    Fresh,
}

/// Why a node takes nothing new although its agent reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// Its inventory cannot be read; the text says why.
    Inventory(String),
    /// A pod on it holds something that cannot be read; the text says which and why.
    Holder(String),
}

/// Tickets the kubelet hands out for one resource name. They are counts, not cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tickets {
    /// How many the node offers.
    pub total: u64,
    /// How many its pods draw.
    pub used: u64,
}

impl Tickets {
    /// How many are left.
    pub fn free(self) -> u64 {
        self.total.saturating_sub(self.used)
    }
}

/// A device and what is taken of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceState {
    /// The device. Shared, because states are copied with every change of a node.
    pub device: Arc<Device>,
    /// What its holders have.
    pub used: Usage,
    /// Whether another node lists the same device: then neither sells it.
    pub contested: bool,
    /// What was measured on it.
    pub load: Load,
}

/// What the agent measured on a device, beyond what the ledger explains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    /// Memory that processes of no pod of ours hold. It cannot be sold.
    pub strangers: Mebibytes,
    /// Whether it is busier than what was sold of it explains. Ranked behind the others.
    pub hot: bool,
}

/// What is taken of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// The sum over its holders. It may exceed the device if others placed them.
    pub hold: Hold,
    /// How many pods hold some of it.
    pub holders: u32,
}

impl Usage {
    /// Counts one more pod.
    pub fn add(&mut self, hold: &Hold) {
        self.hold = self.hold.plus(hold);
        self.holders = self.holders.saturating_add(1);
    }
}

impl DeviceState {
    /// A device that nobody holds.
    pub fn idle(device: Arc<Device>) -> Self {
        Self { device, used: Usage::default(), contested: false, load: Load::default() }
    }

    /// Whether it may take anything new: in service, a card of its own, listed once.
    pub fn sells(&self) -> bool {
        self.device.health == Health::Healthy && self.device.mig == Mig::Off && !self.contested
    }

    /// Compute left.
    pub fn free_cores(&self) -> Cores {
        let used = if self.used.hold.whole { Cores::MAX } else { self.used.hold.cores };
        self.device.cores.saturating_sub(used)
    }

    /// Memory left.
    pub fn free_memory(&self) -> Mebibytes {
        let used = if self.used.hold.whole { Mebibytes::MAX } else { self.used.hold.memory };
        self.device.memory.saturating_sub(used + self.load.strangers)
    }

    /// Whether nobody holds any of it, strangers neither.
    pub fn is_idle(&self) -> bool {
        self.used.holders == 0 && self.load.strangers.is_zero()
    }

    /// Whether `hold` more fits.
    pub fn fits(&self, hold: &Hold) -> bool {
        if hold.whole {
            return self.is_idle();
        }
        self.free_cores() >= hold.cores
            && self.free_memory() >= hold.memory
            && !self.used.hold.whole
    }
}

impl Node {
    /// The device of this UUID.
    pub fn device(&self, id: &DeviceId) -> Option<&DeviceState> {
        self.devices.iter().find(|state| state.device.id == *id)
    }

    /// What a claim holds of each device at its peak, by place, and what it points at in vain.
    pub fn holds(&self, claimed: &[Claimed]) -> (BTreeMap<usize, Hold>, Vec<String>) {
        let (holds, missing) = self.each_hold(claimed);
        (holds.collect(), missing)
    }

    /// The same, one device after another.
    pub fn each_hold(
        &self,
        claimed: &[Claimed],
    ) -> (impl Iterator<Item = (usize, Hold)> + use<>, Vec<String>) {
        let hold = |place: usize, part: &Part| {
            let device = &self.devices[place].device;
            part.of(device).hold(device)
        };
        let (mut one, mut several, mut missing) = (None, BTreeMap::new(), Vec::new());
        if let [Claimed { parts, .. }] = claimed
            && let [(points_at, part)] = &parts[..]
        {
            // A part of one card for one container is what most pods have, and all pods of a node
            // are added up whenever one changes: for these nothing is collected.
            match self.place_of(points_at) {
                Some(place) => one = Some((place, hold(place, part))),
                None => missing.push(points_at.to_string()),
            }
        } else {
            let mut phases = Vec::new();
            for container in claimed {
                let mut of_container: BTreeMap<usize, Hold> = BTreeMap::new();
                for (points_at, part) in &container.parts {
                    let Some(place) = self.place_of(points_at) else {
                        missing.push(points_at.to_string());
                        continue;
                    };
                    let sum = of_container.entry(place).or_default();
                    *sum = sum.plus(&hold(place, part));
                }
                phases.push((container.role, of_container));
            }
            several = peak(phases);
        }
        (one.into_iter().chain(several), missing)
    }

    fn place_of(&self, points_at: &DeviceRef) -> Option<usize> {
        self.devices.iter().position(|state| points_at.is(&state.device))
    }

    /// Counts one more pod on it.
    pub fn count(&mut self, holder: Arc<Holder>) {
        self.free = self.free.without(&holder.host);
        for (resource, count) in &holder.tickets {
            if !self.tickets.contains_key(resource) {
                self.tickets.insert(resource.clone(), Tickets::default());
            }
            if let Some(tickets) = self.tickets.get_mut(resource) {
                tickets.used = tickets.used.saturating_add(*count);
            }
        }
        match &holder.claim {
            Claim::Nothing => {}
            Claim::Shares(claimed) => {
                let (holds, missing) = self.each_hold(claimed);
                for (place, hold) in holds {
                    self.devices[place].used.add(&hold);
                }
                let missing = missing.iter().map(|what| format!("{what} of {}", holder.pod));
                self.missing.extend(missing);
            }
            Claim::Unreadable(why) => {
                let problem = Problem::Holder(format!("pod {}: {why}", holder.pod));
                self.problem.get_or_insert(problem);
            }
        }
        self.holders.push(holder);
    }

    /// The node as it will be once the pods `leaving` are gone: emptied, and the others counted
    /// again. So it is what the ledger will show then, even where sums had stopped at their ends.
    #[must_use]
    pub fn without(&self, leaving: &BTreeSet<PodUid>) -> Self {
        let idle = |state: &DeviceState| DeviceState { used: Usage::default(), ..state.clone() };
        // A name that only pods brought up has no tickets at all.
        let offered = self.tickets.iter().filter(|(_, tickets)| tickets.total > 0);
        let emptied = |tickets: &Tickets| Tickets { used: 0, ..*tickets };
        let mut node = Self {
            name: self.name.clone(),
            allocatable: self.allocatable,
            free: self.allocatable,
            pool: self.pool.clone(),
            shunned: self.shunned,
            agent: self.agent,
            problem: self.problem.clone().filter(|p| matches!(p, Problem::Inventory(_))),
            devices: self.devices.iter().map(idle).collect(),
            topology: self.topology.clone(),
            tickets: offered.map(|(name, tickets)| (name.clone(), emptied(tickets))).collect(),
            holders: Vec::with_capacity(self.holders.len()),
            missing: Vec::new(),
        };
        let staying = self.holders.iter().filter(|holder| !leaving.contains(&holder.pod.uid));
        staying.for_each(|holder| node.count(holder.clone()));
        node
    }
}
