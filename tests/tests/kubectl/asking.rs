//! A person asks, with a token and without, with a scheduler and without.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use serde_json::{Value, json};

use crate::bed::{Bed, SYSTEM};

fn pod(name: &str, limits: &Value) -> String {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "schedulerName": "nanogpu", "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "none", "resources": {"limits": limits}}],
        },
    })
    .to_string()
}

fn percent(name: &str, percent: u32) -> String {
    pod(name, &json!({"nano-gpu/gpu-percent": percent.to_string()}))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_asks_who_has_what_and_why() -> Result<()> {
    let mut bed = Bed::new().await?;
    let team = bed.session.namespace("team").await?;
    let viewer = bed.person(SYSTEM, "nanogpu-viewer").await?;
    let n = team.as_str();

    // Through a tunnel to the pod, over TLS, with the caller's own token.
    let seen = bed.says(&viewer, &["inspect"], "gpu-00000").await?;
    ensure!(!seen.out.contains("was not asked"), "{}", seen.out);
    bed.session.apply(n, &percent("small", 30)).await?;
    let has_node = |pod: &Pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
    bed.session.wait(n, "small", "bound", has_node).await?;
    let seen = bed.says(&viewer, &["inspect", "gpu-00000"], &format!("{n}/small")).await?;
    ensure!(seen.out.contains("30/100") && seen.out.contains("4915/16384"), "{}", seen.out);
    let top = bed.run(&viewer, &["top", "--once"]).await?;
    ensure!(top.out.contains("██████░░░░░░░░░░░░░░  30%"), "{}", top.out);

    // Why: bound, and waiting.
    let why = bed.says(&viewer, &["why", "small", "-n", n], "has 30% of the compute").await?;
    ensure!(why.out.contains("of gpu-00000, NVIDIA A100-PCIE-16GB"), "{}", why.out);
    bed.session.apply(n, &pod("large", &json!({"aliyun.com/gpu-mem": "20"}))).await?;
    let why = bed.says(&viewer, &["-n", n, "why", "large"], "waits:").await?;
    ensure!(why.out.contains("no card of 20480 MiB"), "{}", why.out);
    ensure!(
        why.out.contains("the node's agent has stopped reporting")
            || why.out.contains("no nanogpu agent reports from the node"),
        "{}",
        why.out
    );
    let json = bed.run(&viewer, &["-n", n, "why", "large", "-o", "json"]).await?;
    let json: Value = serde_json::from_str(&json.out)?;
    ensure!(json["state"] == "pending", "{json}");
    let none = bed.run(&viewer, &["-n", n, "why", "nobody"]).await?;
    ensure!(none.code == 1 && none.error.contains(&format!("there is no pod {n}/nobody")));

    // What would happen, without it happening.
    let file = bed.admin().with_extension("pod");
    std::fs::write(&file, percent("new", 80))?;
    let file = file.to_str().context("a path")?;
    let told = bed.run(&viewer, &["-n", n, "simulate", "-f", file]).await?;
    ensure!(told.out.contains(&format!("Pod {n}/new would fit now, on 1 node")), "{}", told.out);
    std::fs::write(file, percent("new", 150))?;
    let told = bed.run(&viewer, &["-n", n, "simulate", "-f", file]).await?;
    ensure!(told.out.contains("could never run as it is written"), "{}", told.out);

    // The doctor finds what is wrong here, and nothing else.
    let doctor = bed.run(&viewer, &["doctor"]).await?;
    for line in [
        "ok    scheduler answers  ready, by port",
        "ok    webhook            there, with a caBundle",
        "ok    placement policy   there, and bound",
        "warn  agents             1 of 2 silent: gpu-00001",
        "ok    cards              4 cards on 2 nodes, all in service",
    ] {
        ensure!(doctor.out.contains(line), "no {line:?} in\n{}", doctor.out);
    }

    // Whoever answers must be vouched for: by another authority the scheduler is not believed.
    let other = bed.admin().with_file_name("pki").join("ca.crt");
    let seen =
        bed.run(&viewer, &["inspect", "--server-ca", other.to_str().context("a path")?]).await?;
    ensure!(seen.out.contains("was not asked") && seen.out.contains("certificate"), "{}", seen.out);

    // An administrator with a certificate has no token: one of the viewer's is asked for.
    let admin = bed.admin();
    let seen = bed.run(&admin, &["inspect", "-o", "yaml"]).await?;
    ensure!(seen.out.contains("source: scheduler"), "{}{}", seen.out, seen.error);
    cordoned(&bed, &admin).await?;

    // A person with no rights is told which are missing.
    let nobody = bed.person(n, "default").await?;
    let seen = bed.run(&nobody, &["inspect"]).await?;
    ensure!(seen.code == 1 && seen.error.contains("cannot list resource"), "{}", seen.error);

    // gpushare's tables come from the objects themselves.
    let table = bed.run(&viewer, &["inspect", "--gpushare"]).await?;
    ensure!(table.out.starts_with("NAME       IPADDRESS"), "{}", table.out);
    ensure!(table.out.contains("gpu-00000  "), "{}", table.out);

    // Without the scheduler, annotations say the same of cards.
    bed.end_scheduler();
    let seen = bed.run(&viewer, &["inspect"]).await?;
    ensure!(seen.out.contains("Shown is what annotations of pods and nodes say."), "{}", seen.out);
    ensure!(
        seen.out.contains(&format!("{n}/small")) && seen.out.contains("4915/16384"),
        "{}",
        seen.out
    );
    let why = bed.run(&viewer, &["-n", n, "why", "large"]).await?;
    ensure!(why.out.contains("kube-scheduler says:"), "{}", why.out);
    Ok(())
}

/// The node says what the agent reads.
async fn cordoned(bed: &Bed, admin: &std::path::Path) -> Result<()> {
    let nodes: Api<Node> = Api::all(bed.session.client());
    let said = async || -> Result<Option<String>> {
        let node = nodes.get("gpu-00000").await?;
        Ok(node.metadata.annotations.and_then(|mut all| all.remove("nano-gpu/cordon")))
    };
    let done = bed.run(admin, &["cordon", "gpu-00000/1"]).await?;
    ensure!(done.out.contains("cordoned: it takes no new pods"), "{}{}", done.out, done.error);
    ensure!(said().await?.as_deref() == Some("GPU-gpu-00000-1"));
    // By the beginning of a UUID that two cards share: nothing is done.
    let unclear = bed.run(admin, &["cordon", "gpu-00000/GPU-gpu"]).await?;
    ensure!(unclear.code == 1 && unclear.error.contains("2 cards of gpu-00000 begin with GPU-gpu"));
    let done = bed.run(admin, &["uncordon", "gpu-00000/GPU-gpu-00000-1"]).await?;
    ensure!(done.out.contains("uncordoned"), "{}", done.out);
    ensure!(said().await?.is_none());
    // Two people at once: neither undoes the other.
    let lines = [["cordon", "gpu-00000/0"], ["cordon", "gpu-00000/1"]];
    let (one, two) = tokio::join!(bed.run(admin, &lines[0]), bed.run(admin, &lines[1]));
    ensure!(one?.code == 0 && two?.code == 0);
    let both = said().await?.context("an annotation")?;
    ensure!(both.contains("GPU-gpu-00000-0") && both.contains("GPU-gpu-00000-1"), "{both}");
    for card in ["gpu-00000/0", "gpu-00000/1"] {
        ensure!(bed.run(admin, &["uncordon", card]).await?.code == 0);
    }
    ensure!(said().await?.is_none());
    Ok(())
}
