//! Machines made from the profiles that [`model::profiles`] has.

use std::path::PathBuf;

use model::profiles::{Profile, ProfileError};

use crate::cards::facts;
use crate::description::{
    Card, Clock, CudaVersion, Description, DescriptionError, Link, PidView, WithoutNodes,
};
use crate::engine::mixed;
use crate::state::wide;

/// What can be chosen when a machine is made from a profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choices {
    /// The driver's version.
    pub driver: String,
    /// The newest CUDA; by default what came with that driver.
    pub cuda: Option<CudaVersion>,
    /// Real or virtual.
    pub clock: Clock,
    /// UUIDs, serial numbers and jitter follow from it.
    pub name: String,
    /// Only so many of the cards.
    pub cards: Option<usize>,
    /// All cards start in MIG mode.
    pub mig: bool,
    /// As under MPS.
    pub mps: bool,
    /// As whose PIDs processes are listed.
    pub pids: PidView,
}

impl Default for Choices {
    fn default() -> Self {
        Self {
            driver: "550.163.01".to_owned(),
            cuda: None,
            clock: Clock::Real,
            name: "simgpu".to_owned(),
            cards: None,
            mig: false,
            mps: false,
            pids: PidView::Namespace,
        }
    }
}

/// Why a machine cannot be made from a profile.
#[derive(Debug, thiserror::Error)]
pub enum FromProfileError {
    /// There is no such profile.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// Its names cannot be used.
    #[error("the profile cannot be made into cards")]
    Names(#[from] model::ids::NameError),
    /// What was chosen does not go together.
    #[error(transparent)]
    Description(#[from] DescriptionError),
}

impl Description {
    /// The machine of a profile.
    pub fn from_profile(profile: &str, choices: &Choices) -> Result<Self, FromProfileError> {
        let profile = Profile::named(profile)?;
        let inventory = profile.inventory("card")?;
        let count = choices.cards.unwrap_or(usize::MAX).min(inventory.devices.len());
        let seed = seed_of(&choices.name);
        let facts = facts(&profile.model.0);
        let card = |(place, device): (usize, &std::sync::Arc<model::device::Device>)| {
            let numbers = (mixed(seed ^ wide(place)), mixed(!seed ^ wide(place)));
            Card {
                model: profile.model.to_string(),
                memory_mib: profile.memory.0,
                reserved_mib: reserved(profile.memory.0),
                context_mib: 300,
                multiprocessors: facts.multiprocessors,
                copy_engines: facts.copy_engines,
                uuid: format!("GPU-{}", uuid(numbers)),
                bus: device.bus.clone(),
                minor: device.minor,
                serial: format!("{:013}", numbers.0 % 10_000_000_000_000),
                numa: device.numa,
                cpus: profile.matrix.cpus(place).map(str::to_owned),
                mig: choices.mig && facts.mig.is_some(),
            }
        };
        let cards: Vec<Card> = inventory.devices.iter().enumerate().take(count).map(card).collect();
        let inside = |index: u32| usize::try_from(index).is_ok_and(|index| index < count);
        let links = inventory.links.iter().filter(|link| inside(link.a) && inside(link.b));
        let links =
            links.map(|link| Link { a: link.a, b: link.b, hop: link.hop, nvlinks: link.nvlinks });
        let description = Self {
            profile: Some(profile.name.to_owned()),
            driver: choices.driver.clone(),
            cuda: CudaVersion { major: 0, minor: 0 },
            clock: choices.clock,
            quantum_ns: 2_000_000,
            jitter_percent: 10,
            seed,
            mps: choices.mps,
            pids: choices.pids,
            dev_root: PathBuf::from("/dev"),
            without_device_nodes: WithoutNodes::All,
            cards,
            links: links.collect(),
            kernels: std::collections::BTreeMap::new(),
        };
        let mut description = description.checked()?;
        let branch = description.driver_branch().unwrap_or_default();
        description.cuda = choices.cuda.unwrap_or_else(|| cuda_of(branch));
        Ok(description)
    }
}

/// What a driver keeps for itself grows with the card.
fn reserved(memory: u64) -> u64 {
    (memory / 100).clamp(200, 700)
}

/// The CUDA that came with a branch of the driver.
pub fn cuda_of(branch: u32) -> CudaVersion {
    let (major, minor) = match branch {
        ..545 => (12, 2),
        545..550 => (12, 3),
        550..555 => (12, 4),
        555..560 => (12, 5),
        560..565 => (12, 6),
        565..570 => (12, 7),
        570..575 => (12, 8),
        575..580 => (12, 9),
        580..590 => (13, 0),
        590..595 => (13, 1),
        595..605 => (13, 2),
        605..615 => (13, 3),
        615.. => (13, 4),
    };
    CudaVersion { major, minor }
}

fn seed_of(name: &str) -> u64 {
    name.bytes().fold(0x5157, |seed, byte| mixed(seed ^ u64::from(byte)))
}

/// A UUID of version 4 from 128 bits.
pub(crate) fn uuid((high, low): (u64, u64)) -> String {
    let high = high & !0xf000 | 0x4000;
    let low = low & !(0b11 << 62) | 0b10 << 62;
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        high >> 32,
        high >> 16 & 0xffff,
        high & 0xffff,
        low >> 48,
        low & 0xffff_ffff_ffff
    )
}
