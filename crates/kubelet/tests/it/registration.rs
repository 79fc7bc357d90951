//! A driver is found by the kubelet's plugin watcher, although that dials in an odd way.

use std::path::{Path, PathBuf};

use kubelet::registration::{self, Driver, Kind, Standing, socket_name};
use kubelet::wire::plugin_registration as wire;
use prost::Message as _;
use tonic::transport::Endpoint;
use wire::registration_client::RegistrationClient;

use super::http2::{Outcome, PROTOCOL_ERROR, authority_of, call};
use super::soon;

const GET_INFO: &str = "/pluginregistration.Registration/GetInfo";

/// The registry as the kubelet sees it; its paths are what grpc-go makes an authority of.
const REGISTRY: &str = "/var/lib/kubelet/plugins_registry";

fn driver() -> Driver {
    Driver {
        kind: Kind::Dra,
        name: "gpu.example.com".into(),
        endpoint: PathBuf::from("/var/lib/kubelet/plugins/gpu.example.com/dra.sock"),
        versions: vec!["v1.DRAPlugin".into()],
    }
}

fn seen_by_kubelet(file: &str) -> String {
    authority_of(&format!("{REGISTRY}/{file}"))
}

#[test]
fn a_path_becomes_the_authority_that_grpc_go_sends() {
    assert_eq!(
        seen_by_kubelet(&socket_name("gpu.example.com")),
        "%2Fvar%2Flib%2Fkubelet%2Fplugins_registry%2Fgpu.example.com@reg.sock"
    );
}

#[tokio::test]
async fn the_kubelets_way_of_dialling_works_with_the_name_we_use() {
    let dir = tempfile::tempdir().unwrap();
    let _running = registration::start(dir.path(), driver()).await.unwrap();
    let name = socket_name("gpu.example.com");
    let path = dir.path().join(&name);
    let outcome = soon("an answer", call(&path, GET_INFO, &seen_by_kubelet(&name))).await;
    let Outcome::Message(message) = outcome else { panic!("{outcome:?}") };
    let info = wire::PluginInfo::decode(message.as_slice()).unwrap();
    assert_eq!(info.r#type, "DRAPlugin");
    assert_eq!(info.name, "gpu.example.com");
    assert_eq!(info.endpoint, "/var/lib/kubelet/plugins/gpu.example.com/dra.sock");
    assert_eq!(info.supported_versions, ["v1.DRAPlugin"]);
}

/// Why the name has its `@`. If this fails, the HTTP/2 library takes such an authority, and the name
/// may become a plain one.
#[tokio::test]
async fn a_plain_name_would_not_work() {
    let dir = tempfile::tempdir().unwrap();
    let _running = registration::start(dir.path(), driver()).await.unwrap();
    let path = dir.path().join(socket_name("gpu.example.com"));
    let plain = seen_by_kubelet("gpu.example.com-reg.sock");
    let outcome = soon("an answer", call(&path, GET_INFO, &plain)).await;
    assert_eq!(outcome, Outcome::Reset(PROTOCOL_ERROR));
}

async fn client(path: &Path) -> RegistrationClient<tonic::transport::Channel> {
    let endpoint = Endpoint::from_shared(format!("unix://{}", path.display())).unwrap();
    RegistrationClient::new(endpoint.connect().await.unwrap())
}

#[tokio::test]
async fn what_the_kubelet_thinks_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let running = registration::start(dir.path(), driver()).await.unwrap();
    let path = dir.path().join(socket_name("gpu.example.com"));
    let mut standing = running.standing();
    assert_eq!(*standing.borrow_and_update(), Standing::Unknown);
    let mut kubelet = client(&path).await;
    let refused = wire::RegistrationStatus { plugin_registered: false, error: "no".into() };
    kubelet.notify_registration_status(refused).await.unwrap();
    assert_eq!(*standing.borrow_and_update(), Standing::Refused { reason: "no".into() });
    let accepted = wire::RegistrationStatus { plugin_registered: true, error: String::new() };
    kubelet.notify_registration_status(accepted).await.unwrap();
    assert_eq!(*standing.borrow_and_update(), Standing::Registered);
    drop(kubelet);
    soon("stop", running.stop()).await;
    assert!(!path.exists());
}
