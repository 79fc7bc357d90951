//! `nanogpu-agent`: the node's side. It hands to each container exactly what its placement says, and
//! watches over the cards.
//!
//! ```text
//!   kubelet --Allocate--> plugin        a placeholder, a name never used before
//!   kubelet --PreStart--> starting      identity -> placement -> room -> records, CDI spec
//!   NVML ---------------> watching      health -> lists, inventory; usage -> metrics, Lease
//!   every while           collecting    specs and pages that nobody needs
//! ```
//!
//! It makes no scheduling choice. What decides is a function of values (`identity`, `room`, `edits`,
//! `lists`, `health`, `usage`); the rest carries.
#![forbid(unsafe_code)]

pub mod args;
mod beating;
pub mod collecting;
pub mod counting;
pub mod display;
pub mod edits;
pub mod faults;
pub mod health;
pub mod identity;
pub mod laying;
pub mod library;
pub mod lists;
pub mod living;
pub mod locking;
pub mod metrics;
pub mod originals;
pub mod picture;
pub mod plugin;
pub mod pods;
pub mod probing;
mod publishing;
pub mod records;
pub mod refereeing;
pub mod refusal;
pub mod remembering;
pub mod room;
pub mod rungs;
pub mod running;
pub mod settings;
pub mod sight;
pub mod starting;
pub mod usage;
pub mod vcuda;
mod watching;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::rungs::Rung;
    use crate::settings::{Folder, Settings};

    /// Settings that point nowhere.
    pub(crate) fn settings() -> Settings {
        let nowhere = Folder::same("/nowhere");
        Settings {
            node: model::NodeName::parse("n1").unwrap(),
            namespace: "nanogpu".into(),
            dialects: dialect::Settings::default(),
            mode: dialect::NodeMode::Own,
            rung: Rung::None,
            plugins: "/nowhere".into(),
            pod_resources: "/nowhere".into(),
            cdi: "/nowhere".into(),
            handing: crate::probing::Handing::Auto,
            pages: nowhere.clone(),
            driver: nowhere.clone(),
            dev: Folder::same("/dev"),
            limiter: nowhere,
            extras: Vec::new(),
            proc: "/nowhere".into(),
            listen: ([127, 0, 0, 1], 0).into(),
            beat: Duration::from_secs(10),
            look: Duration::from_secs(3),
            patience: Duration::from_millis(10),
            probation: Duration::from_mins(1),
            evict: false,
            originals: crate::metrics::Originals::No,
            vcuda: None,
        }
    }

    /// Four cards, and a container that uses the second.
    pub(crate) fn picture() -> crate::picture::Picture {
        let inventory = model::Profile::named("t4x4").unwrap().inventory("GPU").unwrap();
        let device = model::DeviceId::parse("GPU-1").unwrap();
        let process = gpu::Process { pid: 7, used: 1 << 30, busy: 12 };
        let measured = gpu::Measured {
            device: device.clone(),
            used: 2 << 30,
            total: 15 << 30,
            busy: Some(12),
            processes: vec![process],
        };
        let one = crate::usage::Use {
            device: device.clone(),
            pod: model::PodUid::parse("u-1").unwrap(),
            pod_name: "team/a".into(),
            container: Some("main".into()),
            used: 1 << 30,
            limit: 4 << 30,
            busy: 12,
            cores: 30,
            pids: vec![7],
        };
        let counters =
            page::Counters { denied: 3, throttled: 1_500_000_000, ..page::Counters::default() };
        let counted = crate::picture::Counted {
            pod_name: "team/a".into(),
            container: "main".into(),
            device,
            counters: Some(counters),
        };
        crate::picture::Picture {
            inventory: inventory.into(),
            measured: vec![measured],
            uses: vec![one],
            strangers: Vec::new(),
            counted: vec![counted].into(),
        }
    }

    /// An answer as the kubelet keeps it in its checkpoint.
    pub(crate) fn base64(answer: &kubelet::plugin::Allocation) -> String {
        kubelet::checkpoint::encode_answer(answer)
    }
}
