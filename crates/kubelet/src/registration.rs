//! How the kubelet's plugin watcher takes in a driver: it finds a socket in its registry folder,
//! asks who is there, and says whether it accepts.
//!
//! The kubelet looks through the folder at every start of its own, so nothing is registered again by
//! us.

use std::path::{Path, PathBuf};

use tokio::sync::watch;
use tonic::{Request, Response, Status};

use crate::serve::Serving;
use crate::socket::SocketError;
use crate::wire::plugin_registration as wire;
use wire::registration_server as server;

/// The file name under which a driver's registration socket must be made.
///
/// The `@` is needed. The kubelet dials this socket by its bare path, and grpc-go turns the path
/// into an `:authority` with `%2F` for each slash, which the HTTP/2 library below tonic refuses in a
/// host. With an `@` in the name all of the path before it reads as user information, where `%2F` is
/// allowed. `tests/it/registration.rs` shows both.
pub fn socket_name(driver: &str) -> String {
    format!("{driver}@reg.sock")
}

/// Who a driver is, as it tells the kubelet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Driver {
    /// Its kind.
    pub kind: Kind,
    /// Its name, unique for its kind.
    pub name: String,
    /// The socket of its service, under the path at which the kubelet sees it.
    pub endpoint: PathBuf,
    /// The services it offers there, such as `v1.DRAPlugin`.
    pub versions: Vec<String>,
}

/// The kinds of drivers that register this way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A driver of dynamic resource allocation.
    Dra,
}

/// What the kubelet thinks of a driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It has not said yet.
    Unknown,
    /// It accepted the driver.
    Registered,
    /// It did not.
    Refused {
        /// What it said.
        reason: String,
    },
}

/// A driver that can be found by the kubelet. Dropping it ends that.
#[derive(Debug)]
pub struct Running {
    serving: Serving,
    standing: watch::Receiver<Standing>,
}

/// Makes the driver known in `registry`, the kubelet's folder `plugins_registry`.
///
/// Its service must be served before: the kubelet calls it at once.
pub async fn start(registry: &Path, driver: Driver) -> Result<Running, SocketError> {
    let path = registry.join(socket_name(&driver.name));
    let (publish, standing) = watch::channel(Standing::Unknown);
    let service = server::RegistrationServer::new(Service { driver, standing: publish });
    let router = tonic::transport::Server::builder().add_service(service);
    let serving = Serving::start(&path, router, watch::Sender::new(false)).await?;
    Ok(Running { serving, standing })
}

impl Running {
    /// What the kubelet thinks of the driver, now and whenever that changes.
    pub fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.clone()
    }

    /// Takes the socket away; the kubelet then forgets the driver.
    pub async fn stop(self) {
        self.serving.end().await;
    }
}

struct Service {
    driver: Driver,
    standing: watch::Sender<Standing>,
}

#[tonic::async_trait]
impl server::Registration for Service {
    async fn get_info(
        &self,
        _: Request<wire::InfoRequest>,
    ) -> Result<Response<wire::PluginInfo>, Status> {
        let Driver { kind, name, endpoint, versions } = &self.driver;
        Ok(Response::new(wire::PluginInfo {
            r#type: match kind {
                Kind::Dra => "DRAPlugin".into(),
            },
            name: name.clone(),
            endpoint: endpoint.to_string_lossy().into_owned(),
            supported_versions: versions.clone(),
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<wire::RegistrationStatus>,
    ) -> Result<Response<wire::RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        let standing = if status.plugin_registered {
            tracing::info!(driver = %self.driver.name, "registered");
            Standing::Registered
        } else {
            tracing::warn!(driver = %self.driver.name, reason = %status.error, "refused");
            Standing::Refused { reason: status.error }
        };
        self.standing.send_replace(standing);
        Ok(Response::new(wire::RegistrationStatusResponse {}))
    }
}
