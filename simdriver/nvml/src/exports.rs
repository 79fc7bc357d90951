//! Every name of the library, and what it does.

use crate::calls::{
    accounting, errors, events, fields, identity, lifetime, limits, memory, mig, modes, nvlink,
    pci, processes, readings, system, topology, unsupported,
};

/// What a name does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// It is simulated.
    Live,
    /// It answers that the card cannot do it.
    Unsupported,
    /// Like the last, and with a driver before 560 that there is no such function.
    Newer,
}

/// Names that do the same.
#[derive(Debug, Clone, Copy)]
pub struct Export {
    /// What they do.
    pub kind: Kind,
    /// What they are about.
    pub about: &'static str,
    /// The names.
    pub names: &'static [&'static str],
}

const fn live(about: &'static str, names: &'static [&'static str]) -> Export {
    Export { kind: Kind::Live, about, names }
}

/// All names. Each stands where the function itself is defined, so the list cannot lie.
pub const EXPORTS: &[Export] = &[
    live("init and shutdown", lifetime::NAMES),
    live("the system", system::NAMES),
    live("handles and names", identity::NAMES),
    live("PCIe", pci::NAMES),
    live("memory", memory::NAMES),
    live("memory limits", limits::NAMES),
    live("processes", processes::NAMES),
    live("accounting", accounting::NAMES),
    live("sensors", readings::NAMES),
    live("modes", modes::NAMES),
    live("topology", topology::NAMES),
    live("NVLink", nvlink::NAMES),
    live("errors", errors::NAMES),
    live("events", events::NAMES),
    live("field values", fields::NAMES),
    live("MIG", mig::NAMES),
    Export { kind: Kind::Unsupported, about: "of devices", names: unsupported::OF_DEVICES },
    Export { kind: Kind::Unsupported, about: "of none", names: unsupported::OF_NONE },
    Export { kind: Kind::Newer, about: "after 555", names: unsupported::NEWER },
];

/// Names that drivers of 545 and 550 added to those of 535.
const SINCE_550: &[&str] = &[
    "nvmlDeviceGetC2cModeInfoV",
    "nvmlDeviceGetGpuFabricInfoV",
    "nvmlDeviceGetNumaNodeId",
    "nvmlDeviceGetPciInfoExt",
    "nvmlDeviceGetProcessesUtilizationInfo",
    "nvmlDeviceGetVgpuHeterogeneousMode",
    "nvmlDeviceGetVgpuInstancesUtilizationInfo",
    "nvmlDeviceGetVgpuProcessesUtilizationInfo",
    "nvmlDeviceGetVgpuTypeCreatablePlacements",
    "nvmlDeviceGetVgpuTypeSupportedPlacements",
    "nvmlDeviceSetVgpuCapabilities",
    "nvmlDeviceSetVgpuHeterogeneousMode",
    "nvmlSystemGetConfComputeKeyRotationThresholdInfo",
    "nvmlSystemGetConfComputeSettings",
    "nvmlSystemSetConfComputeKeyRotationThresholdInfo",
    "nvmlVgpuInstanceGetPlacementId",
    "nvmlVgpuTypeGetFbReservation",
    "nvmlVgpuTypeGetGspHeapSize",
];

/// Names that 555 added.
const SINCE_555: &[&str] = &[
    "nvmlDeviceGetCapabilities",
    "nvmlDeviceGetClockOffsets",
    "nvmlDeviceGetDriverModel_v2",
    "nvmlDeviceSetClockOffsets",
];

/// Names of ours that are live and came after 555.
const LIVE_SINCE: &[(u32, &[&str])] = &[
    (560, &["nvmlSystemGetDriverBranch"]),
    (565, &["nvmlDeviceGetHandleByUUIDV"]),
    (570, &["nvmlDeviceGetTemperatureV", "nvmlDeviceGetMarginTemperature"]),
    (580, &["nvmlDeviceGetGpuInstanceProfileInfoByIdV"]),
    (615, &["nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1"]),
];

/// The branch of the driver from which on there is such a name. For those between 555 and 615
/// the branch is the earliest it can be, as no list of what they export is at hand.
pub fn since(name: &str) -> u32 {
    let late = LIVE_SINCE.iter().find(|(_, names)| names.contains(&name));
    if let Some((branch, _)) = late {
        return *branch;
    }
    if unsupported::NEWER.contains(&name) {
        560
    } else if SINCE_555.contains(&name) {
        555
    } else if SINCE_550.contains(&name) {
        550
    } else {
        535
    }
}

/// All names that a driver of this branch does not have.
pub fn absent_in(branch: u32) -> impl Iterator<Item = &'static str> {
    let names = EXPORTS.iter().flat_map(|export| export.names).copied();
    names.filter(move |name| since(name) > branch)
}
