//! gpu-manager's query API: `/usage` and `/graph`, for the tools that read them.

use std::fmt::Write as _;
use std::sync::Arc;

use model::{Hop, Pod, PodUid};
use serde_json::{Map, Value, json};

use crate::picture::Picture;

/// Who uses what, by pod and container, as gpu-manager answers it.
pub fn usage(picture: &Picture, pod: &dyn Fn(&PodUid) -> Option<Arc<Pod>>) -> Value {
    let mut all = Map::new();
    for one in &picture.uses {
        let entry = all.entry(one.pod.to_string()).or_insert_with(|| {
            let namespace = one.pod_name.split_once('/').map_or("", |(namespace, _)| namespace);
            let cluster = pod(&one.pod).and_then(|pod| pod.annotations.get("clusterName").cloned());
            // The user came from a variable of the container, which is not read here.
            json!({
                "stat": {}, "project": namespace, "user": "",
                "cluster": cluster.unwrap_or_default(), "spec": {},
            })
        });
        let container = one.container.clone().unwrap_or_default();
        let known = picture.inventory.devices.iter().find(|device| device.id == one.device);
        let dev = json!({
            "id": known.map(|device| device.bus.clone()).unwrap_or_default(),
            "card_idx": known.map(|device| device.index.to_string()).unwrap_or_default(),
            "gpu": one.busy,
            "mem": one.used >> 20,
            "pids": one.pids,
            "device_mem": known.map_or(0, |device| device.memory.0),
        });
        let stat = &mut entry["stat"][&container]["dev"];
        match stat.as_array_mut() {
            Some(devices) => devices.push(dev),
            None => *stat = json!([dev]),
        }
        let spec = &mut entry["spec"][&container];
        let sum = |key: &str| spec[key].as_f64().unwrap_or(0.0);
        let gpu = sum("gpu") + f64::from(one.cores) / 100.0;
        let memory = spec["mem"].as_u64().unwrap_or(0) + (one.limit >> 20);
        *spec = json!({"gpu": gpu, "mem": memory});
    }
    json!({"usage": all})
}

/// The cards as a tree, by how near they are.
pub fn graph(picture: &Picture) -> String {
    let cards: Vec<u32> = picture
        .inventory
        .devices
        .iter()
        .filter(|device| !matches!(device.mig, model::Mig::Slice { .. }))
        .map(|device| device.index)
        .collect();
    let mut text = format!("ROOT:{}\n", cards.len());
    branch(picture, &cards, &LEVELS, 0, &mut text);
    text
}

/// From far to near. Writing into a String cannot fail.
const LEVELS: [(Hop, &str); 5] = [
    (Hop::CrossSocket, "SYS"),
    (Hop::SameNode, "CPU"),
    (Hop::HostBridge, "PHB"),
    (Hop::Switches, "PXB"),
    (Hop::OneSwitch, "PIX"),
];

fn branch(
    picture: &Picture,
    cards: &[u32],
    levels: &[(Hop, &str)],
    depth: usize,
    text: &mut String,
) {
    let indent = "|   ".repeat(depth);
    if let [card] = cards {
        let _ = writeln!(text, "{indent}|---{}", leaf(picture, *card));
        return;
    }
    let Some(((hop, name), nearer)) = levels.split_first() else {
        for card in cards {
            let _ = writeln!(text, "{indent}|---{}", leaf(picture, *card));
        }
        return;
    };
    let groups = apart(picture, cards, *hop);
    if let [_] = groups[..] {
        // Nobody is so far from the others.
        return branch(picture, cards, nearer, depth, text);
    }
    let _ = writeln!(text, "{indent}|---{name} (aval: {})", cards.len());
    for group in groups {
        branch(picture, &group, nearer, depth + 1, text);
    }
}

/// The cards in groups, whose members are nearer to one another than `hop`.
fn apart(picture: &Picture, cards: &[u32], hop: Hop) -> Vec<Vec<u32>> {
    let near = |a: u32, b: u32| {
        let between =
            |link: &&model::Link| (link.a, link.b) == (a, b) || (link.b, link.a) == (a, b);
        picture.inventory.links.iter().find(between).is_some_and(|link| link.hop < hop)
    };
    let mut groups: Vec<Vec<u32>> = Vec::new();
    for card in cards {
        let found = groups.iter_mut().find(|group| group.iter().any(|other| near(*other, *card)));
        match found {
            Some(group) => group.push(*card),
            None => groups.push(vec![*card]),
        }
    }
    groups
}

fn leaf(picture: &Picture, index: u32) -> String {
    let Some(device) = picture.inventory.devices.iter().find(|device| device.index == index) else {
        return format!("GPU{index}");
    };
    let uses = || picture.uses.iter().filter(|one| one.device == device.id);
    let seen = picture.measured.iter().find(|seen| seen.device == device.id);
    let mut pids: Vec<u32> =
        seen.into_iter().flat_map(|s| s.processes.iter().map(|p| p.pid)).collect();
    pids.sort_unstable();
    let pids: Vec<String> = pids.iter().map(ToString::to_string).collect();
    let cores: u32 = uses().map(|one| one.cores).sum();
    let limit: u64 = uses().map(|one| one.limit).fold(0, u64::saturating_add);
    let total = seen.map_or(device.memory.0 << 20, |seen| seen.total);
    format!(
        "GPU{index} (pids: [{}], usedMemory: {}, totalMemory: {total}, allocatableCores: {}, allocatableMemory: {})",
        pids.join(" "),
        seen.map_or(0, |seen| seen.used),
        device.cores.0.saturating_sub(cores),
        total.saturating_sub(limit),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::picture;

    #[test]
    fn usage_has_gpu_managers_form() {
        let answer = usage(&picture(), &|_| None);
        let pod = &answer["usage"]["u-1"];
        assert_eq!(pod["project"], "team");
        let dev = &pod["stat"]["main"]["dev"][0];
        assert_eq!(
            (&dev["card_idx"], &dev["mem"], &dev["gpu"]),
            (&json!("1"), &json!(1024), &json!(12))
        );
        assert_eq!((&dev["device_mem"], &dev["pids"]), (&json!(15360), &json!([7])));
        assert_eq!(pod["spec"]["main"], json!({"gpu": 0.3, "mem": 4096}));
    }

    #[test]
    fn the_graph_has_every_card_below_its_root() {
        let text = graph(&picture());
        assert!(text.starts_with("ROOT:4\n|---"), "{text}");
        let one = "GPU1 (pids: [7], usedMemory: 2147483648, totalMemory: 16106127360, allocatableCores: 70, allocatableMemory: 11811160064)";
        assert!(text.contains(one), "{text}");
        for card in 0..4 {
            assert!(text.contains(&format!("|---GPU{card} (pids: [")), "{text}");
        }
    }
}
