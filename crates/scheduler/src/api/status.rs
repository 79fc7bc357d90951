//! elastic-gpu's status: for each resource a JSON text of what is free on each card.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::service::Service;

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Card {
    core_available: u32,
    memory_available: u64,
    core_total: u32,
    memory_total: u64,
}

pub(super) fn status(service: &Service) -> BTreeMap<String, String> {
    let picture = service.handle.picture();
    let mut nodes: BTreeMap<String, Vec<Card>> = BTreeMap::new();
    for node in picture.snapshot.nodes().iter().filter(|node| !node.devices.is_empty()) {
        let cards = node.devices.iter().map(|state| Card {
            core_available: state.free_cores().0,
            memory_available: state.free_memory().0,
            core_total: state.device.cores.0,
            memory_total: state.device.memory.0,
        });
        nodes.insert(node.name.to_string(), cards.collect());
    }
    let text = serde_json::to_string(&nodes).unwrap_or_default();
    let enabled = service.settings.enabled.iter();
    let resources = enabled.flat_map(|dialect| dialect.identity_resources());
    resources.map(|resource| ((*resource).to_owned(), text.clone())).collect()
}
