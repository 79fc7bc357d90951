//! `cordon` and `uncordon`: the node annotation that the agent reads.

use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use model::codec::decode_inventory;
use model::{Device, names};
use serde_json::json;

use crate::cluster::{Cluster, said};

/// What is done with a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// It takes no new pods.
    Cordon,
    /// It does again.
    Uncordon,
}

/// How often a node that somebody else changes meanwhile is read again.
const TRIES: u32 = 5;

/// Does it, and says what was done.
pub async fn change(cluster: &Cluster, card: &str, act: Act) -> anyhow::Result<String> {
    let (node_name, device) = card
        .split_once('/')
        .filter(|(node, device)| !node.is_empty() && !device.is_empty())
        .with_context(|| format!("{card} is not NODE/DEVICE, such as gpu-a/0"))?;
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    for _ in 0..TRIES {
        let node = match nodes.get_opt(node_name).await {
            Ok(Some(node)) => node,
            Ok(None) => bail!("there is no node {node_name}"),
            Err(error) => bail!("{}", said(&error)),
        };
        let annotations = node.metadata.annotations.unwrap_or_default();
        let inventory = annotations.get(names::INVENTORY).with_context(|| {
            format!("node {node_name} has no {}: no nanogpu agent ever ran there", names::INVENTORY)
        })?;
        let inventory = decode_inventory(inventory)?;
        let devices: Vec<&Device> = inventory.devices.iter().map(AsRef::as_ref).collect();
        let found = named(&devices, device, node_name)?;
        let before = annotations.get(names::CORDON).map_or("", String::as_str);
        let which = format!("card {} of {node_name} ({}, {})", found.index, found.model, found.id);
        let Some(after) = edited(before, found, act) else {
            return Ok(match act {
                Act::Cordon => format!("{which} is cordoned already\n"),
                Act::Uncordon => format!("{which} is not cordoned\n"),
            });
        };
        // The version makes the write fail if somebody else changed the node since we read it.
        let patch = json!({"metadata": {
            "resourceVersion": node.metadata.resource_version,
            "annotations": {names::CORDON: after},
        }});
        match nodes.patch(node_name, &PatchParams::default(), &Patch::Merge(&patch)).await {
            Ok(_) => {
                return Ok(match act {
                    Act::Cordon => {
                        format!("{which} cordoned: it takes no new pods, those on it stay\n")
                    }
                    Act::Uncordon => format!("{which} uncordoned\n"),
                });
            }
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => bail!("{}", said(&error)),
        }
    }
    bail!("node {node_name} keeps changing while it is edited; try again")
}

/// The card that `text` means: an index, a UUID, or the beginning of one.
fn named<'a>(devices: &[&'a Device], text: &str, node: &str) -> anyhow::Result<&'a Device> {
    if let Ok(index) = text.parse::<u32>() {
        let found = devices.iter().find(|device| device.index == index);
        return found.copied().with_context(|| {
            let known: Vec<String> = devices.iter().map(|d| d.index.to_string()).collect();
            format!("{node} has no card {index}; it has {}", known.join(", "))
        });
    }
    let begins = |device: &&&Device| {
        device.id.as_str().get(..text.len()).is_some_and(|start| start.eq_ignore_ascii_case(text))
    };
    let found: Vec<&&Device> = devices.iter().filter(begins).collect();
    match found[..] {
        [one] => Ok(one),
        [] => bail!("{node} has no card whose UUID begins with {text}"),
        _ => {
            // A whole UUID may be the beginning of a longer one.
            let exact = found.iter().find(|device| device.id.as_str().eq_ignore_ascii_case(text));
            match exact {
                Some(one) => Ok(one),
                None => bail!("{} cards of {node} begin with {text}; give more of it", found.len()),
            }
        }
    }
}

/// The annotation after the act: a text, or that it goes; nothing if it says so already. What people
/// wrote about other cards stays as it is.
#[expect(clippy::option_option, reason = "the outer says whether to write, the inner what")]
fn edited(before: &str, device: &Device, act: Act) -> Option<Option<String>> {
    let words: Vec<&str> = before.split(',').map(str::trim).filter(|w| !w.is_empty()).collect();
    let means = |word: &&str| *word == device.id.as_str() || *word == device.index.to_string();
    let is_listed = words.iter().any(&means);
    match act {
        Act::Cordon if is_listed => None,
        Act::Cordon => {
            let all: Vec<&str> = words.into_iter().chain([device.id.as_str()]).collect();
            Some(Some(all.join(",")))
        }
        Act::Uncordon if !is_listed => None,
        Act::Uncordon => {
            let rest: Vec<&str> = words.into_iter().filter(|word| !means(word)).collect();
            Some((!rest.is_empty()).then(|| rest.join(",")))
        }
    }
}

#[cfg(test)]
mod tests {
    use model::Inventory;

    use super::*;

    fn cards() -> Inventory {
        let card = |index: u32, id: &str| json!({"id": id, "index": index, "minor": index, "model": "T4", "mem": 1024});
        let cards = [card(0, "GPU-5f2e-1"), card(1, "GPU-5f2e-2"), card(2, "GPU-77aa")];
        decode_inventory(&json!({"v": 1, "devices": cards}).to_string()).unwrap()
    }

    #[test]
    fn a_card_is_named_by_index_or_the_beginning_of_its_uuid() {
        let inventory = cards();
        let devices: Vec<&Device> = inventory.devices.iter().map(AsRef::as_ref).collect();
        let index = |text: &str| match named(&devices, text, "n") {
            Ok(device) => device.index.to_string(),
            Err(error) => error.to_string(),
        };
        assert_eq!(index("1"), "1");
        assert_eq!(index("gpu-77"), "2");
        assert_eq!(index("GPU-5f2e-2"), "1");
        assert_eq!(index("7"), "n has no card 7; it has 0, 1, 2");
        assert_eq!(index("GPU-5f"), "2 cards of n begin with GPU-5f; give more of it");
        assert_eq!(index("GPU-x"), "n has no card whose UUID begins with GPU-x");
    }

    #[test]
    fn what_was_written_about_other_cards_stays() {
        let inventory = cards();
        let card = &inventory.devices[1];
        let text = |text: &str| Some(Some(text.to_owned()));
        assert_eq!(edited("", card, Act::Cordon), text("GPU-5f2e-2"));
        assert_eq!(edited("0, GPU-x", card, Act::Cordon), text("0,GPU-x,GPU-5f2e-2"));
        assert_eq!(edited("1", card, Act::Cordon), None);
        assert_eq!(edited("1, GPU-5f2e-2,0", card, Act::Uncordon), text("0"));
        assert_eq!(edited("1", card, Act::Uncordon), Some(None));
        assert_eq!(edited("0", card, Act::Uncordon), None);
    }
}
