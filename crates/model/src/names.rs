//! Our own names: every annotation key and label of nanogpu itself, in one place.
//!
//! Names of other systems stand in that system's file of the `dialect` crate.

/// The prefix of all our keys, inherited from nano-gpu so that its users feel at home.
pub const DOMAIN: &str = "nano-gpu";

/// The namespace that nanogpu is installed in, unless somebody says otherwise.
pub const NAMESPACE: &str = "nanogpu-system";

/// Pod annotation: which devices each container got. Written in the Binding, by us only.
pub const PLACEMENT: &str = "nano-gpu/placement";

/// Node annotation: the node's devices. Written by the agent when they change.
pub const INVENTORY: &str = "nano-gpu/inventory";

/// Node annotation: devices a person took out of service, UUIDs or indexes with commas between.
pub const CORDON: &str = "nano-gpu/cordon";

/// Annotation of an agent's Lease: what the agent would need and does not have, with commas between.
pub const LACKS: &str = "nano-gpu/lacks";

/// In [`LACKS`]: the sight of the processes on the node's cards.
pub const PROCESSES: &str = "processes";

/// Annotation of an agent's Lease: in which way devices come into containers.
pub const DEVICES_BY: &str = "nano-gpu/devices-by";

/// Pod annotation: touched to wake a waiting pod when something became free.
pub const RETRY: &str = "nano-gpu/retry";

/// Pod annotation: how nodes are ranked for this pod.
pub const NODE_POLICY: &str = "nano-gpu/node-policy";

/// Pod annotation: how cards are picked on the node for this pod.
pub const DEVICE_POLICY: &str = "nano-gpu/device-policy";

/// Pod annotation: how near to one another the cards of a container must be.
pub const TOPOLOGY: &str = "nano-gpu/topology";

/// Annotation of kube-scheduler's static pod: a digest of the files it reads from us. When they change so
/// does this, and the kubelet starts it anew.
pub const SETTINGS: &str = "nano-gpu/settings";
