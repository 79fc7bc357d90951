//! One real node, through which tunnels go, two made-up ones with cards, and nanogpu-scheduler beside.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use stories::shipped::{self, SECOND};
use testbed::{BASE, Cluster, FakeNodes, Options, Session};

pub(crate) const SYSTEM: &str = "nanogpu-system";
const EXTENDER: &str = "127.0.0.1:39999";
const OURS: &str = "system:serviceaccount:nanogpu-system:nanogpu-scheduler";
const CONFIG: &str = include_str!("../../../deploy/kube-scheduler/own-scheduler.yaml");
const PARTS: [&str; 4] =
    [shipped::NAMESPACE, "scheduler/rbac.yaml", "scheduler/placement-policy.yaml", "viewer.yaml"];

/// The cluster, and the scheduler beside it.
pub(crate) struct Bed {
    pub(crate) session: Session,
    cluster: &'static Cluster,
    scheduler: Child,
}

/// What a program said.
pub(crate) struct Said {
    pub(crate) out: String,
    pub(crate) error: String,
    pub(crate) code: i32,
}

impl Bed {
    pub(crate) async fn new() -> Result<Self> {
        let cluster = tokio::task::spawn_blocking(cluster).await??;
        let session = cluster.session()?;
        session.apply("default", &shipped::parts(SECOND, &PARTS)).await?;
        // The scheduler is a process outside; inside, its ports lead to it. A pod of the node's own
        // network stands for the pod it would be, so that a tunnel to that pod ends at it.
        let free = || TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr());
        let (verbs, api) = (free()?, free()?);
        relay(cluster.listen(EXTENDER)?, verbs);
        let inside = cluster.listen("127.0.0.1:0")?;
        let port = inside.local_addr()?.port();
        relay(inside, api);
        let webhook = shipped::parts(SECOND, &["scheduler/webhook.yaml"]);
        let mut webhook: Value = serde_saphyr::from_str(&webhook)?;
        let url = format!("https://127.0.0.1:{port}/admission");
        webhook["webhooks"][0]["clientConfig"] = json!({"url": url});
        session.apply("default", &webhook.to_string()).await?;
        let scheduler = start(cluster, verbs, api)?;
        let bed = Self { session, cluster, scheduler };
        bed.stand_in(port).await?;
        bed.agents();
        bed.trusted().await?;
        Ok(bed)
    }

    async fn stand_in(&self, port: u16) -> Result<()> {
        let labels = json!({"app.kubernetes.io/name": "nanogpu-scheduler"});
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "nanogpu-scheduler-0", "labels": labels},
            "spec": {
                "nodeName": "node1", "hostNetwork": true, "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "stands-in", "image": BASE, "command": ["sleep", "3600"]}],
            },
        });
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "nanogpu-scheduler"},
            "spec": {"selector": labels, "ports": [{"name": "api", "port": 443, "targetPort": port}]},
        });
        self.session.apply(SYSTEM, &pod.to_string()).await?;
        self.session.apply(SYSTEM, &service.to_string()).await?;
        let is_ready = |pod: &Pod| {
            let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
            conditions.into_iter().flatten().any(|it| it.type_ == "Ready" && it.status == "True")
        };
        self.session.wait(SYSTEM, "nanogpu-scheduler-0", "ready", is_ready).await?;
        Ok(())
    }

    /// Plays the agent of the first node. That of the second was heard long ago.
    fn agents(&self) {
        let session = self.session.clone();
        thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let leases: Api<Lease> = Api::namespaced(session.client(), SYSTEM);
                loop {
                    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
                    for (node, at) in
                        [("gpu-00000", now.as_str()), ("gpu-00001", "2026-01-01T00:00:00.000000Z")]
                    {
                        let lease = json!({
                            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                            "metadata": {"name": node, "labels": {"nano-gpu/agent": ""}},
                            "spec": {"holderIdentity": node, "renewTime": at},
                        });
                        let params = PatchParams::apply("agents").force();
                        let _ = leases.patch(node, &params, &Patch::Apply(lease)).await;
                    }
                    tokio::time::sleep(Duration::from_secs(2)).await;
                }
            });
        });
    }

    /// Waits until the scheduler wrote its authority into the webhook: then it serves.
    async fn trusted(&self) -> Result<()> {
        let path =
            "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/nanogpu-scheduler";
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(40) {
            let request = http::Request::get(path).body(Vec::new())?;
            let webhook: Value = self.session.client().request(request).await?;
            if webhook["webhooks"][0]["clientConfig"]["caBundle"].is_string() {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        bail!("nanogpu-scheduler wrote no caBundle")
    }

    /// A kubeconfig of an account with a token, as people with single sign-on have.
    pub(crate) async fn person(&self, namespace: &str, account: &str) -> Result<PathBuf> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.session.client(), namespace);
        let request: TokenRequest = serde_json::from_value(json!({"spec": {"audiences": []}}))?;
        let made = accounts.create_token_request(account, &PostParams::default(), &request).await?;
        let token = made.status.context("a token")?.token;
        let text = std::fs::read_to_string(self.admin())?;
        let mut config: Value = serde_saphyr::from_str(&text)?;
        config["users"][0]["user"] = json!({"token": token});
        let path = self.admin().with_extension(account);
        std::fs::write(&path, config.to_string())?;
        Ok(path)
    }

    /// The kubeconfig of an administrator with a certificate.
    pub(crate) fn admin(&self) -> PathBuf {
        self.cluster.layout().kubeconfig()
    }

    /// Runs `kubectl nanogpu`.
    pub(crate) async fn run(&self, kubeconfig: &std::path::Path, line: &[&str]) -> Result<Said> {
        let mut command = Command::new(testbed::built()?.join("kubectl-nanogpu"));
        command.arg("--kubeconfig").arg(kubeconfig).args(line).stdin(Stdio::null());
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        let said = Said {
            out: String::from_utf8(output.stdout)?,
            error: String::from_utf8(output.stderr)?,
            code: output.status.code().unwrap_or(-1),
        };
        // Seen with --nocapture, by whoever wants to look.
        println!("$ kubectl nanogpu {}\n{}{}", line.join(" "), said.out, said.error);
        Ok(said)
    }

    /// Waits until the program says this.
    pub(crate) async fn says(
        &self,
        kubeconfig: &std::path::Path,
        line: &[&str],
        text: &str,
    ) -> Result<Said> {
        let started = Instant::now();
        loop {
            let said = self.run(kubeconfig, line).await?;
            if said.out.contains(text) {
                return Ok(said);
            }
            ensure!(
                started.elapsed() < Duration::from_secs(40),
                "{line:?} never said {text:?} but\n{}{}",
                said.out,
                said.error
            );
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }

    pub(crate) fn end_scheduler(&mut self) {
        let _ = self.scheduler.kill();
        let _ = self.scheduler.wait();
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.end_scheduler();
    }
}

fn cluster() -> Result<&'static Cluster> {
    // Built before the cluster is up, so that it waits for no compiler.
    testbed::built()?;
    let card = |index: usize| {
        json!({"id": format!("GPU-{{node}}-{index}"), "index": index, "minor": index,
               "model": "NVIDIA A100-PCIE-16GB", "mem": 16_384})
    };
    let inventory = json!({"v": 1, "devices": [card(0), card(1)]}).to_string();
    let nodes = FakeNodes::new(2)
        .prefix("gpu-")
        .annotation("nano-gpu/inventory", &inventory)
        .capacity("nano-gpu/gpu-percent", "200")
        .capacity("aliyun.com/gpu-mem", "32")
        .capacity("aliyun.com/gpu-count", "2");
    Cluster::for_tests(Options::new("ask").nodes(1).fake(nodes).scheduler(CONFIG))
}

fn start(cluster: &Cluster, verbs: SocketAddr, api: SocketAddr) -> Result<Child> {
    let text = std::fs::read_to_string(cluster.layout().kubeconfig())?;
    let mut config: Value = serde_saphyr::from_str(&text)?;
    config["users"][0]["user"]["as"] = json!(OURS);
    let ours = cluster.layout().kubeconfig().with_extension("ours");
    std::fs::write(&ours, config.to_string())?;
    let log = std::fs::File::create(cluster.layout().log("nanogpu-scheduler"))?;
    let child = Command::new(testbed::built()?.join("nanogpu-scheduler"))
        .arg("--kubeconfig")
        .arg(ours)
        .args(["--address", &verbs.to_string(), "--api-address", &api.to_string()])
        .args(["--namespace", SYSTEM, "--lease-seconds", "2", "--log-form", "plain"])
        .env_remove("KUBECONFIG")
        .env_remove("PORT")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()?;
    Ok(child)
}

/// Takes connections in the cluster to the scheduler outside.
fn relay(listener: TcpListener, target: SocketAddr) {
    thread::spawn(move || {
        for inside in listener.incoming().flatten() {
            let Ok(outside) = TcpStream::connect(target) else { continue };
            let both = [
                (inside.try_clone(), outside.try_clone()),
                (outside.try_clone(), inside.try_clone()),
            ];
            for (from, to) in both {
                let (Ok(mut from), Ok(mut to)) = (from, to) else { continue };
                thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Both);
                });
            }
        }
    });
}
