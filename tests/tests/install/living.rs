//! The life of an installation.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::json;
use testbed::Session;

use crate::agents;
use crate::audit;
use crate::bed::{BARE, Bed, CARDS, SYSTEM, values, write_values};
use crate::numbers;
use crate::pods::{containers, create, ordinary, tenant, uses_one_card};

#[tokio::test(flavor = "multi_thread")]
async fn the_chart_is_installed_used_upgraded_and_taken_away_and_pods_do_not_notice() -> Result<()>
{
    let bed = Bed::new().await?;
    let session = bed.session.clone();
    let folder = tempfile::tempdir()?;
    let file = write_values(folder.path(), &values())?;
    let chart = testbed::chart().display().to_string();
    let wait = ["--wait", "--timeout", "3m"];
    let install = ["install", "nanogpu", &chart, "--create-namespace", "--values", &file];
    if let Err(error) = bed.helm(&[&install[..], &wait].concat()).await {
        bail!("{error:#}\n{}", stories_of_ours(&session).await?);
    }
    bare_node_is_left_alone(&session).await?;

    // Used: pods of two dialects that name no scheduler, and one that waits until there is room.
    let ns = session.namespace("team").await?;
    create(&session, &ns, &tenant("nano", &json!({"nano-gpu/gpu-percent": 30}))).await?;
    create(&session, &ns, &tenant("share", &json!({"aliyun.com/gpu-mem": 2}))).await?;
    create(&session, &ns, &ordinary("ordinary")).await?;
    for name in ["nano", "share"] {
        uses_one_card(&session, &ns, name).await?;
    }
    session.running(&ns, "ordinary").await?;
    waits_and_is_woken(&bed).await?;
    let doctor = bed.nanogpu(&["doctor"]).await?;
    ensure!(!doctor.lines().any(|line| line.starts_with("fail")), "{doctor}");
    numbers::are_as_dashboards_and_alerts_name_them(&session).await?;
    let before = containers(&session, &ns).await?;

    // Upgraded: both programs start anew.
    let changed = [
        "--reset-then-reuse-values",
        "--set",
        "agent.originalMetrics=true,scheduler.nodePolicy=binpack",
    ];
    let upgrade = ["upgrade", "nanogpu", &chart];
    if let Err(error) = bed.helm(&[&upgrade[..], &changed, &wait].concat()).await {
        bail!("{error:#}\n{}", stories_of_ours(&session).await?);
    }
    ensure!(containers(&session, &ns).await? == before, "an upgrade disturbed pods");
    let later = session.namespace("later").await?;
    create(&session, &later, &tenant("after", &json!({"nano-gpu/gpu-percent": 30}))).await?;
    uses_one_card(&session, &later, "after").await?;

    // What our accounts did is what they may do. What was found is told when all is over.
    let rights = audit::rights_are_as_they_are_used(&bed).await;
    let writes = agents::write_only_what_is_theirs(&bed).await;

    bed.helm(&["uninstall", "nanogpu", "--wait", "--timeout", "3m"]).await?;
    nothing_of_ours_is_left(&bed).await?;
    ensure!(containers(&session, &ns).await? == before, "taking it away disturbed pods");
    create(&session, &ns, &ordinary("after-all")).await?;
    session.running(&ns, "after-all").await?;
    // Nobody is in the way of those who ask for cards either; they wait.
    create(&session, &ns, &tenant("late", &json!({"nano-gpu/gpu-percent": 30}))).await?;
    rights.and(writes)
}

/// The agent runs where there is no card, is ready, and says nothing of the node.
async fn bare_node_is_left_alone(session: &Session) -> Result<()> {
    // helm waits for as many as may be missing during an update, which here is all.
    let is_ready = |set: &DaemonSet| set.status.as_ref().is_some_and(|it| it.number_ready == 2);
    session.wait(SYSTEM, "nanogpu-agent", "ready on both nodes", is_ready).await?;
    let nodes: Api<Node> = Api::all(session.client());
    let offers = async |name: &str| -> Result<bool> {
        let offers =
            nodes.get(name).await?.status.and_then(|it| it.allocatable).unwrap_or_default();
        Ok(offers.contains_key("nano-gpu/gpu-percent"))
    };
    let started = Instant::now();
    while !offers(CARDS).await? {
        ensure!(started.elapsed() < Duration::from_secs(40), "{CARDS} offers nothing");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    ensure!(!offers(BARE).await?, "{BARE} offers cards");
    Ok(())
}

/// A pod for which there is no room is told so, and placed when there is. By its tickets there would
/// be: that each card is more than half full, only we see.
async fn waits_and_is_woken(bed: &Bed) -> Result<()> {
    let session = &bed.session;
    let ns = session.namespace("crowd").await?;
    let limits = json!({"nano-gpu/gpu-percent": 51});
    let crowd = ["one", "two", "three", "four"];
    for name in crowd {
        create(session, &ns, &tenant(name, &limits)).await?;
    }
    for name in crowd {
        session.running(&ns, name).await?;
    }
    create(session, &ns, &tenant("waits", &limits)).await?;
    let started = Instant::now();
    while !bed.nanogpu(&["why", "waits", "-n", &ns]).await?.contains("waits waits") {
        ensure!(started.elapsed() < Duration::from_secs(30), "nobody says why it waits");
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    bed.kubectl(&["delete", "pod", "-n", &ns, "one", "--now"]).await?;
    if let Err(error) = session.running(&ns, "waits").await {
        let why = bed.nanogpu(&["why", "waits", "-n", &ns]).await?;
        bail!("{error:#}\n{why}\n{}", bed.nanogpu(&["inspect"]).await?);
    }
    bed.kubectl(&["delete", "pods", "-n", &ns, "--all", "--now"]).await.map(drop)
}

/// Nothing that the chart made is left, least of all what judges pods.
async fn nothing_of_ours_is_left(bed: &Bed) -> Result<()> {
    let kinds = "mutatingwebhookconfigurations,validatingadmissionpolicies,\
        validatingadmissionpolicybindings,clusterroles,clusterrolebindings,roles,rolebindings,\
        deployments,daemonsets,services,configmaps,networkpolicies,poddisruptionbudgets,serviceaccounts";
    let mine = "app.kubernetes.io/part-of=nanogpu";
    let left = bed.kubectl(&["get", kinds, "-A", "-l", mine, "-o", "name"]).await?;
    ensure!(left.trim().is_empty(), "left behind: {left}");
    Ok(())
}

/// What can be said of our own pods when something did not come to be.
async fn stories_of_ours(session: &Session) -> Result<String> {
    let pods: Api<Pod> = Api::namespaced(session.client(), SYSTEM);
    let mut stories = String::new();
    for pod in pods.list(&ListParams::default()).await? {
        let name = pod.name_any();
        let story = session.story(SYSTEM, &name).await;
        stories.extend([name.as_str(), "\n", &story, "\n"]);
    }
    Ok(stories)
}
