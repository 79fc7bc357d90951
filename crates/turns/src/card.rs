//! The thread of a card.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use page::referee::{Manners, Purse, Rules, Turn, Verdict, Waiting, Wish, pick, waiting};

use crate::files::{Door, now};
use crate::member::Member;
use crate::resting::Rest;
use crate::{Noted, Order};

/// How often the heartbeat is renewed. Processes count us as gone after five of these.
pub(crate) const BEAT: u64 = 50_000_000;
/// A card on which nothing happened for so long is left to rest until somebody rings.
const QUIET: u64 = 500_000_000;
/// How often it is looked at while it rests, for who cannot ring and for limits that were changed.
const REST: u64 = 3_000_000_000;
/// How often the holder of a turn is looked at while others wait.
const LOOK: u64 = 1_000_000;
/// Nobody makes us look more often than this for long.
const BREATH: Duration = Duration::from_micros(200);

/// A card with its containers.
pub(crate) struct Card {
    door: Arc<Door>,
    rules: Rules,
    published: Arc<Mutex<Vec<Noted>>>,
    members: Vec<Member>,
    purses: Vec<Purse>,
    turn: Option<(u32, Turn)>,
    epoch: u32,
    floor: u64,
    /// When something last happened.
    stirred: u64,
}

impl Card {
    pub(crate) fn new(door: Arc<Door>, rules: Rules, published: Arc<Mutex<Vec<Noted>>>) -> Self {
        // Not one that a referee before us used.
        let epoch = u32::try_from((now() / 1_000_000) & 0x7fff_ffff).unwrap_or(1).max(1);
        let (members, purses) = (Vec::new(), Vec::new());
        Self {
            door,
            rules,
            published,
            members,
            purses,
            turn: None,
            epoch,
            floor: 0,
            stirred: now(),
        }
    }

    /// Until it is told to stop.
    pub(crate) fn run(mut self, orders: &Receiver<Order>) {
        let mut hasty = 0;
        let mut last = 0;
        loop {
            loop {
                match orders.try_recv() {
                    Ok(Order::Seat(name, pages, answer)) => {
                        let opened = Member::open(&name, &pages).map(|member| self.seat(member));
                        let _ = answer.send(opened);
                    }
                    Ok(Order::Unseat(name)) => self.unseat(&name),
                    Ok(Order::Stop) | Err(TryRecvError::Disconnected) => return self.stop(),
                    Ok(Order::Vanish) => return,
                    Err(TryRecvError::Empty) => break,
                }
            }
            let time = now();
            let wait = self.look(time);
            if !self.is_quiet(time) {
                self.stirred = time;
            }
            self.publish();
            // A tenant may ring as often as it likes.
            hasty = if time.saturating_sub(last) < 100_000 { hasty + 1 } else { 0 };
            last = time;
            if hasty > 20 {
                std::thread::sleep(BREATH);
                hasty = 0;
            } else if self.rests(time)
                && let Some(rest) = self.rest()
            {
                self.door.wait(REST);
                drop(rest);
            } else if wait > 0 {
                self.door.wait(wait.min(BEAT));
            }
        }
    }

    /// Whether nothing has happened for a while.
    fn rests(&self, time: u64) -> bool {
        time.saturating_sub(self.stirred) > QUIET
    }

    /// Whether nobody has a turn, wants one, or does anything else of which the referee knows.
    fn is_quiet(&self, time: u64) -> bool {
        let idle =
            |member: &Member| member.wishes(time).next().is_none() && member.at_work(time) == 0;
        self.turn.is_none() && self.members.iter().all(idle)
    }

    /// Has somebody beat for those who have processes on the card. Who has none needs no heartbeat: a
    /// process that finds it stopped rings, and paces itself meanwhile.
    fn rest(&self) -> Option<Rest> {
        let taken = self.members.iter().filter(|member| member.is_taken());
        Rest::begin(taken.map(|member| Arc::clone(&member.limits)).collect())
    }

    fn seat(&mut self, member: Member) {
        self.unseat(&member.noted.name.clone());
        self.purses.push(member.purse(now()));
        self.members.push(member);
        self.stirred = now();
    }

    fn unseat(&mut self, name: &str) {
        let Some(place) = self.members.iter().position(|member| member.noted.name == name) else {
            return;
        };
        self.members.remove(place);
        self.purses.remove(place);
        match &mut self.turn {
            Some((_, turn)) if turn.wish.tenant == place => self.turn = None,
            Some((_, turn)) if turn.wish.tenant > place => turn.wish.tenant -= 1,
            _ => {}
        }
    }

    /// Says at once that nobody is here, rather than by silence.
    fn stop(self) {
        for member in &self.members {
            let grants = &member.limits.page().grants;
            grants.heartbeat.store(0, Ordering::SeqCst);
            grants.withdraw();
            member.limits.wake();
        }
    }

    fn publish(&self) {
        let mut published = self.published.lock().unwrap_or_else(PoisonError::into_inner);
        if published.iter().eq(self.members.iter().map(|member| &member.noted)) {
            return;
        }
        published.clear();
        published.extend(self.members.iter().map(|member| member.noted.clone()));
    }

    /// Looks at everything once; says after how long to look again.
    fn look(&mut self, time: u64) -> u64 {
        let managed = self.members.iter().any(Member::is_limited);
        let rests = self.rests(time);
        for (member, purse) in self.members.iter_mut().zip(&mut self.purses) {
            let told = &member.limits.page().grants.managed;
            if told.load(Ordering::Acquire) != u32::from(managed) {
                told.store(u32::from(managed), Ordering::Release);
            }
            member.refresh(purse, time, &self.rules);
            member.read();
            // What is written costs a fault and a write to the disk, again and again, and a card that
            // rests can have dozens of containers that do nothing. See `rest`.
            if !rests || member.is_taken() {
                member.limits.beat(time);
            }
        }
        if !managed {
            self.turn = None;
            return BEAT;
        }
        let wishes = self.wishes(time);
        let mut again = self.attend(time, &wishes);
        if self.turn.is_none() {
            // The last holder may be among those who want again.
            let wishes = self.wishes(time);
            again = self.give(time, &wishes);
        }
        again
    }

    fn wishes(&self, time: u64) -> Vec<Wish> {
        let members = self.members.iter().enumerate();
        let wishes = members.flat_map(|(tenant, member)| {
            member.wishes(time).map(move |seat| Wish { tenant, seat })
        });
        let held = self.turn.as_ref().map(|(_, turn)| turn.wish);
        wishes.filter(|wish| Some(*wish) != held).collect()
    }

    /// Looks after the turn that somebody has.
    fn attend(&mut self, time: u64, wishes: &[Wish]) -> u64 {
        let Some((epoch, mut turn)) = self.turn.take() else { return BEAT };
        let (Some(member), Some(purse)) =
            (self.members.get_mut(turn.wish.tenant), self.purses.get_mut(turn.wish.tenant))
        else {
            return 0;
        };
        let seen = member.said(turn.wish.seat).seen(epoch);
        member.noted.charged += purse.draw(&mut turn, time, seen.spent);
        let waits = waiting(&self.purses, wishes, &turn, &self.rules);
        let Some(purse) = self.purses.get(turn.wish.tenant) else { return 0 };
        let mut verdict = turn.look(time, seen, waits, purse, &self.rules);
        if verdict == Verdict::Revoke {
            member.limits.page().grants.withdraw();
            turn.revoke(time);
            member.limits.wake();
            // What it says now is final: see `page::turn`.
            member.read();
            let seen = member.said(turn.wish.seat).seen(epoch);
            verdict = turn.look(time, seen, Waiting::Somebody, purse, &self.rules);
        }
        match verdict {
            Verdict::Over(bill) => {
                member.limits.page().grants.withdraw();
                member.noted.charged += bill.charge;
                member.noted.late += u64::from(bill.manners == Manners::Late);
                if let Some(purse) = self.purses.get_mut(turn.wish.tenant) {
                    purse.pay(&turn, bill);
                }
                0
            }
            Verdict::Keep(until) => {
                self.turn = Some((epoch, turn));
                let left = until.saturating_sub(time).max(50_000);
                if waits == Waiting::Somebody { left.min(LOOK) } else { left }
            }
            Verdict::Revoke => {
                self.turn = Some((epoch, turn));
                LOOK
            }
        }
    }

    /// Gives the turn to somebody.
    fn give(&mut self, time: u64, wishes: &[Wish]) -> u64 {
        let at_work: usize = self.members.iter().map(|member| member.at_work(time)).sum();
        let members = &self.members;
        let spent =
            |wish: Wish| members.get(wish.tenant).map_or(0, |member| member.said(wish.seat).spent);
        let picked =
            pick(&mut self.purses, wishes, at_work, spent, time, &self.rules, &mut self.floor);
        match picked {
            Ok(turn) => {
                self.epoch = self.epoch.wrapping_add(1).max(1);
                if let Some(member) = self.members.get_mut(turn.wish.tenant) {
                    member.noted.turns += 1;
                    member.limits.page().grants.offer(turn.wish.seat, self.epoch, turn.terms);
                    member.limits.wake();
                }
                self.turn = Some((self.epoch, turn));
                LOOK
            }
            Err(wait) => wait.max(50_000),
        }
    }
}
