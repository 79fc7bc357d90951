//! `inspect --gpushare`: the tables of kubectl-inspect-gpushare, to the byte, so that scripts that
//! read them go on. Its nodes come in any order; ours are sorted.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use dialect::{Dialect, MemoryUnit, Settings, observe};
use k8s_openapi::api::core::v1 as core;
use model::{Claim, Claimed, DeviceRef, MemoryAsk, Part, Quantity, Snapshot};

use crate::observed::Objects;
use crate::tabs;

/// The tool tells MiB from GiB by size: no card has more than 100 GiB, it says.
const MOST_GIB: u64 = 100;

/// A node as the tool sees it. Amounts are in its unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its first internal address.
    pub address: String,
    /// How many cards.
    pub cards: usize,
    /// Memory of all of them.
    pub total: u64,
    /// Pods, and what they hold of each card. Where no card is known the place is `cards`.
    pub pods: Vec<Pod>,
}

/// A pod on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// What it holds, by card; at the number of cards what waits for one.
    pub held: BTreeMap<usize, u64>,
}

impl Node {
    fn used(&self, place: usize) -> u64 {
        self.pods.iter().filter_map(|pod| pod.held.get(&place)).sum()
    }

    fn all_used(&self) -> u64 {
        self.pods.iter().flat_map(|pod| pod.held.values()).sum()
    }

    fn has_pending(&self) -> bool {
        self.pods.iter().any(|pod| pod.held.contains_key(&self.cards))
    }

    fn per_card(&self) -> u64 {
        self.total / (self.cards.max(1) as u64)
    }
}

/// The resource by which its pods ask.
fn resource() -> &'static str {
    Dialect::Gpushare.identity_resources().first().copied().unwrap_or_default()
}

/// The unit of a cluster: the first node decides.
pub fn unit(objects: &Objects) -> MemoryUnit {
    // A ledger in any unit has the number of cards.
    let snapshot = objects.snapshot(&Settings::default(), jiff::Timestamp::UNIX_EPOCH);
    match shared_nodes(objects, &snapshot).first() {
        Some(node) if node.per_card() > MOST_GIB => MemoryUnit::Mebibytes,
        _ => MemoryUnit::Gibibytes,
    }
}

/// The nodes that offer gpushare's resource, by name.
pub fn nodes(objects: &Objects, settings: &Settings, snapshot: &Snapshot) -> Vec<Node> {
    let mut nodes = shared_nodes(objects, snapshot);
    let size = settings.gpushare_unit.size().0;
    for pod in objects.pods() {
        let Some(node) = pod.node.as_ref() else { continue };
        let Some(on) = nodes.iter_mut().find(|known| known.name == node.as_str()) else { continue };
        let Some(holder) = observe(&pod, settings) else { continue };
        let mut held = match &holder.claim {
            Claim::Shares(claimed) => held(claimed, snapshot.node(node), size),
            Claim::Nothing | Claim::Unreadable(_) => BTreeMap::new(),
        };
        if held.is_empty() {
            let asked = pod.containers.iter().filter_map(|container| container.asks(resource()));
            let asked: u64 = asked.filter_map(whole).sum();
            if asked == 0 {
                continue;
            }
            held.insert(on.cards, asked);
        }
        on.pods.push(Pod { name: pod.id.name, namespace: pod.id.namespace, held });
    }
    for node in &mut nodes {
        let place = |pod: &Pod| pod.held.keys().next().copied();
        node.pods.sort_by(|a, b| {
            (place(a), &a.namespace, &a.name).cmp(&(place(b), &b.namespace, &b.name))
        });
    }
    nodes
}

/// What a pod holds of each card, by index.
fn held(claimed: &[Claimed], node: Option<&Arc<model::Node>>, size: u64) -> BTreeMap<usize, u64> {
    if let Some(node) = node.filter(|node| !node.devices.is_empty()) {
        let holds = node.holds(claimed).0.into_iter();
        let index = |place: usize| node.devices[place].device.index as usize;
        return holds.map(|(at, hold)| (index(at), hold.memory.0.div_ceil(size))).collect();
    }
    // Where our agent never ran there is no inventory, and gpushare's own index is all there is.
    let mut held = BTreeMap::new();
    for (card, part) in claimed.iter().flat_map(|container| &container.parts) {
        let (DeviceRef::Index(number) | DeviceRef::Minor(number)) = card else { continue };
        if let Part::Share { memory: MemoryAsk::Exact(memory), .. } = part {
            *held.entry(*number as usize).or_default() += memory.0.div_ceil(size);
        }
    }
    held
}

fn shared_nodes(objects: &Objects, snapshot: &Snapshot) -> Vec<Node> {
    let mut nodes: Vec<Node> =
        objects.nodes.iter().filter_map(|node| shared(node, snapshot)).collect();
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    nodes
}

fn shared(node: &core::Node, snapshot: &Snapshot) -> Option<Node> {
    let name = node.metadata.name.clone()?;
    let status = node.status.as_ref()?;
    let offered = |resource: &str| {
        let quantity = status.allocatable.as_ref()?.get(resource)?;
        whole(&quantity.0)
    };
    let cards = if let Some(count) = offered(&format!("{}/gpu-count", Dialect::Gpushare)) {
        usize::try_from(count).ok()?
    } else {
        // Our agent writes the count later than the memory; the inventory has it too.
        let parsed = model::NodeName::parse(&name).ok()?;
        snapshot.node(&parsed).map_or(0, |known| known.devices.len())
    };
    let addresses = status.addresses.iter().flatten();
    let internal = addresses.into_iter().find(|address| address.type_ == "InternalIP");
    let address = internal.map_or_else(|| "unknown".to_owned(), |found| found.address.clone());
    let total = offered(resource()).filter(|total| *total > 0)?;
    Some(Node { name, address, cards, total, pods: Vec::new() })
}

fn whole(text: &str) -> Option<u64> {
    Some(Quantity::parse(text).ok()?.ceil())
}

/// One line a node.
pub fn summary(nodes: &[Node]) -> String {
    let pending = nodes.iter().any(Node::has_pending);
    let most = nodes.iter().map(|node| node.cards).max().unwrap_or(0);
    let unit =
        if nodes.first().is_some_and(|node| node.per_card() > MOST_GIB) { "MiB" } else { "GiB" };
    let mut text = "NAME\tIPADDRESS\t".to_owned();
    for place in 0..most {
        let _ = write!(text, "GPU{place}(Allocated/Total)\t");
    }
    if pending {
        text.push_str("PENDING(Allocated)\t");
    }
    let _ = writeln!(text, "GPU Memory({unit})");
    let mut dashes = 0;
    for node in nodes {
        let mut row = format!("{}\t{}\t", node.name, node.address);
        for place in 0..most {
            let has = place < node.cards;
            let total = if has { node.per_card() } else { 0 };
            let used = if has { node.used(place) } else { 0 };
            let _ = write!(row, "{used}/{total}\t");
        }
        if pending {
            if node.has_pending() {
                let _ = write!(row, "{}", node.used(node.cards));
            }
            row.push('\t');
        }
        let _ = writeln!(row, "{}/{}", node.all_used(), node.total);
        if dashes == 0 {
            dashes = row.len() + 20;
        }
        text.push_str(&row);
    }
    let _ = writeln!(text, "{}", "-".repeat(dashes));
    let _ = writeln!(text, "Allocated/Total GPU Memory In Cluster:\n{}\t", cluster(nodes));
    tabs::set(&text)
}

/// Pod by pod.
pub fn details(nodes: &[Node]) -> String {
    let mut text = String::new();
    let mut dashes = 0;
    for node in nodes {
        let pending = node.has_pending();
        let _ = write!(
            text,
            "\nNAME:\t{}\nIPADDRESS:\t{}\n\nNAME\tNAMESPACE\t",
            node.name, node.address
        );
        for place in 0..node.cards {
            let _ = write!(text, "GPU{place}(Allocated)\t");
        }
        if pending {
            text.push_str("Pending(Allocated)\t");
        }
        text.push('\n');
        let mut rows = String::new();
        for pod in &node.pods {
            let _ = write!(rows, "{}\t{}\t", pod.name, pod.namespace);
            for place in 0..node.cards + usize::from(pending) {
                let _ = write!(rows, "{}\t", pod.held.get(&place).unwrap_or(&0));
            }
            rows.push('\n');
        }
        if dashes == 0 {
            dashes = rows.len() + 10;
        }
        text.push_str(&rows);
        let used = node.all_used();
        let part = crate::numbers::percent(used, node.total);
        let _ = writeln!(text, "Allocated :\t{used} ({part}%)\t\nTotal :\t{} \t", node.total);
        let _ = writeln!(text, "{}", "-".repeat(dashes));
    }
    let _ = writeln!(text, "\n\nAllocated/Total GPU Memory In Cluster:\t{}\t", cluster(nodes));
    tabs::set(&text)
}

fn cluster(nodes: &[Node]) -> String {
    let used: u64 = nodes.iter().map(Node::all_used).sum();
    let total: u64 = nodes.iter().map(|node| node.total).sum();
    format!("{used}/{total} ({}%)", crate::numbers::percent(used, total))
}
