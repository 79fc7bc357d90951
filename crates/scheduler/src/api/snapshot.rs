//! The cluster as `nanogpu-sim` reads it, so that a decision can be played again elsewhere.

use model::codec::encode_inventory;
use model::{Claim, DeviceRef, Inventory, Node, Part, Role};
use serde_json::{Value, json};

use crate::service::Service;

pub(super) fn export(service: &Service) -> Value {
    let picture = service.handle.picture();
    let nodes: Vec<Value> = picture.snapshot.nodes().iter().map(|each| node(each)).collect();
    let pending = service.handle.pods.all_pending();
    let asking = pending.iter().filter_map(|p| p.asked.as_ref().ok());
    let waiting: Vec<Value> = asking
        .filter(|asked| !picture.reserved.contains_key(&asked.request.pod.uid))
        .map(|asked| {
            let request = &asked.request;
            let parts: Vec<Value> = request
                .containers
                .iter()
                .map(|c| part(c.name.as_str(), c.role, c.cards, c.part))
                .collect();
            json!({
                "namespace": request.pod.namespace, "name": request.pod.name,
                "uid": request.pod.uid, "cpuMilli": request.host.cpu,
                "memoryMiB": request.host.memory.0 >> 20, "requests": parts,
                "models": request.selector.models.first().cloned().unwrap_or_default(),
                "priority": request.priority,
            })
        })
        .collect();
    json!({"version": 1, "nodes": nodes, "pending": waiting})
}

fn part(container: &str, role: Role, cards: u32, part: Part) -> Value {
    let role = match role {
        Role::Init => "init",
        Role::Sidecar => "sidecar",
        Role::App => "app",
    };
    let mut value = json!({"container": container, "role": role, "cards": cards});
    if let Part::Share { cores, memory } = part {
        value["cores"] = json!(cores);
        if let model::MemoryAsk::Exact(memory) = memory {
            value["memoryMiB"] = json!(memory);
        }
    }
    value
}

fn node(node: &Node) -> Value {
    let devices = node.devices.iter().map(|state| state.device.clone()).collect();
    let inventory = Inventory { devices, links: Vec::new() };
    let pods: Vec<Value> = node
        .holders
        .iter()
        .map(|holder| {
            json!({
                "namespace": holder.pod.namespace, "name": holder.pod.name, "uid": holder.pod.uid,
                "cpuMilli": holder.host.cpu, "memoryMiB": holder.host.memory.0 >> 20,
                "placement": placement(node, &holder.claim), "priority": holder.priority,
            })
        })
        .collect();
    json!({
        "name": node.name, "cpuMilli": node.allocatable.cpu,
        "memoryMiB": node.allocatable.memory.0 >> 20, "pool": node.pool,
        "inventory": if node.devices.is_empty() { None } else { Some(encode_inventory(&inventory)) },
        "pods": pods,
    })
}

/// A claim as the text of a placement. What is no placement is left out.
fn placement(node: &Node, claim: &Claim) -> Option<String> {
    let Claim::Shares(claimed) = claim else { return None };
    let containers = claimed.iter().enumerate().map(|(number, container)| {
        let grants = container.parts.iter().filter_map(|(points_at, part)| {
            let state = match points_at {
                DeviceRef::Id(id) => node.device(id)?,
                other => node.devices.iter().find(|state| other.is(&state.device))?,
            };
            let device = &state.device;
            Some(model::Grant { device: device.id.clone(), portion: part.of(device) })
        });
        model::ContainerPlacement {
            name: model::ContainerName::parse(&format!("c{number}")).expect("a letter and digits"),
            role: container.role,
            grants: grants.collect(),
        }
    });
    let made = model::Placement::new(node.name.clone(), containers.collect()).ok()?;
    Some(model::codec::encode_placement(&made))
}
