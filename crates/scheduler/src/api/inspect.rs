//! gpushare's own form, as its tools read it. Memory is counted in GiB or MiB, as its unit is set.

use std::collections::BTreeMap;

use dialect::MemoryUnit;
use model::{Claim, Node};
use serde::Serialize;
use serde_json::Value;

use crate::service::Service;

/// All nodes, or an error.
#[derive(Debug, Default, Serialize)]
pub(super) struct Inspected {
    nodes: Vec<InspectedNode>,
    #[serde(skip_serializing_if = "String::is_empty")]
    error: String,
    /// Not gpushare's: its tools pass over what they do not know.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    quotas: Vec<Value>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct InspectedNode {
    name: String,
    #[serde(rename = "totalGPU")]
    total: u64,
    #[serde(rename = "usedGPU")]
    used: u64,
    devs: Vec<InspectedDevice>,
}

#[derive(Debug, Serialize)]
struct InspectedDevice {
    id: u32,
    #[serde(rename = "totalGPU")]
    total: u64,
    #[serde(rename = "usedGPU")]
    used: u64,
    pods: Vec<InspectedPod>,
}

#[derive(Debug, Serialize)]
struct InspectedPod {
    name: String,
    namespace: String,
    #[serde(rename = "usedGPU")]
    used: u64,
}

pub(super) fn all(service: &Service) -> Inspected {
    let picture = service.handle.picture();
    let nodes = picture.snapshot.nodes().iter().filter(|node| !node.devices.is_empty());
    let unit = service.settings.gpushare_unit;
    let nodes = nodes.map(|node| inspect(node, unit)).collect();
    Inspected { nodes, error: String::new(), quotas: super::shapes::quotas(service) }
}

pub(super) fn one(service: &Service, name: &str) -> Inspected {
    let picture = service.handle.picture();
    let found = picture.snapshot.nodes().iter().find(|node| node.name.as_str() == name);
    match found {
        Some(node) => {
            let nodes = vec![inspect(node, service.settings.gpushare_unit)];
            Inspected { nodes, ..Inspected::default() }
        }
        None => Inspected { error: format!("node {name} is not known"), ..Inspected::default() },
    }
}

fn inspect(node: &Node, unit: MemoryUnit) -> InspectedNode {
    let size = unit.size().0;
    let mut pods: BTreeMap<usize, Vec<InspectedPod>> = BTreeMap::new();
    for holder in &node.holders {
        let Claim::Shares(claimed) = &holder.claim else { continue };
        for (place, hold) in node.holds(claimed).0 {
            pods.entry(place).or_default().push(InspectedPod {
                name: holder.pod.name.clone(),
                namespace: holder.pod.namespace.clone(),
                used: hold.memory.0.div_ceil(size),
            });
        }
    }
    let devs: Vec<InspectedDevice> = node
        .devices
        .iter()
        .enumerate()
        .map(|(place, state)| InspectedDevice {
            id: state.device.index,
            total: state.device.memory.0 / size,
            used: state.used.hold.memory.0.div_ceil(size),
            pods: pods.remove(&place).unwrap_or_default(),
        })
        .collect();
    InspectedNode {
        name: node.name.to_string(),
        total: devs.iter().map(|dev| dev.total).sum(),
        used: devs.iter().map(|dev| dev.used).sum(),
        devs,
    }
}
