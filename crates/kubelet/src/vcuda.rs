//! gpu-manager's socket, which its limiter in a container calls when a process begins to use a card.
//!
//! It is not the kubelet's, but served on the node in the same way.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

use tokio::sync::watch;
use tonic::{Request, Response, Status};

use crate::serve::Serving;
use crate::socket::SocketError;
use crate::wire::vcuda as wire;
use wire::vcuda_service_server::{VcudaService, VcudaServiceServer};

/// The one thing that is asked.
const REGISTER: &str = "/vcuda.VCUDAService/RegisterVDevice";

/// What a limiter says of itself. Hostile input: any process of the container can say it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Caller {
    /// The card's address.
    pub bus: String,
    /// The pod's UID.
    pub pod: String,
    /// The container's name, if it says it.
    pub container: String,
    /// The runtime's ID of the container, if it says it.
    pub id: String,
}

/// Who answers limiters.
pub trait Registers: Send + Sync + 'static {
    /// A process of `caller` begins to use a card.
    fn register(&self, caller: Caller) -> impl Future<Output = Result<(), Status>> + Send;
}

/// A socket that is served. It goes with this.
#[derive(Debug)]
pub struct Socket(Serving);

impl Socket {
    /// Serves `who` at `path`, for every user.
    pub async fn serve<R: Registers>(path: &Path, who: Arc<R>) -> Result<Self, SocketError> {
        let end = watch::Sender::new(false);
        let service = VcudaServiceServer::new(Service(who));
        let router = tonic::transport::Server::builder().add_service(service);
        // Its client dials the bare path, and calls the server by it.
        let serving = Serving::start_by_any_name(path, router, REGISTER, end).await?;
        let everyone = std::fs::Permissions::from_mode(0o666);
        std::fs::set_permissions(path, everyone)
            .map_err(|source| SocketError::Bind { path: path.to_owned(), source })?;
        Ok(Self(serving))
    }

    /// Whether it is served, at the path it was made for.
    pub fn in_place(&self) -> bool {
        self.0.in_place()
    }
}

/// Registers with whoever serves `path`, as a limiter does.
pub async fn register(path: &Path, caller: Caller) -> Result<(), Status> {
    let channel = tonic::transport::Endpoint::from_shared(format!("unix://{}", path.display()))
        .map_err(|error| Status::invalid_argument(error.to_string()))?
        .connect()
        .await
        .map_err(|error| Status::unavailable(error.to_string()))?;
    let request = wire::VDeviceRequest {
        bus_id: caller.bus,
        pod_uid: caller.pod,
        container_name: caller.container,
        container_id: caller.id,
    };
    let mut client = wire::vcuda_service_client::VcudaServiceClient::new(channel);
    client.register_v_device(request).await.map(drop)
}

struct Service<R>(Arc<R>);

#[tonic::async_trait]
impl<R: Registers> VcudaService for Service<R> {
    async fn register_v_device(
        &self,
        request: Request<wire::VDeviceRequest>,
    ) -> Result<Response<wire::VDeviceResponse>, Status> {
        let asked = request.into_inner();
        let caller = Caller {
            bus: asked.bus_id,
            pod: asked.pod_uid,
            container: asked.container_name,
            id: asked.container_id,
        };
        self.0.register(caller).await?;
        Ok(Response::new(wire::VDeviceResponse {}))
    }
}
