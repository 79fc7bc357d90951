//! Who may read is what the API server says of their token.

use anyhow::{Result, ensure};
use serde_json::json;

use crate::bed::{Bed, Scheduler, percent, token};

/// Accounts: one with rights in its namespace, one with rights everywhere, one with none.
fn accounts(namespace: &str) -> String {
    let account = |name: &str| {
        json!({"apiVersion": "v1", "kind": "ServiceAccount",
               "metadata": {"name": name, "namespace": namespace}})
    };
    let rules = json!([{"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["list"]}]);
    let bind = |kind: &str, role: &str, to: &str| {
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": format!("{kind}Binding"),
               "metadata": {"name": role, "namespace": (kind == "Role").then_some(namespace)},
               "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
               "subjects": [{"kind": "ServiceAccount", "name": to, "namespace": namespace}]})
    };
    let role = |kind: &str, name: &str| {
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "rules": rules,
               "metadata": {"name": name, "namespace": (kind == "Role").then_some(namespace)}})
    };
    [
        account("member"),
        account("operator"),
        account("outsider"),
        role("Role", "sees-pods"),
        bind("Role", "sees-pods", "member"),
        role("ClusterRole", "sees-everything"),
        bind("ClusterRole", "sees-everything", "operator"),
    ]
    .map(|document| document.to_string())
    .join("\n---\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_opens_what_its_owner_may_list() -> Result<()> {
    let bed = Bed::new().await?;
    let scheduler = Scheduler::start_for_tokens(bed.cluster, &[])?;
    bed.point_at(&scheduler);
    scheduler.ready().await?;
    let namespace = bed.session.namespace("tokens").await?;
    bed.session.apply(&namespace, &accounts(&namespace)).await?;
    bed.create(&namespace, &percent("pod", 20)).await?;
    bed.bound(&namespace, "pod").await?;

    let why = format!("/api/v1/why/{namespace}/pod");
    let elsewhere = "/api/v1/why/kube-system/pod".to_owned();
    let all = ["/api/v1/pods", "/api/v1/nodes", "/api/v1/quotas", "/gpushare-scheduler/inspect"];
    let [member, operator, outsider] = [
        token(&bed.session, &namespace, "member").await?,
        token(&bed.session, &namespace, "operator").await?,
        token(&bed.session, &namespace, "outsider").await?,
    ];
    let mut table = vec![
        (None, why.clone(), 401),
        (Some("made.up.token".to_owned()), why.clone(), 401),
        (Some(outsider.clone()), why.clone(), 403),
        (Some(member.clone()), why.clone(), 200),
        (Some(member.clone()), elsewhere.clone(), 403),
        (Some(operator.clone()), why, 200),
        // They may look, and there is no such pod.
        (Some(operator.clone()), elsewhere, 404),
    ];
    for path in all {
        table.push((None, path.to_owned(), 401));
        table.push((Some(outsider.clone()), path.to_owned(), 403));
        table.push((Some(member.clone()), path.to_owned(), 403));
        table.push((Some(operator.clone()), path.to_owned(), 200));
    }
    for (token, path, expected) in table {
        let (status, body) = scheduler.get_as(&path, token.as_deref()).await?;
        ensure!(status == expected, "{path}: {status} instead of {expected}: {body}");
    }
    let (_, body) = scheduler.get_as("/api/v1/nodes", Some(&outsider)).await?;
    let who = format!("system:serviceaccount:{namespace}:outsider may not list nodes");
    ensure!(body.contains(&who), "{body}");
    // Probes and scrapers need none.
    ensure!(scheduler.get("/healthz").await?.0 == 200);
    Ok(())
}
