//! MIG: cards cut into GPU instances, and those into compute instances, which are devices.

use crate::cards::facts;
use crate::engine::mixed;
use crate::journal::Change;
use crate::machine::Machine;
use crate::process::{DeviceId, JoinError};
use crate::settings::Setting;
use crate::state::{CARDS, DEVICES, Device, at, get, wide};

/// A size that GPU instances of a card can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MigProfile {
    /// Such as `1g.5gb`.
    pub name: &'static str,
    /// As NVML numbers the kinds of sizes.
    pub kind: u32,
    /// As the driver numbers this one.
    pub id: u32,
    /// Compute slices.
    pub slices: u32,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Memory.
    pub memory_mib: u64,
    /// How many there can be on an empty card.
    pub count: u32,
    /// Where it can begin, in memory slices.
    pub starts: &'static [u32],
    /// How many memory slices it takes.
    pub size: u32,
}

macro_rules! profiles {
    ($([$($name:literal kind $kind:literal id $id:literal, $slices:literal x, sms $sms:literal, mib $mib:literal,
        $count:literal at $starts:expr, size $size:literal;)*])*) => {
        &[$(&[$(MigProfile {
            name: $name,
            kind: $kind,
            id: $id,
            slices: $slices,
            multiprocessors: $sms,
            memory_mib: $mib,
            count: $count,
            starts: &$starts,
            size: $size,
        }),*]),*]
    };
}

/// By row of [`crate::cards::Facts::mig`]. The first three are as `nvidia-smi mig -lgip` prints
/// them; those of B200 and B300 follow the same cuts.
const PROFILES: &[&[MigProfile]] = profiles![
    [
        "1g.5gb" kind 0 id 19, 1 x, sms 14, mib 4864, 7 at [0, 1, 2, 3, 4, 5, 6], size 1;
        "1g.5gb+me" kind 7 id 20, 1 x, sms 14, mib 4864, 1 at [0, 1, 2, 3, 4, 5, 6], size 1;
        "1g.10gb" kind 9 id 15, 1 x, sms 14, mib 9856, 4 at [0, 2, 4, 6], size 2;
        "2g.10gb" kind 1 id 14, 2 x, sms 28, mib 9856, 3 at [0, 2, 4], size 2;
        "3g.20gb" kind 2 id 9, 3 x, sms 42, mib 19968, 2 at [0, 4], size 4;
        "4g.20gb" kind 3 id 5, 4 x, sms 56, mib 19968, 1 at [0], size 4;
        "7g.40gb" kind 4 id 0, 7 x, sms 98, mib 40192, 1 at [0], size 8;
    ]
    [
        "1g.10gb" kind 0 id 19, 1 x, sms 14, mib 9728, 7 at [0, 1, 2, 3, 4, 5, 6], size 1;
        "1g.10gb+me" kind 7 id 20, 1 x, sms 14, mib 9728, 1 at [0, 1, 2, 3, 4, 5, 6], size 1;
        "1g.20gb" kind 9 id 15, 1 x, sms 14, mib 19968, 4 at [0, 2, 4, 6], size 2;
        "2g.20gb" kind 1 id 14, 2 x, sms 28, mib 19968, 3 at [0, 2, 4], size 2;
        "3g.40gb" kind 2 id 9, 3 x, sms 42, mib 40192, 2 at [0, 4], size 4;
        "4g.40gb" kind 3 id 5, 4 x, sms 56, mib 40192, 1 at [0], size 4;
        "7g.80gb" kind 4 id 0, 7 x, sms 98, mib 80896, 1 at [0], size 8;
    ]
    [
        "1g.10gb" kind 0 id 19, 1 x, sms 16, mib 9984, 7 at [0, 1, 2, 3, 4, 5, 6], size 1;
        "1g.10gb+me" kind 7 id 20, 1 x, sms 16, mib 9984, 1 at [0, 1, 2, 3, 4, 5, 6], size 1;
        "1g.20gb" kind 9 id 15, 1 x, sms 26, mib 20096, 4 at [0, 2, 4, 6], size 2;
        "2g.20gb" kind 1 id 14, 2 x, sms 32, mib 20096, 3 at [0, 2, 4], size 2;
        "3g.40gb" kind 2 id 9, 3 x, sms 60, mib 40448, 2 at [0, 4], size 4;
        "4g.40gb" kind 3 id 5, 4 x, sms 64, mib 40448, 1 at [0], size 4;
        "7g.80gb" kind 4 id 0, 7 x, sms 132, mib 81037, 1 at [0], size 8;
    ]
    [
        "1g.23gb" kind 0 id 19, 1 x, sms 18, mib 22528, 7 at [0, 1, 2, 3, 4, 5, 6], size 1;
        "1g.23gb+me" kind 7 id 20, 1 x, sms 18, mib 22528, 1 at [0, 1, 2, 3, 4, 5, 6], size 1;
        "1g.45gb" kind 9 id 15, 1 x, sms 30, mib 45312, 4 at [0, 2, 4, 6], size 2;
        "2g.45gb" kind 1 id 14, 2 x, sms 36, mib 45312, 3 at [0, 2, 4], size 2;
        "3g.90gb" kind 2 id 9, 3 x, sms 70, mib 91136, 2 at [0, 4], size 4;
        "4g.90gb" kind 3 id 5, 4 x, sms 72, mib 91136, 1 at [0], size 4;
        "7g.180gb" kind 4 id 0, 7 x, sms 148, mib 182_528, 1 at [0], size 8;
    ]
    [
        "1g.34gb" kind 0 id 19, 1 x, sms 18, mib 33792, 7 at [0, 1, 2, 3, 4, 5, 6], size 1;
        "1g.34gb+me" kind 7 id 20, 1 x, sms 18, mib 33792, 1 at [0, 1, 2, 3, 4, 5, 6], size 1;
        "1g.67gb" kind 9 id 15, 1 x, sms 30, mib 67968, 4 at [0, 2, 4, 6], size 2;
        "2g.67gb" kind 1 id 14, 2 x, sms 36, mib 67968, 3 at [0, 2, 4], size 2;
        "3g.135gb" kind 2 id 9, 3 x, sms 70, mib 136_704, 2 at [0, 4], size 4;
        "4g.135gb" kind 3 id 5, 4 x, sms 72, mib 136_704, 1 at [0], size 4;
        "7g.269gb" kind 4 id 0, 7 x, sms 148, mib 273_792, 1 at [0], size 8;
    ]
];

/// The sizes that instances of a card model can have; none if it cannot be cut.
pub fn profiles_of(model: &str) -> &'static [MigProfile] {
    facts(model).mig.and_then(|row| PROFILES.get(row)).copied().unwrap_or_default()
}

/// How many compute slices a kind of compute instance takes, as NVML numbers kinds.
pub fn compute_slices(kind: u32) -> Option<u32> {
    match kind {
        0 | 7 => Some(1),
        1 => Some(2),
        2 => Some(3),
        3 => Some(4),
        4 => Some(7),
        5 => Some(8),
        6 => Some(6),
        _ => None,
    }
}

/// A part of a card with memory of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuInstance {
    /// Of this card.
    pub card: usize,
    /// Its number there.
    pub id: u32,
    /// Its size.
    pub profile: MigProfile,
    /// Where it begins, in memory slices.
    pub start: u32,
}

/// A part of a GPU instance that runs kernels: a MIG device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ComputeInstance {
    /// As which it is used.
    pub device: DeviceId,
    /// Of this GPU instance.
    pub of: GpuInstance,
    /// Its number there.
    pub id: u32,
    /// Its kind, as NVML numbers them.
    pub kind: u32,
    /// Its first compute slice.
    pub start: u32,
    /// Its compute slices.
    pub slices: u32,
}

/// Why a card is not cut, or not put together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MigError {
    /// The card cannot be cut, or is not in MIG mode.
    #[error("the card is not in MIG mode")]
    NotSupported,
    /// No such size.
    #[error("the card has no instances of this size")]
    NoProfile,
    /// All places are taken.
    #[error("there is no room for an instance of this size")]
    NoRoom,
    /// No such instance.
    #[error("there is no such instance")]
    NoInstance,
    /// A process uses it, or it has compute instances.
    #[error("the instance is in use")]
    InUse,
    /// The process cannot join the machine.
    #[error(transparent)]
    Join(#[from] JoinError),
}

impl Machine {
    /// Whether a card is in MIG mode.
    pub fn mig(&self, card: usize) -> bool {
        DeviceId::new(card).is_some_and(|card| self.setting(card, Setting::Mig) == 1)
    }

    /// Turns MIG mode on or off. Nobody may be using the card.
    pub fn set_mig(&'static self, card: usize, on: bool) -> Result<(), MigError> {
        let model = &self.description().cards.get(card).ok_or(MigError::NotSupported)?.model;
        if profiles_of(model).is_empty() {
            return Err(MigError::NotSupported);
        }
        let device = DeviceId::new(card).ok_or(MigError::NotSupported)?;
        let busy = self.memory(device).is_some_and(|memory| memory.used > 0);
        if busy || !self.gpu_instances(card).is_empty() {
            return Err(MigError::InUse);
        }
        self.set(device, Setting::Mig, u64::from(on))?;
        Ok(self.set(device, Setting::PendingMig, u64::from(on))?)
    }

    /// The GPU instances of a card.
    pub fn gpu_instances(&self, card: usize) -> Vec<GpuInstance> {
        let profiles = self.description().cards.get(card).map(|card| profiles_of(&card.model));
        let places = self.slices(card).filter(|(_, state)| get(&state.compute_instance) == 0);
        let instances = places.filter_map(|(_, state)| {
            Some(GpuInstance {
                card,
                id: small(get(&state.gpu_instance)) - 1,
                profile: *profiles?
                    .iter()
                    .find(|it| u64::from(it.id) == get(&state.gpu_profile))?,
                start: small(get(&state.placement[0])),
            })
        });
        let mut instances: Vec<GpuInstance> = instances.collect();
        instances.sort_by_key(|instance| instance.id);
        instances
    }

    /// The compute instances of a card.
    pub fn compute_instances(&self, card: usize) -> Vec<ComputeInstance> {
        let gpus = self.gpu_instances(card);
        let places = self.slices(card).filter(|(_, state)| get(&state.compute_instance) > 0);
        let instances = places.filter_map(|(place, state)| {
            let kind = small(get(&state.compute_profile));
            Some(ComputeInstance {
                device: DeviceId::new(place)?,
                of: *gpus.iter().find(|gpu| gpu.id + 1 == small(get(&state.gpu_instance)))?,
                id: small(get(&state.compute_instance)) - 1,
                kind,
                start: small(get(&state.placement[0])),
                slices: compute_slices(kind)?,
            })
        });
        let mut instances: Vec<ComputeInstance> = instances.collect();
        instances.sort_by_key(|instance| (instance.of.id, instance.id));
        instances
    }

    fn slices(&self, card: usize) -> impl Iterator<Item = (usize, &'static Device)> {
        let all = self.state.devices.iter().enumerate().skip(CARDS);
        all.filter(move |(_, state)| get(&state.card) == wide(card + 1))
    }

    /// The UUID of a MIG device.
    pub fn mig_uuid(&self, device: DeviceId) -> String {
        let number = get(&self.state.devices[device.place()].serial);
        let seed = mixed(self.description().seed ^ number);
        format!("MIG-{}", crate::profile::uuid((seed, mixed(!seed))))
    }

    /// Where an instance of a size could begin on a card now.
    pub fn room_for(&self, card: usize, profile: &MigProfile) -> Vec<u32> {
        let taken = self.gpu_instances(card);
        let alike = taken.iter().filter(|instance| instance.profile.id == profile.id).count();
        let slices: u32 = taken.iter().map(|instance| instance.profile.slices).sum();
        if u32::try_from(alike).unwrap_or(u32::MAX) >= profile.count || slices + profile.slices > 7
        {
            return Vec::new();
        }
        let free = |start: u32| {
            taken.iter().all(|other| {
                start + profile.size <= other.start || other.start + other.profile.size <= start
            })
        };
        profile.starts.iter().copied().filter(|start| free(*start)).collect()
    }

    /// Cuts a GPU instance of a size out of a card, at `start` or where there is room.
    pub fn create_gpu_instance(
        &'static self,
        card: usize,
        profile: u32,
        start: Option<u32>,
    ) -> Result<GpuInstance, MigError> {
        if !self.mig(card) {
            return Err(MigError::NotSupported);
        }
        let model = &self.description().cards[card].model;
        let profile = profiles_of(model).iter().find(|it| it.id == profile);
        let profile = *profile.ok_or(MigError::NoProfile)?;
        self.change(|change| {
            let room = self.room_for(card, &profile);
            let start = match start {
                Some(start) => room.contains(&start).then_some(start),
                // From the end, as the driver does, so that large ones still fit.
                None => room.last().copied(),
            };
            let start = start.ok_or(MigError::NoRoom)?;
            let taken = self.gpu_instances(card);
            let id = (1..=64).find(|id| taken.iter().all(|it| it.id != *id)).unwrap_or(0);
            let id = if profile.slices == 7 { 0 } else { id };
            let state = self.new_slice(change, card).ok_or(MigError::NoRoom)?;
            change.set(&state.gpu_instance, u64::from(id) + 1);
            change.set(&state.gpu_profile, u64::from(profile.id));
            change.set(&state.placement[0], u64::from(start));
            change.set(&state.memory, profile.memory_mib << 20);
            change.set(&state.multiprocessors, u64::from(profile.multiprocessors));
            Ok(GpuInstance { card, id, profile, start })
        })?
    }

    fn new_slice(&self, change: &Change, card: usize) -> Option<&'static Device> {
        let state = self.state.devices[CARDS..DEVICES].iter().find(|it| get(&it.card) == 0)?;
        change.set(&state.card, wide(card + 1));
        let number = change.next_number();
        change.set(&state.serial, number);
        change.set(&state.compute_instance, 0);
        Some(state)
    }

    /// Puts a GPU instance back. It must not have compute instances.
    pub fn destroy_gpu_instance(&'static self, instance: &GpuInstance) -> Result<(), MigError> {
        self.change(|change| {
            let mine = |(_, state): &(usize, &Device)| {
                get(&state.gpu_instance) == u64::from(instance.id) + 1
            };
            let slices: Vec<_> = self.slices(instance.card).filter(mine).collect();
            match slices.as_slice() {
                [] => Err(MigError::NoInstance),
                [(_, state)] => {
                    clear(change, state);
                    Ok(())
                }
                _ => Err(MigError::InUse),
            }
        })?
    }

    /// Makes a compute instance in a GPU instance: a device that processes can use.
    pub fn create_compute_instance(
        &'static self,
        instance: &GpuInstance,
        kind: u32,
    ) -> Result<ComputeInstance, MigError> {
        let slices = compute_slices(kind).ok_or(MigError::NoProfile)?;
        if slices > instance.profile.slices {
            return Err(MigError::NoProfile);
        }
        self.change(|change| {
            if !self.gpu_instances(instance.card).contains(instance) {
                return Err(MigError::NoInstance);
            }
            let others = self.compute_instances(instance.card);
            let others: Vec<_> = others.iter().filter(|it| it.of.id == instance.id).collect();
            let taken: u32 = others.iter().map(|it| it.slices).sum();
            if taken + slices > instance.profile.slices {
                return Err(MigError::NoRoom);
            }
            let id = (0..64).find(|id| others.iter().all(|it| it.id != *id)).unwrap_or(0);
            let state = self.new_slice(change, instance.card).ok_or(MigError::NoRoom)?;
            let multiprocessors =
                instance.profile.multiprocessors * slices / instance.profile.slices;
            change.set(&state.gpu_instance, u64::from(instance.id) + 1);
            change.set(&state.compute_instance, u64::from(id) + 1);
            change.set(&state.gpu_profile, u64::from(instance.profile.id));
            change.set(&state.compute_profile, u64::from(kind));
            change.set(&state.placement[0], u64::from(taken));
            change.set(&state.memory, instance.profile.memory_mib << 20);
            change.set(&state.multiprocessors, u64::from(multiprocessors.max(1)));
            let found = self.compute_instances(instance.card);
            let made = found.into_iter().find(|it| it.of.id == instance.id && it.id == id);
            made.ok_or(MigError::NoInstance)
        })?
    }

    /// Takes a compute instance away. Nobody may be using it.
    pub fn destroy_compute_instance(
        &'static self,
        instance: &ComputeInstance,
    ) -> Result<(), MigError> {
        self.change(|change| {
            if !self.compute_instances(instance.of.card).contains(instance) {
                return Err(MigError::NoInstance);
            }
            self.sweep(change, &self.lives());
            let place = instance.device.place();
            let slots = &self.state.slots[..crate::account::used(self.state)];
            let uses = |slot: &crate::state::Slot| {
                let open = slot.contexts.iter().any(|context| at(context) == place + 1);
                open || crate::account::total(&slot.accounts[place]) > 0
            };
            if slots.iter().any(uses) {
                return Err(MigError::InUse);
            }
            for slot in slots {
                // What processes used of it stays with their card in what is kept of them; a
                // slice made here later starts from nothing.
                crate::account::clear(change, &slot.accounts[place]);
            }
            clear(change, &self.state.devices[place]);
            Ok(())
        })?
    }
}

fn clear(change: &Change, state: &Device) {
    let words = [
        &state.card,
        &state.gpu_instance,
        &state.compute_instance,
        &state.gpu_profile,
        &state.compute_profile,
        &state.multiprocessors,
        &state.memory,
        &state.serial,
        &state.busy,
        &state.sm_time,
        &state.copied,
        &state.turn,
        &state.turn_ends,
    ];
    words.into_iter().chain(&state.placement).for_each(|word| change.set(word, 0));
    state.buckets.iter().flatten().for_each(|word| change.set(word, 0));
}

fn small(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
