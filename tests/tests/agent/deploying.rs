//! What is shipped to run the agent.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use stories::shipped::{SECOND, parts};

use crate::bed::{Bed, NAMESPACE, SIM, SMALL};
use crate::pods::simple;
use crate::processes::programs;

/// The `DaemonSet` as it is shipped.
fn shipped() -> Result<Value> {
    Ok(serde_saphyr::from_str(&parts(SECOND, &["agent/daemonset.yaml"]))?)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_daemonset_is_taken_by_the_api_server_and_is_not_privileged() -> Result<()> {
    let bed = Bed::new().await?;
    let manifest = shipped()?;
    let sets: Api<DaemonSet> = Api::namespaced(bed.session.client(), NAMESPACE);
    let params = PatchParams::apply("stories").dry_run();
    let taken = sets.patch("nanogpu-agent", &params, &Patch::Apply(&manifest)).await?;
    let taken = serde_json::to_value(&taken)?;
    let pod = &taken["spec"]["template"]["spec"];
    // It sees the node's processes, because drivers name only those that the asker sees; no more.
    ensure!(pod["hostPID"] == true, "hostPID");
    for key in ["hostNetwork", "hostIPC"] {
        ensure!(pod[key].is_null() || pod[key] == false, "{key}");
    }
    let container = &pod["containers"][0];
    ensure!(container["securityContext"]["privileged"] == false);
    ensure!(container["securityContext"]["readOnlyRootFilesystem"] == true);
    // Nothing was dropped as unknown: what came back has all we sent.
    ensure!(contains(&taken, &manifest), "{taken:#}\nlacks something of\n{manifest:#}");
    Ok(())
}

/// Whether everything in `part` is in `whole`.
fn contains(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            part.iter().all(|(key, value)| whole.get(key).is_some_and(|has| contains(has, value)))
        }
        (Value::Array(whole), Value::Array(part)) => {
            whole.len() == part.len() && whole.iter().zip(part).all(|(a, b)| contains(a, b))
        }
        _ => whole == part,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_daemonset_runs_and_hands_out_cards_with_no_more_rights_than_it_says() -> Result<()> {
    let bed = Bed::new().await?;
    let folder = tempfile::tempdir()?;
    testbed::write_images(bed.cluster.binaries(), folder.path())?;
    let root = folder.path().join("debian.rootfs");
    std::fs::copy(programs()?.join("nanogpu-agent"), root.join("usr/bin/nanogpu-agent"))?;
    let archive = folder.path().join("agent.tar");
    testbed::Image::new("localhost/nanogpu-agent:1", &root)
        .entrypoint(&["/usr/bin/nanogpu-agent"])
        .write(&archive)?;
    bed.cluster.load_image(SMALL, &archive)?;

    // As it is shipped, but for the image, and where the simulated driver is.
    let mut set = shipped()?;
    let pod = &mut set["spec"]["template"]["spec"];
    pod["schedulerName"] = json!("nanogpu");
    // The other node is another story's.
    pod["nodeSelector"] = json!({"kubernetes.io/hostname": SMALL});
    let machine = json!({"name": "machine", "hostPath": {"path": format!("{SIM}/m")}});
    pod["volumes"].as_array_mut().context("volumes")?.push(machine);
    let container = &mut pod["containers"][0];
    container["image"] = json!("localhost/nanogpu-agent:1");
    container["imagePullPolicy"] = json!("Never");
    let args = container["args"].as_array_mut().context("args")?;
    let given = ["--driver-root", "--isolation"];
    args.retain(|word| !given.iter().any(|it| word.as_str().unwrap_or_default().starts_with(it)));
    for (option, what) in [("driver-root", "driver"), ("dev-root", "dev")] {
        args.push(json!(format!("--{option}=/driver{SIM}/{what}={SIM}/{what}")));
    }
    args.extend([json!("--isolation=none"), json!("--look=1000")]);
    let mount = json!({"name": "machine", "mountPath": "/run/nanogpu-simgpu"});
    container["volumeMounts"].as_array_mut().context("mounts")?.push(mount);

    bed.session.apply(NAMESPACE, &set.to_string()).await?;
    let shown = hands_out(&bed).await;
    let sets: Api<DaemonSet> = Api::namespaced(bed.session.client(), NAMESPACE);
    sets.delete("nanogpu-agent", &DeleteParams::default()).await?;
    let pods = bed.pods(NAMESPACE);
    for pod in
        pods.list(&ListParams::default().labels("app.kubernetes.io/name=nanogpu-agent")).await?
    {
        bed.session.gone::<Pod>(NAMESPACE, &pod.name_any()).await?;
    }
    shown
}

async fn hands_out(bed: &Bed) -> Result<()> {
    let sets: Api<DaemonSet> = Api::namespaced(bed.session.client(), NAMESPACE);
    let is_ready = |set: &DaemonSet| set.status.as_ref().is_some_and(|s| s.number_ready == 1);
    let started = Instant::now();
    while !is_ready(&sets.get("nanogpu-agent").await?) {
        if started.elapsed() > Duration::from_secs(90) {
            let pods = bed.pods(NAMESPACE);
            let of = ListParams::default().labels("app.kubernetes.io/name=nanogpu-agent");
            let mut told = String::new();
            for pod in pods.list(&of).await? {
                told.push_str(&bed.session.story(NAMESPACE, &pod.name_any()).await);
            }
            bail!("the agent's pod is not ready: {told}");
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    bed.offered(SMALL, "nano-gpu/gpu-percent", 400).await?;
    let ns = bed.session.namespace("story-daemon").await?;
    let inventory = bed.inventory(SMALL).await?;
    let placement = format!("v1;{SMALL};main={}:10%+1000Mi", inventory.devices[2].id);
    bed.place(&ns, &simple("pod", 10), SMALL, Some(&placement)).await?;
    bed.session.running(&ns, "pod").await?;
    bed.got_its_own(&ns, "pod", "main", &inventory).await
}
