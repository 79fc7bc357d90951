//! The gRPC side of a plugin: what the kubelet calls.

use std::pin::Pin;
use std::sync::Arc;

use futures::Stream;
use tokio::sync::watch;
use tonic::transport::server::Router;
use tonic::{Request, Response, Status};

use super::{Choice, DevicePlugin};
use crate::devices::{DeviceList, IdSet};
use crate::wire::device_plugin as wire;
use wire::device_plugin_server as server;

/// A plugin's service, and the count of its readers.
pub(super) fn router<P: DevicePlugin>(
    plugin: Arc<P>,
    end: watch::Receiver<bool>,
) -> (Router, watch::Receiver<usize>) {
    let (streams, count) = watch::channel(0);
    let service = server::DevicePluginServer::new(Service { plugin, end, streams });
    (tonic::transport::Server::builder().add_service(service), count)
}

struct Service<P> {
    plugin: Arc<P>,
    end: watch::Receiver<bool>,
    streams: watch::Sender<usize>,
}

/// Counts a stream for as long as it is open, however it ends.
struct Open(watch::Sender<usize>);

impl Open {
    fn new(streams: &watch::Sender<usize>) -> Self {
        streams.send_modify(|count| *count += 1);
        Self(streams.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// A reader of the device list.
struct Reader {
    devices: watch::Receiver<DeviceList>,
    end: watch::Receiver<bool>,
    _open: Open,
}

impl Reader {
    /// The next list to send, or nothing when the server ends.
    async fn next(&mut self) -> Option<wire::ListAndWatchResponse> {
        let changed = async {
            if self.devices.changed().await.is_err() {
                // The list will not change any more, but it is still true.
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = changed => {}
            _ = self.end.wait_for(|end| *end) => return None,
        }
        Some(self.devices.borrow_and_update().to_wire())
    }
}

type Lists = Pin<Box<dyn Stream<Item = Result<wire::ListAndWatchResponse, Status>> + Send>>;

#[tonic::async_trait]
impl<P: DevicePlugin> server::DevicePlugin for Service<P> {
    type ListAndWatchStream = Lists;

    async fn get_device_plugin_options(
        &self,
        _: Request<wire::Empty>,
    ) -> Result<Response<wire::DevicePluginOptions>, Status> {
        Ok(Response::new(to_wire(self.plugin.options())))
    }

    async fn list_and_watch(&self, _: Request<wire::Empty>) -> Result<Response<Lists>, Status> {
        let mut devices = self.plugin.devices();
        // The first list goes out at once, whether or not the plugin's receiver has seen it.
        devices.mark_changed();
        let reader = Reader { devices, end: self.end.clone(), _open: Open::new(&self.streams) };
        let lists = futures::stream::unfold(reader, |mut reader| async move {
            let list = reader.next().await?;
            Some((Ok(list), reader))
        });
        Ok(Response::new(Box::pin(lists)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<wire::PreferredAllocationRequest>,
    ) -> Result<Response<wire::PreferredAllocationResponse>, Status> {
        let mut answers = Vec::new();
        for asked in request.into_inner().container_requests {
            let choice = Choice {
                available: asked.available_device_i_ds.into_iter().collect(),
                required: asked.must_include_device_i_ds.into_iter().collect(),
                size: usize::try_from(asked.allocation_size).unwrap_or(0),
            };
            let ids = self.plugin.prefer(choice).await?.into_vec();
            answers.push(wire::ContainerPreferredAllocationResponse { device_i_ds: ids });
        }
        Ok(Response::new(wire::PreferredAllocationResponse { container_responses: answers }))
    }

    async fn allocate(
        &self,
        request: Request<wire::AllocateRequest>,
    ) -> Result<Response<wire::AllocateResponse>, Status> {
        let mut answers = Vec::new();
        for asked in request.into_inner().container_requests {
            answers.push(self.plugin.allocate(asked.devices_ids.into_iter().collect()).await?);
        }
        Ok(Response::new(wire::AllocateResponse { container_responses: answers }))
    }

    async fn pre_start_container(
        &self,
        request: Request<wire::PreStartContainerRequest>,
    ) -> Result<Response<wire::PreStartContainerResponse>, Status> {
        let ids: IdSet = request.into_inner().devices_ids.into_iter().collect();
        self.plugin.pre_start(ids).await?;
        Ok(Response::new(wire::PreStartContainerResponse {}))
    }
}

pub(super) fn to_wire(options: super::Options) -> wire::DevicePluginOptions {
    wire::DevicePluginOptions {
        pre_start_required: options.pre_start,
        get_preferred_allocation_available: options.preference,
    }
}
