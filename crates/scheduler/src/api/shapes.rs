//! Nodes, devices, pods, shares and quotas, as our own API shows them.

use model::{Agent, Allowance, Claim, Node};
use serde::Serialize;
use serde_json::{Value, json};

use crate::service::Service;

fn agent(node: &Node) -> &'static str {
    match node.agent {
        Agent::Never => "never",
        Agent::Stale => "stale",
        Agent::Fresh => "fresh",
    }
}

fn problem(node: &Node) -> Option<&str> {
    match node.problem.as_ref()? {
        model::Problem::Inventory(why) | model::Problem::Holder(why) => Some(why),
    }
}

pub(super) fn nodes(service: &Service) -> Vec<Value> {
    let picture = service.handle.picture();
    let node = |node: &Node| {
        json!({
            "name": node.name,
            "agent": agent(node),
            "problem": problem(node),
            "pool": node.pool,
            "cpuMilli": {"allocatable": node.allocatable.cpu, "free": node.free.cpu},
            "memoryBytes": {"allocatable": node.allocatable.memory, "free": node.free.memory},
            "devices": node.devices.len(),
            "pods": node.holders.len(),
            "missing": node.missing,
        })
    };
    picture.snapshot.nodes().iter().map(|each| node(each)).collect()
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Device {
    node: String,
    uuid: String,
    index: u32,
    model: String,
    sells: bool,
    health: model::Health,
    cores: u32,
    cores_free: u32,
    #[serde(rename = "memoryMiB")]
    memory: u64,
    #[serde(rename = "memoryFreeMiB")]
    memory_free: u64,
    holders: u32,
    hot: bool,
    #[serde(rename = "strangersMiB")]
    strangers: u64,
}

pub(super) fn devices(service: &Service) -> Vec<Device> {
    let picture = service.handle.picture();
    let nodes = picture.snapshot.nodes().iter();
    let of = |node: &Node| -> Vec<Device> {
        let device = |state: &model::DeviceState| Device {
            node: node.name.to_string(),
            uuid: state.device.id.to_string(),
            index: state.device.index,
            model: state.device.model.to_string(),
            sells: state.sells(),
            health: state.device.health,
            cores: state.device.cores.0,
            cores_free: state.free_cores().0,
            memory: state.device.memory.0,
            memory_free: state.free_memory().0,
            holders: state.used.holders,
            hot: state.load.hot,
            strangers: state.load.strangers.0,
        };
        node.devices.iter().map(device).collect()
    };
    nodes.flat_map(|node| of(node)).collect()
}

pub(super) fn pods(service: &Service) -> Vec<Value> {
    let picture = service.handle.picture();
    let mut all = Vec::new();
    for node in picture.snapshot.nodes() {
        for holder in node.holders.iter().filter(|holder| holder.claim != Claim::Nothing) {
            let uid = &holder.pod.uid;
            let state = if picture.reserved.contains_key(uid) { "reserved" } else { "bound" };
            all.push(json!({
                "namespace": holder.pod.namespace, "name": holder.pod.name, "uid": uid,
                "node": node.name, "state": state, "priority": holder.priority,
                "terminating": holder.terminating,
            }));
        }
    }
    let mut pending = service.handle.pods.all_pending();
    pending.sort_by(|a, b| a.seen.pod.id.uid.cmp(&b.seen.pod.id.uid));
    for pending in pending {
        let pod = &pending.seen.pod;
        if picture.reserved.contains_key(&pod.id.uid) {
            continue;
        }
        all.push(json!({
            "namespace": pod.id.namespace, "name": pod.id.name, "uid": pod.id.uid,
            "node": null, "state": "pending", "priority": pod.priority,
            "refused": pending.asked.as_ref().err().map(ToString::to_string),
            "nominated": pending.seen.nominated,
        }));
    }
    all
}

pub(super) fn shares(service: &Service) -> Vec<Value> {
    let picture = service.handle.picture();
    let mut all = Vec::new();
    for node in picture.snapshot.nodes() {
        for holder in &node.holders {
            let Claim::Shares(claimed) = &holder.claim else { continue };
            for (place, hold) in node.holds(claimed).0 {
                all.push(json!({
                    "namespace": holder.pod.namespace, "pod": holder.pod.name,
                    "node": node.name, "uuid": node.devices[place].device.id,
                    "cores": hold.cores, "memoryMiB": hold.memory, "whole": hold.whole,
                }));
            }
        }
    }
    all
}

pub(super) fn quotas(service: &Service) -> Vec<Value> {
    let picture = service.handle.picture();
    // Of which ConfigMap a rule is nobody remembers once both are one: each says how it stands.
    let sources: serde_json::Map<String, Value> = picture
        .quotas
        .iter()
        .map(|(source, state)| ((*source).to_owned(), state.to_string().into()))
        .collect();
    let of = |(namespace, allowance): (&String, &Allowance)| {
        let rules: Vec<Value> = allowance
            .rules
            .iter()
            .map(|rule| {
                json!({
                    "model": rule.model.to_string(),
                    "limit": {"cards": rule.cap.cards, "cores": rule.cap.cores, "memoryMiB": rule.cap.memory},
                    "used": {"cards": rule.used.cards, "cores": rule.used.cores, "memoryMiB": rule.used.memory},
                })
            })
            .collect();
        let others = allowance.unlisted == model::Unlisted::Allowed;
        json!({
            "namespace": namespace, "rules": rules, "othersAllowed": others,
            "pools": allowance.pools, "sources": sources,
        })
    };
    picture.snapshot.allowances().iter().map(of).collect()
}
