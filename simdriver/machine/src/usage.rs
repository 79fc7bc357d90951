//! Who used how much: the truth that limits are measured against.

use crate::account::{total, used};
use crate::description::PidView;
use crate::machine::{Lives, Machine};
use crate::process::{DeviceId, JoinError};
use crate::roster::read_text;
use crate::slots::Life;
use crate::state::{BUCKET, CARDS, DEVICES, Name, Word, at, get, wide};

/// The kernel gives no PID above this.
const MOST_PIDS: u32 = 1 << 22;

/// A process that uses a device now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    /// Its number.
    pub number: u64,
    /// Its PID, as the description says whose; 0 if it has none there.
    pub pid: u32,
    /// Its PID as it sees itself.
    pub own_pid: u32,
    /// The name of its program.
    pub command: String,
    /// What [`crate::TAG_VARIABLE`] said.
    pub tag: String,
    /// What it has of each device, where it has anything.
    pub holds: Vec<Holding>,
}

/// What a process has of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holding {
    /// Which.
    pub device: DeviceId,
    /// Memory of all kinds.
    pub memory: u64,
    /// Contexts that are open.
    pub contexts: usize,
    /// Work that is not finished.
    pub pending: usize,
    /// The most memory at any time.
    pub peak: u64,
    /// Device time of its first context.
    pub since: u64,
    /// Time with a kernel of its own running.
    pub busy: u64,
    /// Multiprocessors times nanoseconds.
    pub sm_time: u64,
}

/// What a process had of a card, also if it has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    /// The number of the process.
    pub number: u64,
    /// Its PID, as the description says whose; as it saw itself if that is not known.
    pub pid: u32,
    /// The name of its program.
    pub command: String,
    /// What [`crate::TAG_VARIABLE`] said.
    pub tag: String,
    /// Whether it lives.
    pub alive: bool,
    /// Which card, with its slices.
    pub card: usize,
    /// Time with a kernel of its own running, in nanoseconds.
    pub busy: u64,
    /// Multiprocessors times nanoseconds.
    pub sm_time: u64,
    /// The most memory at any time.
    pub peak: u64,
    /// Device time when it joined.
    pub joined: u64,
    /// Device time when it ended, or now.
    pub until: u64,
}

/// How busy a device was in one sampling period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// Device time at its end.
    pub time: u64,
    /// Time with a kernel running, in nanoseconds.
    pub busy: u64,
    /// Multiprocessors times nanoseconds.
    pub sm_time: u64,
    /// How long it is: [`BUCKET`], but for the one that goes on.
    pub length: u64,
}

impl Sample {
    /// In percent of its length, rounded.
    pub fn percent(&self) -> u32 {
        let hundredfold = self.busy.saturating_mul(100).saturating_add(self.length / 2);
        let percent = hundredfold.checked_div(self.length).unwrap_or(0);
        u32::try_from(percent.min(100)).unwrap_or(100)
    }
}

impl Machine {
    /// The processes that have a context or memory on some device.
    pub fn running(&'static self) -> Result<Vec<Running>, JoinError> {
        self.change_swept(|change, lives| {
            self.catch_up(change);
            (0..used(self.state)).filter_map(|slot| self.running_at(slot, lives)).collect()
        })
    }

    fn running_at(&self, place: usize, lives: &Lives) -> Option<Running> {
        let slot = &self.state.slots[place];
        let life = self.life_seen(lives, place);
        if !self.has_entered(place) || matches!(life, Life::Free | Life::Dead) {
            return None;
        }
        let mut contexts = [0; DEVICES];
        let open = slot.contexts.iter().filter_map(|context| at(context).checked_sub(1));
        open.for_each(|device| contexts[device.min(DEVICES - 1)] += 1);
        let holds = slot.accounts.iter().enumerate().filter_map(|(device, account)| {
            let memory = total(account);
            (memory > 0 || contexts[device] > 0).then(|| {
                Some(Holding {
                    device: DeviceId::new(device)?,
                    memory,
                    contexts: contexts[device],
                    pending: at(&slot.pending),
                    peak: get(&account.peak),
                    since: get(&account.first_context),
                    busy: get(&account.busy),
                    sm_time: get(&account.sm_time),
                })
            })?
        });
        let holds: Vec<Holding> = holds.collect();
        (!holds.is_empty()).then(|| Running {
            number: get(&slot.name.number),
            pid: self.pid_of(&slot.name, life),
            own_pid: small(&slot.name.pid),
            command: read_text(&slot.name.command),
            tag: read_text(&slot.name.tag),
            holds,
        })
    }

    fn pid_of(&self, name: &Name, life: Life) -> u32 {
        let here = match life {
            Life::Mine => std::process::id(),
            Life::Alive(pid) => pid,
            Life::Free | Life::Dead => 0,
        };
        match (self.description().pids, small(&name.host_pid)) {
            (PidView::Namespace | PidView::Unsized, _) => here,
            (PidView::Host, 0) if self.on_host() => here,
            // Nobody on the host has looked yet. A number of its own, which no process has: two of
            // different namespaces must not be taken for one.
            (PidView::Host, 0) => MOST_PIDS.saturating_add(small(&name.number)),
            (PidView::Host, pid) => pid,
        }
    }

    /// Whether NVML says in this process how much each process holds.
    pub fn lists_memory(&self) -> bool {
        self.description().pids != PidView::Unsized || self.on_host()
    }

    /// What every process had of every card it used, those that have ended too, as far as they
    /// are remembered; oldest first.
    pub fn usage(&'static self) -> Result<Vec<Usage>, JoinError> {
        let mut usage = self.change_swept(|change, lives| {
            let now = self.catch_up(change);
            let mut usage = self.past_usage();
            for place in 0..used(self.state) {
                usage.extend(self.present_usage(place, lives, now));
            }
            usage
        })?;
        usage.sort_by_key(|usage| (usage.number, usage.card));
        Ok(usage)
    }

    fn past_usage(&self) -> Vec<Usage> {
        let gone = self.state.gone.iter().filter(|gone| get(&gone.name.number) > 0);
        let cards = gone.flat_map(|gone| (0..CARDS).map(move |card| (gone, card)));
        let used = cards.filter(|(gone, card)| gone.cards[*card].iter().any(|it| get(it) > 0));
        used.map(|(gone, card)| Usage {
            number: get(&gone.name.number),
            pid: small(if get(&gone.name.host_pid) > 0 {
                &gone.name.host_pid
            } else {
                &gone.name.pid
            }),
            command: read_text(&gone.name.command),
            tag: read_text(&gone.name.tag),
            alive: false,
            card,
            busy: get(&gone.cards[card][0]),
            sm_time: get(&gone.cards[card][1]),
            peak: get(&gone.cards[card][2]),
            joined: get(&gone.name.joined),
            until: get(&gone.left),
        })
        .collect()
    }

    fn present_usage(&self, place: usize, lives: &Lives, now: u64) -> Vec<Usage> {
        let slot = &self.state.slots[place];
        let life = self.life_seen(lives, place);
        if !self.has_entered(place) || matches!(life, Life::Free | Life::Dead) {
            return Vec::new();
        }
        let mut found: Vec<Usage> = Vec::new();
        for (device, account) in slot.accounts.iter().enumerate() {
            if get(&account.peak) == 0 && get(&account.busy) == 0 {
                continue;
            }
            let Some(device) = DeviceId::new(device) else { continue };
            let card = self.card_of(device);
            let parts = (get(&account.busy), get(&account.sm_time), get(&account.peak));
            if let Some(known) = found.iter_mut().find(|usage| usage.card == card) {
                known.busy += parts.0;
                known.sm_time += parts.1;
                known.peak += parts.2;
                continue;
            }
            found.push(Usage {
                number: get(&slot.name.number),
                pid: self.pid_of(&slot.name, life),
                command: read_text(&slot.name.command),
                tag: read_text(&slot.name.tag),
                alive: true,
                card,
                busy: parts.0,
                sm_time: parts.1,
                peak: parts.2,
                joined: get(&slot.name.joined),
                until: now,
            });
        }
        found
    }

    /// How busy a device was of late, oldest period first; the last one goes on.
    pub fn samples(&'static self, device: DeviceId) -> Result<Vec<Sample>, JoinError> {
        self.change(|change| {
            let now = self.catch_up(change);
            samples(&self.state.devices[device.place()].buckets, now)
        })
    }

    /// How busy each process kept a device of late: the number of the process, its PID, and
    /// its periods.
    pub fn process_samples(
        &'static self,
        device: DeviceId,
    ) -> Result<Vec<(u64, u32, Vec<Sample>)>, JoinError> {
        self.change_swept(|change, lives| {
            let now = self.catch_up(change);
            let slots = (0..used(self.state)).filter_map(|place| {
                let slot = &self.state.slots[place];
                let life = self.life_seen(lives, place);
                let account = &slot.accounts[device.place()];
                let alive = self.has_entered(place) && matches!(life, Life::Mine | Life::Alive(_));
                (alive && get(&account.busy) > 0).then(|| {
                    let pid = self.pid_of(&slot.name, life);
                    (get(&slot.name.number), pid, samples(&account.buckets, now))
                })
            });
            slots.collect()
        })
    }

    /// Time with a kernel running on a device, multiprocessors times nanoseconds, and time with
    /// a copy running, since the machine was made.
    pub fn busy(&'static self, device: DeviceId) -> Result<(u64, u64, u64), JoinError> {
        self.change(|change| {
            self.catch_up(change);
            let state = &self.state.devices[device.place()];
            (get(&state.busy), get(&state.sm_time), get(&state.copied))
        })
    }
}

fn samples(buckets: &[[Word; 3]], now: u64) -> Vec<Sample> {
    let newest = now / BUCKET;
    let oldest = newest.saturating_sub(wide(buckets.len()) - 1);
    let sample = |bucket: u64| {
        let place = usize::try_from(bucket).unwrap_or(0) % buckets.len();
        let [number, busy, sm_time] = &buckets[place];
        let known = get(number) == bucket + 1;
        let value = |word| if known { get(word) } else { 0 };
        let end = now.min((bucket + 1) * BUCKET);
        let length = end - bucket * BUCKET;
        Sample { time: end, busy: value(busy), sm_time: value(sm_time), length }
    };
    (oldest..=newest).map(sample).collect()
}

fn small(word: &Word) -> u32 {
    u32::try_from(get(word)).unwrap_or(0)
}
