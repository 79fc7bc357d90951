//! What a test does with a cluster's API: apply, wait, look inside.

use std::fmt::Debug;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use k8s_openapi::api::core::v1::{Event, Namespace, Node, Pod, ServiceAccount};
use kube::api::{
    AttachParams, DynamicObject, ListParams, LogParams, Patch, PatchParams, PostParams,
};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::GroupVersionKind;
use kube::{Api, Client, Config, ResourceExt, discovery};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::io::AsyncReadExt;

/// How long [`Session::wait`] waits if not told otherwise. It bounds a hang and measures nothing.
const PATIENCE: Duration = Duration::from_secs(90);

/// A client with what tests need around it.
///
/// It belongs to the runtime it is used in, so each test opens its own.
#[derive(Clone)]
pub struct Session {
    config: Config,
    patience: Duration,
}

/// What a command in a container answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
    /// Its exit code.
    pub code: i32,
}

impl Session {
    pub(crate) fn open(kubeconfig: &Path) -> anyhow::Result<Self> {
        let config = Kubeconfig::read_from(kubeconfig)
            .with_context(|| format!("cannot read {}", kubeconfig.display()))?;
        let options = KubeConfigOptions::default();
        let config = crate::block::block_on(Config::from_custom_kubeconfig(config, &options))?
            .context("cannot use the cluster's kubeconfig")?;
        Ok(Self { config, patience: PATIENCE })
    }

    /// The same, that waits no longer than `patience`.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// A client in the calling runtime.
    ///
    /// # Panics
    /// If the certificates that the testbed itself made cannot be used.
    pub fn client(&self) -> Client {
        Client::try_from(self.config.clone()).expect("the testbed's own certificates are good")
    }

    pub(crate) async fn api_ready(&self) -> anyhow::Result<bool> {
        let request = http::Request::get("/readyz").body(Vec::new())?;
        let client = self.client();
        let answer = tokio::time::timeout(Duration::from_secs(5), client.request_text(request));
        Ok(answer.await.is_ok_and(|answer| answer.is_ok_and(|text| text == "ok")))
    }

    /// Pods cannot be created before the account they run as.
    pub(crate) async fn accounts_ready(&self) -> anyhow::Result<bool> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client(), "default");
        Ok(accounts.get_opt("default").await?.is_some())
    }

    pub(crate) async fn nodes_ready(&self, expected: usize) -> anyhow::Result<bool> {
        let nodes: Api<Node> = Api::all(self.client());
        let nodes = nodes.list(&ListParams::default()).await?;
        Ok(nodes.iter().filter(|node| is_ready(node)).count() >= expected)
    }

    /// A namespace of the test's own, ready for pods.
    pub async fn namespace(&self, prefix: &str) -> anyhow::Result<String> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let name = format!("{prefix}-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let namespaces: Api<Namespace> = Api::all(self.client());
        let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        namespaces.create(&PostParams::default(), &namespace).await?;
        self.wait::<ServiceAccount>(&name, "default", "exists", |_| true).await?;
        Ok(name)
    }

    /// Applies every document of a manifest; those without a namespace go to `namespace`.
    pub async fn apply(
        &self,
        namespace: &str,
        manifest: &str,
    ) -> anyhow::Result<Vec<DynamicObject>> {
        let client = self.client();
        let mut applied = Vec::new();
        for document in documents(manifest)? {
            let kind = document.types.clone().context("a document has no kind")?;
            let name = document.metadata.name.clone().context("a document has no name")?;
            let kind = GroupVersionKind::try_from(kind)?;
            let (resource, capabilities) = discovery::pinned_kind(&client, &kind)
                .await
                .with_context(|| format!("the cluster knows no {}", kind.kind))?;
            let api: Api<DynamicObject> = if capabilities.scope == discovery::Scope::Cluster {
                Api::all_with(client.clone(), &resource)
            } else {
                let namespace = document.metadata.namespace.as_deref().unwrap_or(namespace);
                Api::namespaced_with(client.clone(), namespace, &resource)
            };
            let params = PatchParams::apply("testbed").force();
            let object = api
                .patch(&name, &params, &Patch::Apply(&document))
                .await
                .with_context(|| format!("cannot apply {} {name}", kind.kind))?;
            applied.push(object);
        }
        Ok(applied)
    }

    /// Waits until an object is as asked. `what` completes "pod x is not ...".
    pub async fn wait<K>(
        &self,
        namespace: &str,
        name: &str,
        what: &str,
        fits: impl Fn(&K) -> bool,
    ) -> anyhow::Result<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned,
    {
        let api: Api<K> = Api::namespaced(self.client(), namespace);
        let started = Instant::now();
        let mut last: anyhow::Result<Option<K>> = Ok(None);
        while started.elapsed() < self.patience {
            last = api.get_opt(name).await.map_err(anyhow::Error::from);
            if let Ok(Some(object)) = &last
                && fits(object)
            {
                return Ok(object.clone());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let kind = K::kind(&());
        let seen = match last {
            Ok(Some(_)) => format!("{kind} {name} is not: {what}"),
            Ok(None) => format!("{kind} {name} is not there"),
            Err(error) => format!("{kind} {name} cannot be read: {error:#}"),
        };
        bail!("{seen}, after {:?}\n{}", self.patience, self.story(namespace, name).await)
    }

    /// Waits until a pod runs and is ready.
    pub async fn running(&self, namespace: &str, pod: &str) -> anyhow::Result<Pod> {
        self.wait(namespace, pod, "running and ready", pod_is_ready).await
    }

    /// Waits until an object is gone.
    pub async fn gone<K>(&self, namespace: &str, name: &str) -> anyhow::Result<()>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned,
    {
        let api: Api<K> = Api::namespaced(self.client(), namespace);
        let started = Instant::now();
        while started.elapsed() < self.patience {
            if matches!(api.get_opt(name).await, Ok(None)) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        bail!("{} {name} is still there\n{}", K::kind(&()), self.story(namespace, name).await)
    }

    /// What can be said about an object that did not do as it should: conditions, events, logs.
    pub async fn story(&self, namespace: &str, name: &str) -> String {
        let mut lines = Vec::new();
        let pods: Api<Pod> = Api::namespaced(self.client(), namespace);
        if let Ok(Some(pod)) = pods.get_opt(name).await
            && let Some(status) = &pod.status
        {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
            let phase = status.phase.as_deref().unwrap_or("unknown");
            lines.push(format!("  phase {phase}, node {}", node.unwrap_or("none")));
            let init = status.init_container_statuses.iter().flatten();
            for container in init.chain(status.container_statuses.iter().flatten()) {
                let state = serde_json::to_string(&container.state).unwrap_or_default();
                lines.push(format!("  container {}: {state}", container.name));
                let log = self.logs(namespace, name, &container.name).await.unwrap_or_default();
                let log: Vec<&str> = log.lines().collect();
                let last = &log[log.len().saturating_sub(10)..];
                lines.extend(last.iter().map(|line| format!("    {line}")));
            }
        }
        let events = self.events(namespace, name).await.unwrap_or_default();
        lines.extend(events.iter().map(|event| format!("  event {event}")));
        lines.join("\n")
    }

    /// The events about an object, each as `Reason: message`.
    pub async fn events(&self, namespace: &str, name: &str) -> anyhow::Result<Vec<String>> {
        let events: Api<Event> = Api::namespaced(self.client(), namespace);
        let about = ListParams::default().fields(&format!("involvedObject.name={name}"));
        let text = |event: Event| {
            format!("{}: {}", event.reason.unwrap_or_default(), event.message.unwrap_or_default())
        };
        Ok(events.list(&about).await?.into_iter().map(text).collect())
    }

    /// Everything a container has written.
    pub async fn logs(
        &self,
        namespace: &str,
        pod: &str,
        container: &str,
    ) -> anyhow::Result<String> {
        let pods: Api<Pod> = Api::namespaced(self.client(), namespace);
        let params = LogParams { container: Some(container.to_owned()), ..LogParams::default() };
        Ok(pods.logs(pod, &params).await?)
    }

    /// Waits until a container has written what is asked: one that is ready may not have said
    /// everything yet.
    pub async fn says(
        &self,
        namespace: &str,
        pod: &str,
        container: &str,
        fits: impl Fn(&str) -> bool,
    ) -> anyhow::Result<String> {
        let started = Instant::now();
        loop {
            let said = self.logs(namespace, pod, container).await;
            match said {
                Ok(said) if fits(&said) => return Ok(said),
                Ok(said) if started.elapsed() >= self.patience => {
                    bail!("{container} of {pod} says only {said:?}");
                }
                Err(error) if started.elapsed() >= self.patience => {
                    return Err(error)
                        .with_context(|| format!("{container} of {pod} says nothing"));
                }
                Ok(_) | Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    /// Runs a command in a container.
    pub async fn exec(
        &self,
        namespace: &str,
        pod: &str,
        container: &str,
        command: &[&str],
    ) -> anyhow::Result<Output> {
        let pods: Api<Pod> = Api::namespaced(self.client(), namespace);
        let params =
            AttachParams::default().container(container).stdin(false).stdout(true).stderr(true);
        let mut process = pods
            .exec(pod, command.iter().copied(), &params)
            .await
            .with_context(|| format!("cannot run {command:?} in {pod}"))?;
        let mut stdout = process.stdout().context("no standard output")?;
        let mut stderr = process.stderr().context("no standard error")?;
        let status = process.take_status().context("no status")?;
        let (mut out, mut err) = (String::new(), String::new());
        let (read_out, read_err, status) =
            tokio::join!(stdout.read_to_string(&mut out), stderr.read_to_string(&mut err), status);
        read_out?;
        read_err?;
        let status =
            status.ok_or_else(|| anyhow!("{command:?} in {pod} ended without a status"))?;
        Ok(Output { stdout: out, stderr: err, code: exit_code(&status) })
    }
}

/// The exit code that the kubelet wrote into a status.
fn exit_code(status: &k8s_openapi::apimachinery::pkg::apis::meta::v1::Status) -> i32 {
    if status.status.as_deref() == Some("Success") {
        return 0;
    }
    let causes = status.details.iter().flat_map(|details| details.causes.iter().flatten());
    causes
        .filter(|cause| cause.reason.as_deref() == Some("ExitCode"))
        .find_map(|cause| cause.message.as_ref()?.parse().ok())
        .unwrap_or(-1)
}

fn documents(manifest: &str) -> anyhow::Result<Vec<DynamicObject>> {
    let documents: Vec<Option<DynamicObject>> =
        serde_saphyr::from_multiple(manifest).context("the manifest is no YAML of Kubernetes")?;
    Ok(documents.into_iter().flatten().collect())
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn pod_is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    pod.metadata.deletion_timestamp.is_none()
        && conditions
            .into_iter()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True")
        && !pod.name_any().is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifests_have_several_documents_and_gaps() {
        let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n---\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: b}\n";
        let names: Vec<String> =
            documents(text).unwrap().iter().map(ResourceExt::name_any).collect();
        assert_eq!(names, ["a", "b"]);
        assert!(documents("a: [").is_err());
    }

    #[test]
    fn exit_codes_come_from_the_causes() {
        let status = |value| serde_json::from_value(value).unwrap();
        assert_eq!(exit_code(&status(json!({"status": "Success"}))), 0);
        let failed = json!({"status": "Failure", "details": {"causes": [{"reason": "ExitCode", "message": "7"}]}});
        assert_eq!(exit_code(&status(failed)), 7);
        assert_eq!(exit_code(&status(json!({"status": "Failure"}))), -1);
    }
}
