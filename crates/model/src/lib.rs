//! The nouns of nanogpu: devices, nodes, requests, placements, and the text they travel in.
//!
//! Everything here is a value. Nothing reads a file, a clock or a random number, and nothing
//! knows a resource name of another system: those live in `dialect`.
//!
//! ```text
//!   Pod --dialect--> Request --placement--> Placement --codec--> annotation
//!   annotation --codec--> Inventory --ledger--> Node --in a--> Snapshot
//! ```
#![forbid(unsafe_code)]

pub mod allowance;
#[cfg(feature = "arb")]
pub mod arb;
pub mod codec;
pub mod device;
pub mod holder;
pub mod ids;
pub mod names;
pub mod node;
pub mod peak;
pub mod placement;
pub mod places;
pub mod pod;
pub mod profiles;
pub mod quantity;
pub mod request;
pub mod snapshot;
pub mod statistics;
pub mod topology;
pub mod units;
pub mod workload;

pub use allowance::{Allowance, Amount, Cap, ModelPattern, Rule, Unlisted};
pub use device::{CardModel, Device, DeviceRef, Health, Hop, Inventory, Kind, Link, Mig};
pub use holder::{Claim, Claimed, Holder};
pub use ids::{ContainerName, DeviceId, NameError, NodeName, PodId, PodUid};
pub use node::{Agent, DeviceState, Host, Load, Node, Problem, Tickets, Usage};
pub use peak::{Hold, peak};
pub use placement::{ContainerPlacement, Grant, Placement, PlacementError, Portion, Share};
pub use places::Places;
pub use pod::{Container, Phase, Pod};
pub use profiles::Profile;
pub use quantity::{Quantity, QuantityError};
pub use request::{
    Affinity, ContainerRequest, MemoryAsk, Near, Overrides, Part, PolicyName, Request, Role,
    Selector,
};
pub use snapshot::Snapshot;
pub use statistics::{Shape, Statistics};
pub use topology::{Topology, Wiring};
pub use units::{Bytes, Cores, Mebibytes, MilliCpu, Moment, UnixNanos};
pub use workload::{PartKind, PodKind, Workload};
