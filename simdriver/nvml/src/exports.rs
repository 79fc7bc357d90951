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
