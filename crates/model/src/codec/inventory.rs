//! `nano-gpu/inventory`, JSON with everything usual left out:
//!
//! ```text
//! {"v":1,"devices":[{"id":"GPU-5f2e","index":0,"minor":0,"bus":"0000:07:00.0",
//!   "model":"NVIDIA A100-SXM4-40GB","mem":40960,"numa":0}],"links":{"PXB+NV12":"0-1 2-3"}}
//! ```
//!
//! Fields may be added within a version; what changes the meaning of another field raises it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::LARGEST;
use crate::device::{CardModel, Device, Health, Hop, Inventory, Kind, Link, Mig};
use crate::ids::{DeviceId, Quoted};
use crate::units::{Cores, Mebibytes};

const VERSION: u32 = 1;

/// The most devices of one node: placement keeps them in 64-bit masks.
const MOST_DEVICES: usize = 64;

/// The most memory of one device, 16 TiB; more is a typing error, not a card.
const MOST_MEMORY: Mebibytes = Mebibytes(1 << 24);

/// The most compute of one device: ten times itself, for administrators who scale it.
const MOST_CORES: Cores = Cores(1000);

/// Why a text is no inventory. The node takes nothing new until it is.
#[derive(Debug, thiserror::Error)]
pub enum InventoryError {
    /// Larger than any annotation can be.
    #[error("inventory is {0} bytes long; no annotation may exceed {LARGEST}")]
    TooLong(usize),
    /// Not JSON, cut off, or a field of the wrong kind.
    #[error("inventory is not the JSON it should be")]
    Json(#[from] serde_json::Error),
    /// Written by a newer agent.
    #[error(
        "inventory has version {0}; this build reads version {VERSION}: upgrade this component"
    )]
    Version(u32),
    /// Too many devices.
    #[error("inventory lists {0} devices; a node may have at most {MOST_DEVICES}")]
    TooMany(usize),
    /// A device that stands there twice.
    #[error("inventory lists {0} twice")]
    Twice(String),
    /// Memory or compute that no card has.
    #[error("device {0} has {1}, which no card has")]
    Size(DeviceId, String),
    /// A link between devices that are not there, or of a kind nobody knows.
    #[error(
        "inventory has a link {0} that is not between two of its devices or not of a known kind"
    )]
    Link(Quoted),
}

#[derive(Deserialize)]
struct Versioned {
    v: u32,
}

#[derive(Serialize, Deserialize)]
struct Wire {
    v: u32,
    devices: Vec<WireDevice>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    links: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize)]
struct WireDevice {
    #[serde(default, skip_serializing_if = "is_default")]
    kind: Kind,
    id: DeviceId,
    index: u32,
    minor: u32,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    bus: String,
    model: CardModel,
    mem: Mebibytes,
    #[serde(default = "whole_card", skip_serializing_if = "is_whole_card")]
    cores: Cores,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    numa: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nic: Option<Hop>,
    #[serde(default, skip_serializing_if = "is_default")]
    health: Health,
    #[serde(default, skip_serializing_if = "is_default")]
    mig: WireMig,
}

#[derive(Serialize, Deserialize, Default, PartialEq)]
#[serde(rename_all = "lowercase")]
enum WireMig {
    #[default]
    Off,
    Parent,
    Slice {
        parent: DeviceId,
        profile: String,
    },
}

/// Writes an inventory.
pub fn encode_inventory(inventory: &Inventory) -> String {
    let mut links: BTreeMap<String, String> = BTreeMap::new();
    for link in &inventory.links {
        let pairs = links.entry(spell(link.hop, link.nvlinks)).or_default();
        if !pairs.is_empty() {
            pairs.push(' ');
        }
        let _ = write!(pairs, "{}-{}", link.a, link.b);
    }
    let devices = inventory.devices.iter().map(|device| to_wire(device)).collect();
    // Strings, numbers and maps with string keys: this cannot fail.
    serde_json::to_string(&Wire { v: VERSION, devices, links }).unwrap_or_default()
}

/// Reads an inventory.
pub fn decode_inventory(text: &str) -> Result<Inventory, InventoryError> {
    if text.len() > LARGEST {
        return Err(InventoryError::TooLong(text.len()));
    }
    // The version first: a newer inventory may well have fields of other kinds.
    let Versioned { v } = serde_json::from_str(text)?;
    if v != VERSION {
        return Err(InventoryError::Version(v));
    }
    let wire: Wire = serde_json::from_str(text)?;
    if wire.devices.len() > MOST_DEVICES {
        return Err(InventoryError::TooMany(wire.devices.len()));
    }
    let mut devices: Vec<Arc<Device>> =
        wire.devices.into_iter().map(|wire| Arc::new(from_wire(wire))).collect();
    devices.sort_by_key(|device| device.index);
    check_devices(&devices)?;
    let links = read_links(&wire.links, &devices)?;
    Ok(Inventory { devices, links })
}

fn check_devices(devices: &[Arc<Device>]) -> Result<(), InventoryError> {
    let mut ids = BTreeSet::new();
    let mut indexes = BTreeSet::new();
    for device in devices {
        if !ids.insert(&device.id) {
            return Err(InventoryError::Twice(format!("device {}", device.id)));
        }
        if !indexes.insert(device.index) {
            return Err(InventoryError::Twice(format!("index {}", device.index)));
        }
        if device.memory.is_zero() || device.memory > MOST_MEMORY {
            return Err(InventoryError::Size(device.id.clone(), device.memory.to_string()));
        }
        if device.cores.is_zero() || device.cores > MOST_CORES {
            let cores = format!("{} compute", device.cores);
            return Err(InventoryError::Size(device.id.clone(), cores));
        }
    }
    Ok(())
}

fn read_links(
    wire: &BTreeMap<String, String>,
    devices: &[Arc<Device>],
) -> Result<Vec<Link>, InventoryError> {
    let bad = |text: &str| InventoryError::Link(Quoted::new(text));
    let known = |index: u32| devices.iter().any(|device| device.index == index);
    let mut links = Vec::new();
    for (kind, pairs) in wire {
        let (hop, nvlinks) = parse_spelling(kind).ok_or_else(|| bad(kind))?;
        for pair in pairs.split_ascii_whitespace() {
            let ends =
                pair.split_once('-').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
            let (a, b) = ends.ok_or_else(|| bad(pair))?;
            if a >= b || !known(a) || !known(b) {
                return Err(bad(pair));
            }
            links.push(Link { a, b, hop, nvlinks });
        }
    }
    links.sort_by_key(|link| (link.a, link.b));
    let twice = links.windows(2).find(|two| (two[0].a, two[0].b) == (two[1].a, two[1].b));
    match twice {
        Some(two) => Err(InventoryError::Twice(format!("link {}-{}", two[0].a, two[0].b))),
        None => Ok(links),
    }
}

fn spell(hop: Hop, nvlinks: u8) -> String {
    match nvlinks {
        0 => hop.as_str().to_owned(),
        n => format!("{}+NV{n}", hop.as_str()),
    }
}

fn parse_spelling(text: &str) -> Option<(Hop, u8)> {
    let (hop, nvlinks) = match text.split_once("+NV") {
        Some((hop, count)) => (hop, count.parse().ok().filter(|count| *count > 0)?),
        None => (text, 0),
    };
    Some((Hop::parse(hop)?, nvlinks))
}

fn to_wire(device: &Device) -> WireDevice {
    let Device { kind, id, index, minor, bus, model, memory, cores, numa, nic, health, mig } =
        device.clone();
    let mig = match mig {
        Mig::Off => WireMig::Off,
        Mig::Parent => WireMig::Parent,
        Mig::Slice { parent, profile } => WireMig::Slice { parent, profile },
    };
    WireDevice { kind, id, index, minor, bus, model, mem: memory, cores, numa, nic, health, mig }
}

fn from_wire(wire: WireDevice) -> Device {
    let WireDevice { kind, id, index, minor, bus, model, mem, cores, numa, nic, health, mig } =
        wire;
    let mig = match mig {
        WireMig::Off => Mig::Off,
        WireMig::Parent => Mig::Parent,
        WireMig::Slice { parent, profile } => Mig::Slice { parent, profile },
    };
    Device { kind, id, index, minor, bus, model, memory: mem, cores, numa, nic, health, mig }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

const fn whole_card() -> Cores {
    Cores::CARD
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_whole_card(cores: &Cores) -> bool {
    *cores == Cores::CARD
}
