//! Which cards a process sees: those whose device nodes it has, as with a real driver.

use crate::machine::Machine;
use crate::process::DeviceId;
use crate::queue::Work;
use crate::state::get;

impl Machine {
    /// The cards that this process sees, by bus id. Lost ones are among them.
    pub fn visible(&self) -> Vec<DeviceId> {
        let root = &self.description().dev_root;
        let nodes = root.join("nvidiactl").exists();
        let cards = self.description().cards.iter().enumerate();
        let seen =
            cards.filter(|(_, card)| !nodes || root.join(format!("nvidia{}", card.minor)).exists());
        let seen = seen.filter_map(|(place, _)| DeviceId::new(place));
        seen.filter(|card| self.is_present(*card)).collect()
    }

    /// The multiprocessors of a device.
    pub fn multiprocessors(&self, device: DeviceId) -> u32 {
        let state = &self.state.devices[device.place()];
        let count = crate::engine::multiprocessors(&self.rules, state, device.place());
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// Work that is no wider than the device.
    pub(crate) fn within(&self, device: DeviceId, work: Work) -> Work {
        match work {
            Work::Kernel { multiprocessors, nanoseconds } => {
                let multiprocessors = multiprocessors.min(self.multiprocessors(device));
                Work::Kernel { multiprocessors, nanoseconds }
            }
            other => other,
        }
    }

    /// Device time up to which everything is simulated.
    pub fn simulated(&self) -> u64 {
        get(&self.state.header.time)
    }
}
