//! A node's account, added up from the pods on it.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::{
    Agent, Amount, CardModel, Claim, Cores, DeviceState, Hold, Mebibytes, Node, NodeName, Problem,
    Tickets,
};

use crate::event::NodeFacts;
use crate::{Entry, Ledger, STALE_AFTER_MILLIS};

/// What each namespace holds of each card model, over all nodes.
pub(crate) type Spending = BTreeMap<String, BTreeMap<CardModel, Total>>;

/// A sum over nodes, so wide that it cannot saturate: only then does taking a part out again
/// leave exactly the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Total {
    cards: u128,
    cores: u128,
    memory: u128,
}

impl Total {
    fn of(hold: &Hold) -> Self {
        let Amount { cards, cores, memory } = Amount::of(hold);
        Self { cards: cards.into(), cores: cores.0.into(), memory: memory.0.into() }
    }

    fn shift(&mut self, other: &Self, by: impl Fn(u128, u128) -> u128) {
        self.cards = by(self.cards, other.cards);
        self.cores = by(self.cores, other.cores);
        self.memory = by(self.memory, other.memory);
    }

    /// The sum as people count it.
    pub(crate) fn amount(&self) -> Amount {
        Amount {
            cards: u64::try_from(self.cards).unwrap_or(u64::MAX),
            cores: Cores(u32::try_from(self.cores).unwrap_or(u32::MAX)),
            memory: Mebibytes(u64::try_from(self.memory).unwrap_or(u64::MAX)),
        }
    }
}

/// What pods of one node hold, by namespace and card model.
type NodeSpending<'a> = BTreeMap<(&'a str, &'a CardModel), Total>;

impl Ledger {
    /// Computes what readers see of `name` anew. If that is what they see already, nothing changes.
    pub(crate) fn refresh(&mut self, name: &NodeName) {
        let Some(entry) = self.nodes.get(name) else { return };
        let new = entry.facts.as_ref().map(|facts| Arc::new(self.account(facts, entry)));
        if new == entry.view {
            return;
        }
        let old = entry.view.clone();
        if let Some(entry) = self.nodes.get_mut(name) {
            entry.view.clone_from(&new);
        }
        match &new {
            Some(node) => self.listing.put(node.clone()),
            None => self.listing.remove(name),
        }
        self.changes += 1;
        self.respend(old.as_deref(), new.as_deref());
    }

    pub(crate) fn agent(&self, entry: &Entry) -> Agent {
        match entry.heard {
            None => Agent::Never,
            Some(heard) if heard.after(STALE_AFTER_MILLIS) < self.now => Agent::Stale,
            Some(_) => Agent::Fresh,
        }
    }

    fn account(&self, facts: &NodeFacts, entry: &Entry) -> Node {
        let mut node = self.empty(facts, entry);
        entry.holders.values().for_each(|holder| node.count(holder.clone()));
        node
    }

    fn empty(&self, facts: &NodeFacts, entry: &Entry) -> Node {
        let contested = |id| self.listings.get(id).is_some_and(|nodes| nodes.len() > 1);
        let devices = facts.devices().iter().map(|device| DeviceState {
            contested: contested(&device.id),
            load: entry.load.get(&device.id).copied().unwrap_or_default(),
            ..DeviceState::idle(device.clone())
        });
        let problem = match &facts.inventory {
            Some(Err(why)) => Some(Problem::Inventory(why.clone())),
            Some(Ok(_)) | None => None,
        };
        // A resource of which there is nothing is not offered.
        let offered = facts.tickets.iter().filter(|(_, total)| **total > 0);
        Node {
            name: facts.name.clone(),
            allocatable: facts.allocatable,
            free: facts.allocatable,
            pool: facts.pool.clone(),
            shunned: facts.shunned,
            agent: self.agent(entry),
            problem,
            devices: devices.collect(),
            topology: entry.topology.clone(),
            tickets: offered
                .map(|(name, &total)| (name.clone(), Tickets { total, used: 0 }))
                .collect(),
            holders: Vec::new(),
            missing: Vec::new(),
        }
    }

    /// Counts for namespaces what a node's pods hold of it now, in the place of what they held.
    fn respend(&mut self, old: Option<&Node>, new: Option<&Node>) {
        // On the same cards a pod holds what it held: then only those that changed count.
        let same_cards = old.zip(new).is_some_and(|(old, new)| {
            old.devices.len() == new.devices.len()
                && old.devices.iter().zip(&new.devices).all(|(a, b)| a.device == b.device)
        });
        let before = old.map(|node| spending(node, new.filter(|_| same_cards))).unwrap_or_default();
        let after = new.map(|node| spending(node, old.filter(|_| same_cards))).unwrap_or_default();
        let shifts = [(&before, u128::saturating_sub as fn(u128, u128) -> u128)];
        let shifts = shifts.into_iter().chain([(&after, u128::saturating_add as _)]);
        for (spending, by) in shifts {
            for ((namespace, model), total) in spending {
                let models = self.spending.entry((*namespace).to_owned()).or_default();
                models.entry((*model).clone()).or_default().shift(total, by);
            }
        }
        for (namespace, _) in before.keys() {
            if let Some(models) = self.spending.get_mut(*namespace) {
                models.retain(|_, total| *total != Total::default());
                if models.is_empty() {
                    self.spending.remove(*namespace);
                }
            }
        }
    }
}

/// What the pods on `node` hold, but for those that are the same on `other`. Both sort them by UID.
fn spending<'a>(node: &'a Node, other: Option<&Node>) -> NodeSpending<'a> {
    let mut others = other.into_iter().flat_map(|other| &other.holders).peekable();
    let mut spending = NodeSpending::new();
    for holder in &node.holders {
        while others.next_if(|other| other.pod.uid < holder.pod.uid).is_some() {}
        if others.next_if(|other| Arc::ptr_eq(other, holder)).is_some() {
            continue;
        }
        let Claim::Shares(claimed) = &holder.claim else { continue };
        for (place, hold) in node.each_hold(claimed).0 {
            let key = (&*holder.pod.namespace, &node.devices[place].device.model);
            spending.entry(key).or_default().shift(&Total::of(&hold), u128::saturating_add);
        }
    }
    spending
}
