//! Components are stopped, killed, paused and started again.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use testbed::{Component, Session};

use crate::shared::{alone, cluster, session, sleeper};

/// When a node's kubelet last said that it is there.
async fn heartbeat(session: &Session, node: &str) -> Option<String> {
    let nodes: Api<Node> = Api::all(session.client());
    let node = nodes.get(node).await.ok()?;
    let ready =
        node.status?.conditions?.into_iter().find(|condition| condition.type_ == "Ready")?;
    ready.last_heartbeat_time.map(|time| time.0.to_string())
}

#[tokio::test]
async fn pods_outlive_their_kubelet_and_their_containerd() {
    let _alone = alone().await;
    let session = session();
    let ns = session.namespace("outlive").await.unwrap();
    session
        .apply(&ns, &sleeper("stays", "nodeSelector: {kubernetes.io/hostname: node1}"))
        .await
        .unwrap();
    let before = session.running(&ns, "stays").await.unwrap();
    cluster().kill(&Component::containerd("node1")).unwrap();
    cluster().revive(&Component::containerd("node1")).unwrap();
    cluster().restart(&Component::kubelet("node1")).unwrap();
    let last = heartbeat(&session, "node1").await;
    for _ in 0..600 {
        let now = heartbeat(&session, "node1").await;
        if now.is_some() && now != last {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let after = session.running(&ns, "stays").await.unwrap();
    let started = |pod: &Pod| {
        pod.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0].container_id.clone()
    };
    assert_eq!(started(&before), started(&after), "the same container");
    // A kubelet that starts learns of its pods a little after it says that it is there.
    let mut answer = session.exec(&ns, "stays", "c", &["echo", "alive"]).await;
    for _ in 0..30 {
        if answer.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        answer = session.exec(&ns, "stays", "c", &["echo", "alive"]).await;
    }
    assert_eq!(answer.unwrap().stdout, "alive\n");
}

#[tokio::test]
async fn a_paused_scheduler_decides_nothing_until_it_goes_on() {
    let _alone = alone().await;
    let session = session();
    let ns = session.namespace("paused").await.unwrap();
    let stock = Component::scheduler();
    cluster().pause(&stock).unwrap();
    session.apply(&ns, &sleeper("waits", "")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let pods: Api<Pod> = Api::namespaced(session.client(), &ns);
    let node = pods.get("waits").await.unwrap().spec.unwrap().node_name;
    cluster().resume(&stock).unwrap();
    assert_eq!(node, None);
    session.running(&ns, "waits").await.unwrap();
}

#[tokio::test]
async fn a_component_that_does_not_exist_is_named() {
    let message = cluster().kill(&Component::kubelet("node9")).unwrap_err().to_string();
    assert!(message.contains("has no kubelet-node9; it has: "), "{message}");
    assert!(message.contains("kubelet-node1"), "{message}");
    let running = cluster().revive(&Component::Etcd).unwrap_err().to_string();
    assert_eq!(running, "etcd is running");
}

#[tokio::test]
async fn every_node_offers_nri_and_a_folder_for_cdi() {
    let layout = cluster().layout();
    for node in ["node1", "node2"] {
        let socket = layout.on_node(node, "/run/nri/nri.sock");
        assert!(std::os::unix::net::UnixStream::connect(&socket).is_ok(), "{}", socket.display());
        assert!(layout.on_node(node, "/var/run/cdi").is_dir());
    }
}
