//! Looks for the best set of victims on one node, one size after the other.
//!
//! Every set of a size is either tried or shown to be no use: by the arithmetic of [`Needs`], by a
//! budget, or because the best set that could still come of it is no better than one found
//! already. What remains is exponential in the worst case, so the number of steps is bounded.
//! Beyond it all candidates leave in thought, and return one by one as long as the pod still fits.

use model::PodUid;

use super::answer::Budget;
use super::needs::{Fate, Needs};
use super::site::{Candidate, Site};

/// For one node: enough for eight cards with several pods each, and some ten milliseconds at worst.
const MOST_STEPS: u32 = 5_000;

/// For all nodes together, a second or two at worst.
pub(super) const MOST_STEPS_IN_ALL: u32 = 300_000;

/// A set of victims on one node.
pub(super) struct Found<'a> {
    pub(super) rank: Rank<'a>,
    /// By place among the candidates of the node.
    pub(super) going: Vec<usize>,
}

/// How good a set is; the least is best.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank<'a> {
    pub(super) count: usize,
    /// From the highest down.
    priorities: Vec<i32>,
    loss: u128,
    /// The node's place in the order of names.
    pub(super) node: usize,
    uids: Vec<&'a PodUid>,
}

/// The search on one node.
pub(super) struct Sets<'a> {
    pub(super) site: Site<'a>,
    needs: Needs,
    /// Candidates that give back quota.
    givers: Vec<usize>,
    /// The node's place in the order of names.
    pub(super) place: usize,
    fates: Vec<Fate>,
    going: Vec<usize>,
    /// How many of `going` go in any case.
    given: usize,
    /// What each budget still allows.
    allowed: Vec<u32>,
    steps: u32,
}

impl<'a> Sets<'a> {
    /// Sets of candidates that all hold those `given`; nothing, if a budget forbids even those.
    pub(super) fn new(
        site: Site<'a>,
        needs: Needs,
        place: usize,
        budgets: &[Budget],
        given: &[usize],
    ) -> Option<Self> {
        let mut sets = Self {
            givers: site.givers(),
            fates: vec![Fate::Open; site.candidates.len()],
            going: Vec::new(),
            given: given.len(),
            allowed: budgets.iter().map(|budget| budget.allowed).collect(),
            steps: MOST_STEPS,
            site,
            needs,
            place,
        };
        for &candidate in given {
            if !sets.may_go(candidate) {
                return None;
            }
            sets.take(candidate);
        }
        Some(sets)
    }

    /// Whether the steps ran out before the search was complete.
    pub(super) fn gave_up(&self) -> bool {
        self.steps == 0
    }

    /// Puts into `best` the best set of `size` on this node, if it is better. It takes its steps
    /// from `steps`; once they have run out, the set may be any.
    pub(super) fn improve(&mut self, size: usize, best: &mut Option<Found<'a>>, steps: &mut u32) {
        let Some(more) = size.checked_sub(self.going.len()) else { return };
        if !self.gave_up() {
            let kept_back = self.steps.saturating_sub(*steps);
            self.steps -= kept_back;
            *steps -= self.steps;
            self.extend(0, more, best);
            *steps += self.steps;
            if !self.gave_up() {
                self.steps += kept_back;
            } else if best.as_ref().is_none_or(|best| best.rank.node != self.place) {
                self.fall_back(best);
            }
        }
    }

    /// Puts the greedy set into `best`, if it is better.
    fn fall_back(&self, best: &mut Option<Found<'a>>) {
        let Some(going) = self.greedy() else { return };
        let rank = self.rank(going.iter());
        if best.as_ref().is_none_or(|best| rank < best.rank) {
            *best = Some(Found { rank, going });
        }
    }

    /// Tries all ways to let `more` go of those that are open, from place `from` on.
    fn extend(&mut self, from: usize, more: usize, best: &mut Option<Found<'a>>) {
        if more == 0 {
            self.weigh(best);
            return;
        }
        let Some(live) = self.needs.live(more, |c| self.fate(c)) else { return };
        let of_use = |c: &usize| live[*c] || (self.givers.contains(c) && self.may_go(*c));
        let open = (from..self.fates.len()).filter(|&c| self.fates[c] == Fate::Open);
        let (open, mut kept): (Vec<usize>, Vec<usize>) = open.partition(of_use);
        // Who is of no use stays: a set with such a pod does without it, and is no set of a
        // size that was not tried yet.
        for &candidate in &kept {
            self.fates[candidate] = Fate::Stays;
        }
        for (at, &candidate) in open.iter().enumerate() {
            if self.steps == 0 || self.is_in_vain(&open[at..], more, best.as_ref()) {
                break;
            }
            self.steps -= 1;
            self.take(candidate);
            self.extend(candidate + 1, more - 1, best);
            self.put_back(candidate);
            self.fates[candidate] = Fate::Stays;
            kept.push(candidate);
        }
        for candidate in kept {
            self.fates[candidate] = Fate::Open;
        }
    }

    /// Whether no better set can come of letting `more` of `open` go.
    fn is_in_vain(&self, open: &[usize], more: usize, best: Option<&Found>) -> bool {
        // Candidates are sorted as ranks are, so that no set is better than one of the first.
        let first = || self.rank(self.going.iter().chain(open.iter().take(more)));
        open.len() < more
            || best.is_some_and(|best| first() >= best.rank)
            || self.needs.live(more, |c| self.fate(c)).is_none()
    }

    /// Keeps the set of those that go if it is better than the best and makes room.
    fn weigh(&self, best: &mut Option<Found<'a>>) {
        let rank = self.rank(self.going.iter());
        let goes = |c: usize| if self.fates[c] == Fate::Goes { Fate::Goes } else { Fate::Stays };
        if best.as_ref().is_none_or(|best| rank < best.rank)
            && self.needs.are_met(goes)
            && self.site.fits(&self.going).is_ok()
        {
            *best = Some(Found { rank, going: self.going.clone() });
        }
    }

    fn rank<'s>(&self, set: impl Iterator<Item = &'s usize>) -> Rank<'a> {
        let set: Vec<&Candidate> = set.map(|&candidate| &self.site.candidates[candidate]).collect();
        let mut priorities: Vec<i32> = set.iter().map(|c| c.holder.priority).collect();
        priorities.sort_unstable_by(|a, b| b.cmp(a));
        let mut uids: Vec<&PodUid> = set.iter().map(|candidate| candidate.uid()).collect();
        uids.sort_unstable();
        let loss = set.iter().map(|candidate| candidate.loss).sum();
        Rank { count: set.len(), priorities, loss, node: self.place, uids }
    }

    /// A set of which nobody can stay, though perhaps not the smallest: all candidates go, then
    /// they return, the highest priority first. Those whose budget is exceeded return before all
    /// others; if it stays exceeded, there is no such set.
    fn greedy(&self) -> Option<Vec<usize>> {
        let mut going: Vec<usize> = (0..self.fates.len()).collect();
        self.site.fits(&going).ok()?;
        let given = &self.going[..self.given];
        let budgets_of = |candidate: usize| &self.site.candidates[candidate].budgets;
        let exceeded = |going: &[usize], budget: usize| {
            let counts = |c: &&usize| !given.contains(c) && budgets_of(**c).contains(&budget);
            going.iter().filter(counts).count() > self.allowed[budget] as usize
        };
        for first in [true, false] {
            for place in (0..going.len()).rev() {
                let candidate = going[place];
                let too_many = budgets_of(candidate).iter().any(|&budget| exceeded(&going, budget));
                if given.contains(&candidate) || (first && !too_many) {
                    continue;
                }
                going.remove(place);
                if self.site.fits(&going).is_err() {
                    going.insert(place, candidate);
                }
            }
        }
        (0..self.allowed.len()).all(|budget| !exceeded(&going, budget)).then_some(going)
    }

    fn fate(&self, candidate: usize) -> Fate {
        match self.fates[candidate] {
            Fate::Open if !self.may_go(candidate) => Fate::Stays,
            fate => fate,
        }
    }

    fn may_go(&self, candidate: usize) -> bool {
        self.site.candidates[candidate].budgets.iter().all(|&budget| self.allowed[budget] > 0)
    }

    fn take(&mut self, candidate: usize) {
        self.fates[candidate] = Fate::Goes;
        self.going.push(candidate);
        for &budget in &self.site.candidates[candidate].budgets {
            self.allowed[budget] -= 1;
        }
    }

    fn put_back(&mut self, candidate: usize) {
        self.fates[candidate] = Fate::Open;
        self.going.pop();
        for &budget in &self.site.candidates[candidate].budgets {
            self.allowed[budget] += 1;
        }
    }
}
