//! The sample pods of the systems nanogpu stands in for, and a small cluster to run them on.

use std::sync::Arc;

use dialect::Settings;
use model::arb::{card, device_id, node_name};
use model::{CardModel, Device, Inventory, Mebibytes, Pod};
use placement::Policy;

use crate::Cluster;

macro_rules! samples {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../pods/", $name, ".json")))),*]
    };
}

/// Every sample: its name and its manifest. Those named `wrong-` are.
pub const SAMPLES: &[(&str, &str)] = samples![
    "nano-percent",
    "nano-two-cards",
    "nano-memory",
    "nano-io",
    "elastic",
    "vcuda-share",
    "vcuda-whole",
    "inspur-share",
    "gpushare-1",
    "gpushare-2",
    "gpushare-3",
    "gpushare-too-big",
    "gpu-admission",
    "hami",
    "vgpu-manager",
    "init-and-app",
    "wrong-150",
    "wrong-10g",
    "wrong-two-dialects",
    "wrong-model",
];

/// The sample of this name.
///
/// # Panics
/// If there is none, or if it is no pod.
pub fn sample(name: &str) -> Pod {
    let (_, text) = SAMPLES.iter().find(|(known, _)| *known == name).expect("a sample");
    Pod::from_json(text).expect("a pod")
}

/// Four T4 on one node, four A100 on another, every dialect spoken.
pub fn cluster() -> Cluster {
    let mut cluster = Cluster::new(Settings::all_dialects(), Policy::default());
    for (node, model, memory) in
        [("t4-node", "Tesla T4", 16384), ("a100-node", "NVIDIA A100-SXM4-40GB", 40960)]
    {
        let device = |index| {
            Arc::new(Device {
                id: device_id(&format!("GPU-{}-{index}", &node[..2])),
                model: CardModel::new(model),
                memory: Mebibytes(memory),
                // Numbered unlike the driver's order, as real machines are.
                minor: 3 - index,
                ..card(index)
            })
        };
        let inventory = Inventory { devices: (0..4).map(device).collect(), links: Vec::new() };
        cluster.node(&node_name(node), &inventory);
    }
    cluster
}
