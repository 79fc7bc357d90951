//! Claims are made ready and undone, each with its own outcome.

use std::path::Path;
use std::sync::Arc;

use kubelet::dra::{self, Claim, ClaimError, Config, Driver, PreparedDevice, SOCKET};
use kubelet::registration::socket_name;
use kubelet::wire::dra as wire;
use tonic::transport::Endpoint;
use wire::dra_plugin_client::DraPluginClient;

use super::soon;

struct Toy;

impl Driver for Toy {
    async fn prepare(&self, claim: Claim) -> Result<Vec<PreparedDevice>, ClaimError> {
        if claim.name == "broken" {
            return Err(ClaimError { reason: format!("{}: no such card", claim.name) });
        }
        Ok(vec![PreparedDevice {
            request_names: vec!["gpu".into()],
            pool_name: "node1".into(),
            device_name: "gpu-0".into(),
            cdi_device_ids: vec![format!("gpu.example.com/claim={}", claim.uid)],
            share_id: Some("share".into()),
        }])
    }

    async fn unprepare(&self, claim: Claim) -> Result<(), ClaimError> {
        // A careless driver: the kubelet must still learn that it failed.
        if claim.name == "broken" { Err(ClaimError { reason: String::new() }) } else { Ok(()) }
    }
}

fn claim(name: &str) -> Claim {
    Claim { namespace: "default".into(), uid: format!("uid-{name}"), name: name.into() }
}

async fn client(path: &Path) -> DraPluginClient<tonic::transport::Channel> {
    let endpoint = Endpoint::from_shared(format!("unix://{}", path.display())).unwrap();
    DraPluginClient::new(endpoint.connect().await.unwrap())
}

#[tokio::test]
async fn each_claim_has_its_own_outcome() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config {
        driver: "gpu.example.com".into(),
        folder: dir.path().into(),
        kubelet_folder: "/var/lib/kubelet/plugins/gpu.example.com".into(),
        registry: dir.path().into(),
    };
    let running = dra::start(&config, Arc::new(Toy)).await.unwrap();
    let mut kubelet = client(&dir.path().join(SOCKET)).await;

    let claims = vec![claim("good"), claim("broken")];
    let request = wire::NodePrepareResourcesRequest { claims: claims.clone() };
    let answer = kubelet.node_prepare_resources(request).await.unwrap().into_inner().claims;
    assert_eq!(answer.len(), 2);
    assert_eq!(answer["uid-good"].devices[0].cdi_device_ids, ["gpu.example.com/claim=uid-good"]);
    assert_eq!(answer["uid-good"].devices[0].share_id.as_deref(), Some("share"));
    assert_eq!(answer["uid-good"].error, "");
    assert_eq!(answer["uid-broken"].error, "broken: no such card");

    let request = wire::NodeUnprepareResourcesRequest { claims };
    let answer = kubelet.node_unprepare_resources(request).await.unwrap().into_inner().claims;
    assert_eq!(answer["uid-good"].error, "");
    assert_ne!(answer["uid-broken"].error, "");

    drop(kubelet);
    soon("stop", running.stop()).await;
    assert!(!dir.path().join(SOCKET).exists());
    assert!(!dir.path().join(socket_name("gpu.example.com")).exists());
}
