//! Pods run, talk, and are looked into.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use testbed::{BASE, Image};

use crate::shared::{cluster, in_peace, session, sleeper};

#[tokio::test]
async fn a_pod_runs_logs_and_answers() {
    let _peace = in_peace().await;
    let session = session();
    let ns = session.namespace("pods").await.unwrap();
    session.apply(&ns, &sleeper("hello", "")).await.unwrap();
    session.running(&ns, "hello").await.unwrap();
    session.says(&ns, "hello", "c", |said| said == "hello from hello\n").await.unwrap();
    let answer = session
        .exec(&ns, "hello", "c", &["sh", "-c", "echo out; echo err >&2; exit 7"])
        .await
        .unwrap();
    assert_eq!(
        (answer.stdout.as_str(), answer.stderr.as_str(), answer.code),
        ("out\n", "err\n", 7)
    );
}

#[tokio::test]
async fn pods_of_two_nodes_reach_one_another_and_the_api_server() {
    let _peace = in_peace().await;
    let session = session();
    let ns = session.namespace("net").await.unwrap();
    let manifest = format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: server, labels: {{app: server}}}}
spec:
  nodeSelector: {{kubernetes.io/hostname: node1}}
  containers:
  - {{name: c, image: {BASE}, command: [sh, -c, 'mkdir /w; echo served > /w/index.html; httpd -f -h /w']}}
---
apiVersion: v1
kind: Service
metadata: {{name: server}}
spec: {{selector: {{app: server}}, ports: [{{port: 80}}]}}
"
    );
    session.apply(&ns, &manifest).await.unwrap();
    let server = session.running(&ns, "server").await.unwrap();
    // Created after the Service, so that it has its address in the environment.
    let client = sleeper("client", "nodeSelector: {kubernetes.io/hostname: node2}");
    session.apply(&ns, &client).await.unwrap();
    session.running(&ns, "client").await.unwrap();

    let ip = server.status.unwrap().pod_ip.unwrap();
    for from in
        [format!("wget -q -O - http://{ip}"), "wget -q -O - http://$SERVER_SERVICE_HOST".to_owned()]
    {
        // kube-proxy learns of the Service's pods a little after they are ready.
        let patient =
            format!("for i in 1 2 3 4 5 6 7 8 9; do {from} && exit 0; sleep 1; done; exit 1");
        let answer = session.exec(&ns, "client", "c", &["sh", "-c", &patient]).await.unwrap();
        assert_eq!(
            (answer.stdout.as_str(), answer.code),
            ("served\n", 0),
            "{from}: {}",
            answer.stderr
        );
    }
    let api = "nc -w 5 $KUBERNETES_SERVICE_HOST 443 </dev/null";
    let answer = session.exec(&ns, "client", "c", &["sh", "-c", api]).await.unwrap();
    assert_eq!(answer.code, 0, "{}", answer.stderr);
}

#[tokio::test]
async fn a_wait_in_vain_tells_the_story() {
    let _peace = in_peace().await;
    let session = session().patience(Duration::from_secs(8));
    let ns = session.namespace("story").await.unwrap();
    let lost = sleeper("lost", "").replace(BASE, "localhost/not-there:1");
    session.apply(&ns, &lost).await.unwrap();
    let message = session.running(&ns, "lost").await.unwrap_err().to_string();
    assert!(message.starts_with("Pod lost is not: running and ready, after 8s"), "{message}");
    assert!(message.contains("localhost/not-there:1"), "the image is named: {message}");
    assert!(message.contains("event "), "events are told: {message}");
}

#[tokio::test]
async fn a_process_of_a_pod_can_be_killed() {
    let _peace = in_peace().await;
    let session = session();
    let ns = session.namespace("kill").await.unwrap();
    session.apply(&ns, &sleeper("victim", "")).await.unwrap();
    let pod = session.running(&ns, "victim").await.unwrap();
    let status = pod.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0].clone();
    let container = status.container_id.unwrap().replace("containerd://", "");
    let of_pod = cluster().processes_of(&pod.uid().unwrap()).unwrap();
    let of_container = cluster().processes_of(&container).unwrap();
    assert_eq!(of_container.len(), 1, "one process sleeps");
    assert!(of_pod.len() > 1 && of_pod.contains(&of_container[0]), "and another holds the pod");
    cluster().kill_process(of_container[0]).unwrap();
    session
        .wait::<Pod>(&ns, "victim", "restarted", |pod| {
            let containers =
                pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
            containers.into_iter().any(|container| container.restart_count > 0 && container.ready)
        })
        .await
        .unwrap();
    assert!(cluster().kill_process(1).is_err(), "what is not the cluster's is left alone");
}

#[tokio::test]
async fn a_folder_becomes_an_image() {
    let _peace = in_peace().await;
    let session = session();
    let ns = session.namespace("image").await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    std::fs::create_dir_all(root.join("bin")).unwrap();
    std::fs::copy(cluster().binaries().busybox(), root.join("bin/sh")).unwrap();
    std::fs::write(root.join("message"), "from a folder\n").unwrap();
    let archive = folder.path().join("made.tar");
    let image = Image::new("localhost/made:1", &root).user("1000:1000").env("WHO", "me");
    image.entrypoint(&["/bin/sh", "-c"]).write(&archive).unwrap();
    cluster().load_image("node2", &archive).unwrap();
    let pod = "apiVersion: v1
kind: Pod
metadata: {name: made}
spec:
  nodeName: node2
  containers:
  - {name: c, image: localhost/made:1, imagePullPolicy: Never, args: ['while read l; do echo $WHO $l; done < /message; while :; do read x; done < /dev/zero']}
";
    session.apply(&ns, pod).await.unwrap();
    session.running(&ns, "made").await.unwrap();
    session.says(&ns, "made", "c", |said| said == "me from a folder\n").await.unwrap();
}
