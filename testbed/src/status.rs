//! What runs of a cluster, for people and for messages.

use serde::Serialize;

use crate::component::Running;
use crate::layout::Layout;

/// The state of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ComponentState {
    /// It is there.
    Running,
    /// It is stopped by a signal.
    Paused,
    /// It ended.
    Dead,
}

/// One process of a cluster.
#[derive(Debug, Clone, Serialize)]
pub struct ComponentStatus {
    /// Its name.
    pub name: String,
    /// Its process number.
    pub pid: i32,
    /// Whether it lives.
    pub state: ComponentState,
    /// Memory it has in RAM, in bytes.
    pub resident: u64,
}

/// What is known of a cluster.
#[derive(Debug, Clone, Serialize)]
pub struct Status {
    /// Its name.
    pub name: String,
    /// Whether `up` came to its end.
    pub ready: bool,
    /// How many real and fake nodes it was asked to have.
    pub nodes: usize,
    /// Fake ones.
    pub fake_nodes: usize,
    /// Where the API server is reached.
    pub server: String,
    /// The file that `kubectl` wants.
    pub kubeconfig: std::path::PathBuf,
    /// Its processes.
    pub components: Vec<ComponentStatus>,
}

/// The state of cluster `name`, or nothing if there is none.
pub fn status(name: &str) -> anyhow::Result<Option<Status>> {
    let layout = Layout::of(name)?;
    let Ok(record) = layout.record() else { return Ok(None) };
    let components = Running::all(&layout)
        .into_iter()
        .map(|running| ComponentStatus {
            state: state(&running),
            pid: running.identity.pid,
            resident: running.identity.resident().unwrap_or(0),
            name: running.spec.name,
        })
        .collect();
    Ok(Some(Status {
        name: name.to_owned(),
        ready: record.ready,
        nodes: record.options.nodes,
        fake_nodes: record.options.fake_nodes.iter().map(|group| group.count).sum(),
        server: format!("https://127.0.0.1:{}", record.api_port),
        kubeconfig: layout.kubeconfig(),
        components,
    }))
}

fn state(running: &Running) -> ComponentState {
    if !running.identity.is_alive() {
        ComponentState::Dead
    } else if running.identity.is_stopped() {
        ComponentState::Paused
    } else {
        ComponentState::Running
    }
}
