//! Who uses what: the driver's processes set against what was handed out.
//!
//! User space cannot stop a program that talks to the kernel directly. So what the driver says is
//! compared with the records, and what no placement explains is a stranger: it is told, counted, and
//! taken off what can be sold of that card.

use std::collections::BTreeMap;

use gpu::Measured;
use model::{DeviceId, Hold, Inventory, PodUid};

use crate::living::Place;
use crate::records::Record;

/// What one pod uses of one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Use {
    /// The device.
    pub device: DeviceId,
    /// The pod.
    pub pod: PodUid,
    /// Namespace and name.
    pub pod_name: String,
    /// The container, if only one of the pod has this device.
    pub container: Option<String>,
    /// Memory in use, in bytes.
    pub used: u64,
    /// Memory it may use, in bytes.
    pub limit: u64,
    /// Compute in use, in percent.
    pub busy: u32,
}

/// Someone on a device who should not be, or not so much.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stranger {
    /// The device.
    pub device: DeviceId,
    /// A process of it.
    pub pid: u32,
    /// The pod it belongs to, if it belongs to one.
    pub pod: Option<PodUid>,
    /// Memory that nothing explains, in bytes.
    pub memory: u64,
    /// Whether the pod has a part of the device, and uses more than that.
    pub above_limit: bool,
}

/// What a driver counts for a process beside what the program asked for: its context. A pod is
/// over its limit only beyond this much for each of its processes.
const CONTEXT: u64 = 600 << 20;

/// Explains what was measured by the records.
pub fn explain(
    measured: &[Measured],
    inventory: &Inventory,
    records: &[Record],
    place: &dyn Fn(u32) -> Option<Place>,
) -> (Vec<Use>, Vec<Stranger>) {
    let (mut uses, mut strangers) = (Vec::new(), Vec::new());
    for measured in measured {
        let mut by_pod: BTreeMap<PodUid, (u64, u32, u32, u64)> = BTreeMap::new();
        for process in &measured.processes {
            if let Some(place) = place(process.pid) {
                let (memory, busy, pid, count) = by_pod.entry(place.pod).or_default();
                *memory = memory.saturating_add(process.used);
                *busy = busy.saturating_add(process.busy).min(100);
                *pid = process.pid;
                *count += 1;
            } else {
                strangers.push(Stranger {
                    device: measured.device.clone(),
                    pid: process.pid,
                    pod: None,
                    memory: process.used,
                    above_limit: false,
                });
            }
        }
        // Pods that use nothing yet have a line too, from the first second.
        let of_device = || records.iter().filter(|record| has(record, &measured.device));
        for record in of_device() {
            by_pod.entry(record.pod.clone()).or_default();
        }
        for (pod, (memory, busy, pid, count)) in by_pod {
            let own: Vec<&Record> = of_device().filter(|record| record.pod == pod).collect();
            let Some(first) = own.first() else {
                let device = measured.device.clone();
                strangers.push(Stranger {
                    device,
                    pid,
                    pod: Some(pod),
                    memory,
                    above_limit: false,
                });
                continue;
            };
            let limit = hold(first, inventory, &measured.device).memory.0.saturating_mul(1 << 20);
            let allowed = limit.saturating_add(CONTEXT.saturating_mul(count));
            if memory > allowed {
                strangers.push(Stranger {
                    device: measured.device.clone(),
                    pid,
                    pod: Some(pod.clone()),
                    memory: memory - limit,
                    above_limit: true,
                });
            }
            let with = own.iter().filter(|r| !r.placement.grants(r.container.as_str()).is_empty());
            let mut names = with.map(|record| record.container.to_string());
            let container = names.next().filter(|_| names.next().is_none());
            uses.push(Use {
                device: measured.device.clone(),
                pod,
                pod_name: first.pod_name.clone(),
                container,
                used: memory,
                limit,
                busy,
            });
        }
    }
    (uses, strangers)
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

    fn record() -> Record {
        Record {
            name: "x".into(),
            pod: PodUid::parse("a").unwrap(),
            pod_name: "team/a".into(),
            container: ContainerName::parse("main").unwrap(),
            placement: decode_placement("v1;n1;main=GPU-1:30%+4096Mi").unwrap(),
        }
    }

    fn explained(processes: &[(u32, u64)], places: &[(u32, &str)]) -> (Vec<Use>, Vec<Stranger>) {
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
        let place = |pid: u32| {
            let pod = places.iter().find(|(one, _)| *one == pid)?.1;
            Some(Place { pod: PodUid::parse(pod).unwrap(), container: String::new() })
        };
        explain(&[measured], &inventory, &[record()], &place)
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
            [(1, None, GIB, false), (3, Some("a"), 5 * GIB, true), (2, Some("b"), GIB, false)]
        );
    }
}
