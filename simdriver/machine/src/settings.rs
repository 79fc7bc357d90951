//! What can be set on a card, and stays until it is set again.

use crate::account::Refused;
use crate::cards::facts;
use crate::description::Card;
use crate::journal::Change;
use crate::machine::Machine;
use crate::process::{DeviceId, JoinError};
use crate::state::{self, Device, State, get};

/// A setting of a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setting {
    /// As NVML numbers compute modes.
    ComputeMode,
    /// 1 if on.
    Persistence,
    /// 1 if on.
    Mig,
    /// What it will be after a reset.
    PendingMig,
    /// 1 if on.
    Ecc,
    /// What it will be after a restart.
    PendingEcc,
    /// 1 if processes are accounted for.
    Accounting,
    /// In mW.
    PowerLimit,
    /// In MHz, 0 if not set.
    MemoryClock,
    /// In MHz, 0 if not set.
    GraphicsClock,
    /// In MHz, 0 if not locked.
    LockedGraphicsClock,
}

/// Compute mode: only one process may have contexts.
pub const EXCLUSIVE_PROCESS: u64 = 3;
/// Compute mode: nobody may.
pub const PROHIBITED: u64 = 2;

/// How a card starts.
pub(crate) fn initial(change: &Change, card: &Card, state: &Device) {
    let facts = facts(&card.model);
    let ecc = u64::from(facts.fans == 0);
    let mig = u64::from(card.mig);
    let values = [
        (Setting::Persistence, 1),
        (Setting::Mig, mig),
        (Setting::PendingMig, mig),
        (Setting::Ecc, ecc),
        (Setting::PendingEcc, ecc),
        (Setting::PowerLimit, u64::from(facts.watts.0) * 1000),
    ];
    for (setting, value) in values {
        change.set(&state.settings[setting as usize], value);
    }
}

impl Machine {
    /// A setting of a card; a slice has its card's.
    pub fn setting(&self, device: DeviceId, setting: Setting) -> u64 {
        get(&self.state.devices[self.card_of(device)].settings[setting as usize])
    }

    /// Changes a setting of a card.
    pub fn set(
        &'static self,
        device: DeviceId,
        setting: Setting,
        value: u64,
    ) -> Result<(), JoinError> {
        self.change(|change| {
            change.set(&self.state.devices[self.card_of(device)].settings[setting as usize], value);
        })
    }

    pub(crate) fn check_exclusive(
        &self,
        state: &State,
        slot: usize,
        device: DeviceId,
    ) -> Result<(), Refused> {
        let mode = self.setting(device, Setting::ComputeMode);
        let uses = |slot: &state::Slot| {
            slot.contexts.iter().any(|context| get(context) == u64::from(device.0) + 1)
        };
        let others = state.slots[..crate::account::used(state)].iter().enumerate();
        let taken = || others.clone().any(|(place, other)| place != slot && uses(other));
        if mode == PROHIBITED || (mode == EXCLUSIVE_PROCESS && taken()) {
            return Err(Refused::Exclusive);
        }
        Ok(())
    }
}
