//! Who could be of use, and whether enough of them are left: arithmetic, and far cheaper than
//! asking whether the pod fits.
//!
//! It looks at one thing at a time (the compute of one card, the host's memory, tickets), so more
//! pods may be needed in truth, but never fewer. Quota is not looked at.

use std::collections::BTreeMap;

use model::{Claim, Hold, Holder, Part};

use super::site::{Site, holds};

/// What becomes of a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// Not decided.
    Open,
    Goes,
    Stays,
}

/// One pod, as the sum of its parts on each of its cards. A number that many can share evenly.
const POD: u64 = 720_720;

/// What is too short on a node.
pub(super) struct Needs {
    /// What must be met whichever cards are used.
    node: Vec<Need>,
    containers: Vec<Wanted>,
    /// Of each card that would do, the candidates that hold some of it.
    holders: Vec<Vec<usize>>,
    /// Of each candidate, [`POD`] shared out evenly over the cards it holds some of: if two cards
    /// must be freed, who frees both counts one half for each.
    weights: Vec<u64>,
}

/// So many cards for one container; what is too short on each card that would do.
struct Wanted {
    cards: usize,
    on: Vec<Vec<Need>>,
}

/// Something too short, and what each candidate would give back of it, the most first.
struct Need {
    short: u128,
    back: Vec<(usize, u128)>,
}

/// A pod on the node: its place among the candidates, if it may go, and what it holds.
struct Party<'a> {
    candidate: Option<usize>,
    holder: &'a Holder,
    holds: BTreeMap<usize, Hold>,
}

impl Needs {
    pub(super) fn of(site: &Site) -> Self {
        let parties: Vec<Party> = site.staying().map(|holder| Party::new(site, holder)).collect();
        let cards = site.usable();
        let wanted = site.ask.request.containers.iter().map(|container| Wanted {
            cards: container.cards as usize,
            on: cards.iter().map(|&card| on_card(site, &parties, card, container.part)).collect(),
        });
        let holders = cards.iter().map(|card| {
            let on_it = parties.iter().filter(|party| party.holds.contains_key(card));
            on_it.filter_map(|party| party.candidate).collect()
        });
        let holders: Vec<Vec<usize>> = holders.collect();
        let spans = (0..site.candidates.len())
            .map(|candidate| holders.iter().filter(|on_it| on_it.contains(&candidate)).count());
        Self {
            node: beside_cards(site, &parties),
            containers: wanted.collect(),
            weights: spans.map(|cards| POD / (cards as u64).max(1)).collect(),
            holders,
        }
    }

    /// Whether nothing is short any more.
    pub(super) fn are_met(&self, fate: impl Fn(usize) -> Fate) -> bool {
        self.live(0, fate).is_some()
    }

    /// Which of those that are open could be of use if at most `more` of them go, by place.
    /// Nothing, if more would have to go.
    pub(super) fn live(&self, more: usize, fate: impl Fn(usize) -> Fate) -> Option<Vec<bool>> {
        let mut live = vec![false; self.weights.len()];
        for need in &self.node {
            let fewest = need.fewest(&fate)?;
            if fewest > more {
                return None;
            }
            for (giver, _) in need.back.iter().filter(|_| fewest > 0) {
                live[*giver] = true;
            }
        }
        let limit = (more as u64).saturating_mul(POD);
        for wanted in &self.containers {
            let costs: Vec<Option<u64>> =
                wanted.on.iter().map(|needs| self.cost(needs, &fate)).collect();
            let mut known: Vec<u64> = costs.iter().flatten().copied().collect();
            known.sort_unstable();
            let cheapest = known.get(..wanted.cards)?;
            let dearest = cheapest.last().copied().unwrap_or(0);
            let sum = cheapest.iter().fold(0, |sum: u64, cost| sum.saturating_add(*cost));
            if sum > limit {
                return None;
            }
            // A card is within reach if it may take the place of the dearest of the cheapest. One
            // that has room already is to be emptied further only for several containers.
            let within = |cost: u64| (sum - dearest).saturating_add(cost.max(dearest)) <= limit;
            let helps = |cost: u64| cost > 0 || self.containers.len() > 1;
            let of_use = |cost: Option<u64>| cost.is_some_and(|cost| within(cost) && helps(cost));
            for (holders, _) in self.holders.iter().zip(costs).filter(|(_, cost)| of_use(*cost)) {
                for holder in holders {
                    live[*holder] = true;
                }
            }
        }
        for (candidate, live) in live.iter_mut().enumerate() {
            *live &= fate(candidate) == Fate::Open;
        }
        Some(live)
    }

    /// What it takes at the least to meet all of `needs`, if that can be.
    fn cost(&self, needs: &[Need], fate: &impl Fn(usize) -> Fate) -> Option<u64> {
        needs.iter().try_fold(0, |most: u64, need| {
            let fewest = need.fewest(fate)?;
            let open = need.back.iter().filter(|(candidate, _)| fate(*candidate) == Fate::Open);
            let mut weights: Vec<u64> =
                open.map(|(candidate, _)| self.weights[*candidate]).collect();
            weights.sort_unstable();
            Some(most.max(weights.iter().take(fewest).sum()))
        })
    }
}

/// What is short beside the cards.
fn beside_cards(site: &Site, parties: &[Party]) -> Vec<Need> {
    let request = site.ask.request;
    let mut needs = Vec::new();
    let unreadable = |party: &Party| matches!(party.holder.claim, Claim::Unreadable(_));
    needs.extend(Need::of_all(parties, unreadable));
    let host = site.node.allocatable;
    let cpu = |party: &Party| party.holder.host.cpu.0;
    needs.extend(Need::new(request.host.cpu.0, host.cpu.0, parties, cpu));
    let memory = |party: &Party| party.holder.host.memory.0;
    needs.extend(Need::new(request.host.memory.0, host.memory.0, parties, memory));
    for (resource, wanted) in &request.tickets {
        let total = site.node.tickets.get(resource).copied().unwrap_or_default().total;
        let drawn = |party: &Party| {
            let tickets = party.holder.tickets.iter().filter(|(name, _)| name == resource);
            tickets.fold(0, |sum: u64, (_, count)| sum.saturating_add(*count))
        };
        needs.extend(Need::new(*wanted, total, parties, drawn));
    }
    needs
}

/// What is short on one card for one container.
fn on_card(site: &Site, parties: &[Party], card: usize, part: Part) -> Vec<Need> {
    let state = &site.node.devices[card];
    let device = &state.device;
    let wanted = part.of(device).hold(device);
    let strangers = state.load.strangers;
    let held = |party: &Party| party.holds.get(&card).copied();
    if wanted.whole {
        // No pod gives back what strangers hold.
        let strange = (!strangers.is_zero()).then_some(Need { short: 1, back: Vec::new() });
        let everybody = Need::of_all(parties, |party| held(party).is_some());
        return everybody.into_iter().chain(strange).collect();
    }
    let whole = Need::of_all(parties, |party| held(party).is_some_and(|hold| hold.whole));
    let cores = |party: &Party| held(party).map_or(0, |hold| hold.cores.0.into());
    let cores = Need::new(wanted.cores.0.into(), device.cores.0.into(), parties, cores);
    let memory = |party: &Party| held(party).map_or(0, |hold| hold.memory.0);
    let sold = device.memory.saturating_sub(strangers);
    let memory = Need::new(wanted.memory.0, sold.0, parties, memory);
    whole.into_iter().chain(cores).chain(memory).collect()
}

impl Need {
    /// What is short of `wanted` if `limit` is all there is and each party has so much of it.
    /// Where nothing is wanted nothing is short, whatever the others have.
    fn new(
        wanted: u64,
        limit: u64,
        parties: &[Party],
        amount: impl Fn(&Party) -> u64,
    ) -> Option<Self> {
        let used: u128 = parties.iter().map(|party| u128::from(amount(party))).sum();
        let short = (used + u128::from(wanted)).saturating_sub(limit.into());
        if wanted == 0 || short == 0 {
            return None;
        }
        let gives = |party: &Party| Some((party.candidate?, u128::from(amount(party))));
        let mut back: Vec<(usize, u128)> = parties.iter().filter_map(gives).collect();
        back.retain(|(_, amount)| *amount > 0);
        back.sort_by_key(|(_, amount)| std::cmp::Reverse(*amount));
        Some(Self { short, back })
    }

    /// All of `parties` that `count` must go.
    fn of_all(parties: &[Party], count: impl Fn(&Party) -> bool) -> Option<Self> {
        let counted: Vec<&Party> = parties.iter().filter(|party| count(party)).collect();
        let back = counted.iter().filter_map(|party| Some((party.candidate?, 1))).collect();
        (!counted.is_empty()).then_some(Self { short: counted.len() as u128, back })
    }

    /// How many of those that are open must go at the least, or nothing if all are too few.
    fn fewest(&self, fate: &impl Fn(usize) -> Fate) -> Option<usize> {
        let given: u128 =
            self.back.iter().filter(|(c, _)| fate(*c) == Fate::Goes).map(|(_, back)| back).sum();
        let mut short = self.short.saturating_sub(given);
        let mut count = 0;
        for (_, back) in self.back.iter().filter(|(c, _)| fate(*c) == Fate::Open) {
            if short == 0 {
                break;
            }
            short = short.saturating_sub(*back);
            count += 1;
        }
        (short == 0).then_some(count)
    }
}

impl<'a> Party<'a> {
    fn new(site: &Site<'a>, holder: &'a Holder) -> Self {
        let candidate = site.candidates.iter().position(|c| *c.uid() == holder.pod.uid);
        let holds = match candidate {
            Some(candidate) => site.candidates[candidate].holds.clone(),
            None => holds(site.node, holder),
        };
        Self { candidate, holder, holds }
    }
}
