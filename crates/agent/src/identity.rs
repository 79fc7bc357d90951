//! Who a start is for: the holders of an ID set, by the kubelet's own record.
//!
//! Nothing is guessed by size or time. Containers of one pod can hold the same set, since the
//! kubelet hands the IDs of init containers on; each has an answer, and so a name, of its own.

use std::collections::BTreeSet;

use kubelet::cdi::Kind;
use kubelet::checkpoint::Checkpoint;
use kubelet::devices::IdSet;
use kubelet::plugin::Allocation;
use kubelet::pods::Holdings;
use model::{ContainerName, PodUid};

use crate::laying::Promise;
use crate::refusal::Refusal;

/// A container that holds an ID set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldBy {
    /// The pod.
    pub pod: PodUid,
    /// The container.
    pub container: ContainerName,
    /// The name we answered with: of a CDI device, without its kind, or of a folder.
    pub name: String,
    /// What was promised beside the name, where devices come by a folder.
    pub promise: Option<Promise>,
}

/// The name in an answer of ours, and what was promised with it; nothing if it is another's.
pub fn named(answer: &Allocation, kind: &Kind) -> Option<(String, Option<Promise>)> {
    let device = answer.cdi_devices.iter().find_map(|device| kind.device_in(&device.name));
    match device {
        Some(name) => Some((name.to_owned(), None)),
        // It becomes the name of a folder, so it is held to the same grammar.
        None => Promise::of(answer)
            .filter(|(name, _)| kind.device(name).is_ok())
            .map(|(name, promise)| (name, Some(promise))),
    }
}

/// Who holds exactly `ids` of `resource`: one pod's containers, or a refusal.
pub fn holders(
    checkpoint: &Checkpoint,
    resource: &str,
    ids: &IdSet,
    kind: &Kind,
) -> Result<Vec<HeldBy>, Refusal> {
    let entries: Vec<_> = checkpoint.holders(resource, ids).collect();
    if entries.is_empty() {
        return Err(Refusal::Nobody { resource: resource.to_owned(), count: ids.len() });
    }
    let pods: BTreeSet<&PodUid> = entries.iter().map(|entry| &entry.pod).collect();
    if pods.len() > 1 {
        return Err(Refusal::SeveralPods { resource: resource.to_owned(), pods: pods.len() });
    }
    let held = entries.into_iter().map(|entry| {
        let not_ours = || Refusal::NotOurs { container: entry.container.clone() };
        let answer = entry.answer().map_err(|_| not_ours())?;
        let (name, promise) = named(&answer, kind).ok_or_else(not_ours)?;
        Ok(HeldBy { pod: entry.pod.clone(), container: entry.container.clone(), name, promise })
    });
    held.collect()
}

/// Whether the kubelet's second account agrees. It knows no plain init containers, so a container
/// it does not list says nothing; one it lists with other IDs contradicts.
pub fn agrees(
    holdings: &Holdings,
    resource: &str,
    ids: &IdSet,
    held: &[HeldBy],
) -> Result<(), Refusal> {
    for holder in held {
        let listed = holdings.containers.iter().find(|c| c.name == holder.container.as_str());
        let Some(listed) = listed else { continue };
        let devices = listed.devices.iter().filter(|devices| devices.resource_name == resource);
        let told: IdSet = devices.flat_map(|devices| devices.device_ids.iter().cloned()).collect();
        if !told.is_empty() && told != *ids {
            return Err(Refusal::Contradiction { container: holder.container.clone() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use kubelet::wire::device_plugin::CdiDevice;

    use super::*;

    fn entry(pod: &str, container: &str, ids: &str, cdi: &str) -> String {
        let cdi_devices = vec![CdiDevice { name: cdi.to_owned() }];
        let answer = Allocation { cdi_devices, ..Allocation::default() };
        let answer = crate::tests::base64(&answer);
        format!(
            r#"{{"PodUID":"{pod}","ContainerName":"{container}","ResourceName":"r/x",
               "DeviceIDs":{{"-1":[{ids}]}},"AllocResp":"{answer}"}}"#
        )
    }

    fn checkpoint(entries: &[String]) -> Checkpoint {
        let text = format!(
            r#"{{"Data":{{"PodDeviceEntries":[{}],"RegisteredDevices":{{}}}},"Checksum":1}}"#,
            entries.join(",")
        );
        Checkpoint::parse(text.as_bytes()).unwrap()
    }

    fn who(entries: &[String]) -> Result<Vec<String>, Refusal> {
        let ids: IdSet = ["a", "b"].into_iter().collect();
        let kind = Kind::parse("nano-gpu/alloc").unwrap();
        let held = holders(&checkpoint(entries), "r/x", &ids, &kind)?;
        Ok(held.iter().map(|h| format!("{}/{}={}", h.pod, h.container, h.name)).collect())
    }

    #[test]
    fn one_pod_may_hold_a_set_in_several_containers() {
        let entries = [
            entry("p1", "init", r#""a","b""#, "nano-gpu/alloc=x-1"),
            entry("p1", "main", r#""b","a""#, "nano-gpu/alloc=x-2"),
            entry("p2", "main", r#""c""#, "nano-gpu/alloc=x-3"),
        ];
        assert_eq!(who(&entries).unwrap(), ["p1/init=x-1", "p1/main=x-2"]);
    }

    #[test]
    fn nobody_several_pods_and_foreign_answers_are_refused() {
        let count = Refusal::Nobody { resource: "r/x".into(), count: 2 };
        assert_eq!(who(&[entry("p1", "main", r#""a""#, "nano-gpu/alloc=x")]), Err(count));
        let two = [
            entry("p1", "main", r#""a","b""#, "nano-gpu/alloc=x-1"),
            entry("p2", "main", r#""a","b""#, "nano-gpu/alloc=x-2"),
        ];
        assert_eq!(who(&two), Err(Refusal::SeveralPods { resource: "r/x".into(), pods: 2 }));
        let foreign = [entry("p1", "main", r#""a","b""#, "nvidia.com/gpu=0")];
        assert!(matches!(who(&foreign), Err(Refusal::NotOurs { .. })));
    }
}
