//! kube-scheduler calls an extender: which verbs, with which bodies.

use std::sync::{Arc, Mutex};

use axum::Json;
use axum::extract::{Path, State};
use axum::routing::post;
use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::{Value, json};
use testbed::Session;

use crate::shared::{EXTENDED, ON_FAKE, cluster, in_peace, session, sleeper};

#[derive(Clone)]
struct Extender {
    calls: Arc<Mutex<Vec<(String, Value)>>>,
    client: Client,
}

impl Extender {
    fn bodies(&self, verb: &str) -> Vec<Value> {
        let calls = self.calls.lock().unwrap();
        calls.iter().filter(|(name, _)| name == verb).map(|(_, body)| body.clone()).collect()
    }
}

/// Says yes to everything, prefers the last node, and binds itself.
async fn answer(
    State(extender): State<Extender>,
    Path(verb): Path<String>,
    Json(body): Json<Value>,
) -> Json<Value> {
    extender.calls.lock().unwrap().push((verb.clone(), body.clone()));
    let names: Vec<String> = match (&body["NodeNames"], &body["Nodes"]["items"]) {
        (Value::Array(names), _) => {
            names.iter().map(|name| name.as_str().unwrap().to_owned()).collect()
        }
        (_, Value::Array(nodes)) => {
            nodes.iter().map(|node| node["metadata"]["name"].as_str().unwrap().to_owned()).collect()
        }
        _ => Vec::new(),
    };
    Json(match verb.as_str() {
        "filter" => {
            json!({"Nodes": body["Nodes"], "NodeNames": body["NodeNames"], "FailedNodes": {}, "Error": ""})
        }
        "prioritize" => {
            let last = names.iter().max().cloned().unwrap_or_default();
            json!(
                names
                    .iter()
                    .map(|name| json!({"Host": name, "Score": if *name == last { 10 } else { 0 }}))
                    .collect::<Vec<_>>()
            )
        }
        "bind" => json!({"Error": bind(&extender.client, &body).await}),
        "preempt" => json!({"NodeNameToMetaVictims": meta(&body)}),
        other => panic!("kube-scheduler calls `{other}`"),
    })
}

async fn bind(client: &Client, body: &Value) -> String {
    let text = |key: &str| body[key].as_str().unwrap().to_owned();
    let pods: Api<Pod> = Api::namespaced(client.clone(), &text("PodNamespace"));
    let binding = json!({
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": text("PodName"), "uid": text("PodUID"), "annotations": {"example.com/by": "extender"}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": text("Node")},
    });
    match pods
        .create_subresource::<Value, Value>(
            "binding",
            &text("PodName"),
            &PostParams::default(),
            &binding,
        )
        .await
    {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    }
}

/// The victims that were proposed, as they are answered: by UID.
fn meta(body: &Value) -> Value {
    if body["NodeNameToMetaVictims"].is_object() {
        return body["NodeNameToMetaVictims"].clone();
    }
    let Value::Object(nodes) = &body["NodeNameToVictims"] else { panic!("victims of some form") };
    let nodes = nodes.iter().map(|(node, victims)| {
        let pods: Vec<Value> = victims["Pods"]
            .as_array()
            .unwrap()
            .iter()
            .map(|pod| json!({"UID": pod["metadata"]["uid"]}))
            .collect();
        (node.clone(), json!({"Pods": pods, "NumPDBViolations": 0}))
    });
    Value::Object(nodes.collect())
}

fn config(port: u16, names_only: bool) -> String {
    format!(
        "profiles: [{{schedulerName: {EXTENDED}}}]
extenders:
- urlPrefix: http://127.0.0.1:{port}/v
  filterVerb: filter
  prioritizeVerb: prioritize
  bindVerb: bind
  preemptVerb: preempt
  weight: 100
  nodeCacheCapable: {names_only}
  managedResources: [{{name: example.com/gpu}}]
"
    )
}

fn pod(name: &str, priority: &str, amount: u32) -> String {
    let spec = format!("schedulerName: {EXTENDED}\n  {priority}\n  {ON_FAKE}");
    let limits = format!("    resources: {{limits: {{example.com/gpu: {amount}}}}}\n");
    sleeper(name, &spec) + &limits
}

#[tokio::test]
async fn an_extender_is_asked_in_all_verbs() {
    let _peace = in_peace().await;
    let session = session();
    let ns = session.namespace("extender").await.unwrap();
    session.apply(&ns, "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: urgent}\nvalue: 1000\n").await.unwrap();
    let extender = Extender { calls: Arc::default(), client: session.client() };
    let listener = cluster().listen("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    listener.set_nonblocking(true).unwrap();
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    let routes = axum::Router::new()
        .route("/v/{verb}", post(answer))
        .layer(axum::extract::DefaultBodyLimit::max(64 << 20))
        .with_state(extender.clone());
    tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });

    for names_only in [true, false] {
        extender.calls.lock().unwrap().clear();
        cluster().configure_scheduler(EXTENDED, &config(port, names_only)).unwrap();
        check(&session, &ns, &extender, names_only).await;
    }
}

async fn check(session: &Session, ns: &str, extender: &Extender, names_only: bool) {
    let tag = if names_only { "names" } else { "nodes" };
    let first = format!("first-{tag}");
    session.apply(ns, &pod(&first, "", 60)).await.unwrap();
    let bound = session.running(ns, &first).await.unwrap();
    assert_eq!(bound.spec.unwrap().node_name.as_deref(), Some("fake-00002"), "as prioritize says");
    assert_eq!(bound.metadata.annotations.unwrap()["example.com/by"], "extender");

    let filter = extender.bodies("filter").remove(0);
    assert_eq!(filter["Pod"]["metadata"]["name"], first.as_str());
    if names_only {
        let mut names: Vec<&str> = filter["NodeNames"]
            .as_array()
            .unwrap()
            .iter()
            .map(|name| name.as_str().unwrap())
            .collect();
        names.sort_unstable();
        assert_eq!(names, ["fake-00000", "fake-00001", "fake-00002"]);
        assert!(filter["Nodes"].is_null());
    } else {
        assert_eq!(filter["Nodes"]["items"].as_array().unwrap().len(), 3);
        assert!(
            filter["Nodes"]["items"][0]["status"]["allocatable"]["example.com/gpu"].is_string()
        );
        assert!(filter["NodeNames"].is_null());
    }
    assert_eq!(extender.bodies("prioritize").remove(0)["Pod"]["metadata"]["name"], first.as_str());
    let bind = extender.bodies("bind").remove(0);
    let keys: Vec<&String> = bind.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["Node", "PodName", "PodNamespace", "PodUID"]);

    // A pod without the managed resource is none of the extender's business.
    let calls = extender.bodies("filter").len();
    let plain = format!("plain-{tag}");
    session
        .apply(ns, &sleeper(&plain, &format!("schedulerName: {EXTENDED}\n  {ON_FAKE}")))
        .await
        .unwrap();
    session.running(ns, &plain).await.unwrap();
    assert_eq!(extender.bodies("filter").len(), calls);

    // Fill the others, then let someone urgent in.
    for index in 0..2 {
        let name = format!("fill-{tag}-{index}");
        session.apply(ns, &pod(&name, "", 60)).await.unwrap();
        session.running(ns, &name).await.unwrap();
    }
    let urgent = format!("urgent-{tag}");
    session.apply(ns, &pod(&urgent, "priorityClassName: urgent", 60)).await.unwrap();
    session.running(ns, &urgent).await.unwrap();
    let preempt = extender.bodies("preempt").remove(0);
    assert_eq!(preempt["Pod"]["metadata"]["name"], urgent.as_str());
    let victims = if names_only { "NodeNameToMetaVictims" } else { "NodeNameToVictims" };
    let victims = preempt[victims].as_object().unwrap();
    assert_eq!(victims.len(), 3, "every node could make room");
    assert!(victims.values().all(|node| node["Pods"].as_array().unwrap().len() == 1));

    let pods: Api<Pod> = Api::namespaced(session.client(), ns);
    let now = kube::api::DeleteParams::default().grace_period(0);
    pods.delete_collection(&now, &kube::api::ListParams::default()).await.unwrap();
    for name in [first, plain, format!("fill-{tag}-0"), format!("fill-{tag}-1"), urgent] {
        session.gone::<Pod>(ns, &name).await.unwrap();
    }
}
