//! A real Kubernetes on one machine, for tests and the demo.
//!
//! ```text
//!   host                         network namespace of the cluster
//!   ----                         --------------------------------
//!   test, kubectl --127.0.0.1--> forward --> kube-apiserver -- etcd
//!                                            kube-scheduler(s), controller-manager, kube-proxy, kwok
//!                                            node1: containerd, kubelet   (own /var/lib, /var/log, /run)
//!                                            node2: ...                   pods on the bridge cni0
//! ```
//!
//! Nothing of Kubernetes is faked: the programs are built from their own sources ([`Binaries`]) and
//! run as they would anywhere. What makes it a testbed is where they run. A cluster has a network
//! namespace, so it opens no port and adds no rule on the host; each node has a mount namespace,
//! because the kubelet's socket paths are fixed; and all processes are in one tree of cgroups, which
//! is how `down` finds exactly what `up` started, even if the tool died in between.

mod api;
mod binaries;
mod block;
mod cache;
mod cgroups;
mod cluster;
mod component;
mod control;
mod down;
mod fake;
mod forward;
mod images;
mod layout;
mod manifests;
mod namespaces;
mod node;
mod options;
mod ours;
mod pki;
mod process;
mod scheduler;
mod status;
mod sysctls;

pub use api::{Output, Session};
pub use binaries::{Binaries, Program, Progress};
pub use cluster::{Cluster, Started};
pub use component::Component;
pub use down::{abandon, abandon_on_interrupt, down, sweep};
pub use fake::FakeNodes;
pub use forward::forward;
pub use images::{
    AGENT_ENV, BASE, Features, Image, Made, Parts, base_images, kube_scheduler_image,
    product_images, write_images,
};
pub use layout::{Layout, clusters};
pub use manifests::{chart, manifests, rendered};
pub use options::{Options, SchedulerSpec};
pub use ours::{built, built_agent, built_for_speed, built_limiter, built_to_ship};
pub use process::processor_seconds;
pub use status::{ComponentState, ComponentStatus, Status, status};
