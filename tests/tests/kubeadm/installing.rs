//! The story: cut off, put in, once more, broken, taken out.

use anyhow::{Result, ensure};
use serde_json::json;

use crate::bed::{Bed, until};

const SHIPPED: &str = include_str!("../../../deploy/kube-scheduler/default-scheduler.yaml");
/// How a person who is in a hurry looks at kube-scheduler.
const SOON: [&str; 4] = ["--within", "90", "--steady", "3"];
/// What a container ends with that was killed.
const KILLED: i32 = 137;

fn with<'a>(words: &[&'a str]) -> Vec<&'a str> {
    words.iter().copied().chain(SOON).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn nanogpu_goes_into_the_clusters_own_scheduler_and_out_again() -> Result<()> {
    let bed = Bed::new().await?;
    let share = json!({"nano-gpu/gpu-percent": "20"});
    // As kubeadm left it: kube-scheduler counts, and knows no card.
    ensure!(bed.bound("before", &share).await?.is_none(), "nobody was to place it");

    // Killed right after the manifest was replaced.
    let cut = bed.install("cut-off", &with(&["patch"]), "replaced").await?;
    ensure!(cut.code == Some(KILLED), "ended with {:?}: {}", cut.code, cut.said);
    let said = bed.installed("after-the-cut", &["status"]).await?;
    ensure!(said.contains("a run was cut off; `patch` finishes it"), "{said}");

    // The next run finishes, looks, and is content.
    let said = bed.installed("patch", &with(&["patch"])).await?;
    ensure!(said.contains("kube-scheduler runs with nanogpu"), "{said}");
    bed.scheduler_is("ours", true).await?;
    let placed = bed.bound("placed", &share).await?;
    ensure!(
        placed.as_deref().is_some_and(|text| text.starts_with("v1;gpu-00000;main=GPU-")),
        "{placed:?}"
    );
    ensure!(bed.bound("ordinary", &json!({"cpu": "10m"})).await?.is_none());

    // Once more changes nothing, and kube-scheduler is not started anew.
    let (manifest, pod) = (bed.manifest()?, bed.scheduler_is("ours", true).await?);
    let said = bed.installed("again", &with(&["patch"])).await?;
    ensure!(said.contains("nothing to write"), "{said}");
    ensure!(bed.manifest()? == manifest);
    ensure!(bed.scheduler_is("ours", true).await?.metadata.uid == pod.metadata.uid);

    // Out again: every byte, and kube-scheduler counts as it did.
    let said = bed.installed("rollback", &with(&["rollback"])).await?;
    ensure!(said.contains("kube-scheduler runs as before"), "{said}");
    out(&bed).await?;
    ensure!(bed.bound("after", &share).await?.is_none(), "nobody was to place it");

    // Settings that kube-scheduler does not take: it is rolled back by itself, and says why.
    std::fs::write(
        bed.file("bad.yaml"),
        SHIPPED.replace("percentageOfNodesToScore: 100", "percentageOfNodesToScore: 1000"),
    )?;
    let words =
        ["patch", "--settings", "/host/etc/kubernetes/bad.yaml", "--within", "30", "--steady", "3"];
    let bad = bed.install("bad", &words, "").await?;
    ensure!(!bad.well, "{}", bad.said);
    ensure!(bad.said.contains("Rolling back."), "{}", bad.said);
    ensure!(bad.said.contains("rolled back, kube-scheduler runs as before"), "{}", bad.said);
    ensure!(bad.said.contains("kube-scheduler does not answer"), "{}", bad.said);
    out(&bed).await?;
    ensure!(bed.bound("still", &share).await?.is_none());
    Ok(())
}

/// Nothing of ours is left.
async fn out(bed: &Bed) -> Result<()> {
    ensure!(bed.manifest()? == bed.original, "the manifest is not as it was");
    for folder in ["nanogpu", "nanogpu-install"] {
        until(&format!("{folder} is gone"), || Ok(!bed.file(folder).exists())).await?;
    }
    bed.scheduler_is("kubeadm's", false).await?;
    Ok(())
}
