//! The manifests we ship: the API server takes them, and what they start works, goes down and
//! comes back by itself.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::core::{DynamicObject, GroupVersionKind};
use kube::discovery::{Scope, pinned_kind};
use serde_json::{Value, json};
use stories::shipped::{self, DEFAULT, SECOND};
use testbed::{Cluster, FakeNodes, Image, Options, Program, Session};

use crate::bed::{self, Bed, asks, node_of, percent, program};

const NAMESPACE: &str = "nanogpu-system";

/// All documents of a file.
fn documents(text: &str) -> Result<Vec<Value>> {
    Ok(serde_saphyr::from_multiple(text)?)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_takes_every_manifest() -> Result<()> {
    let bed = Bed::new().await?;
    let client = bed.session.client();
    for text in [SECOND, DEFAULT] {
        for document in documents(text)? {
            let object: DynamicObject = serde_json::from_value(document)?;
            let kind = GroupVersionKind::try_from(object.types.clone().context("a kind")?)?;
            let (resource, capabilities) = pinned_kind(&client, &kind).await?;
            let api: Api<DynamicObject> = match (capabilities.scope, &object.metadata.namespace) {
                (Scope::Cluster, _) => Api::all_with(client.clone(), &resource),
                (Scope::Namespaced, namespace) => {
                    let namespace = namespace.as_deref().context("a namespace")?;
                    Api::namespaced_with(client.clone(), namespace, &resource)
                }
            };
            let name = object.metadata.name.clone().context("a name")?;
            let mut params = PatchParams::apply("dry").force().dry_run();
            // A field that does not exist is an error, not a warning.
            params.field_validation = Some(kube::api::ValidationDirective::Strict);
            api.patch(&name, &params, &Patch::Apply(&object))
                .await
                .with_context(|| format!("{} {name}", kind.kind))?;
        }
    }
    Ok(())
}

/// The image of a program and of the libraries it is linked to.
fn image(folder: &Path, name: &str, program: &Path) -> Result<PathBuf> {
    let root = folder.join(name);
    let file = program.file_name().context("a file")?;
    std::fs::create_dir_all(root.join("bin"))?;
    // What helps a debugger is most of it.
    let slim = root.join("bin").join(file);
    let stripped = Command::new("strip").arg("-o").arg(&slim).arg(program).status();
    if !stripped.is_ok_and(|status| status.success()) {
        std::fs::copy(program, &slim)?;
    }
    let listed = Command::new("ldd").arg(program).output()?;
    for line in String::from_utf8_lossy(&listed.stdout).lines() {
        let Some(path) = line.split_whitespace().find(|word| word.starts_with('/')) else {
            continue;
        };
        let to = root.join(path.trim_start_matches('/'));
        std::fs::create_dir_all(to.parent().context("a folder")?)?;
        std::fs::copy(path, to)?;
    }
    let archive = folder.join(format!("{name}.tar"));
    let entry = format!("/bin/{}", file.to_string_lossy());
    Image::new(&format!("localhost/{name}:1"), &root)
        .entrypoint(&[&entry])
        .env("PATH", "/bin")
        .write(&archive)?;
    Ok(archive)
}

/// The Deployment as shipped, but for where its images come from and that it runs on the one
/// node that is real.
fn here(text: &str) -> Result<String> {
    let mut all = documents(text)?;
    for document in &mut all {
        if document["kind"] != json!("Deployment") {
            continue;
        }
        let pod = &mut document["spec"]["template"]["spec"];
        pod["nodeSelector"] = json!({"kubernetes.io/hostname": "node1"});
        for container in pod["containers"].as_array_mut().context("containers")? {
            let name = container["name"].as_str().context("a name")?.to_owned();
            container["image"] = json!(format!("localhost/{name}:1"));
            container["imagePullPolicy"] = json!("Never");
        }
    }
    let all: Vec<String> = all.iter().map(Value::to_string).collect();
    Ok(all.join("\n---\n"))
}

/// A cluster of one real node, one of cards, and nanogpu as its manifests start it.
async fn deploy() -> Result<Session> {
    let fake = FakeNodes::new(1)
        .prefix("gpu-")
        .capacity("nano-gpu/gpu-percent", &(100 * bed::CARDS).to_string())
        .annotation("nano-gpu/inventory", &bed::inventory("healthy"));
    let options = Options::new("deployed").nodes(1).fake(fake);
    let cluster = tokio::task::spawn_blocking(move || {
        let cluster = Cluster::for_tests(options)?;
        let folder = tempfile::tempdir()?;
        let kube_scheduler = cluster.binaries().path(Program::Scheduler);
        for (name, file) in [("nanogpu-scheduler", program()?), ("kube-scheduler", kube_scheduler)]
        {
            cluster.load_image("node1", &image(folder.path(), name, &file)?)?;
        }
        anyhow::Ok(cluster)
    })
    .await??;
    let session = cluster.session()?.patience(Duration::from_mins(2));
    // The agents are played, below.
    let parts = [
        shipped::NAMESPACE,
        "scheduler/rbac.yaml",
        "scheduler/placement-policy.yaml",
        "scheduler/service.yaml",
        "scheduler/webhook.yaml",
        "scheduler/kube-scheduler.yaml",
    ];
    session.apply("default", &shipped::parts(SECOND, &parts)).await?;
    let silenced: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    bed::agents(session.clone(), silenced, bed::names_of(1), Duration::from_secs(2));
    let deployment = shipped::parts(SECOND, &["scheduler/deployment.yaml"]);
    session.apply(NAMESPACE, &here(&deployment)?).await?;
    Ok(session)
}

async fn ready(session: &Session, replicas: i32) -> Result<()> {
    let ready = |deployment: &Deployment| {
        let status = deployment.status.as_ref();
        status.and_then(|status| status.ready_replicas).unwrap_or(0) == replicas
    };
    let waited = session.wait(NAMESPACE, "nanogpu-scheduler", "ready", ready).await;
    if let Err(error) = waited {
        let pods: Api<Pod> = Api::namespaced(session.client(), NAMESPACE);
        let mut stories = String::new();
        for pod in pods.list(&ListParams::default()).await? {
            let name = pod.metadata.name.unwrap_or_default();
            stories += &session.story(NAMESPACE, &name).await;
        }
        return Err(error.context(stories));
    }
    Ok(())
}

/// A Deployment of one pod with a share.
fn wants_a_card(name: &str) -> Value {
    let mut pod = percent(name, 20);
    pod["metadata"] = json!({"labels": {"app": name}});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {
            "replicas": 1, "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": pod["metadata"], "spec": pod["spec"]},
        },
    })
}

/// Waits until a pod of that Deployment is bound.
async fn bound(session: &Session, namespace: &str, app: &str) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(session.client(), namespace);
    let hang = Instant::now();
    loop {
        let list = pods.list(&ListParams::default().labels(&format!("app={app}"))).await?;
        if list.iter().any(|pod| node_of(pod).is_some()) {
            return Ok(());
        }
        if hang.elapsed() > Duration::from_mins(2) {
            let told = told(session, namespace).await?;
            anyhow::bail!("no pod of {app} is bound; {} exist: {told:#?}", list.items.len());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Waits until no pod is on its way out: until then it answers whoever is connected.
async fn ended(pods: &Api<Pod>) -> Result<()> {
    let hang = Instant::now();
    loop {
        let list = pods.list(&ListParams::default()).await?;
        let mut names = list.iter().filter(|pod| pod.metadata.deletion_timestamp.is_some());
        let Some(one) = names.next() else { return Ok(()) };
        ensure!(hang.elapsed() < Duration::from_mins(1), "{:?} does not end", one.metadata.name);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn cordon(session: &Session, cordoned: bool) -> Result<()> {
    let nodes: Api<Node> = Api::all(session.client());
    let patch = Patch::Merge(json!({"spec": {"unschedulable": cordoned}}));
    nodes.patch("node1", &PatchParams::default(), &patch).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn all_replicas_go_and_come_back_by_themselves() -> Result<()> {
    let session = deploy().await?;
    let told = goes_and_comes(&session).await;
    // Nobody else wants it, and two clusters at once are slow.
    let name = format!("t{}-deployed", std::process::id());
    tokio::task::spawn_blocking(move || testbed::down(&name)).await??;
    told
}

async fn goes_and_comes(session: &Session) -> Result<()> {
    ready(session, 2).await.context("as deployed")?;
    let namespace = session.namespace("team").await?;
    session.apply(&namespace, &wants_a_card("before").to_string()).await?;
    bound(session, &namespace, "before").await?;

    // All our pods are deleted, and for a while none can start.
    cordon(session, true).await?;
    let ours: Api<Pod> = Api::namespaced(session.client(), NAMESPACE);
    let mine = ListParams::default().labels("app.kubernetes.io/name=nanogpu-scheduler");
    ours.delete_collection(&DeleteParams::default().grace_period(1), &mine).await?;
    ended(&ours).await?;
    ready(session, 0).await.context("after all were deleted")?;
    let pods: Api<Pod> = Api::namespaced(session.client(), &namespace);
    let mut ordinary = asks("ordinary", &json!({"cpu": "1"}));
    ordinary["spec"]["schedulerName"] = json!("default-scheduler");
    pods.create(&kube::api::PostParams::default(), &serde_json::from_value(ordinary)?).await?;
    session.wait(&namespace, "ordinary", "bound", |pod: &Pod| node_of(pod).is_some()).await?;
    session.apply(&namespace, &wants_a_card("meanwhile").to_string()).await?;
    refused(session, &namespace, "pods.nano-gpu.io").await?;

    // Nobody does anything for them but to let pods start again.
    cordon(session, false).await?;
    ready(session, 2).await.context("after they came back")?;
    bound(session, &namespace, "meanwhile").await
}

/// Waits until somebody was told why their pods are not created.
async fn refused(session: &Session, namespace: &str, text: &str) -> Result<()> {
    let hang = Instant::now();
    loop {
        let told = told(session, namespace).await?;
        if told.iter().any(|message| message.contains(text)) {
            return Ok(());
        }
        ensure!(hang.elapsed() < Duration::from_mins(1), "nobody was told: {told:#?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// What events of the namespace say.
async fn told(session: &Session, namespace: &str) -> Result<Vec<String>> {
    let events: Api<Event> = Api::namespaced(session.client(), namespace);
    let all = events.list(&ListParams::default()).await?;
    Ok(all.into_iter().filter_map(|event| event.message).collect())
}
