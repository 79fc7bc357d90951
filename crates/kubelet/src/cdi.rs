//! CDI specs: what the container runtime adds to a container that names a CDI device.
//!
//! ```
//! use kubelet::cdi::{ContainerEdits, Device, DeviceNode, Kind, Spec};
//!
//! let kind = Kind::parse("nano-gpu/alloc")?;
//! let edits = ContainerEdits {
//!     env: vec!["GPU=0".into()],
//!     device_nodes: vec![DeviceNode::new("/dev/nvidia0")],
//!     ..ContainerEdits::default()
//! };
//! let spec = Spec::new(kind.clone(), [Device::new("0123456789abcdef", edits)?])?;
//! assert_eq!(kind.device("0123456789abcdef")?, "nano-gpu/alloc=0123456789abcdef");
//! # Ok::<(), kubelet::cdi::SpecError>(())
//! ```
//!
//! A runtime that meets a bad spec may ignore the file or the whole folder, so what it would refuse
//! is refused here, before it is written.

mod names;
mod specs;
mod structure;

pub use names::Kind;
pub use specs::{Act, Specs, SpecsError};
pub use structure::{ContainerEdits, Device, DeviceNode, Hook, Mount, Spec};

use model::ids::Quoted;

/// Why something is no valid spec.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// Not a vendor and a class.
    #[error(
        "{kind} is no CDI kind: a vendor and a class with one '/' between, each of letters, digits, \
         '_' and '-' ('.' in the vendor only), a letter first and no sign last"
    )]
    BadKind {
        /// What was given.
        kind: Quoted,
    },
    /// Not a device's name.
    #[error(
        "{name} is no CDI device name: letters, digits, '_', '-', '.' and ':', with a letter or \
         digit first and last"
    )]
    BadName {
        /// What was given.
        name: Quoted,
    },
    /// A spec without devices.
    #[error("a CDI spec needs at least one device")]
    NoDevice,
    /// Two devices of one name.
    #[error("CDI device {name} stands twice in one spec")]
    RepeatedDevice {
        /// The name.
        name: Quoted,
    },
    /// A device that changes nothing.
    #[error("CDI device {name} has no edits, which runtimes refuse")]
    NoEdits {
        /// The device.
        name: Quoted,
    },
    /// Not `NAME=value`.
    #[error("{entry} is no environment variable: NAME=value is")]
    BadEnv {
        /// What was given.
        entry: Quoted,
    },
    /// Not an absolute path.
    #[error("{path} in a CDI spec is no absolute path")]
    BadPath {
        /// What was given.
        path: Quoted,
    },
    /// Not some of `rwm`.
    #[error("{permissions} are no permissions of a device: some of r, w and m are")]
    BadPermissions {
        /// What was given.
        permissions: Quoted,
    },
    /// Not one of `b`, `c`, `u`, `p`.
    #[error("{node_type} is no type of a device node: b, c, u and p are")]
    BadType {
        /// What was given.
        node_type: Quoted,
    },
    /// Not one of the OCI hooks.
    #[error("{hook} is no OCI hook")]
    BadHook {
        /// What was given.
        hook: Quoted,
    },
    /// A version we do not read.
    #[error("CDI version {version} is not one this version reads")]
    BadVersion {
        /// What was given.
        version: Quoted,
    },
}
