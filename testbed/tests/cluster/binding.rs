//! A Binding sets a pod's node and merges its annotations in one write, or does nothing.

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::shared::{ON_FAKE, in_peace, session, sleeper};

async fn bind(pods: &Api<Pod>, name: &str, metadata: Value) -> Result<Value, kube::Error> {
    let mut metadata = metadata;
    metadata["name"] = json!(name);
    let binding = json!({
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": metadata,
        "target": {"apiVersion": "v1", "kind": "Node", "name": "fake-00001"},
    });
    pods.create_subresource("binding", name, &PostParams::default(), &binding).await
}

fn code(outcome: Result<Value, kube::Error>) -> u16 {
    match outcome {
        Err(kube::Error::Api(status)) => status.code,
        other => panic!("the API server is to refuse: {other:?}"),
    }
}

#[tokio::test]
async fn annotations_land_with_the_node_or_not_at_all() {
    let _peace = in_peace().await;
    let session = session();
    let ns = session.namespace("binding").await.unwrap();
    let pods: Api<Pod> = Api::namespaced(session.client(), &ns);
    let manifest = sleeper("bound", &format!("schedulerName: nobody\n  {ON_FAKE}"));
    session.apply(&ns, &manifest).await.unwrap();
    let pod = pods.get("bound").await.unwrap();
    let (uid, version) = (pod.uid().unwrap(), pod.resource_version().unwrap());
    let marks = json!({"example.com/placement": "card 3"});

    let wrong_uid = json!({"uid": "00000000-0000-0000-0000-000000000000", "annotations": marks});
    assert_eq!(code(bind(&pods, "bound", wrong_uid).await), 409);
    let wrong_version = json!({"uid": uid, "resourceVersion": "1", "annotations": marks});
    assert_eq!(code(bind(&pods, "bound", wrong_version).await), 409);
    let untouched = pods.get("bound").await.unwrap();
    assert_eq!(untouched.resource_version(), Some(version.clone()), "nothing was written");

    let params = WatchParams::default().fields("metadata.name=bound");
    let mut changes = pods.watch(&params, &version).await.unwrap().boxed();
    bind(&pods, "bound", json!({"uid": uid, "resourceVersion": version, "annotations": marks}))
        .await
        .unwrap();
    let Some(Ok(WatchEvent::Modified(first))) = changes.next().await else {
        panic!("a change is seen")
    };
    assert_eq!(first.spec.as_ref().unwrap().node_name.as_deref(), Some("fake-00001"));
    assert_eq!(first.annotations()["example.com/placement"], "card 3", "in the very same write");

    let again = json!({"uid": uid, "annotations": {"example.com/placement": "card 4"}});
    assert_eq!(code(bind(&pods, "bound", again).await), 409, "a bound pod stays where it is");
    let listed = pods.list(&ListParams::default()).await.unwrap();
    assert_eq!(listed.items[0].annotations()["example.com/placement"], "card 3");
}
