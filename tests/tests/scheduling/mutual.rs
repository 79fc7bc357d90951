//! The cluster's own kube-scheduler, which calls us with mutual TLS, by the configuration we ship.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use serde_json::json;
use testbed::Session;

use crate::bed::{Bed, CONFIG, EXTENDER, RELAYED, Scheduler, annotation, node_of, percent};

/// Enough that several are being bound at a time.
const PODS: usize = 24;
const MUTUAL: &str = include_str!("../../../deploy/kube-scheduler/default-scheduler.yaml");

/// The shipped configuration, for us at `address`. As an administrator does, the files of the Secret are put where
/// kube-scheduler reads them.
pub(crate) async fn config(session: &Session, folder: &Path, address: &str) -> Result<String> {
    let secrets: Api<Secret> = Api::namespaced(session.client(), "nanogpu-system");
    let secret = secrets.get("nanogpu-scheduler-tls").await?;
    let data = secret.data.context("a Secret with files")?;
    for name in ["ca.crt", "client.crt", "client.key"] {
        std::fs::write(folder.join(name), &data.get(name).context(name)?.0)?;
    }
    let folder = folder.to_str().context("a name")?;
    Ok(MUTUAL.replace("10.96.0.50:39443", address).replace("/etc/kubernetes/nanogpu", folder))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_default_scheduler_calls_us_with_mutual_tls() -> Result<()> {
    let bed = Bed::new().await?;
    let secure = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let mut scheduler = Scheduler::start(bed.cluster, &["--secure-address", &secure.to_string()])?;
    scheduler.ready().await?;
    let outcome = called(&bed, &mut scheduler, secure).await;
    bed.cluster.configure_scheduler("kube-scheduler", CONFIG)?;
    outcome
}

async fn called(bed: &Bed, scheduler: &mut Scheduler, secure: SocketAddr) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let config = config(&bed.session, folder.path(), EXTENDER).await?;
    // Whoever calls the address of the cluster reaches our TLS from now on.
    let plain = std::mem::replace(&mut scheduler.address, secure);
    bed.point_at(scheduler);
    scheduler.address = plain;
    bed.cluster.configure_scheduler("kube-scheduler", &config)?;
    let namespace = bed.session.namespace("mutual").await?;
    let before = RELAYED.load(Ordering::Relaxed);
    for n in 0..PODS {
        let mut pod = percent(&format!("p{n}"), 10);
        // No name at all: it is the cluster's own that serves it.
        pod["spec"].as_object_mut().context("a spec")?.remove("schedulerName");
        bed.create(&namespace, &pod).await?;
    }
    for n in 0..PODS {
        let bound = bed.bound(&namespace, &format!("p{n}")).await?;
        let placement = annotation(&bound, "nano-gpu/placement").context("a placement")?;
        ensure!(placement.contains(node_of(&bound).context("bound")?), "{placement}");
    }
    // All of it on one connection, whose handshake is paid once; another may have been made in its place.
    let made = RELAYED.load(Ordering::Relaxed) - before;
    ensure!(made <= 2, "{made} connections for {PODS} pods");
    // Without a certificate nobody gets that far: plain HTTP is no answer there.
    scheduler.address = secure;
    let body = json!({"PodName": "p0"}).to_string();
    let plain_call = scheduler.post("/scheduler/bind", &body).await;
    scheduler.address = plain;
    ensure!(plain_call.is_err(), "{plain_call:?}");
    ensure!(bed.nothing_sold_twice().await? == PODS);
    Ok(())
}
