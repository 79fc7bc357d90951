//! nanogpu in the kube-scheduler that kubeadm set up: the static pod's manifest is patched, and put
//! back as it was.
//!
//! ```text
//!   /etc/kubernetes
//!     manifests/kube-scheduler.yaml   kubeadm's; ours while patched. The kubelet runs what lies here
//!     nanogpu/                        what kube-scheduler reads: its configuration, certificates
//!     nanogpu-install/                what we read: the manifest before, and a journal
//! ```
//!
//! Pure: [`flags`], [`manifest`], [`settings`], [`planning`], [`journal`], [`watching`], [`yaml`]. The rest touches files or the network.
//! The journal is written before what it announces, so a run that was cut off is finished or undone
//! by the next. No file is ever half there, and the manifests' folder never holds another one.
#![forbid(unsafe_code)]

pub mod faults;
pub mod flags;
pub mod journal;
pub mod manifest;
pub mod options;
pub mod patching;
pub mod planning;
pub mod probe;
pub mod settings;
pub mod tree;
pub mod undoing;
pub mod verifying;
pub mod watching;
pub mod yaml;

/// Tells the person who runs this what was done, a line at a time.
pub type Say<'a> = &'a mut dyn FnMut(&str);
