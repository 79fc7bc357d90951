//! A node, with those of its pods that may be evicted and what it is without some of them.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::peak::Peaks;
use model::{Allowance, Amount, Claim, Cores, Hold, Holder, Mebibytes, Node, PodUid, Rule};

use super::answer::Budget;
use crate::Ask;
use crate::fit::fit;
use crate::refusal::NodeRefusal;

/// A node on which room is to be made.
pub(super) struct Site<'a> {
    pub(super) node: &'a Node,
    pub(super) ask: &'a Ask<'a>,
    /// What the namespace may take once all pods that are leaving are gone.
    allowance: &'a Allowance,
    /// Pods that leave this node anyway.
    leaving: BTreeSet<PodUid>,
    /// Pods that may be evicted: the lowest priority first, then the smallest.
    pub(super) candidates: Vec<Candidate<'a>>,
}

/// A pod that may be evicted.
pub(super) struct Candidate<'a> {
    pub(super) holder: &'a Arc<Holder>,
    /// What it holds of each card, by place.
    pub(super) holds: BTreeMap<usize, Hold>,
    /// How much work is thrown out with it, in billionths of a card's compute and of its memory.
    pub(super) loss: u128,
    /// The budgets that protect it, by place.
    pub(super) budgets: Vec<usize>,
}

impl<'a> Site<'a> {
    pub(super) fn new(
        node: &'a Node,
        ask: &'a Ask<'a>,
        allowance: &'a Allowance,
        budgets: &[Budget],
    ) -> Self {
        let leaving = node.holders.iter().filter(|holder| holder.terminating);
        let may_go = |holder: &&Arc<Holder>| {
            !holder.terminating
                && holder.priority < ask.request.priority
                && holder.pod.uid != ask.request.pod.uid
        };
        let may_go = node.holders.iter().filter(may_go);
        let mut candidates: Vec<Candidate> =
            may_go.map(|holder| Candidate::new(node, holder, budgets)).collect();
        let key = |c: &Candidate| (c.holder.priority, c.loss);
        candidates.sort_by(|a, b| (key(a), a.uid()).cmp(&(key(b), b.uid())));
        let leaving = leaving.map(|holder| holder.pod.uid.clone()).collect();
        Self { node, ask, allowance, leaving, candidates }
    }

    /// The pods that are counted on: those that do not leave anyway.
    pub(super) fn staying(&self) -> impl Iterator<Item = &'a Arc<Holder>> {
        let node = self.node;
        node.holders.iter().filter(|holder| !holder.terminating)
    }

    /// The cards the pod could use, by place.
    pub(super) fn usable(&self) -> Vec<usize> {
        let usable = |place: &usize| {
            let state = &self.node.devices[*place];
            state.sells() && self.ask.request.selector.admits(&state.device)
        };
        (0..self.node.devices.len()).filter(usable).collect()
    }

    /// The candidates that give back quota which the pod may be short of.
    pub(super) fn givers(&self) -> Vec<usize> {
        let short: Vec<&Rule> =
            self.allowance.rules.iter().filter(|rule| self.may_exceed(rule)).collect();
        let counted = |place: &usize| {
            let model = &self.node.devices[*place].device.model;
            short.iter().any(|rule| rule.model.matches(model))
        };
        let gives = |candidate: &Candidate| {
            candidate.holder.pod.namespace == self.ask.request.pod.namespace
                && candidate.holds.keys().any(counted)
        };
        (0..self.candidates.len()).filter(|&c| gives(&self.candidates[c])).collect()
    }

    /// Whether the pod might exceed `rule`, were each of its cards the largest that counts.
    fn may_exceed(&self, rule: &Rule) -> bool {
        let mut used = rule.used;
        let counted = |place: &usize| rule.model.matches(&self.node.devices[*place].device.model);
        let cards: Vec<usize> = self.usable().into_iter().filter(counted).collect();
        for container in &self.ask.request.containers {
            let holds = cards.iter().map(|&card| {
                let device = &self.node.devices[card].device;
                container.part.of(device).hold(device)
            });
            let Some(most) = holds.reduce(|most, hold| most.max(&hold)) else { continue };
            for _ in 0..container.cards {
                used = used.plus(&Amount::of(&most));
            }
        }
        !rule.cap.admits(&used)
    }

    /// The node without those that leave anyway and without these.
    pub(super) fn without(&self, going: impl IntoIterator<Item = &'a PodUid>) -> Node {
        let mut gone = self.leaving.clone();
        gone.extend(going.into_iter().cloned());
        self.node.without(&gone)
    }

    /// Whether the pod fits once these candidates and those that leave anyway are gone.
    pub(super) fn fits(&self, going: &[usize]) -> Result<(), NodeRefusal> {
        let going = || going.iter().map(|&candidate| &self.candidates[candidate]);
        let namespace = &self.ask.request.pod.namespace;
        let back = going().map(|c| (self.node, c.holder.as_ref(), &c.holds));
        let allowance = relieved(self.allowance, namespace, back);
        let ask = Ask { allowance: &allowance, ..*self.ask };
        fit(&self.without(going().map(Candidate::uid)), &ask)
    }
}

impl<'a> Candidate<'a> {
    fn new(node: &Node, holder: &'a Arc<Holder>, budgets: &[Budget]) -> Self {
        let holds = holds(node, holder);
        let loss = holds.iter().map(|(&place, hold)| {
            let device = &node.devices[place].device;
            billionths(hold.cores.0.into(), device.cores.0.into())
                + billionths(hold.memory.0, device.memory.0)
        });
        let protects = |(_, budget): &(usize, &Budget)| budget.pods.contains(&holder.pod.uid);
        let budgets = budgets.iter().enumerate().filter(protects).map(|(place, _)| place);
        Self { loss: loss.sum(), budgets: budgets.collect(), holds, holder }
    }

    pub(super) fn uid(&self) -> &'a PodUid {
        &self.holder.pod.uid
    }
}

/// What `holder` holds of the cards of `node`, by place.
pub(super) fn holds(node: &Node, holder: &Holder) -> BTreeMap<usize, Hold> {
    match &holder.claim {
        Claim::Shares(claimed) => node.holds(claimed).0,
        Claim::Nothing | Claim::Unreadable(_) => BTreeMap::new(),
    }
}

fn billionths(part: u64, of: u64) -> u128 {
    u128::from(part) * 1_000_000_000 / u128::from(of.max(1))
}

/// The allowance of `namespace` once these pods on these nodes are gone: those of the namespace
/// give back what they hold.
pub(super) fn relieved<'a, 'h>(
    allowance: &'a Allowance,
    namespace: &str,
    gone: impl Iterator<Item = (&'h Node, &'h Holder, &'h BTreeMap<usize, Hold>)>,
) -> Cow<'a, Allowance> {
    let mut allowance = Cow::Borrowed(allowance);
    if allowance.rules.is_empty() {
        return allowance;
    }
    for (node, _, holds) in gone.filter(|(_, holder, _)| holder.pod.namespace == namespace) {
        for (&place, hold) in holds {
            let model = &node.devices[place].device.model;
            let rules = allowance.to_mut().rules.iter_mut();
            for rule in rules.filter(|rule| rule.model.matches(model)) {
                rule.used = less(&rule.used, &Amount::of(hold));
            }
        }
    }
    allowance
}

/// `used` without `back`. A sum that stopped at its largest value stays there: what it would be
/// without one of its parts is not known.
fn less(used: &Amount, back: &Amount) -> Amount {
    let cards = if used.cards == u64::MAX { 0 } else { back.cards };
    let cores = if used.cores == Cores::MAX { Cores::ZERO } else { back.cores };
    let memory = if used.memory == Mebibytes::MAX { Mebibytes::ZERO } else { back.memory };
    Amount {
        cards: used.cards.saturating_sub(cards),
        cores: used.cores.saturating_sub(cores),
        memory: used.memory.saturating_sub(memory),
    }
}
