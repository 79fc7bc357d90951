//! The kubelet's end of the device plugin API, with its habits: it empties the folder of sockets
//! when it starts, dials back by the name it is given before it accepts, and reads the device list.

use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use kubelet::Status;
use kubelet::wire::device_plugin as wire;
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response};
use wire::device_plugin_client::DevicePluginClient;
use wire::registration_server::{Registration, RegistrationServer};

/// A running kubelet. Dropping it is killing it: its socket stays, its connections end.
pub(crate) struct FakeKubelet {
    events: mpsc::UnboundedReceiver<Seen>,
    _tasks: JoinSet<()>,
}

/// What happened at the kubelet.
pub(crate) enum Seen {
    /// A plugin came, and this is how to call it.
    Registered(Box<(wire::RegisterRequest, DevicePluginClient<Channel>)>),
    /// A device list of a resource came in.
    List(Vec<wire::Device>),
    /// The stream of device lists ended.
    StreamEnded,
}

/// What the kubelet does with those who register.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Mood {
    Accepting,
    /// Refuses everyone.
    Refusing,
}

impl FakeKubelet {
    pub(crate) fn start(folder: &Path, mood: Mood) -> Self {
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_socket() {
                std::fs::remove_file(entry.path()).unwrap();
            }
        }
        let listener = UnixListener::bind(folder.join("kubelet.sock")).unwrap();
        let (sender, events) = mpsc::unbounded_channel();
        let service =
            RegistrationServer::new(Service { folder: folder.to_owned(), mood, events: sender });
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let served = tonic::transport::Server::builder()
                .add_service(service)
                .serve_with_incoming(UnixListenerStream::new(listener));
            served.await.unwrap();
        });
        Self { events, _tasks: tasks }
    }

    pub(crate) async fn next(&mut self) -> Seen {
        super::soon("something at the kubelet", self.events.recv()).await.unwrap()
    }

    /// The next registration; lists and ends of others before it do not matter.
    pub(crate) async fn registered(
        &mut self,
    ) -> (wire::RegisterRequest, DevicePluginClient<Channel>) {
        loop {
            if let Seen::Registered(who) = self.next().await {
                return *who;
            }
        }
    }

    /// The next device list, as IDs and whether they are healthy.
    pub(crate) async fn list(&mut self) -> Vec<(String, bool)> {
        loop {
            if let Seen::List(devices) = self.next().await {
                let told = |device: wire::Device| (device.id, device.health == "Healthy");
                return devices.into_iter().map(told).collect();
            }
        }
    }

    pub(crate) async fn stream_ended(&mut self) {
        while !matches!(self.next().await, Seen::StreamEnded) {}
    }
}

struct Service {
    folder: PathBuf,
    mood: Mood,
    events: mpsc::UnboundedSender<Seen>,
}

#[tonic::async_trait]
impl Registration for Service {
    async fn register(
        &self,
        request: Request<wire::RegisterRequest>,
    ) -> Result<Response<wire::Empty>, Status> {
        if self.mood == Mood::Refusing {
            return Err(Status::unknown("not today"));
        }
        let request = request.into_inner();
        let path = self.folder.join(&request.endpoint);
        let mut client = dial(&path).await;
        let options = client.get_device_plugin_options(wire::Empty {}).await?.into_inner();
        assert_eq!(Some(options), request.options);
        let _ = self.events.send(Seen::Registered(Box::new((request, client.clone()))));
        let events = self.events.clone();
        tokio::spawn(async move {
            // Ends with the kubelet, as the connections of a killed process do.
            let read = async {
                let mut lists = client.list_and_watch(wire::Empty {}).await.unwrap().into_inner();
                while let Ok(Some(list)) = lists.message().await {
                    let _ = events.send(Seen::List(list.devices));
                }
                let _ = events.send(Seen::StreamEnded);
            };
            tokio::select! {
                () = read => {}
                () = events.closed() => {}
            }
        });
        Ok(Response::new(wire::Empty {}))
    }
}

pub(crate) async fn dial(path: &Path) -> DevicePluginClient<Channel> {
    let channel = Endpoint::from_shared(format!("unix://{}", path.display()))
        .unwrap()
        .connect()
        .await
        .unwrap();
    DevicePluginClient::new(channel)
}
