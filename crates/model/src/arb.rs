//! Generators of worlds that collide: few names, few sizes, so that things meet.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use crate::{
    CardModel, ContainerName, ContainerPlacement, Cores, Device, DeviceId, Grant, Health, Hop,
    Inventory, Kind, Link, Mebibytes, Mig, NodeName, Placement, Portion, Role, Share, UnixNanos,
};

/// Names for tests, checked.
///
/// # Panics
/// If `text` is no node name.
pub fn node_name(text: &str) -> NodeName {
    NodeName::parse(text).expect("a node name")
}

/// # Panics
/// If `text` is no device id.
pub fn device_id(text: &str) -> DeviceId {
    DeviceId::parse(text).expect("a device id")
}

/// # Panics
/// If `text` is no container name.
pub fn container_name(text: &str) -> ContainerName {
    ContainerName::parse(text).expect("a container name")
}

/// A healthy card of 16 GiB, for tests to alter.
pub fn card(index: u32) -> Device {
    Device {
        kind: Kind::Gpu,
        id: device_id(&format!("GPU-{index}")),
        index,
        minor: index,
        bus: format!("0000:{index:02x}:00.0"),
        model: CardModel::new("Tesla T4"),
        memory: Mebibytes(16384),
        cores: Cores::CARD,
        numa: None,
        nic: None,
        health: Health::Healthy,
        mig: Mig::Off,
    }
}

/// Any device; sick, cordoned and sliced ones now and then.
pub fn devices(prefix: &'static str, most: usize) -> impl Strategy<Value = Vec<Arc<Device>>> {
    let model = select(vec!["Tesla T4", "NVIDIA A100-SXM4-40GB", "NVIDIA A10"]);
    let memory = select(vec![1000u64, 4096, 16384]);
    let health = prop_oneof![
        18 => Just(Health::Healthy),
        1 => Just(Health::Sick),
        1 => Just(Health::Cordoned),
    ];
    let mig = prop_oneof![
        30 => Just(Mig::Off),
        1 => Just(Mig::Parent),
        1 => Just(Mig::Slice { parent: device_id("GPU-0"), profile: "1g.5gb".into() }),
    ];
    let cores = prop_oneof![9 => Just(Cores::CARD), 1 => Just(Cores(40))];
    let place = (option::of(0u32..2), option::of(select(Hop::ALL.to_vec())));
    let shape = (model, memory, cores, health, mig, place, 0u32..3);
    // A node without cards is one case of many, not one of a few.
    let count = prop_oneof![1 => Just(0), 12 => 1..=most];
    count.prop_flat_map(move |count| vec(shape.clone(), count)).prop_map(move |shapes| {
        let devices = shapes.into_iter().zip(0u32..).map(|(shape, index)| {
            let (model, memory, cores, health, mig, (numa, nic), twist) = shape;
            Arc::new(Device {
                id: device_id(&format!("{prefix}-{index}")),
                model: CardModel::new(model),
                memory: Mebibytes(memory),
                cores,
                health,
                mig,
                numa,
                nic,
                // Device nodes need not be numbered like the driver's order.
                minor: index ^ twist,
                ..card(index)
            })
        });
        devices.collect()
    })
}

/// Any inventory that the codec accepts.
pub fn inventories() -> impl Strategy<Value = Inventory> {
    (devices("GPU", 6), vec((0u32..6, 0u32..6, select(Hop::ALL.to_vec()), 0u8..4), 0..8)).prop_map(
        |(devices, ends)| {
            let count = u32::try_from(devices.len()).unwrap_or(0);
            let mut links: Vec<Link> = ends
                .into_iter()
                .filter(|(a, b, ..)| a < b && *b < count)
                .map(|(a, b, hop, nvlinks)| Link { a, b, hop, nvlinks })
                .collect();
            links.sort_by_key(|link| (link.a, link.b));
            links.dedup_by_key(|link| (link.a, link.b));
            Inventory { devices, links }
        },
    )
}

/// Any placement.
///
/// # Panics
/// Never: its containers have different names and different devices.
pub fn placements() -> impl Strategy<Value = Placement> {
    let portion = prop_oneof![
        Just(Portion::Whole),
        (any::<u32>(), any::<u64>()).prop_map(|(cores, memory)| Portion::Share(Share {
            cores: Cores(cores),
            memory: Mebibytes(memory),
        })),
    ];
    let role = select(vec![Role::Init, Role::Sidecar, Role::App]);
    let containers = vec((role, vec(portion, 1..4)), 1..5);
    ("[a-z0-9]{1,9}(\\.[a-z]{1,5})?", option::of(any::<u64>()), containers).prop_map(
        |(node, until, mut containers)| {
            containers.sort_by_key(|(role, _)| *role == Role::App);
            let containers = containers.into_iter().enumerate().map(|(c, (role, portions))| {
                let grants = portions.into_iter().enumerate().map(|(d, portion)| Grant {
                    device: device_id(&format!("MIG-GPU_{d}/{c}.0")),
                    portion,
                });
                let name = container_name(&format!("c-{c}"));
                ContainerPlacement { name, role, grants: grants.collect() }
            });
            let placement = Placement::new(node_name(&node), containers.collect())
                .expect("containers of different names with different devices");
            match until {
                Some(until) => placement.void_after(UnixNanos(until)),
                None => placement,
            }
        },
    )
}
