//! A real node whose kubelet runs kube-scheduler from a folder of manifests, one node of cards, and
//! nanogpu-scheduler as it is shipped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use stories::shipped::{self, DEFAULT};
use testbed::{Binaries, Cluster, FakeNodes, Image, Options, Program, Progress, Session};

pub(crate) const SYSTEM: &str = "nanogpu-system";
/// What stands for `/etc/kubernetes`: nodes of the testbed share `/etc`, and have `/var/lib` each.
const KUBERNETES: &str = "/var/lib/kubernetes";
const MANIFEST: &str = include_str!("../../../crates/installer/tests/manifests/kubeadm-1.36.yaml");
const DEPLOYED: [&str; 4] = [
    shipped::NAMESPACE,
    "scheduler/rbac.yaml",
    "scheduler/placement-policy.yaml",
    "scheduler/service.yaml",
];
const GPU: &str = "gpu-00000";
/// By `--set` it would be a number.
const TAG: &str = "--set-string=kubeadm.image.tag=1";

/// The cluster.
pub(crate) struct Bed {
    pub(crate) session: Session,
    cluster: &'static Cluster,
    /// The manifest as kubeadm wrote it.
    pub(crate) original: String,
    /// The address of the Service that kube-scheduler is to call.
    extender: String,
    helm: PathBuf,
}

/// How a Job ended, and what it said.
pub(crate) struct Done {
    pub(crate) well: bool,
    /// What its container ended with.
    pub(crate) code: Option<i32>,
    pub(crate) said: String,
}

impl Bed {
    pub(crate) async fn new() -> Result<Self> {
        let (cluster, helm) = tokio::task::spawn_blocking(|| {
            let helm = Binaries::apart(Program::Helm, &mut Progress::new())?;
            anyhow::Ok((cluster()?, helm))
        })
        .await??;
        let session = cluster.session()?.patience(Duration::from_mins(2));
        let original = MANIFEST
            .replace("registry.example/kube-scheduler:v1.36.3", "localhost/kube-scheduler:1")
            .replace("imagePullPolicy: IfNotPresent", "imagePullPolicy: Never")
            .replace(
                "path: /etc/kubernetes/scheduler.conf\n      type",
                &format!("path: {KUBERNETES}/scheduler.conf\n      type"),
            );
        let mut bed = Self { session, cluster, original, extender: String::new(), helm };
        fs::create_dir_all(bed.file("manifests"))?;
        let kubeconfig = cluster.layout().kubeconfig();
        fs::copy(
            kubeconfig.with_file_name("config").join("scheduler.kubeconfig"),
            bed.file("scheduler.conf"),
        )?;
        fs::write(bed.file("manifests/kube-scheduler.yaml"), &bed.original)?;
        bed.scheduler_is("kubeadm's", false).await?;
        bed.deploy().await?;
        Ok(bed)
    }

    /// A file of what stands for `/etc/kubernetes`.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.cluster.layout().on_node("node1", &format!("{KUBERNETES}/{name}"))
    }

    pub(crate) fn manifest(&self) -> Result<String> {
        Ok(fs::read_to_string(self.file("manifests/kube-scheduler.yaml"))?)
    }

    /// Waits until the kubelet runs a kube-scheduler that is ready, with our configuration or without.
    pub(crate) async fn scheduler_is(&self, what: &str, ours: bool) -> Result<Pod> {
        let so = |pod: &Pod| {
            let container = pod.spec.as_ref().and_then(|spec| spec.containers.first());
            let words = container.and_then(|it| it.command.clone()).unwrap_or_default();
            let with = words.iter().any(|word| word.starts_with("--config="));
            let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
            let ready = |it: &k8s_openapi::api::core::v1::PodCondition| {
                it.type_ == "Ready" && it.status == "True"
            };
            with == ours && conditions.into_iter().flatten().any(ready)
        };
        self.session.wait("kube-system", "kube-scheduler-node1", what, so).await
    }

    /// nanogpu-scheduler as it is shipped, on the one node that is real.
    async fn deploy(&mut self) -> Result<()> {
        self.session.apply("default", &shipped::parts(DEFAULT, &DEPLOYED)).await?;
        let deployment = shipped::parts(DEFAULT, &["scheduler/deployment.yaml"]);
        let mut deployment: Value = serde_saphyr::from_str(&deployment)?;
        let pod = &mut deployment["spec"]["template"]["spec"];
        pod["nodeSelector"] = json!({"kubernetes.io/hostname": "node1"});
        pod["containers"][0]["image"] = json!("localhost/nanogpu-scheduler:1");
        pod["containers"][0]["imagePullPolicy"] = json!("Never");
        self.session.apply(SYSTEM, &deployment.to_string()).await?;
        agent(self.session.clone());
        let ready = |it: &Deployment| {
            it.status.as_ref().and_then(|status| status.ready_replicas) == Some(2)
        };
        self.session.wait(SYSTEM, "nanogpu-scheduler", "ready", ready).await?;
        let services: Api<Service> = Api::namespaced(self.session.client(), SYSTEM);
        let service = services.get("nanogpu-scheduler-verbs").await?;
        self.extender = service.spec.and_then(|spec| spec.cluster_ip).context("a ClusterIP")?;
        Ok(())
    }

    /// Runs nanogpu-install as the Job of our chart. `dies_at` is where it is killed.
    pub(crate) async fn install(&self, name: &str, words: &[&str], dies_at: &str) -> Result<Done> {
        let action = if words[0] == "rollback" { "rollback" } else { "patch" };
        let set = format!(
            "scheduler.mode=default,scheduler.verbsClusterIP={},kubeadm.nodes={{node1}},\
             kubeadm.action={action},kubeadm.image.repository=localhost/nanogpu-install,\
             image.registry=,image.pullPolicy=Never",
            self.extender
        );
        let helm = self.helm.clone();
        let shown = "templates/scheduler/kubeadm.yaml";
        let job = tokio::task::spawn_blocking(move || {
            testbed::rendered(&helm, &["--show-only", shown, "--set", &set, TAG])
        });
        let mut job: Value = serde_saphyr::from_str(&job.await??)?;
        job["metadata"]["name"] = json!(name);
        // A run that is cut off is to be looked at before the next.
        job["spec"]["backoffLimit"] = json!(0);
        let pod = &mut job["spec"]["template"]["spec"];
        // The first process of a container cannot kill itself.
        pod["shareProcessNamespace"] = json!(true);
        pod["volumes"][0]["hostPath"]["path"] = json!(KUBERNETES);
        let container = &mut pod["containers"][0];
        container["env"] = json!([{"name": "NANOGPU_INSTALL_DIES_AT", "value": dies_at}]);
        let mut args: Vec<String> = serde_json::from_value(container["args"].take())?;
        if words[0] == "status" {
            args.truncate(2);
        }
        words[0].clone_into(&mut args[0]);
        args.extend(words[1..].iter().map(|&word| word.to_owned()));
        args.push(format!("--on-host={KUBERNETES}"));
        container["args"] = json!(args);
        self.session.apply(SYSTEM, &job.to_string()).await?;
        let ended = |job: &Job| {
            let status = job.status.as_ref();
            status.is_some_and(|it| it.succeeded == Some(1) || it.failed.is_some_and(|n| n > 0))
        };
        let job = self.session.wait(SYSTEM, name, "ended", ended).await?;
        let pods: Api<Pod> = Api::namespaced(self.session.client(), SYSTEM);
        let mine = ListParams::default().labels(&format!("job-name={name}"));
        let pods = pods.list(&mine).await?;
        let pod = pods.items.first().context("a pod")?;
        let said = self.session.logs(SYSTEM, &pod.name_any(), "install").await?;
        let well = job.status.is_some_and(|status| status.succeeded == Some(1));
        Ok(Done { well, code: ended_with(pod), said })
    }

    /// The same, which must end well.
    pub(crate) async fn installed(&self, name: &str, words: &[&str]) -> Result<String> {
        let done = self.install(name, words, "").await?;
        ensure!(done.well, "{words:?}: {}", done.said);
        Ok(done.said)
    }

    /// A pod for the cluster's own scheduler is bound; its placement, if it has one.
    pub(crate) async fn bound(&self, name: &str, limits: &Value) -> Result<Option<String>> {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {
                "terminationGracePeriodSeconds": 0, "nodeSelector": {"kubernetes.io/hostname": GPU},
                "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "main", "image": "none", "resources": {"limits": limits}}],
            },
        });
        self.session.apply("default", &pod.to_string()).await?;
        let has_node = |pod: &Pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
        let pod = self.session.wait("default", name, "bound", has_node).await?;
        Ok(pod.annotations().get(model::names::PLACEMENT).cloned())
    }
}

fn ended_with(pod: &Pod) -> Option<i32> {
    let container = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    Some(container.state.as_ref()?.terminated.as_ref()?.exit_code)
}

/// The folder of our programs, built from this tree; `NANOGPU_PROGRAMS` names another, whose programs
/// are taken as they are.
fn programs() -> Result<PathBuf> {
    match std::env::var_os("NANOGPU_PROGRAMS") {
        Some(folder) => Ok(folder.into()),
        None => testbed::built(),
    }
}

/// The image of a program and of the libraries it is linked to.
fn image(folder: &Path, name: &str, program: &Path) -> Result<PathBuf> {
    let root = folder.join(name);
    fs::create_dir_all(root.join("bin"))?;
    let slim = root.join("bin").join(name);
    // What helps a debugger is most of it.
    let stripped = Command::new("strip").arg("-o").arg(&slim).arg(program).status();
    if !stripped.is_ok_and(|status| status.success()) {
        fs::copy(program, &slim)?;
    }
    let listed = Command::new("ldd").arg(program).output()?;
    for line in String::from_utf8_lossy(&listed.stdout).lines() {
        let Some(path) = line.split_whitespace().find(|word| word.starts_with('/')) else {
            continue;
        };
        let to = root.join(path.trim_start_matches('/'));
        fs::create_dir_all(to.parent().context("a folder")?)?;
        fs::copy(path, to)?;
    }
    let archive = folder.join(format!("{name}.tar"));
    Image::new(&format!("localhost/{name}:1"), &root)
        .entrypoint(&[&format!("/bin/{name}")])
        .env("PATH", "/bin")
        .write(&archive)?;
    Ok(archive)
}

fn cluster() -> Result<&'static Cluster> {
    let card = |index: usize| {
        json!({"id": format!("GPU-{index}"), "index": index, "minor": index,
               "model": "NVIDIA A100-PCIE-16GB", "mem": 16_384, "health": "healthy"})
    };
    let inventory = json!({"v": 1, "devices": [card(0), card(1)]}).to_string();
    let fake = FakeNodes::new(1)
        .prefix("gpu-")
        .capacity("nano-gpu/gpu-percent", "200")
        .annotation("nano-gpu/inventory", &inventory);
    let mut options = Options::new("kubeadm").nodes(1).fake(fake);
    // The static pod is the only one.
    options.schedulers.clear();
    // A pod that fails is started again at once, so that the story need not wait.
    options.kubelet_config = format!(
        "staticPodPath: {KUBERNETES}/manifests\ncrashLoopBackOff: {{maxContainerRestartPeriod: 1s}}\n"
    );
    let cluster = Cluster::for_tests(options)?;
    let folder = tempfile::tempdir()?;
    let ours = programs()?;
    let kube_scheduler = cluster.binaries().path(Program::Scheduler);
    for (name, program) in [
        ("kube-scheduler", kube_scheduler),
        ("nanogpu-scheduler", ours.join("nanogpu-scheduler")),
        ("nanogpu-install", ours.join("nanogpu-install")),
    ] {
        cluster.load_image("node1", &image(folder.path(), name, &program)?)?;
    }
    Ok(cluster)
}

/// Plays the agent of the node of cards: renews its Lease.
fn agent(session: Session) {
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let leases: Api<Lease> = Api::namespaced(session.client(), SYSTEM);
            loop {
                let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
                let lease = json!({
                    "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                    "metadata": {"name": GPU, "labels": {"nano-gpu/agent": ""}},
                    "spec": {"holderIdentity": GPU, "renewTime": now},
                });
                let params = PatchParams::apply("agents").force();
                let _ = leases.patch(GPU, &params, &Patch::Apply(lease)).await;
                tokio::time::sleep(Duration::from_secs(2)).await;
            }
        });
    });
}

/// Waits until what is asked is so.
pub(crate) async fn until(what: &str, mut so: impl FnMut() -> Result<bool>) -> Result<()> {
    let started = Instant::now();
    while !so()? {
        if started.elapsed() > Duration::from_mins(1) {
            bail!("never came to be: {what}");
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}
