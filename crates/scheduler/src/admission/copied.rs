//! What a scheduler wrote onto a pod, and a person copied with it onto a new one.

use dialect::{Asked, Settings, write};
use model::{
    ContainerPlacement, Device, DeviceId, Grant, NodeName, Placement, Pod, Portion, UnixNanos,
    codec::decode_inventory,
};

/// A card that stands for any: only the keys matter that would be written for it.
const ANY: &str =
    r#"{"v":1,"devices":[{"id":"GPU-any","index":0,"minor":0,"model":"any","mem":1}]}"#;

/// The annotations that binding the pod would write, beside our own: whatever is under these keys
/// on a new pod was copied.
pub(super) fn keys(asked: &Asked, pod: &Pod, settings: &Settings) -> Vec<String> {
    written(asked, pod, settings).unwrap_or_default()
}

fn written(asked: &Asked, pod: &Pod, settings: &Settings) -> Option<Vec<String>> {
    let inventory = decode_inventory(ANY).ok()?;
    let any = inventory.devices.first()?;
    let containers = asked.request.containers.iter().map(|container| ContainerPlacement {
        name: container.name.clone(),
        role: container.role,
        grants: vec![Grant { device: any.id.clone(), portion: Portion::Whole }],
    });
    let placement = Placement::new(NodeName::parse("any").ok()?, containers.collect()).ok()?;
    let device = |_: &DeviceId| -> Option<&Device> { Some(any) };
    let written = write(asked, pod, &placement, &device, settings, UnixNanos(0)).ok()?;
    let ours = model::names::PLACEMENT;
    Some(written.annotations.into_keys().filter(|key| key != ours).collect())
}
