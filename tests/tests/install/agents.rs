//! An agent writes its own node and its own Lease, whatever its role would let it do.

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod, ServiceAccount};
use kube::api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use serde_json::{Value, json};

use crate::bed::{BARE, Bed, CARDS, SYSTEM};
use crate::pods::{create, ordinary};

/// As if somebody had given agents every right there is.
const EVERYTHING: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: all-to-agents}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects:
- {kind: ServiceAccount, name: nanogpu-agent, namespace: nanogpu-system}
";

pub(crate) async fn write_only_what_is_theirs(bed: &Bed) -> Result<()> {
    let ns = bed.session.namespace("prey").await?;
    create(&bed.session, &ns, &ordinary("prey")).await?;
    bed.session.running(&ns, "prey").await?;
    bed.session.apply("default", EVERYTHING).await?;
    let told = judged(bed, &ns).await;
    bed.kubectl(&["delete", "clusterrolebinding", "all-to-agents"]).await?;
    told
}

async fn judged(bed: &Bed, ns: &str) -> Result<()> {
    let client = agent_of(bed, CARDS).await?;
    let nodes: Api<Node> = Api::all(client.clone());
    let pods: Api<Pod> = Api::namespaced(client.clone(), ns);
    let leases: Api<Lease> = Api::namespaced(client.clone(), SYSTEM);
    let of_kubelets: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
    let params = PatchParams::default();
    let note = Patch::Merge(json!({"metadata": {"annotations": {"nano-gpu/note": "x"}}}));
    let held = Patch::Merge(json!({"spec": {"holderIdentity": "x"}}));

    // Its own, it writes.
    nodes.patch(CARDS, &params, &note).await.context("its own node")?;
    let amount = Patch::Merge(json!({"status": {"capacity": {"nano-gpu/x": "1"}}}));
    nodes.patch_status(CARDS, &params, &amount).await.context("its own status")?;
    leases.patch(CARDS, &params, &held).await.context("its own Lease")?;

    let own = "writes its own node and its own Lease only";
    refused(nodes.patch(BARE, &params, &note).await, own, "another node")?;
    refused(nodes.patch_status(BARE, &params, &amount).await, own, "another's status")?;
    refused(leases.patch(BARE, &params, &held).await, own, "another's Lease")?;
    refused(leases.patch("nanogpu-scheduler", &params, &held).await, own, "the leader's Lease")?;
    refused(
        of_kubelets.patch(CARDS, &params, &held).await,
        "in nanogpu-system only",
        "a kubelet's",
    )?;
    let changes = "the annotations and the status of its node only";
    for (what, patch) in [
        ("labels", json!({"metadata": {"labels": {"x": "y"}}})),
        ("cordons", json!({"spec": {"unschedulable": true}})),
    ] {
        refused(nodes.patch(CARDS, &params, &Patch::Merge(patch)).await, changes, what)?;
    }
    refused(nodes.delete(CARDS, &DeleteParams::default()).await, changes, "deletes its node")?;

    let nothing = "writes nothing on pods";
    refused(pods.patch("prey", &params, &note).await, nothing, "a pod")?;
    refused(pods.patch_status("prey", &params, &note).await, nothing, "a pod's status")?;
    refused(pods.delete("prey", &DeleteParams::default()).await, nothing, "deletes a pod")?;
    refused(pods.evict("prey", &EvictParams::default()).await, nothing, "evicts a pod")?;
    let pod = serde_json::from_value(ordinary("made"))?;
    refused(pods.create(&PostParams::default(), &pod).await, nothing, "makes a pod")?;

    // A token that names no node is nobody's.
    let nobody: Api<Node> = Api::all(with_token(bed, &json!({})).await?);
    refused(nobody.patch(CARDS, &params, &note).await, "a token of its pod", "no node")?;
    ensure!(bed.session.running(ns, "prey").await?.metadata.deletion_timestamp.is_none());
    Ok(())
}

fn refused<T>(outcome: kube::Result<T>, why: &str, what: &str) -> Result<()> {
    match outcome {
        Err(kube::Error::Api(status)) if status.message.contains(why) => Ok(()),
        Err(error) => bail!("{what}: refused for another reason: {error}"),
        Ok(_) => bail!("{what}: an agent may"),
    }
}

/// A client with the token that the agent's pod on `node` has.
async fn agent_of(bed: &Bed, node: &str) -> Result<Client> {
    let pods: Api<Pod> = Api::namespaced(bed.session.client(), SYSTEM);
    let of = ListParams::default()
        .labels("app.kubernetes.io/name=nanogpu-agent")
        .fields(&format!("spec.nodeName={node}"));
    let pod = pods.list(&of).await?.items.pop().context("an agent")?;
    let (name, uid) = (pod.name_any(), pod.uid());
    let bound = json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid});
    with_token(bed, &json!({"boundObjectRef": bound})).await
}

async fn with_token(bed: &Bed, spec: &Value) -> Result<Client> {
    let accounts: Api<ServiceAccount> = Api::namespaced(bed.session.client(), SYSTEM);
    let mut spec = spec.clone();
    spec["audiences"] = json!([]);
    let request: TokenRequest = serde_json::from_value(json!({"spec": spec}))?;
    let made =
        accounts.create_token_request("nanogpu-agent", &PostParams::default(), &request).await?;
    let mut config = Kubeconfig::read_from(bed.cluster.layout().kubeconfig())?;
    for user in &mut config.auth_infos {
        let token = made.status.clone().context("a token")?.token;
        user.auth_info = Some(serde_json::from_value(json!({"token": token}))?);
    }
    let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}
