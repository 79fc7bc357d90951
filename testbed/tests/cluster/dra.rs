//! Dynamic resource allocation with consumable capacity: two pods share a device, a third waits.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::{Api, Client};
use kubelet::cdi::{self, ContainerEdits, Kind, Spec, Specs};
use kubelet::dra::{self, Claim, ClaimError, Config, Driver, PreparedDevice};
use testbed::BASE;

use crate::shared::{cluster, in_peace, session};

const DRIVER: &str = "gpu.example.com";

struct Toy {
    client: Client,
    specs: Specs,
}

/// What was allocated for a claim, as the scheduler wrote it.
struct Allocated {
    device: String,
    pool: String,
    request: String,
    share: Option<String>,
    memory: String,
}

impl Toy {
    async fn allocated(&self, claim: &Claim) -> Result<Allocated, ClaimError> {
        let claims: Api<ResourceClaim> = Api::namespaced(self.client.clone(), &claim.namespace);
        let found = claims.get(&claim.name).await.map_err(|error| reason(&error))?;
        let results = found
            .status
            .and_then(|status| status.allocation)
            .and_then(|allocation| allocation.devices)
            .and_then(|devices| devices.results);
        let result =
            results.into_iter().flatten().next().ok_or_else(|| reason(&"nothing is allocated"))?;
        let consumed = result.consumed_capacity.unwrap_or_default();
        Ok(Allocated {
            device: result.device,
            pool: result.pool,
            request: result.request,
            share: result.share_id,
            memory: consumed.get("memory").map(|amount| amount.0.clone()).unwrap_or_default(),
        })
    }
}

fn reason(error: &dyn std::fmt::Display) -> ClaimError {
    ClaimError { reason: error.to_string() }
}

impl Driver for Toy {
    async fn prepare(&self, claim: Claim) -> Result<Vec<PreparedDevice>, ClaimError> {
        let allocated = self.allocated(&claim).await?;
        let kind = Kind::parse("gpu.example.com/claim").map_err(|error| reason(&error))?;
        let env = vec![format!("TOY={} {}", allocated.device, allocated.memory)];
        let edits = ContainerEdits { env, ..ContainerEdits::default() };
        let spec = cdi::Device::new(claim.uid.clone(), edits)
            .and_then(|device| Spec::new(kind.clone(), [device]))
            .map_err(|error| reason(&error))?;
        match self.specs.write(&claim.uid, &spec) {
            Ok(_) | Err(cdi::SpecsError::Exists { .. }) => {}
            Err(error) => return Err(reason(&error)),
        }
        let name = kind.device(&claim.uid).map_err(|error| reason(&error))?;
        Ok(vec![PreparedDevice {
            request_names: vec![allocated.request],
            pool_name: allocated.pool,
            device_name: allocated.device,
            cdi_device_ids: vec![name],
            share_id: allocated.share,
        }])
    }

    async fn unprepare(&self, claim: Claim) -> Result<(), ClaimError> {
        self.specs.remove(&claim.uid).map(drop).map_err(|error| reason(&error))
    }
}

const CARDS: &str = r#"
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: node1-toy}
spec:
  driver: gpu.example.com
  nodeName: node1
  pool: {name: node1, generation: 1, resourceSliceCount: 1}
  devices:
  - name: gpu-0
    allowMultipleAllocations: true
    capacity:
      memory: {value: 80Gi, requestPolicy: {default: 1Gi, validRange: {min: 1Gi, step: 1Gi}}}
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu.example.com}
spec:
  selectors: [{cel: {expression: 'device.driver == "gpu.example.com"'}}]
"#;

fn template() -> &'static str {
    "apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: part}
spec:
  spec:
    devices:
      requests:
      - {name: card, exactly: {deviceClassName: gpu.example.com, capacity: {requests: {memory: 30Gi}}}}
"
}

fn pod(name: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 0
  resourceClaims: [{{name: card, resourceClaimTemplateName: part}}]
  containers:
  - {{name: c, image: {BASE}, command: [sh, -c, 'echo $TOY; sleep 100000'], resources: {{claims: [{{name: card}}]}}}}
"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn two_pods_share_a_device_and_a_third_waits() {
    let _peace = in_peace().await;
    let session = session();
    let layout = cluster().layout();
    let folder = layout.on_node("node1", "/var/lib/kubelet/plugins").join(DRIVER);
    std::fs::create_dir_all(&folder).unwrap();
    let config = Config {
        driver: DRIVER.to_owned(),
        folder,
        kubelet_folder: format!("/var/lib/kubelet/plugins/{DRIVER}").into(),
        registry: layout.on_node("node1", "/var/lib/kubelet/plugins_registry"),
    };
    let specs = Specs::open(layout.on_node("node1", "/run/cdi")).unwrap();
    let toy = Arc::new(Toy { client: session.client(), specs });
    // A stock kubelet takes a driver whose server is ours: the name of its socket sees to that.
    let running = dra::start(&config, toy).await.unwrap();

    let ns = session.namespace("dra").await.unwrap();
    session.apply(&ns, CARDS).await.unwrap();
    session.apply(&ns, template()).await.unwrap();
    for name in ["one", "two"] {
        session.apply(&ns, &pod(name)).await.unwrap();
        session.running(&ns, name).await.unwrap();
        session.says(&ns, name, "c", |said| said == "gpu-0 30Gi\n").await.unwrap();
    }
    let claims: Api<ResourceClaim> = Api::namespaced(session.client(), &ns);
    let mut shares: Vec<String> = Vec::new();
    for claim in claims.list(&kube::api::ListParams::default()).await.unwrap() {
        let devices = claim.status.unwrap().allocation.unwrap().devices.unwrap();
        shares.extend(devices.results.unwrap().into_iter().filter_map(|result| result.share_id));
    }
    shares.sort();
    shares.dedup();
    assert_eq!(shares.len(), 2, "each has a share of its own");

    session.apply(&ns, &pod("three")).await.unwrap();
    let refused = session
        .wait::<Pod>(&ns, "three", "refused", |pod| {
            let conditions =
                pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
            conditions
                .into_iter()
                .any(|condition| condition.reason.as_deref() == Some("Unschedulable"))
        })
        .await
        .unwrap();
    assert_eq!(refused.spec.unwrap().node_name, None);

    // Room comes when one leaves.
    let pods: Api<Pod> = Api::namespaced(session.client(), &ns);
    pods.delete("one", &kube::api::DeleteParams::default()).await.unwrap();
    session.running(&ns, "three").await.unwrap();
    for name in ["two", "three"] {
        pods.delete(name, &kube::api::DeleteParams::default()).await.unwrap();
        session.gone::<Pod>(&ns, name).await.unwrap();
    }
    tokio::time::timeout(Duration::from_mins(1), running.stop()).await.unwrap();
}
