//! A device plugin: what the agent implements, and the server that keeps it registered.
//!
//! ```no_run
//! use std::sync::Arc;
//! use kubelet::devices::{Device, DeviceList, IdSet};
//! use kubelet::plugin::{self, Allocation, Config, DevicePlugin};
//! use tokio::sync::watch;
//!
//! struct Toy(watch::Sender<DeviceList>);
//!
//! impl DevicePlugin for Toy {
//!     fn devices(&self) -> watch::Receiver<DeviceList> {
//!         self.0.subscribe()
//!     }
//!     async fn allocate(&self, ids: IdSet) -> Result<Allocation, kubelet::Status> {
//!         Ok(Allocation { envs: [("TOY".into(), ids.digest())].into(), ..Default::default() })
//!     }
//! }
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let devices = DeviceList::new((0..4).map(|n| Device::healthy(format!("toy-{n}"))))?;
//! let toy = Arc::new(Toy(watch::Sender::new(devices)));
//! let config = Config::new("/var/lib/kubelet/device-plugins", "toy.sock", "example.com/toy")?;
//! let running = plugin::start(config, toy);
//! running.watched().await?;
//! running.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! The kubelet empties the folder of sockets when it starts, and then makes its own. So whenever
//! `kubelet.sock` is another one, or our socket is gone, or the kubelet no longer reads our list,
//! the socket is made anew and registered again; the process goes on. See `keeper.rs`.

mod keeper;
mod service;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::Status;

use crate::devices::{DeviceList, IdSet};
use crate::socket::SocketError;
use crate::wire::device_plugin as wire;

/// What one container gets: environment, mounts, device nodes, CDI devices.
pub use wire::ContainerAllocateResponse as Allocation;

/// The name of the kubelet's own socket in the folder of device plugins.
pub const KUBELET_SOCKET: &str = "kubelet.sock";

/// How long the kubelet waits for the answer to `PreStartContainer`.
pub const PRE_START_TIMEOUT: Duration = Duration::from_secs(30);

/// A plugin, as the one who writes it sees it.
///
/// An error's text is shown to people: it becomes an event of the pod that could not start.
pub trait DevicePlugin: Send + Sync + 'static {
    /// What the kubelet is to call. Asked at every registration.
    fn options(&self) -> Options {
        Options::default()
    }

    /// The devices, now and whenever they change.
    fn devices(&self) -> watch::Receiver<DeviceList>;

    /// Answers for one container that is to get `ids`. The kubelet calls this once in a container's
    /// life, keeps the answer, and uses it again when the container restarts.
    fn allocate(&self, ids: IdSet) -> impl Future<Output = Result<Allocation, Status>> + Send;

    /// Called before every start of a container that holds `ids`, if [`Options::pre_start`] is on.
    fn pre_start(&self, ids: IdSet) -> impl Future<Output = Result<(), Status>> + Send {
        async move {
            drop(ids);
            Ok(())
        }
    }

    /// Which of the free devices to take, if [`Options::preference`] is on. A wish: the kubelet may
    /// choose otherwise.
    fn prefer(&self, choice: Choice) -> impl Future<Output = Result<IdSet, Status>> + Send {
        async move {
            drop(choice);
            Err(Status::unimplemented("this plugin has no preference"))
        }
    }

    /// Whether to register now, asked each time before.
    ///
    /// The kubelet lets the later of two plugins of one resource win without a word, so whoever does
    /// not want to fight looks first, with [`PodResources::strangers`](crate::pods::PodResources::strangers).
    fn may_register(&self) -> impl Future<Output = Result<(), Declined>> + Send {
        async { Ok(()) }
    }
}

/// What the kubelet is to call beyond the necessary.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// `PreStartContainer` before every start of a container.
    pub pre_start: bool,
    /// `GetPreferredAllocation` before the kubelet chooses.
    pub preference: bool,
}

/// What the kubelet could give a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The free devices.
    pub available: IdSet,
    /// Those that must be among the answer.
    pub required: IdSet,
    /// How many the answer should have.
    pub size: usize,
}

/// A plugin that chose not to register, with the reason for people to read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Declined {
    /// Why not.
    pub reason: String,
}

/// Where and as what a plugin is served.
#[derive(Debug, Clone)]
pub struct Config {
    folder: PathBuf,
    socket: String,
    resource: String,
    poll: Duration,
}

/// Why a plugin cannot be configured so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not a name of our own in that folder.
    #[error("{socket:?} cannot be a plugin's socket: a file name is needed, and not the kubelet's")]
    BadSocket {
        /// What was given.
        socket: String,
    },
}

impl Config {
    /// `socket` is a file name in `folder`. The kubelet is told the name only, because it may see
    /// the folder under another path.
    pub fn new(
        folder: impl Into<PathBuf>,
        socket: impl Into<String>,
        resource: impl Into<String>,
    ) -> Result<Self, ConfigError> {
        let (socket, resource) = (socket.into(), resource.into());
        let bad = socket.contains('/')
            || ["", ".", "..", KUBELET_SOCKET, crate::checkpoint::FILE].contains(&socket.as_str());
        if bad {
            return Err(ConfigError::BadSocket { socket });
        }
        Ok(Self { folder: folder.into(), socket, resource, poll: Duration::from_secs(5) })
    }

    /// Looks at the folder this often even if nothing is heard from it; five seconds unless said.
    #[must_use]
    pub fn poll_every(self, poll: Duration) -> Self {
        Self { poll, ..self }
    }

    fn socket_path(&self) -> PathBuf {
        self.folder.join(&self.socket)
    }

    fn kubelet_path(&self) -> PathBuf {
        self.folder.join(KUBELET_SOCKET)
    }
}

/// How a plugin stands with the kubelet.
#[derive(Debug, Clone)]
pub struct Standing {
    /// How often the kubelet accepted it so far.
    pub registrations: u64,
    /// How it is now.
    pub state: State,
}

/// How a plugin stands with the kubelet at a moment.
#[derive(Debug, Clone)]
pub enum State {
    /// Not tried yet.
    Starting,
    /// Not registered, for this reason; it is tried again.
    Waiting(Arc<RegisterError>),
    /// The kubelet accepted it and has not yet asked for its devices.
    Registered,
    /// The kubelet reads its devices.
    Watched,
    /// It was stopped.
    Stopped,
}

/// Why a plugin is not registered. All of them are tried again until it is stopped.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// There is no kubelet yet.
    #[error("no kubelet listens at {}; the plugin registers as soon as one does", path.display())]
    NoKubelet {
        /// Where its socket should be.
        path: PathBuf,
    },
    /// Our own socket could not be made.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The kubelet could not be reached.
    #[error("cannot reach the kubelet at {}", path.display())]
    Unreachable {
        /// Its socket.
        path: PathBuf,
        /// What went wrong.
        #[source]
        source: tonic::transport::Error,
    },
    /// The kubelet said no.
    #[error("the kubelet refused the plugin of {resource}: {}", status.message())]
    Refused {
        /// The plugin's resource.
        resource: String,
        /// Its answer.
        status: Status,
    },
    /// The plugin itself said no.
    #[error("the plugin of {resource} does not register")]
    Declined {
        /// The plugin's resource.
        resource: String,
        /// Its reason.
        #[source]
        source: Declined,
    },
    /// The kubelet accepted the plugin, but does not read its devices.
    #[error("the kubelet accepted the plugin of {resource} but does not ask for its devices")]
    NotWatched {
        /// The plugin's resource.
        resource: String,
    },
}

/// The plugin was stopped while someone waited for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the plugin was stopped")]
pub struct Stopped;

/// A plugin that is being served. Dropping it stops it, without waiting for the end.
#[derive(Debug)]
pub struct Running {
    stop: watch::Sender<bool>,
    standing: watch::Receiver<Standing>,
    task: JoinHandle<()>,
}

/// Serves `plugin` and keeps it registered, also over restarts of the kubelet. Must be called in a
/// tokio runtime.
pub fn start<P: DevicePlugin>(config: Config, plugin: Arc<P>) -> Running {
    let (stop, stopped) = watch::channel(false);
    let (publish, standing) = watch::channel(Standing { registrations: 0, state: State::Starting });
    let task = tokio::spawn(keeper::keep(config, plugin, publish, stopped));
    Running { stop, standing, task }
}

impl Running {
    /// How it stands, now and whenever that changes.
    pub fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.clone()
    }

    /// Waits until the kubelet reads the plugin's devices.
    pub async fn watched(&self) -> Result<(), Stopped> {
        let mut standing = self.standing();
        let settled = standing
            .wait_for(|now| matches!(now.state, State::Watched | State::Stopped))
            .await
            .map_err(|_| Stopped)?;
        if matches!(settled.state, State::Watched) { Ok(()) } else { Err(Stopped) }
    }

    /// Ends the kubelet's streams, lets calls that are under way finish for a few seconds, and
    /// removes the socket. The kubelet then takes the resource's devices for unhealthy.
    pub async fn stop(self) {
        self.stop.send_replace(true);
        // A panic in the task was reported where it happened; stopped it is in either case.
        let _ = self.task.await;
    }
}
