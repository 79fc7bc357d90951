//! Who gets the next turn on a card, for how long, and what it costs.
//!
//! Contexts of different processes take turns on a card whether we like it or not, and then the
//! time between two events of one says nothing about what it used. So while several processes want
//! a card, one at a time has it: its times are pure, and whoever has credit gets on.
//!
//! ```text
//!   wish ----> pick ----> Turn (a budget, or open if there are no rivals)
//!                           |- returned by its holder      -> pays what it measured
//!                           |- wanted back, holder idle    -> pays what it measured
//!                           `- wanted back, holder silent  -> taken after a bound, pays all of it
//! ```
//!
//! A [`Purse`] has two sums. Credit is GPU time as the container measured it, which keeps it within
//! its share. The tag is time in which it had the card, by our own clock, divided by its share;
//! the lowest tag goes first. So whoever lies about the first cannot get before others.
//!
//! Nothing here knows a clock, a file or a process: `now` is an argument and decisions are values.

use crate::bucket::{Bucket, WHOLE};

/// The numbers that everything turns on, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// The GPU time of a turn.
    pub quantum: u64,
    /// Credit below this is saved up, so that handing over does not cost more than it brings.
    pub least: u64,
    /// Credit grows for so long.
    pub window: u64,
    /// A holder that drains may keep others waiting for so long.
    pub bound: u64,
    /// How late work may be, by its holder's own estimate.
    pub late: u64,
    /// How long a holder may pause before it loses the turn to who waits.
    pub pause: u64,
    /// How long a holder may take to begin.
    pub begin: u64,
}

impl Rules {
    /// Those the agent uses.
    pub const USUAL: Self = Self {
        quantum: 25_000_000,
        least: 5_000_000,
        window: 250_000_000,
        bound: 300_000_000,
        late: 3_000_000,
        pause: 700_000,
        begin: 20_000_000,
    };
}

/// The account of one container on one card.
#[derive(Debug, Clone, Copy)]
pub struct Purse {
    share: u32,
    burst: u32,
    credit: Bucket,
    spare: Bucket,
    tag: u64,
    distrust: u32,
    last: u32,
}

/// What a container may have now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// Part of its share.
    Credit(i64),
    /// What others leave.
    Spare(i64),
    /// Nothing for so long.
    Nothing(u64),
}

impl Purse {
    /// An empty one. Rates are in hundredths of a percent; a share of 0 lives on what others
    /// leave.
    pub fn new(share: u32, burst: u32, now: u64) -> Self {
        let empty = Bucket::new(0, now);
        let mut purse =
            Self { share, burst, credit: empty, spare: empty, tag: 0, distrust: 0, last: 0 };
        purse.set(share, burst);
        purse
    }

    /// Changes what it fills with.
    pub fn set(&mut self, share: u32, burst: u32) {
        self.share = share.min(WHOLE);
        self.burst = if share == 0 { WHOLE } else { burst.clamp(self.share, WHOLE) };
    }

    /// Lets time come in.
    pub fn fill(&mut self, now: u64, rules: &Rules) {
        self.credit.fill(now, self.share, rules.window);
        self.spare.fill(now, self.burst, rules.window);
    }

    /// GPU time it may use of its share; below zero it is debt.
    pub fn credit(&self) -> i64 {
        self.credit.balance()
    }

    /// How often it kept the card too long, of late.
    pub fn distrust(&self) -> u32 {
        self.distrust
    }

    fn is_soft(&self) -> bool {
        self.burst > self.share
    }

    fn standing(&self, rules: &Rules) -> Standing {
        let enough = |rate: u32| {
            let least = i64::try_from(rules.least).unwrap_or(i64::MAX);
            least.min(Bucket::cap(rate, rules.window) / 2).max(1)
        };
        let (credit, spare) = (self.credit.balance(), self.spare.balance());
        if self.share > 0 && credit >= enough(self.share) {
            return Standing::Credit(credit);
        }
        if self.is_soft() && spare >= enough(self.burst) {
            return Standing::Spare(spare);
        }
        let (bucket, rate) =
            if self.is_soft() { (&self.spare, self.burst) } else { (&self.credit, self.share) };
        Standing::Nothing(bucket.wait(enough(rate), rate).unwrap_or(u64::MAX))
    }

    /// Pays for what a turn used so far; says how much that is.
    pub fn draw(&mut self, turn: &mut Turn, now: u64, spent: u64) -> u64 {
        let charge = turn.draw(now, spent);
        self.charge(turn, charge);
        charge
    }

    /// Pays for a turn that is over.
    pub fn pay(&mut self, turn: &Turn, bill: Bill) {
        self.charge(turn, bill.charge);
        let weight = u64::from(self.share.max(100));
        self.tag = self.tag.saturating_add(bill.kept.saturating_mul(WHOLE.into()) / weight);
        self.distrust = match bill.manners {
            Manners::Good => self.distrust.saturating_sub(1),
            Manners::Late => (self.distrust + 2).min(6),
        };
    }

    fn charge(&mut self, turn: &Turn, time: u64) {
        let before = self.credit.balance().min(0);
        self.credit.pay(time);
        self.spare.pay(time);
        // What was left by others is not owed to them later.
        if turn.spare || (turn.is_open() && self.is_soft()) {
            self.credit.forgive(before);
        }
    }

    /// How long it may drain: half as long each time it was late.
    fn bound(&self, rules: &Rules) -> u64 {
        (rules.bound >> self.distrust.min(6)).max(rules.late)
    }
}

/// A process that wants the card: which container's, and its seat there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wish {
    /// The place of the container's purse.
    pub tenant: usize,
    /// The seat.
    pub seat: u32,
}

/// What a holder may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Terms {
    /// Use so much GPU time, then return the turn.
    Budget(u64),
    /// Go on until asked back, paced by a bucket of its own with this in it, at this rate.
    Open {
        /// What is in the bucket at the beginning.
        balance: i64,
        /// At which it fills.
        rate: u32,
    },
}

/// A turn that was given.
#[derive(Debug, Clone, Copy)]
pub struct Turn {
    /// Whose.
    pub wish: Wish,
    /// What it may do.
    pub terms: Terms,
    /// Beyond its share.
    spare: bool,
    since: u64,
    /// When others began to wait for it.
    contested: Option<u64>,
    revoked: Option<u64>,
    /// What its seat said last that it had spent.
    spent: u64,
    /// What of this turn was paid already.
    drawn: u64,
    /// The last look, and since when it looks the same.
    same: Option<(Phase, u64)>,
}

/// Where a holder is, as its seat says. It may lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// It did not begin yet.
    Called,
    /// Work is on the card or coming; the number changes with each new start.
    Busy(u32),
    /// All work is done and nothing was launched since.
    Paused(u32),
    /// It gave the turn back.
    Returned,
}

/// A look at the holder's seat.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    /// Where it is.
    pub phase: Phase,
    /// GPU time it measured, since it began.
    pub spent: u64,
    /// When its work will be done, as it thinks.
    pub due: u64,
}

/// Whether somebody who may have the card waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// It does not matter how long the holder keeps it.
    Nobody,
    /// The card is wanted.
    Somebody,
}

/// What to do about a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing; look again at this time, or when something happens.
    Keep(u64),
    /// Take back the right to launch, then look at the seat again.
    Revoke,
    /// It is over.
    Over(Bill),
}

/// What a turn cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bill {
    /// GPU time to pay.
    pub charge: u64,
    /// Time in which others could not have the card.
    pub kept: u64,
    /// How it ended.
    pub manners: Manners,
}

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manners {
    /// In time.
    Good,
    /// It had to be taken.
    Late,
}

impl Turn {
    /// Whether it lasts until it is asked back.
    pub fn is_open(&self) -> bool {
        matches!(self.terms, Terms::Open { .. })
    }

    /// The right to launch was taken back, at `now`.
    pub fn revoke(&mut self, now: u64) {
        self.revoked.get_or_insert(now);
    }

    /// What it measured since this was last asked; of the whole turn at most its time. An open turn
    /// is paid as it goes, or all its time would come in at the brim and be lost.
    fn draw(&mut self, now: u64, spent: u64) -> u64 {
        // Processes speak now and then, and then of all the time since they last did.
        let most = now.saturating_sub(self.since).saturating_sub(self.drawn);
        let drawn = spent.saturating_sub(self.spent).min(most);
        self.spent = spent;
        self.drawn = self.drawn.saturating_add(drawn);
        drawn
    }

    /// Looks at the holder. After [`Verdict::Revoke`] the caller takes the right back, says so
    /// with [`Turn::revoke`], and looks again: what is seen then is either a start that we know
    /// of, or no start at all.
    pub fn look(
        &mut self,
        now: u64,
        seen: Seen,
        waiting: Waiting,
        purse: &Purse,
        rules: &Rules,
    ) -> Verdict {
        if seen.phase == Phase::Returned {
            return Verdict::Over(self.bill(now, seen, Manners::Good));
        }
        if waiting == Waiting::Somebody {
            self.contested.get_or_insert(now);
        } else if self.revoked.is_none() {
            self.contested = None;
        }
        let since = match self.same {
            Some((phase, since)) if phase == seen.phase => since,
            _ => now,
        };
        self.same = Some((seen.phase, since));
        if let Some(revoked) = self.revoked {
            let Phase::Busy(_) = seen.phase else {
                // Who was called and did not come kept the card all the while, and pays for that: a
                // crowd of processes that wish for it and die would cost others more than its own.
                let (seen, manners) = if seen.phase == Phase::Called {
                    (Seen { spent: u64::MAX, ..seen }, Manners::Late)
                } else {
                    (seen, Manners::Good)
                };
                return Verdict::Over(self.bill(now, seen, manners));
            };
            let bound = revoked.saturating_add(purse.bound(rules));
            let due = seen.due.max(revoked).saturating_add(rules.late);
            if now >= bound {
                return Verdict::Over(self.bill(
                    now,
                    Seen { spent: u64::MAX, ..seen },
                    Manners::Late,
                ));
            }
            if now >= due {
                return Verdict::Over(self.bill(
                    now,
                    Seen { spent: u64::MAX, ..seen },
                    Manners::Good,
                ));
            }
            return Verdict::Keep(due.min(bound));
        }
        let Some(contested) = self.contested else { return Verdict::Keep(u64::MAX) };
        let patience = match (seen.phase, self.terms) {
            (Phase::Called, _) => self.since.max(contested).saturating_add(rules.begin),
            (_, Terms::Open { .. }) => now,
            (Phase::Paused(_), _) => since.saturating_add(rules.pause),
            (_, Terms::Budget(budget)) => {
                let time = budget.saturating_add(rules.quantum / 2);
                self.since.saturating_add(time)
            }
        };
        if now >= patience { Verdict::Revoke } else { Verdict::Keep(patience) }
    }

    /// The card was reset, or the container is gone.
    pub fn abandon(&self, now: u64) -> Bill {
        let seen = Seen { phase: Phase::Returned, spent: self.spent, due: 0 };
        self.bill(now, seen, Manners::Good)
    }

    fn bill(&self, now: u64, seen: Seen, manners: Manners) -> Bill {
        let held = now.saturating_sub(self.since);
        let contested = self.contested.map_or(0, |contested| now.saturating_sub(contested));
        let kept = if self.is_open() { contested } else { held };
        // Who says it used less than a quarter of a card that others waited for is not believed.
        let least = contested.min(held) / 4;
        let said = if seen.spent == u64::MAX {
            // What an open turn used before others wanted the card it paid as it went, and for the rest of
            // that time nobody missed the card: who is late by a few milliseconds does not owe it.
            if self.is_open() { self.drawn.saturating_add(contested) } else { held }
        } else {
            self.drawn.saturating_add(seen.spent.saturating_sub(self.spent))
        };
        let charge = said.clamp(least, held.max(least)).saturating_sub(self.drawn);
        Bill { charge, kept, manners }
    }
}

/// Chooses who is next. `seats` is how many processes are at work on the card, waiting or not;
/// `spent` says what a process had measured so far. If nobody may go on: after how long to ask
/// again.
pub fn pick(
    purses: &mut [Purse],
    wishes: &[Wish],
    seats: usize,
    spent: impl FnOnce(Wish) -> u64,
    now: u64,
    rules: &Rules,
    floor: &mut u64,
) -> Result<Turn, u64> {
    let mut best: Option<((bool, u64, usize), Standing)> = None;
    let mut soonest = u64::MAX;
    for (tenant, purse) in purses.iter_mut().enumerate() {
        if !wishes.iter().any(|wish| wish.tenant == tenant) {
            continue;
        }
        // Who was away does not come back with priority over those who stayed.
        purse.tag = purse.tag.max(*floor);
        let standing = purse.standing(rules);
        // Alone on the card a process paces itself, from debt too.
        let alone = seats <= 1 && wishes.len() == 1;
        match standing {
            Standing::Nothing(wait) if !alone => soonest = soonest.min(wait),
            _ => {
                let key = (matches!(standing, Standing::Spare(_)), purse.tag, tenant);
                if best.is_none_or(|(other, _)| key < other) {
                    best = Some((key, standing));
                }
            }
        }
    }
    let Some(((_, tag, tenant), standing)) = best else { return Err(soonest) };
    let Some(purse) = purses.get_mut(tenant) else { return Err(soonest) };
    let seats_of = || wishes.iter().filter(|wish| wish.tenant == tenant);
    let after = seats_of().filter(|wish| wish.seat > purse.last).min_by_key(|wish| wish.seat);
    let Some(wish) = after.or_else(|| seats_of().min_by_key(|wish| wish.seat)).copied() else {
        return Err(soonest);
    };
    purse.last = wish.seat;
    *floor = tag;
    let positive = |time: i64| u64::try_from(time).unwrap_or(0);
    let terms = if seats <= 1 && wishes.len() == 1 {
        let soft = purse.is_soft();
        let balance = if soft { purse.spare.balance() } else { purse.credit.balance() };
        Terms::Open { balance, rate: purse.burst }
    } else {
        let (Standing::Credit(left) | Standing::Spare(left)) = standing else {
            return Err(soonest);
        };
        Terms::Budget(positive(left).min(rules.quantum).max(1))
    };
    Ok(Turn {
        wish,
        terms,
        spare: matches!(standing, Standing::Spare(_)),
        since: now,
        contested: None,
        revoked: None,
        spent: spent(wish),
        drawn: 0,
        same: None,
    })
}

/// Whether anyone but the holder may have the card now.
pub fn waiting(purses: &[Purse], wishes: &[Wish], holder: &Turn, rules: &Rules) -> Waiting {
    let other = |wish: &&Wish| **wish != holder.wish;
    let may = wishes.iter().filter(other).any(|wish| {
        purses.get(wish.tenant).is_some_and(|purse| match purse.standing(rules) {
            Standing::Credit(_) => true,
            // Spare time is for when nobody uses their own.
            Standing::Spare(_) => holder.spare || holder.is_open(),
            // A holder without rivals must come into line before the next may be chosen.
            Standing::Nothing(_) => holder.is_open(),
        })
    });
    if may { Waiting::Somebody } else { Waiting::Nobody }
}
