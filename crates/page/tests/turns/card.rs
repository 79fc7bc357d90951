//! A card, containers on it and the referee, in steps of virtual time.
//!
//! Processes do what the limiter does: launch while they may, drain, give the turn back. Messages
//! take a while each way, kernels are of any length, and two that run at one time share the card
//! while each measures all of it.

use page::bucket::{Bucket, rate};
use page::referee::{
    Phase, Purse, Rules, Seen, Terms, Turn, Verdict, Waiting, Wish, pick, waiting,
};

/// The step, in nanoseconds.
pub(crate) const STEP: u64 = 50_000;
pub(crate) const SECOND: u64 = 1_000_000_000;

/// How a process behaves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Manner {
    /// As the limiter does.
    Honest,
    /// Takes turns, computes, and never gives one back.
    Keeps,
    /// Says it used nothing.
    Lies,
    /// Takes turns and does nothing with them.
    Stopped,
    /// As the limiter does, but off the processor for a while when its work is done.
    Slow,
    /// Dies when it is called, or when it has launched one kernel; the next of its kind comes.
    Dies,
}

/// A process to be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) tenant: usize,
    /// Kernels take from the first to the second.
    pub(crate) kernels: (u64, u64),
    pub(crate) manner: Manner,
    /// When it works.
    pub(crate) at_work: (u64, u64),
}

#[derive(Debug, Clone, Copy)]
enum State {
    Waits,
    /// The turn is on its way.
    Called(u64),
    Holds,
    /// The return is on its way.
    Returns(u64),
}

#[derive(Debug)]
struct Process {
    plan: Plan,
    state: State,
    /// What the current kernel has left.
    left: u64,
    spent: u64,
    /// What its seat says, which it writes now and then.
    said: u64,
    used: u64,
    bucket: Bucket,
    /// The truth.
    got: u64,
    revoked: bool,
    /// When it last ran.
    ran: u64,
    waited: u64,
    longest_wait: u64,
}

/// Everything.
pub(crate) struct Card {
    now: u64,
    rules: Rules,
    shares: Vec<(u32, u32)>,
    purses: Vec<Purse>,
    processes: Vec<Process>,
    turn: Option<Turn>,
    floor: u64,
    random: u64,
    latency: u64,
}

impl Card {
    pub(crate) fn new(shares: &[(u32, u32)], plans: &[Plan], seed: u64) -> Self {
        let purses = shares.iter().map(|(share, burst)| Purse::new(rate(*share), rate(*burst), 0));
        let processes = plans.iter().map(|plan| Process {
            plan: *plan,
            state: State::Waits,
            left: 0,
            spent: 0,
            said: 0,
            used: 0,
            bucket: Bucket::new(0, 0),
            got: 0,
            revoked: false,
            ran: 0,
            waited: 0,
            longest_wait: 0,
        });
        Self {
            now: 0,
            rules: Rules::USUAL,
            shares: shares.to_vec(),
            purses: purses.collect(),
            processes: processes.collect(),
            turn: None,
            floor: 0,
            random: seed.wrapping_mul(2).wrapping_add(1),
            latency: 300_000,
        }
    }

    /// Messages take up to so long each way.
    pub(crate) fn with_latency(mut self, latency: u64) -> Self {
        self.latency = latency;
        self
    }

    fn random(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below.max(1)
    }

    /// Changes what a container may use.
    pub(crate) fn set(&mut self, tenant: usize, share: u32, burst: u32) {
        self.shares[tenant] = (share, burst);
        self.purses[tenant].set(rate(share), rate(burst));
    }

    /// Lets time go by; says what each container got meanwhile, in hundredths of a percent.
    pub(crate) fn run(&mut self, time: u64) -> Vec<u64> {
        let before = self.got();
        for process in &mut self.processes {
            process.longest_wait = 0;
        }
        let end = self.now + time;
        while self.now < end {
            self.referee();
            self.compute();
            self.now += STEP;
        }
        let got = self.got();
        got.iter().zip(before).map(|(now, was)| (now - was) * 10_000 / time).collect()
    }

    fn got(&self) -> Vec<u64> {
        let mut got = vec![0; self.purses.len()];
        for process in &self.processes {
            got[process.plan.tenant] += process.got;
        }
        got
    }

    /// The longest that a process waited for its turn in the last run.
    pub(crate) fn longest_wait(&self, process: usize) -> u64 {
        self.processes[process].longest_wait
    }

    /// All that was ever charged and all that is owed, against all that came in.
    pub(crate) fn purse(&self, tenant: usize) -> &Purse {
        &self.purses[tenant]
    }

    fn working(&self, process: &Process) -> bool {
        let (from, to) = process.plan.at_work;
        (from..to).contains(&self.now)
    }

    fn wishes(&self) -> Vec<Wish> {
        let wants = |process: &&Process| match process.state {
            State::Waits => self.working(process),
            State::Holds => process.plan.manner == Manner::Stopped,
            _ => false,
        };
        let seated = self.processes.iter().enumerate();
        seated.filter(|(_, it)| wants(it)).map(|(seat, it)| wish(seat, it)).collect()
    }

    fn seen(&self, turn: &Turn) -> Seen {
        let process = &self.processes[turn.wish.seat as usize - 1];
        let phase = match process.state {
            State::Called(_) => Phase::Called,
            // A process that paces itself, asleep in its launch, does not say that it pauses.
            State::Holds
                if matches!(process.plan.manner, Manner::Stopped | Manner::Dies | Manner::Slow) =>
            {
                Phase::Busy(1)
            }
            State::Holds if process.left == 0 && self.now > process.ran + STEP => Phase::Paused(1),
            State::Holds => Phase::Busy(1),
            State::Returns(until) if until > self.now => Phase::Busy(1),
            State::Returns(_) | State::Waits => Phase::Returned,
        };
        let lies = process.plan.manner == Manner::Lies;
        let due = match process.plan.manner {
            Manner::Honest => self.now + process.left,
            Manner::Dies | Manner::Slow => process.ran,
            _ => u64::MAX,
        };
        Seen { phase, spent: if lies { 0 } else { process.said }, due }
    }

    fn referee(&mut self) {
        for purse in &mut self.purses {
            purse.fill(self.now, &self.rules);
        }
        let wishes = self.wishes();
        if let Some(mut turn) = self.turn.take() {
            let tenant = turn.wish.tenant;
            let spent = self.seen(&turn).spent;
            self.purses[tenant].draw(&mut turn, self.now, spent);
            let waits = waiting(&self.purses, &wishes, &turn, &self.rules);
            let mut verdict =
                turn.look(self.now, self.seen(&turn), waits, &self.purses[tenant], &self.rules);
            if verdict == Verdict::Revoke {
                self.processes[turn.wish.seat as usize - 1].revoked = true;
                turn.revoke(self.now);
                verdict = turn.look(
                    self.now,
                    self.seen(&turn),
                    Waiting::Somebody,
                    &self.purses[tenant],
                    &self.rules,
                );
            }
            match verdict {
                Verdict::Over(bill) => {
                    self.purses[tenant].pay(&turn, bill);
                    let process = &mut self.processes[turn.wish.seat as usize - 1];
                    if !matches!(process.state, State::Holds) || process.left == 0 {
                        process.state = State::Waits;
                    }
                    process.revoked = true;
                }
                _ => self.turn = Some(turn),
            }
        }
        if self.turn.is_none() {
            let wishes = self.wishes();
            let at_work = self.processes.iter().filter(|it| self.working(it)).count();
            let spent = |wish: Wish| self.processes[wish.seat as usize - 1].said;
            let picked = pick(
                &mut self.purses,
                &wishes,
                at_work,
                spent,
                self.now,
                &self.rules,
                &mut self.floor,
            );
            if let Ok(turn) = picked {
                let on_its_way = self.now + self.random(self.latency);
                let process = &mut self.processes[turn.wish.seat as usize - 1];
                process.state = State::Called(on_its_way);
                process.revoked = false;
                process.used = 0;
                if let Terms::Open { balance, .. } = turn.terms {
                    process.bucket = Bucket::new(balance, self.now);
                }
                self.turn = Some(turn);
            }
        }
    }

    fn compute(&mut self) {
        let mut running = Vec::new();
        for seat in 0..self.processes.len() {
            self.advance(seat);
            if self.processes[seat].left > 0 {
                running.push(seat);
            }
        }
        for seat in &running {
            let share = STEP / running.len() as u64;
            let process = &mut self.processes[*seat];
            let ran = share.min(process.left);
            process.left -= ran;
            process.got += ran;
            process.ran = self.now;
            // Who shares the card unknowingly measures all of it.
            let measured = if ran < share { ran } else { STEP };
            process.spent += measured;
            process.used += measured;
            process.bucket.pay(measured);
        }
    }

    /// Lets one process do what it does on the host.
    fn advance(&mut self, seat: usize) {
        let working = self.working(&self.processes[seat]);
        let (now, latency) = (self.now, self.random(self.latency));
        let (from, to) = self.processes[seat].plan.kernels;
        let kernel = from + self.random(to - from + 1);
        let mine = self.turn.filter(|turn| turn.wish.seat as usize == seat + 1);
        let process = &mut self.processes[seat];
        if process.left == 0 || now.is_multiple_of(10_000_000) {
            process.said = process.spent;
        }
        match process.state {
            State::Waits if working => {
                process.waited += STEP;
                process.longest_wait = process.longest_wait.max(process.waited);
            }
            State::Called(until) if now >= until && process.plan.manner == Manner::Dies => {
                // Every second one never comes.
                let comes = latency % 2 == 0;
                process.state = if comes { State::Holds } else { State::Called(u64::MAX) };
                process.left = if comes { kernel } else { 0 };
            }
            // It says nothing any more.
            State::Holds if process.plan.manner == Manner::Dies => {}
            State::Called(until) if now >= until => {
                process.state = State::Holds;
                process.ran = now;
                process.waited = 0;
            }
            State::Returns(until) if now >= until => process.state = State::Waits,
            State::Holds if process.plan.manner == Manner::Keeps => {
                process.left = process.left.max(kernel);
                if process.revoked && mine.is_none() {
                    process.left = 0;
                    process.state = State::Waits;
                }
            }
            State::Holds if process.plan.manner == Manner::Stopped => {
                let over = process.revoked && mine.is_none();
                process.state = if over { State::Waits } else { State::Holds };
            }
            State::Holds if process.left < STEP => {
                let more = match mine.map(|turn| turn.terms) {
                    _ if process.revoked || !working => Some(false),
                    Some(Terms::Budget(budget)) => Some(process.used < budget),
                    Some(Terms::Open { rate, .. }) => {
                        process.bucket.fill(now, rate, 200_000_000);
                        (process.bucket.balance() > 0).then_some(true)
                    }
                    None => Some(false),
                };
                // Short kernels follow one another without a gap.
                match more {
                    Some(true) => {
                        while process.left < STEP {
                            process.left += kernel.max(1);
                        }
                    }
                    Some(false) if process.left == 0 => {
                        let slow = process.plan.manner == Manner::Slow;
                        let takes = if slow { 10_000_000 } else { latency };
                        process.state = State::Returns(now + takes);
                    }
                    _ => {}
                }
            }
            _ => {}
        }
    }
}

fn wish(seat: usize, process: &Process) -> Wish {
    Wish { tenant: process.plan.tenant, seat: u32::try_from(seat).unwrap() + 1 }
}
