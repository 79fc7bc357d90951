//! The simulated GPUs of a machine, shared by all its processes.
//!
//! A machine is a folder: `machine.json` says what it has, `state` is memory that all processes
//! map, `locks` tells who lives. Whoever opens it uses the same devices, on the host and in
//! containers that have the folder. There is no server: the state is moved on by whoever asks.
//!
//! ```text
//!   Description -> Machine::create, open, find
//!                    |- process() -> Process: open_context, reserve, submit, poll, wait
//!                    |- memory, running, usage, samples: what anyone may ask
//!                    |- inject: faults
//! ```
//!
//! A process can be killed at any moment. What it held is in its slot, and goes with it; what it
//! was changing is taken back from the journal by the next who comes.

mod account;
pub mod cards;
mod clock;
mod description;
mod engine;
mod faults;
mod journal;
mod kernel;
mod limits;
mod lock;
mod machine;
mod mig;
mod process;
mod profile;
mod queue;
mod roster;
mod settings;
mod slots;
mod state;
mod usage;
mod visible;
mod wait;

pub use model::device::Hop;

pub use account::{Memory, MemoryCount, Refused};
pub use description::{
    Card, Clock, CudaVersion, Description, DescriptionError, Link, PidView, WithoutNodes,
};
pub use faults::{Counter, Event, Fault, FaultReport, Presence, Switch};
pub use kernel::Kernel;
pub use limits::{LimitError, MemoryLimit};
pub use machine::{DEFAULT_FOLDER, Machine, MachineError, VARIABLE};
pub use mig::{ComputeInstance, GpuInstance, MigError, MigProfile, compute_slices, profiles_of};
pub use process::{ContextId, DeviceId, JoinError, Process, SubmitError};
pub use profile::{Choices, FromProfileError, cuda_of};
pub use queue::{CellId, Progress, Ticket, Times, Work};
pub use roster::TAG_VARIABLE;
pub use settings::{EXCLUSIVE_PROCESS, PROHIBITED, Setting};
pub use state::{BUCKET, CARDS, CELLS, CONTEXTS, DEVICES, QUEUE, REPORTS, SLOTS, STREAMS};
pub use usage::{Holding, Running, Sample, Usage};
