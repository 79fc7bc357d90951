//! How much memory nanogpu-scheduler needs in a large cluster, by a real API server's lists and
//! watches. Reported, not judged: `cargo xtask soak size`.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;
use testbed::{Cluster, Options};

use crate::bed::{self, CARDS, Scheduler, percent};

fn number(name: &str) -> Option<usize> {
    std::env::var(name).ok()?.parse().ok()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes on a machine of its own: cargo xtask soak size"]
async fn memory_in_a_large_cluster() -> Result<()> {
    let nodes = number("NANOGPU_SIZE_NODES").unwrap_or(5000);
    let pods = number("NANOGPU_SIZE_PODS").unwrap_or(4 * nodes);
    let options = Options::new("size").nodes(0);
    let cluster = tokio::task::spawn_blocking(move || Cluster::for_tests(options)).await??;
    let session = cluster.session()?;
    // Without the policy: here it is us who make up placements.
    bed::account(cluster, &session).await?;
    let namespace = session.namespace("size").await?;
    let started = Instant::now();
    let api: Api<Node> = Api::all(session.client());
    let names = bed::names_of(nodes);
    stream::iter(&names)
        .map(|name| create_node(&api, name))
        .buffer_unordered(16)
        .try_collect::<()>()
        .await?;
    // What a real pod carries besides; all of it is sent to us.
    let padding = "x".repeat(2000);
    let api: Api<Pod> = Api::namespaced(session.client(), &namespace);
    stream::iter(0..pods)
        .map(|n| create_pod(&api, &names[n % nodes], n, &padding))
        .buffer_unordered(32)
        .try_collect::<()>()
        .await?;
    eprintln!("{nodes} nodes and {pods} pods created in {:?}", started.elapsed());
    let scheduler = Scheduler::start_fast(cluster, &[]).await?;
    scheduler.ready().await?;
    let shares = scheduler.get("/api/v1/shares").await?.1.matches("\"uuid\"").count();
    ensure!(shares == pods, "{shares} shares of {pods} are known");
    let (now, most) = scheduler.memory()?;
    eprintln!("after the first lists: {now} MiB, at most {most} MiB");
    // A request by name and one by whole nodes, which is what needs most.
    let asks = percent("asks", 20);
    let by_name = json!({"Pod": asks, "NodeNames": names}).to_string();
    scheduler.post("/scheduler/filter", &by_name).await?;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let (now, most) = scheduler.memory()?;
    eprintln!("ten seconds later, after a filter by names: {now} MiB, at most {most} MiB");
    Ok(())
}

async fn create_node(api: &Api<Node>, name: &str) -> Result<()> {
    let capacity = json!({"cpu": "64", "memory": "512Gi", "pods": "250",
                          "nano-gpu/gpu-percent": (100 * CARDS).to_string()});
    let inventory = bed::inventory("healthy").replace("{node}", name);
    let node = json!({
        "metadata": {"name": name, "annotations": {"nano-gpu/inventory": inventory},
                     "labels": {"kubernetes.io/hostname": name}},
    });
    let params = PostParams::default();
    api.create(&params, &serde_json::from_value(node)?).await?;
    let status = json!({"status": {"capacity": capacity, "allocatable": capacity}});
    api.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await?;
    Ok(())
}

async fn create_pod(api: &Api<Pod>, node: &str, number: usize, padding: &str) -> Result<()> {
    let mut pod = percent(&format!("p{number}"), 20);
    pod["spec"]["nodeName"] = json!(node);
    pod["spec"]["containers"][0]["env"] = json!([{"name": "PADDING", "value": padding}]);
    let card = number % CARDS;
    pod["metadata"]["annotations"] =
        json!({"nano-gpu/placement": format!("v1;{node};main=GPU-{node}-{card}:20%+3276Mi")});
    api.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    Ok(())
}
