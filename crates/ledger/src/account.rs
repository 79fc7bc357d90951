//! A node's account, added up from the pods on it.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::{
    Agent, Amount, CardModel, Claim, Cores, DeviceState, Mebibytes, Node, NodeName, Problem,
    Tickets,
};

use crate::event::NodeFacts;
use crate::{Entry, Ledger, STALE_AFTER_MILLIS};

/// What each namespace holds of each card model, over all nodes.
pub(crate) type Spending = BTreeMap<String, BTreeMap<CardModel, Total>>;

/// A sum over nodes, so wide that it cannot saturate: only then does taking a node's part out
/// again leave exactly the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Total {
    cards: u128,
    cores: u128,
    memory: u128,
}

impl Total {
    fn shift(&mut self, amount: &Amount, by: impl Fn(u128, u128) -> u128) {
        self.cards = by(self.cards, u128::from(amount.cards));
        self.cores = by(self.cores, u128::from(amount.cores.0));
        self.memory = by(self.memory, u128::from(amount.memory.0));
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

/// What the pods of one node hold, by namespace and card model.
type NodeSpending = BTreeMap<(String, CardModel), Amount>;

impl Ledger {
    /// Computes what readers see of `name` anew. If that is what they see already, nothing changes.
    pub(crate) fn refresh(&mut self, name: &NodeName) {
        let Some(entry) = self.nodes.get(name) else { return };
        let new = entry.facts.as_ref().map(|facts| Arc::new(self.account(facts, entry)));
        if new == entry.view {
            return;
        }
        let before = entry.view.as_deref().map(spending).unwrap_or_default();
        let after = new.as_deref().map(spending).unwrap_or_default();
        if let Some(entry) = self.nodes.get_mut(name) {
            entry.view = new;
        }
        self.changes += 1;
        self.respend(&before, &after);
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

    fn respend(&mut self, before: &NodeSpending, after: &NodeSpending) {
        let shifts = [(before, u128::saturating_sub as fn(u128, u128) -> u128)];
        let shifts = shifts.into_iter().chain([(after, u128::saturating_add as _)]);
        for (spending, by) in shifts {
            for ((namespace, model), amount) in spending {
                let models = self.spending.entry(namespace.clone()).or_default();
                models.entry(model.clone()).or_default().shift(amount, by);
            }
        }
        for (namespace, _) in before.keys() {
            if let Some(models) = self.spending.get_mut(namespace) {
                models.retain(|_, total| *total != Total::default());
                if models.is_empty() {
                    self.spending.remove(namespace);
                }
            }
        }
    }
}

/// What the pods on `node` hold.
fn spending(node: &Node) -> NodeSpending {
    let mut spending = NodeSpending::new();
    for holder in &node.holders {
        let Claim::Shares(claimed) = &holder.claim else { continue };
        for (place, hold) in node.holds(claimed).0 {
            let model = node.devices[place].device.model.clone();
            let amount = spending.entry((holder.pod.namespace.clone(), model)).or_default();
            *amount = amount.plus(&Amount::of(&hold));
        }
    }
    spending
}
