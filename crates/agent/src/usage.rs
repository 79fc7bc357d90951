//! Who uses what: the driver's processes set against what was handed out.
//!
//! User space cannot stop a program that talks to the kernel directly. So what the driver says is
//! compared with the records, and what no placement explains is a stranger: it is told, counted, and
//! taken off what can be sold of that card.

use std::collections::{BTreeMap, BTreeSet};

use gpu::Measured;
use model::{DeviceId, Hold, Inventory, PodUid};

use crate::living::{Known, Place};
use crate::records::Record;

/// What one container uses of one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Use {
    /// The device.
    pub device: DeviceId,
    /// The pod.
    pub pod: PodUid,
    /// Namespace and name.
    pub pod_name: String,
    /// The container; nothing for processes of a pod of which no container is known.
    pub container: Option<String>,
    /// Memory in use, in bytes.
    pub used: u64,
    /// Memory it may use, in bytes.
    pub limit: u64,
    /// Compute in use, in percent.
    pub busy: u32,
    /// Compute it was given, in percent of the device.
    pub cores: u32,
    /// Its processes on the device.
    pub pids: Vec<u32>,
}

/// Someone on a device who should not be, or not so much.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stranger {
    /// The device.
    pub device: DeviceId,
    /// A process of it; nothing where processes cannot be seen.
    pub pid: Option<u32>,
    /// The pod it belongs to, if it belongs to one.
    pub pod: Option<PodUid>,
    /// Memory that nothing explains, in bytes.
    pub memory: u64,
    /// Whether the pod has a part of the device, and uses more than that.
    pub above_limit: bool,
}

/// What a driver counts for a process beside what the program asked for: its context. A pod is
/// over its limit only beyond this much for each of its processes, but not for more than
/// [`CONTEXTS`] of a container: by starting processes nobody gets a larger share.
pub(crate) const CONTEXT: u64 = 600 << 20;
pub(crate) const CONTEXTS: usize = 2;

/// Who a stranger is, from one look to the next. A pod is one whatever process of it is named.
type Key = (DeviceId, Option<PodUid>, Option<u32>, bool);

/// Strangers that were seen in the look before. A process that ends while it is looked at has no
/// place, and one that begins may not have its record yet: neither is there a second time.
#[derive(Debug, Default)]
pub struct Suspects {
    before: BTreeSet<Key>,
}

impl Stranger {
    fn key(&self) -> Key {
        let process = self.pid.filter(|_| self.pod.is_none());
        (self.device.clone(), self.pod.clone(), process, self.above_limit)
    }
}

impl Suspects {
    /// Those of this look who were there in the look before as well.
    pub fn confirm(&mut self, seen: Vec<Stranger>) -> Vec<Stranger> {
        let now = seen.iter().map(Stranger::key).collect();
        let before = std::mem::replace(&mut self.before, now);
        seen.into_iter().filter(|stranger| before.contains(&stranger.key())).collect()
    }
}

/// What the processes of one place use of a device.
#[derive(Debug, Default)]
struct Sum {
    memory: u64,
    busy: u32,
    pids: Vec<u32>,
}

impl Sum {
    fn add(&mut self, pid: u32, memory: u64, busy: u32) {
        self.memory = self.memory.saturating_add(memory);
        self.busy = self.busy.saturating_add(busy).min(100);
        self.pids.push(pid);
    }
}

/// What was measured, set against the records.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Explained {
    /// Who uses what.
    pub uses: Vec<Use>,
    /// Who should not.
    pub strangers: Vec<Stranger>,
    /// How the driver's processes were recognised.
    pub named: Named,
}

/// The processes that the driver names, by what is known of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Named {
    /// Those of pods.
    pub within: usize,
    /// Those of no pod.
    pub outside: usize,
    /// Those that are not on this node, as far as can be seen.
    pub unknown: usize,
}

/// Explains what was measured by the records. `name` is the name of a container by the runtime's ID.
pub fn explain(
    measured: &[Measured],
    inventory: &Inventory,
    records: &[Record],
    known: &dyn Fn(u32) -> Known,
    name: &dyn Fn(&Place) -> Option<String>,
) -> Explained {
    let (mut uses, mut strangers, mut named) = (Vec::new(), Vec::new(), Named::default());
    for measured in measured {
        let device = &measured.device;
        let mut by_pod: BTreeMap<PodUid, BTreeMap<Option<String>, Sum>> = BTreeMap::new();
        for process in &measured.processes {
            let known = known(process.pid);
            let count = match known {
                Known::Within(_) => &mut named.within,
                Known::Outside => &mut named.outside,
                Known::Unknown => &mut named.unknown,
            };
            *count += 1;
            if let Known::Within(place) = known {
                let container = name(&place);
                let sums = by_pod.entry(place.pod).or_default();
                sums.entry(container).or_default().add(process.pid, process.used, process.busy);
            } else {
                strangers.push(Stranger {
                    device: device.clone(),
                    pid: Some(process.pid),
                    pod: None,
                    memory: process.used,
                    above_limit: false,
                });
            }
        }
        // Pods that use nothing yet have a line too, from the first second.
        let of_device: Vec<&Record> = records.iter().filter(|it| has(it, device)).collect();
        for record in &of_device {
            by_pod.entry(record.pod.clone()).or_default();
        }
        for (pod, sums) in by_pod {
            let own = of_device.iter().filter(|record| record.pod == pod);
            let own: Vec<&Record> = own.copied().collect();
            strangers.extend(stranger(device, inventory, &pod, &own, &sums));
            if let Some(first) = own.first() {
                let of_pod = (device, &pod, first.pod_name.as_str());
                uses.extend(shares(of_pod, inventory, &own, sums));
            }
        }
    }
    Explained { uses, strangers, named }
}

/// What the pod has of the device beyond what it was given.
fn stranger(
    device: &DeviceId,
    inventory: &Inventory,
    pod: &PodUid,
    own: &[&Record],
    sums: &BTreeMap<Option<String>, Sum>,
) -> Option<Stranger> {
    let memory = sums.values().map(|sum| sum.memory).fold(0, u64::saturating_add);
    let pids = || sums.values().flat_map(|sum| &sum.pids);
    let pid = Some(*pids().last()?);
    let (device, pod) = (device.clone(), Some(pod.clone()));
    let Some(first) = own.first() else {
        return Some(Stranger { device, pid, pod, memory, above_limit: false });
    };
    let limit = hold(first, inventory, &device).memory.0.saturating_mul(1 << 20);
    let contexts: usize = sums.values().map(|sum| sum.pids.len().min(CONTEXTS)).sum();
    let allowed = limit.saturating_add(CONTEXT.saturating_mul(contexts as u64));
    let above = memory > allowed;
    above.then(|| Stranger { device, pid, pod, memory: memory - limit, above_limit: true })
}

/// What each container of a pod uses of the device.
fn shares(
    (device, pod, pod_name): (&DeviceId, &PodUid, &str),
    inventory: &Inventory,
    own: &[&Record],
    mut sums: BTreeMap<Option<String>, Sum>,
) -> Vec<Use> {
    let mut names: Vec<&str> = own.iter().map(|record| record.container.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    // Where only one container has the device, it is the one.
    if let [only] = names[..] {
        let mut all = Sum::default();
        for sum in std::mem::take(&mut sums).into_values() {
            all.memory = all.memory.saturating_add(sum.memory);
            all.busy = all.busy.saturating_add(sum.busy).min(100);
            all.pids.extend(sum.pids);
        }
        sums.insert(Some(only.to_owned()), all);
    }
    for name in &names {
        sums.entry(Some((*name).to_owned())).or_default();
    }
    let given = |container: &Option<String>| -> (u64, u32) {
        let container = container.as_deref().unwrap_or_default();
        let grants = own.first().map_or(&[][..], |record| record.placement.grants(container));
        let known = inventory.devices.iter().find(|known| known.id == *device);
        let mut sum = (0, 0);
        for grant in grants.iter().filter(|grant| grant.device == *device) {
            let Some(hold) = known.map(|known| grant.portion.hold(known)) else { continue };
            sum = (sum.0 + hold.memory.0.saturating_mul(1 << 20), sum.1 + hold.cores.0);
        }
        sum
    };
    let uses = sums.into_iter().map(|(container, sum)| {
        let (limit, cores) = given(&container);
        Use {
            device: device.clone(),
            pod: pod.clone(),
            pod_name: pod_name.to_owned(),
            container,
            used: sum.memory,
            limit,
            busy: sum.busy,
            cores,
            pids: sum.pids,
        }
    });
    uses.collect()
}

fn has(record: &Record, device: &DeviceId) -> bool {
    let grants = record.placement.grants(record.container.as_str());
    grants.iter().any(|grant| grant.device == *device)
}

fn hold(record: &Record, inventory: &Inventory, device: &DeviceId) -> Hold {
    let find = |id: &DeviceId| inventory.devices.iter().find(|d| d.id == *id).map(|d| &**d);
    record.placement.holds(find).get(device).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use gpu::Process;
    use model::codec::decode_placement;
    use model::{ContainerName, Profile};

    use super::*;

    const GIB: u64 = 1 << 30;

    fn record(container: &str, placement: &str) -> Record {
        Record {
            name: "x".into(),
            pod: PodUid::parse("a").unwrap(),
            pod_name: "team/a".into(),
            container: ContainerName::parse(container).unwrap(),
            placement: decode_placement(placement).unwrap(),
        }
    }

    fn explained(processes: &[(u32, u64)], places: &[(u32, &str)]) -> (Vec<Use>, Vec<Stranger>) {
        explained_by(&[record("main", "v1;n1;main=GPU-1:30%+4096Mi")], processes, places)
    }

    fn explained_by(
        records: &[Record],
        processes: &[(u32, u64)],
        places: &[(u32, &str)],
    ) -> (Vec<Use>, Vec<Stranger>) {
        let processes =
            processes.iter().map(|(pid, used)| Process { pid: *pid, used: *used, busy: 7 });
        let measured = Measured {
            device: DeviceId::parse("GPU-1").unwrap(),
            used: 0,
            total: 15 * GIB,
            busy: None,
            processes: processes.collect(),
        };
        let inventory = Profile::named("t4x4").unwrap().inventory("GPU").unwrap();
        let known = |pid: u32| {
            let Some((_, pod)) = places.iter().find(|(one, _)| *one == pid) else {
                return Known::Outside;
            };
            let (pod, container) = pod.split_once('/').unwrap_or((pod, ""));
            Known::Within(Place { pod: PodUid::parse(pod).unwrap(), container: container.into() })
        };
        let name = |place: &Place| Some(place.container.clone());
        let explained = explain(&[measured], &inventory, records, &known, &name);
        (explained.uses, explained.strangers)
    }

    #[test]
    fn a_pod_within_its_share_is_no_stranger() {
        let (uses, strangers) = explained(&[(7, GIB), (8, GIB)], &[(7, "a"), (8, "a")]);
        assert_eq!(strangers, []);
        assert_eq!(
            (uses.len(), uses[0].used, uses[0].limit, uses[0].busy),
            (1, 2 * GIB, 4 * GIB, 14)
        );
        assert_eq!(uses[0].container.as_deref(), Some("main"));
    }

    #[test]
    fn containers_that_share_a_card_are_told_apart() {
        let placement = "v1;n1;main=GPU-1:30%+4096Mi;side=GPU-1:10%+1024Mi";
        let records = [record("main", placement), record("side", placement)];
        let places = [(7, "a/main"), (8, "a/side")];
        let (uses, strangers) = explained_by(&records, &[(7, GIB), (8, 2 * GIB)], &places);
        let seen: Vec<_> = uses
            .iter()
            .map(|one| (one.container.as_deref(), one.used, one.limit, one.cores))
            .collect();
        let expected = [(Some("main"), GIB, 4 * GIB, 30), (Some("side"), 2 * GIB, GIB, 10)];
        assert_eq!(seen, expected);
        assert_eq!(strangers, [], "the pod as a whole is within its share");
    }

    #[test]
    fn a_pod_that_uses_nothing_has_a_line_all_the_same() {
        let (uses, strangers) = explained(&[], &[]);
        assert_eq!((uses.len(), uses[0].used, strangers.len()), (1, 0, 0));
    }

    #[test]
    fn processes_of_nobody_of_other_pods_and_above_the_limit_are_strangers() {
        let (_, strangers) = explained(&[(1, GIB), (2, GIB), (3, 9 * GIB)], &[(2, "b"), (3, "a")]);
        let seen: Vec<_> = strangers
            .iter()
            .map(|s| (s.pid, s.pod.as_ref().map(PodUid::as_str), s.memory, s.above_limit))
            .collect();
        assert_eq!(
            seen,
            [
                (Some(1), None, GIB, false),
                (Some(3), Some("a"), 5 * GIB, true),
                (Some(2), Some("b"), GIB, false)
            ]
        );
    }

    #[test]
    fn many_processes_have_no_larger_share() {
        let processes: Vec<(u32, u64)> = (0..20).map(|pid| (pid, GIB / 2)).collect();
        let places: Vec<(u32, &str)> = (0..20).map(|pid| (pid, "a")).collect();
        let (_, strangers) = explained(&processes, &places);
        assert_eq!((strangers.len(), strangers[0].memory), (1, 6 * GIB));
    }

    #[test]
    fn a_stranger_is_one_who_is_there_twice() {
        let mut suspects = Suspects::default();
        let look = |pid: u32, pod: Option<&str>, above_limit| Stranger {
            device: DeviceId::parse("GPU-1").unwrap(),
            pid: Some(pid),
            pod: pod.map(|pod| PodUid::parse(pod).unwrap()),
            memory: GIB,
            above_limit,
        };
        assert_eq!(suspects.confirm(vec![look(1, None, false), look(2, Some("b"), true)]), []);
        // Process 1 ended; of the pod another process is named.
        let again = vec![look(9, None, false), look(3, Some("b"), true)];
        assert_eq!(suspects.confirm(again), [look(3, Some("b"), true)]);
        assert_eq!(suspects.confirm(vec![]), []);
        assert_eq!(suspects.confirm(vec![look(3, Some("b"), true)]), [], "from the beginning");
    }
}
