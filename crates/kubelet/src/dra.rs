//! A driver of dynamic resource allocation: what it implements, and its server.
//!
//! The API server holds the claims and what was allocated for them; the kubelet only says which
//! claims a pod on this node needs, and wants the names of CDI devices for them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::watch;
use tonic::{Request, Response, Status};

use crate::registration::{self, Kind, Standing};
use crate::serve::Serving;
use crate::socket::SocketError;
use crate::wire::dra as wire;
use wire::dra_plugin_server as server;

/// A device that was made ready for a claim.
pub use wire::Device as PreparedDevice;

/// A claim the kubelet names.
pub use wire::Claim;

/// The name of the service's socket in the driver's folder.
pub const SOCKET: &str = "dra.sock";

/// The service as it is offered at registration.
const SERVICE: &str = "v1.DRAPlugin";

/// A driver, as the one who writes it sees it. Both calls may come again for a claim, also after a
/// restart of either side, and must then end the same way.
pub trait Driver: Send + Sync + 'static {
    /// Makes the devices of a claim ready.
    fn prepare(
        &self,
        claim: Claim,
    ) -> impl Future<Output = Result<Vec<PreparedDevice>, ClaimError>> + Send;

    /// Undoes that. No error if there is nothing to undo.
    fn unprepare(&self, claim: Claim) -> impl Future<Output = Result<(), ClaimError>> + Send;
}

/// Why a claim could not be made ready; people read it in the pod's events.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct ClaimError {
    /// The reason.
    pub reason: String,
}

/// Where and as what a driver is served.
#[derive(Debug, Clone)]
pub struct Config {
    /// The driver's name, as its device classes and slices have it.
    pub driver: String,
    /// The driver's own folder, which exists: `plugins/<driver>` in the kubelet's root folder.
    pub folder: PathBuf,
    /// The same folder as the kubelet sees it.
    pub kubelet_folder: PathBuf,
    /// The folder `plugins_registry` of the kubelet's root folder.
    pub registry: PathBuf,
}

/// A driver that is being served. Dropping it ends it.
#[derive(Debug)]
pub struct Running {
    registration: registration::Running,
    serving: Serving,
}

/// Serves `driver`, then makes it known to the kubelet.
pub async fn start<D: Driver>(config: &Config, driver: Arc<D>) -> Result<Running, SocketError> {
    let serving = serve(&config.folder.join(SOCKET), driver).await?;
    let known_as = registration::Driver {
        kind: Kind::Dra,
        name: config.driver.clone(),
        endpoint: config.kubelet_folder.join(SOCKET),
        versions: vec![SERVICE.into()],
    };
    let registration = registration::start(&config.registry, known_as).await?;
    Ok(Running { registration, serving })
}

async fn serve<D: Driver>(path: &Path, driver: Arc<D>) -> Result<Serving, SocketError> {
    let service = server::DraPluginServer::new(Service { driver });
    let router = tonic::transport::Server::builder().add_service(service);
    Serving::start(path, router, watch::Sender::new(false)).await
}

impl Running {
    /// What the kubelet thinks of the driver, now and whenever that changes.
    pub fn standing(&self) -> watch::Receiver<Standing> {
        self.registration.standing()
    }

    /// Lets the kubelet forget the driver, then ends the service.
    pub async fn stop(self) {
        self.registration.stop().await;
        self.serving.end().await;
    }
}

struct Service<D> {
    driver: Arc<D>,
}

#[tonic::async_trait]
impl<D: Driver> server::DraPlugin for Service<D> {
    async fn node_prepare_resources(
        &self,
        request: Request<wire::NodePrepareResourcesRequest>,
    ) -> Result<Response<wire::NodePrepareResourcesResponse>, Status> {
        let mut answer = wire::NodePrepareResourcesResponse::default();
        for claim in request.into_inner().claims {
            let uid = claim.uid.clone();
            let (devices, error) = match self.driver.prepare(claim).await {
                Ok(devices) => (devices, String::new()),
                Err(error) => (Vec::new(), said(&error)),
            };
            answer.claims.insert(uid, wire::NodePrepareResourceResponse { devices, error });
        }
        Ok(Response::new(answer))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<wire::NodeUnprepareResourcesRequest>,
    ) -> Result<Response<wire::NodeUnprepareResourcesResponse>, Status> {
        let mut answer = wire::NodeUnprepareResourcesResponse::default();
        for claim in request.into_inner().claims {
            let uid = claim.uid.clone();
            let error = self.driver.unprepare(claim).await.err().map(|error| said(&error));
            let error = error.unwrap_or_default();
            answer.claims.insert(uid, wire::NodeUnprepareResourceResponse { error });
        }
        Ok(Response::new(answer))
    }
}

/// An empty text would mean success to the kubelet.
fn said(error: &ClaimError) -> String {
    if error.reason.is_empty() { "failed without a reason".into() } else { error.reason.clone() }
}
